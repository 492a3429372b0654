//! Third pass: converts times to nanoseconds and validates the events in their order.
//!
//! These are the checks of Go's reader: if any of them fails, the trace has no events at all. The
//! pass also adds data that only neighbouring events contain: the P to unblocks, and to system
//! calls whether they block.

use super::event::{Event, Goroutines, Procs};
use super::scan::Scan;
use super::wire::Type;
use super::{args_of, inconsistent};
use crate::error::{Error, ErrorKind, Inconsistency};
use crate::spec::EventType;
use std::collections::HashSet;
use trace_common::SeededState;

/// Sorts events by their final times.
pub(super) fn fix_times(data: &[u8], scan: &Scan, events: &mut [Event]) -> Result<(), Error> {
    move_syscall_exits(data, scan, events)?;
    let Some(first) = events.first() else { return Ok(()) };
    let start = first.time;
    let nanos_per_tick = 1e9 / scan.frequency as f64;
    for event in events {
        event.time = to_nanos(event.time.wrapping_sub(start), nanos_per_tick);
        match event.ty {
            Type::GO_UNBLOCK if scan.timers.contains(&scan.goroutines.id(event.go)) => {
                event.proc = Procs::TIMER;
            }
            Type::GO_SYSCALL_EXIT => event.proc = Procs::SYSCALL,
            _ => {}
        }
    }
    Ok(())
}

/// A return from a system call is written when the goroutine runs again, and contains the time of
/// the return. The event gets that time.
#[expect(
    clippy::indexing_slicing,
    reason = "blocked_at has every goroutine; stay <= index in the first loop, stay < end <= len in the second"
)]
fn move_syscall_exits(data: &[u8], scan: &Scan, events: &mut [Event]) -> Result<(), Error> {
    let mut blocked_at = vec![0; scan.goroutines.ids.len()];
    let mut exits = Vec::new();
    // Takes out the events that move; each records the number of remaining events before it.
    let mut stay = 0;
    for index in 0..events.len() {
        let event = events[index];
        match event.ty {
            Type::GO_SYSCALL_BLOCK | Type::GO_IN_SYSCALL => {
                blocked_at[event.go as usize] = event.time;
            }
            Type::GO_SYSCALL_EXIT => {
                // The local variant has no third argument; Go's reader treats it the same way.
                let (args, count) = args_of(data, &event)?;
                let time = if count > 3 { args[3] as i64 } else { 0 };
                let blocked_at = blocked_at[event.go as usize];
                if time != 0 && blocked_at == 0 {
                    let id = scan.goroutines.id(event.go) as i64;
                    let wrong = Inconsistency::WrongState { what: "goroutine", id };
                    return Err(inconsistent(&event, wrong));
                }
                if time != 0 && time < blocked_at {
                    return Err(Error::at(u64::from(event.at), ErrorKind::TimeOrder));
                }
                if time != 0 {
                    exits.push((Event { time, ..event }, stay));
                    continue;
                }
            }
            _ => {}
        }
        events[stay] = event;
        stay += 1;
    }
    // Merges both from the end. The order of events with the same time is kept.
    exits.sort_by_key(|(exit, _)| exit.time);
    let mut end = events.len();
    while let Some((exit, before)) = exits.pop() {
        let comes_later = |event: &Event, stay: usize| {
            event.time > exit.time || (event.time == exit.time && stay > before)
        };
        while stay > 0 && comes_later(&events[stay - 1], stay) {
            (stay, end) = (stay - 1, end - 1);
            events[end] = events[stay];
        }
        end -= 1;
        events[end] = exit;
    }
    Ok(())
}

