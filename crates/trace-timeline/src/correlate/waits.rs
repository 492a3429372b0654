//! The CPU that a woken thread waits for.
//!
//! The kernel reports a wake-up before it chooses a CPU: the record has the one on which the thread last ran. If the
//! kernel puts the thread into another queue, it does not wait for what executes there. So the occupant of the wait
//! is not known until the thread gets a CPU, or a record says in which queue it is.
//!
//! A thread that gets the CPU on which it last ran has waited for all that this one executed meanwhile. One that gets
//! another CPU has waited for its occupant, if that is the same since the wake-up. Otherwise the last occupant has
//! its share, and what was before is not known: the thread may have been in a third queue. A CPU that became idle
//! after the wake-up did not have the thread in its queue.
//!
//! The open interval is divided then, also that of what the thread executes. Intervals that ended meanwhile for
//! another reason stay as they are.

use super::early::{Woken, WokenOnCpu};
use super::place::{Kind, Place, Running, Seen};
use super::{Correlator, Out};
use crate::entity::EntityId;
use trace_common::Timestamp;

/// The longest time, in nanoseconds, from the record of a wake-up to that of the choice of a CPU: the kernel does
/// nothing else meanwhile. A thread that it moves later was in a queue before.
const TO_CHOOSE: i64 = 100_000;

/// A wait that ends, or whose CPU becomes known.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// As which place it is shown.
    kind: Kind,
    cpu: EntityId,
    /// Whether the thread was in the queue of this CPU all the time.
    is_queue: bool,
}

impl Correlator {
    /// A kernel thread is woken. One that is about to sleep can be woken before it leaves its CPU. `kind` says how
    /// much is known of its queue.
    pub(super) fn wake(
        &mut self,
        thread: EntityId,
        kind: Kind,
        cpu: Option<EntityId>,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get_mut(thread.key()) else { return };
        if subject.place.is_on_cpu() {
            subject.woken_on_cpu = WokenOnCpu::at(at);
        } else if !subject.place.is_queued() {
            self.enqueue(thread, kind, cpu, at, out);
        }
    }

    /// A thread waits for this CPU from now on.
    fn enqueue(
        &mut self,
        thread: EntityId,
        kind: Kind,
        cpu: Option<EntityId>,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get(thread.key()) else { return };
        // Of a CPU whose switches are not recorded, or only those of other threads, nothing says when the thread
        // gets it. If the CPU is not known, a switch of the thread says that they are.
        let has_switch = subject.place.kind() != Kind::Unknown || subject.times.on_cpu > 0;
        if cpu.is_none() && !has_switch {
            return;
        }
        let is_recorded = |cpu: &EntityId| {
            let cpu = self.cpus.get(cpu.key());
            cpu.is_some_and(|cpu| cpu.has_all_threads || (has_switch && cpu.is_recorded))
        };
        let unrecorded = cpu.filter(|cpu| !is_recorded(cpu));
        let place = match unrecorded {
            None => Place::new(kind, self.with_room(thread, cpu)),
            Some(_) => Place::UNKNOWN,
        };
        if place != subject.place {
            self.count_requesters(at);
            self.move_thread(thread, place, at, out);
        }
        // Unless they begin later. Of several wake-ups the last one counts: the thread ran between them.
        if let Some(cpu) = unrecorded.filter(|cpu| self.cpus.contains(cpu.key())) {
            self.woken.insert(thread, Woken { since: at, cpu });
        }
    }

    /// The CPU, unless too many other threads wait for it.
    fn with_room(&self, thread: EntityId, cpu: Option<EntityId>) -> Option<EntityId> {
        let has_room = |cpu: &EntityId| self.cpus.get(cpu.key()).is_none_or(|cpu| !cpu.is_full());
        let own = self.place(thread).queue();
        cpu.filter(|cpu| own == Some(*cpu) || has_room(cpu))
    }

    /// A thread that waits is in the queue of this CPU from now on; before, it was in that of `from` if the kernel
    /// moves it.
    pub(super) fn queue(
        &mut self,
        thread: EntityId,
        from: Option<EntityId>,
        cpu: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get(thread.key()) else { return };
        let (before, since) = (subject.place, subject.times.since);
        if !before.is_queued() {
            // One that may wait: it is known once it gets a CPU.
            if let Some(woken) = self.woken.get_mut(&thread) {
                woken.cpu = cpu;
            }
            return;
        }
        if before.is_woken() {
            let is_choice = at.nanos_since(since) <= TO_CHOOSE;
            let wait = match from.filter(|_| !is_choice) {
                Some(from) => Wait { kind: Kind::Woken, cpu: from, is_queue: true },
                None => Wait { kind: Kind::Queued, cpu, is_queue: true },
            };
            self.count_requesters(at);
            self.learn_wait(thread, wait, at, out);
        } else if before.cpu() == Some(cpu) {
            return;
        }
        if before.kind() == Kind::Preempted {
            self.count_requesters(at);
            let place = Place::new(Kind::Preempted, self.with_room(thread, Some(cpu)));
            self.move_thread(thread, place, at, out);
        } else {
            self.enqueue(thread, Kind::Queued, Some(cpu), at, out);
        }
    }

    /// A woken thread gets this CPU.
    pub(super) fn end_wait(
        &mut self,
        thread: EntityId,
        cpu: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        // Without the CPU on which it last ran, it is no record of the kernel.
        if let Some(before) = self.place(thread).cpu() {
            let wait = Wait { kind: Kind::Woken, cpu, is_queue: before == cpu };
            self.learn_wait(thread, wait, at, out);
        }
    }

    /// It becomes known what a woken thread has waited for up to now.
    fn learn_wait(
        &mut self,
        thread: EntityId,
        wait: Wait,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get(thread.key()) else { return };
        let (before, woken) = (Seen::new(subject.place, Running::UNKNOWN), subject.times.since);
        let executed = self.executed_by(thread);
        let Self { subjects, cpus, pauses, options, .. } = self;
        let Some(cpu) = cpus.get(wait.cpu.key()) else { return };
        let place = Place::new(wait.kind, Some(wait.cpu));
        let occupants = cpu.occupants(woken, at, wait.is_queue);
        for id in executed {
            let Some(subject) = subjects.get_mut(id.key()) else { continue };
            if subject.shown.kernel != before || !subject.has_intervals(*options) {
                continue;
            }
            let since = subject.since;
            subject.learn_kernel(id, Seen::new(place, Running::UNKNOWN), since, *options, out);
            // One interval has one occupant: the first one, if it has begun by then.
            let shown = occupants.clone().filter(|o| options.occupants || o.since <= since);
            for occupied in shown {
                let seen = Seen::new(place, occupied.running.other_than(thread));
                subject.learn_kernel(id, seen, occupied.since, *options, out);
            }
        }
        pauses.learn_occupants(
            thread,
            (woken, at),
            occupants.map(|o| (o.since, o.running.other_than(thread).occupant())),
        );
    }
}
