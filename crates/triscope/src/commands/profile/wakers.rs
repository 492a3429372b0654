//! The threads and interrupts that end waits.

use crate::failure::{Failure, Result};
use crate::run::procfs::is_in_container;
use crate::sources::kernel;
use perf_monitor::Event as PerfEvent;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use trace_export::profile::Label;
use trace_timeline::sources::perf::PREEMPTED;
use trace_timeline::{
    Context, Entity, EntityId, Event, EventKind, FlowKind, Frame, SampleKind, StackId, Tables,
    TextId, Timestamp,
};

/// Maximum number of threads whose last wake-up is kept.
const MAX_THREADS: usize = 1 << 20;

/// The event of wake-ups: it happens in the thread of the waker.
pub(super) fn event() -> Result<PerfEvent> {
    if is_in_container() {
        let why = "--wakers: wake-ups have the numbers that threads have in the initial PID \
                   namespace, and this is another one";
        return Err(Failure::new(why));
    }
    kernel::event("sched:sched_waking").map_err(|error| {
        kernel::failure(error).and("--wakers needs the tracepoint sched_waking of tracefs")
    })
}

/// A wake-up.
#[derive(Clone, Copy, Debug)]
struct Waking {
    at: Timestamp,
    /// The name of the waker.
    name: TextId,
    /// Its number; `None` for an interrupt.
    thread: Option<i64>,
    stack: Option<StackId>,
}

/// Finds the waker of each wait.
#[derive(Debug)]
pub(super) struct Wakers {
    last: HashMap<EntityId, Waking>,
    /// The frames between a wait and its waker.
    marks: HashSet<TextId>,
    keys: [TextId; 2],
    interrupt: TextId,
    /// The innermost function of a thread that was preempted.
    preempted: TextId,
    /// After the end: the time of the latest wait, and how many up to then lack a wake-up.
    open: Option<(Timestamp, u64)>,
    /// The labels of the last sample.
    labels: Vec<(TextId, Label)>,
    by_threads: u64,
    by_interrupts: u64,
    unknown: u64,
}

impl Wakers {
    pub(super) fn new(tables: &mut Tables) -> Self {
        let [waker, thread, interrupt, preempted] =
            ["waker", "waker_thread", "interrupt", PREEMPTED]
                .map(|text| tables.text(text.as_bytes()));
        Self {
            last: HashMap::new(),
            marks: HashSet::new(),
            keys: [waker, thread],
            interrupt,
            preempted,
            open: None,
            labels: Vec::new(),
            by_threads: 0,
            by_interrupts: 0,
            unknown: 0,
        }
    }

    /// Learns of a wake-up, or adds the waker to the sample of a wait: its frames and labels. Returns
    /// the labels.
    pub(super) fn apply(&mut self, event: &mut Event, tables: &mut Tables) -> &[(TextId, Label)] {
        self.labels.clear();
        match &mut event.kind {
            EventKind::Flow { kind: FlowKind::Wakes, from, context, to, stack, .. } => {
                let is_interrupt = matches!(context, Context::HardIrq | Context::SoftIrq);
                let waker = from.and_then(|from| tables.entities.get(from).copied());
                let waking = match waker {
                    Some(Entity { number, name, .. }) => {
                        let name = match name.is_empty() {
                            true => tables.text(format!("thread {number}").as_bytes()),
                            false => name,
                        };
                        Waking { at: event.time, name, thread: Some(number), stack: *stack }
                    }
                    None if is_interrupt => {
                        Waking { at: event.time, name: self.interrupt, thread: None, stack: None }
                    }
                    None => return &[],
                };
                if self.last.len() < MAX_THREADS || self.last.contains_key(to) {
                    self.last.insert(*to, waking);
                }
            }
            EventKind::Sample { entity, kind: SampleKind::OffCpu, stack, weight, .. } => {
                let waking = self.last.remove(entity);
                // It could have gone on: nothing wakes it.
                let innermost = stack.and_then(|stack| tables.frames(stack).first());
                let is_it =
                    |frame: &Frame| frame.mapping.is_none() && frame.function == self.preempted;
                if innermost.is_some_and(is_it) {
                    return &[];
                }
                // One before the wait is not its end.
                let away = i64::try_from(*weight).unwrap_or(i64::MAX);
                let waking = waking.filter(|waking| event.time.nanos_since(waking.at) <= away);
                match waking {
                    Some(waking) => {
                        *stack = self.joined(*stack, &waking, tables);
                        self.label(&waking);
                    }
                    None => self.without_wake_up(event.time),
                }
            }
            _ => {}
        }
        &self.labels
    }

    /// Of the waits that follow, those up to the latest time have not ended: they have no wake-up. Earlier ones were
    /// held until their stacks were complete.
    pub(super) fn end(&mut self) {
        self.open = Some((Timestamp::default(), 0));
    }

    fn without_wake_up(&mut self, at: Timestamp) {
        match &mut self.open {
            Some((latest, count)) if at == *latest => *count += 1,
            Some((latest, count)) if at > *latest => {
                self.unknown += *count;
                (*latest, *count) = (at, 1);
            }
            _ => self.unknown += 1,
        }
    }