/// As Go's conversion on x86-64, which returns the least integer for values out of range.
fn to_nanos(ticks: i64, nanos_per_tick: f64) -> i64 {
    let nanos = ticks as f64 * nanos_per_tick;
    const LIMIT: f64 = -(i64::MIN as f64); // 2^63, exactly
    if (-LIMIT..LIMIT).contains(&nanos) { nanos as i64 } else { i64::MIN }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Status {
    #[default]
    Dead,
    Runnable,
    Running,
    Waiting,
}

#[derive(Clone, Copy, Default)]
struct Goroutine {
    /// Whether any event has mentioned it.
    known: bool,
    status: Status,
    assists: bool,
    /// Whether its last event was to wait for the network.
    network: bool,
    /// Its innermost open region, as a number from 1; 0 for none.
    region: u32,
    /// Its last event, as a number from 1, if that was a system call.
    syscall: u32,
}

#[derive(Clone, Copy, Default)]
struct Proc {
    running: bool,
    sweeps: bool,
    go: u32,
}

/// An open region and the region that encloses it.
#[derive(Clone, Copy)]
struct Region {
    task: u64,
    name: u64,
    outer: u32,
}

struct Checker<'a> {
    data: &'a [u8],
    scan: &'a Scan,
    goroutines: Vec<Goroutine>,
    procs: Vec<Proc>,
    regions: Vec<Region>,
    tasks: HashSet<u64, SeededState>,
    collecting: bool,
    stopped: bool,
}

/// Checks all events and completes them.
pub(super) fn check(data: &[u8], scan: &Scan, events: &mut [Event]) -> Result<(), Error> {
    let mut checker = Checker {
        data,
        scan,
        goroutines: vec![Goroutine::default(); scan.goroutines.ids.len()],
        procs: vec![Proc::default(); scan.procs.ids.len()],
        regions: Vec::new(),
        tasks: HashSet::default(),
        collecting: false,
        stopped: false,
    };
    let none = checker.go(Goroutines::NONE);
    (none.known, none.status) = (true, Status::Running);
    for index in 0..events.len() {
        let (before, rest) = events.split_at_mut(index);
        let Some(event) = rest.first_mut() else { break };
        // Only the next event of the goroutine shows whether a system call blocks.
        let go = checker.go(event.go);
        let syscall = std::mem::take(&mut go.syscall);
        if event.ty == Type::GO_SYSCALL_BLOCK && syscall != 0 {
            if let Some(call) = before.get_mut(syscall as usize - 1) {
                call.blocks = true;
            }
        }
        if event.ty == Type::GO_SYSCALL {
            go.syscall = index as u32 + 1;
        }
        checker.event(event)?;
    }
    Ok(())
}