    fn label(&mut self, waking: &Waking) {
        let [waker, thread] = self.keys;
        self.labels.push((waker, Label::Text(waking.name)));
        match waking.thread {
            Some(number) => {
                self.labels.push((thread, Label::Number(number)));
                self.by_threads += 1;
            }
            None => self.by_interrupts += 1,
        }
    }

    /// The frames of the waker, a frame with its name, and the frames of the wait.
    fn joined(
        &mut self,
        wait: Option<StackId>,
        waking: &Waking,
        tables: &mut Tables,
    ) -> Option<StackId> {
        let name = format!("[woken by {}]", tables.str(waking.name));
        let function = tables.text(name.as_bytes());
        self.marks.insert(function);
        let of = |stack: Option<StackId>| stack.map_or(&[][..], |stack| tables.frames(stack));
        let mark = Frame { function, ..Frame::default() };
        let frames = [of(waking.stack), &[mark], of(wait)].concat();
        tables.stack(&frames)
    }

    /// Names the functions of a stack by `name`. The waker's begin with the innermost one then: it is
    /// next to the wait.
    pub(super) fn named(
        &self,
        stack: StackId,
        tables: &mut Tables,
        mut name: impl FnMut(StackId, &mut Tables) -> Option<StackId>,
    ) -> Option<StackId> {
        let frames = tables.frames(stack);
        let is_mark =
            |frame: &Frame| frame.mapping.is_none() && self.marks.contains(&frame.function);
        let Some(mark) = frames.iter().position(is_mark) else { return name(stack, tables) };
        let (waker, rest) = frames.split_at(mark);
        let Some((mark, wait)) = rest.split_first() else { return Some(stack) };
        let (mark, waker, wait) = (*mark, waker.to_vec(), wait.to_vec());
        let mut named = |frames: &[Frame]| {
            let stack = tables.stack(frames)?;
            let stack = name(stack, tables)?;
            Some(tables.frames(stack).to_vec())
        };
        let mut frames = named(&waker).unwrap_or(waker);
        frames.reverse();
        frames.push(mark);
        frames.extend(named(&wait).unwrap_or(wait));
        tables.stack(&frames)
    }

    /// How many waits have a waker.
    pub(super) fn notes(&self) -> String {
        let mut text = format!("; {} ended by threads", self.by_threads);
        for (count, what) in
            [(self.by_interrupts, "by interrupts"), (self.unknown, "without a recorded wake-up")]
        {
            if count > 0 {
                // Writing to a string does not fail.
                let _ = write!(text, ", {count} {what}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::SampledEvent;

    #[test]
    fn waits_that_ended_have_a_wake_up_or_lack_it() {
        let (mut tables, mut made) = (Tables::new(), Vec::new());
        let mut wakers = Wakers::new(&mut tables);
        let at = Timestamp::from_nanos;
        let mut thread = |tid| tables.thread(tid, at(0), &mut made).unwrap();
        let (waiter, waker) = (thread(7), thread(8));
        let name = tables.text(b"off-cpu");
        let event = tables.add_sampled_event(SampledEvent { name, unit: name, has_others: false });
        let mut stack = |functions: &[&str]| {
            let function = |name: &&str| tables.text(name.as_bytes());
            let functions: Vec<TextId> = functions.iter().map(function).collect();
            let frame = |function| Frame { function, ..Frame::default() };
            tables.stack(&functions.into_iter().map(frame).collect::<Vec<_>>())
        };
        let (read, spin) = (stack(&["read"]), stack(&[PREEMPTED, "spin"]));
        let back = |nanos, stack| {
            let (kind, weight) = (SampleKind::OffCpu, 10);
            let (entity, thread, cpu, of) = (waiter, None, None, None);
            let kind = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
            Event { time: at(nanos), kind }
        };
        let (from, context, on) = (Some(waker), Context::Task, None);
        let kind = FlowKind::Wakes;
        let kind = EventKind::Flow { kind, from, context, on, to: waiter, cpu: None, stack: None };
        let wakes = Event { time: at(15), kind };

        // Without a wake-up, it was preempted.
        for mut event in [back(10, spin), wakes, back(20, read)] {
            wakers.apply(&mut event, &mut tables);
        }
        assert_eq!(wakers.notes(), "; 1 ended by threads");
        wakers.apply(&mut back(30, read), &mut tables);
        assert_eq!(wakers.notes(), "; 1 ended by threads, 1 without a recorded wake-up");
        // It waits until the profile ends.
        wakers.end();
        wakers.apply(&mut back(40, read), &mut tables);
        assert_eq!(wakers.notes(), "; 1 ended by threads, 1 without a recorded wake-up");
        // That was held for its stack. Those of the last record, and one that comes after them.
        for nanos in [50, 50, 45] {
            wakers.apply(&mut back(nanos, read), &mut tables);
        }
        assert_eq!(wakers.notes(), "; 1 ended by threads, 3 without a recorded wake-up");
    }
}