impl Checker<'_> {
    #[expect(
        clippy::indexing_slicing,
        reason = "events have numbers of the scan, each with an entry"
    )]
    #[inline]
    fn go(&mut self, number: u32) -> &mut Goroutine {
        &mut self.goroutines[number as usize]
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "events have numbers of the scan, each with an entry"
    )]
    #[inline]
    fn on(&mut self, number: u16) -> &mut Proc {
        &mut self.procs[usize::from(number)]
    }

    fn event(&mut self, event: &mut Event) -> Result<(), Error> {
        match event.ty {
            Type::PROC_START | Type::PROC_STOP => self.proc(event),
            Type::GC_START | Type::GC_DONE | Type::STW_START | Type::STW_DONE => {
                self.collector(event)
            }
            Type::GC_SWEEP_START | Type::GC_SWEEP_DONE => self.sweep(event),
            Type::GC_MARK_ASSIST_START => {
                self.touch(event.go);
                let assists = &mut self.go(event.go).assists;
                if std::mem::replace(assists, true) {
                    let range = EventType::GC_MARK_ASSIST_BEGIN;
                    return Err(inconsistent(event, Inconsistency::Range { range, open: true }));
                }
                Ok(())
            }
            Type::GC_MARK_ASSIST_DONE => {
                // The region may have begun before the trace.
                self.touch(event.go);
                self.go(event.go).assists = false;
                Ok(())
            }
            Type::GO_WAITING | Type::GO_IN_SYSCALL => {
                self.require(event, event.go, Status::Runnable)?;
                self.set(event.go, Status::Waiting);
                Ok(())
            }
            Type::GO_CREATE => self.create(event),
            Type::GO_START | Type::GO_START_LABEL => self.start(event),
            Type::GO_END | Type::GO_STOP => {
                self.leave(event)?;
                let go = self.go(event.go);
                go.status = Status::Dead;
                if event.ty == Type::GO_END {
                    go.region = 0;
                }
                Ok(())
            }
            Type::GO_SCHED | Type::GO_PREEMPT => {
                self.leave(event)?;
                self.set(event.go, Status::Runnable);
                Ok(())
            }
            Type::GO_UNBLOCK => self.unblock(event),
            Type::GO_SYSCALL => {
                self.require_running(event, false)?;
                self.go(event.go).network = false;
                Ok(())
            }
            Type::GO_SYSCALL_BLOCK => {
                self.leave(event)?;
                self.go(event.go).status = Status::Waiting;
                Ok(())
            }
            Type::GO_SYSCALL_EXIT => {
                self.require(event, event.go, Status::Waiting)?;
                self.set(event.go, Status::Runnable);
                Ok(())
            }
            Type::GO_SLEEP
            | Type::GO_BLOCK
            | Type::GO_BLOCK_SEND
            | Type::GO_BLOCK_RECV
            | Type::GO_BLOCK_SELECT
            | Type::GO_BLOCK_SYNC
            | Type::GO_BLOCK_COND
            | Type::GO_BLOCK_NET
            | Type::GO_BLOCK_GC => {
                self.leave(event)?;
                self.set(event.go, Status::Waiting);
                self.go(event.go).network = event.ty == Type::GO_BLOCK_NET;
                Ok(())
            }
            Type::USER_TASK_CREATE => {
                let ([_, task, ..], _) = args_of(self.data, event)?;
                if self.tasks.insert(task) {
                    Ok(())
                } else {
                    let id = task as i64;
                    Err(inconsistent(event, Inconsistency::Exists { what: "task", id }))
                }
            }
            Type::USER_TASK_END => {
                let ([_, task, ..], _) = args_of(self.data, event)?;
                self.tasks.remove(&task);
                Ok(())
            }
            Type::USER_REGION => self.region(event),
            _ => Ok(()),
        }
    }

    fn id(&self, go: u32) -> i64 {
        self.scan.goroutines.id(go) as i64
    }

    fn touch(&mut self, go: u32) {
        self.go(go).known = true;
    }

    /// Sets the status of a goroutine; the current event becomes its last one.
    fn set(&mut self, go: u32, status: Status) {
        let go = self.go(go);
        go.status = status;
        go.network = false;
    }

    fn require(&mut self, event: &Event, go: u32, status: Status) -> Result<(), Error> {
        if self.go(go).status == status {
            return Ok(());
        }
        let wrong = Inconsistency::WrongState { what: "goroutine", id: self.id(go) };
        Err(inconsistent(event, wrong))
    }

    /// Requires that the goroutine of the event runs on its P.
    fn require_running(&mut self, event: &Event, none_may: bool) -> Result<(), Error> {
        self.require(event, event.go, Status::Running)?;
        let proc = *self.on(event.proc);
        if proc.go != event.go {
            return Err(inconsistent(event, self.not_running(event)));
        }
        if event.go == Goroutines::NONE && !none_may {
            let wrong = Inconsistency::Context { what: "goroutine", wanted: true };
            return Err(inconsistent(event, wrong));
        }
        Ok(())
    }

    fn not_running(&self, event: &Event) -> Inconsistency {
        Inconsistency::NotRunning {
            proc: self.scan.procs.id(event.proc).into(),
            goroutine: self.id(event.go),
        }
    }

    /// Stops the goroutine of the event on its P.
    fn leave(&mut self, event: &Event) -> Result<(), Error> {
        self.require_running(event, false)?;
        self.on(event.proc).go = Goroutines::NONE;
        Ok(())
    }

    fn busy(&mut self, event: &Event) -> Error {
        let proc = self.scan.procs.id(event.proc).into();
        let go = self.on(event.proc).go;
        let goroutine = self.id(go);
        inconsistent(event, Inconsistency::Busy { proc, goroutine })
    }

    fn proc(&mut self, event: &Event) -> Result<(), Error> {
        let start = event.ty == Type::PROC_START;
        let proc = *self.on(event.proc);
        if proc.running == start {
            let id = self.scan.procs.id(event.proc).into();
            return Err(inconsistent(event, Inconsistency::WrongState { what: "proc", id }));
        }
        if !start && proc.go != Goroutines::NONE {
            return Err(self.busy(event));
        }
        self.on(event.proc).running = start;
        Ok(())
    }

    fn collector(&mut self, event: &mut Event) -> Result<(), Error> {
        let (open, begins, range) = match event.ty {
            Type::GC_START => (&mut self.collecting, true, EventType::GC_BEGIN),
            Type::GC_DONE => (&mut self.collecting, false, EventType::GC_BEGIN),
            Type::STW_START => (&mut self.stopped, true, EventType::STW_BEGIN),
            _ => (&mut self.stopped, false, EventType::STW_BEGIN),
        };
        if std::mem::replace(open, begins) == begins {
            return Err(inconsistent(event, Inconsistency::Range { range, open: begins }));
        }
        if event.ty == Type::GC_START {
            event.proc = Procs::COLLECTOR;
        }
        Ok(())
    }

    fn sweep(&mut self, event: &Event) -> Result<(), Error> {
        let begins = event.ty == Type::GC_SWEEP_START;
        let sweeps = &mut self.on(event.proc).sweeps;
        if std::mem::replace(sweeps, begins) == begins {
            let range = EventType::GC_SWEEP_BEGIN;
            return Err(inconsistent(event, Inconsistency::Range { range, open: begins }));
        }
        Ok(())
    }

    fn create(&mut self, event: &Event) -> Result<(), Error> {
        self.require_running(event, true)?;
        if self.go(event.target).known {
            let id = self.id(event.target);
            return Err(inconsistent(event, Inconsistency::Exists { what: "goroutine", id }));
        }
        self.touch(event.target);
        self.set(event.target, Status::Runnable);
        Ok(())
    }

    fn start(&mut self, event: &Event) -> Result<(), Error> {
        self.require(event, event.go, Status::Runnable)?;
        if self.on(event.proc).go != Goroutines::NONE {
            return Err(self.busy(event));
        }
        self.on(event.proc).go = event.go;
        self.set(event.go, Status::Running);
        Ok(())
    }

    fn unblock(&mut self, event: &mut Event) -> Result<(), Error> {
        self.require(event, event.go, Status::Running)?;
        if event.proc != Procs::TIMER && self.on(event.proc).go != event.go {
            return Err(inconsistent(event, self.not_running(event)));
        }
        self.require(event, event.target, Status::Waiting)?;
        if self.go(event.target).network {
            event.proc = Procs::NETWORK;
        }
        self.set(event.target, Status::Runnable);
        Ok(())
    }

    fn region(&mut self, event: &Event) -> Result<(), Error> {
        let ([_, task, mode, name, _], _) = args_of(self.data, event)?;
        let innermost = self.go(event.go).region;
        let after = match mode {
            0 => {
                self.regions.push(Region { task, name, outer: innermost });
                self.regions.len() as u32
            }
            1 if innermost == 0 => 0, // the region began before the trace
            1 => {
                #[expect(
                    clippy::indexing_slicing,
                    reason = "a region's number is its place, from 1"
                )]
                let open = self.regions[innermost as usize - 1];
                if (open.task, open.name) != (task, name) {
                    let wrong = Inconsistency::Region(self.id(event.go));
                    return Err(inconsistent(event, wrong));
                }
                open.outer
            }
            _ => return Err(inconsistent(event, Inconsistency::RegionMode(mode))),
        };
        self.go(event.go).region = after;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds_as_in_go() {
        assert_eq!(to_nanos(3, 1e9 / 15_625_000.0), 192);
        assert_eq!(to_nanos(-3, 0.5), -1);
        assert_eq!(to_nanos(i64::MAX, 1.0), i64::MIN, "rounds up to 2^63");
        assert_eq!(to_nanos(i64::MIN, 1.0), i64::MIN);
        assert_eq!(to_nanos(i64::MAX, 1e9), i64::MIN);
    }
}
