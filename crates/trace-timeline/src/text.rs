//! Entities, durations and the pieces of critical paths as text.
//!
//! Names come from programs and can contain any character: escape the result for a terminal.

use crate::answers::{Piece, Request, What};
use crate::correlate::{Kernel, Occupant};
use crate::entity::{EntityId, EntityKind};
use crate::event::{Context, SpanKind};
use crate::tables::Tables;

/// An entity as text: `main.worker (G7)`, `server (thread 1234)`.
pub fn name(tables: &Tables, id: EntityId) -> String {
    use EntityKind as Kind;
    let Some(entity) = tables.entities.get(id) else { return "?".to_owned() };
    let (name, number) = (tables.str(entity.name), entity.number);
    let name = name.into_owned();
    let number = match entity.kind {
        Kind::Goroutine => format!("G{number}"),
        Kind::Proc => return format!("P{number}"),
        Kind::Cpu => return format!("CPU {number}"),
        Kind::Process if number < 0 => return name,
        Kind::Process => format!("process {number}"),
        Kind::Thread => format!("thread {number}"),
        Kind::GoThread => return format!("M {number}"),
        Kind::DotnetThread => format!("thread {number}"),
        Kind::Task => format!("task {number}"),
        _ => format!("{number}"),
    };
    if name.is_empty() { number } else { format!("{name} ({number})") }
}

/// A duration in nanoseconds with three or four digits and its unit: `1.5 ms`.
pub fn duration(nanos: i64) -> String {
    let value = nanos as f64;
    match nanos.unsigned_abs() {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{:.1} us", value / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// What a [`Piece`] was spent on: a stable name such as `waits_for_cpu`, and a phrase.
pub fn piece(piece: &Piece, tables: &Tables) -> (&'static str, String) {
    let reasons = [piece.reason, piece.waiter_reason];
    let reason = reasons.into_iter().find(|reason| !reason.is_empty());
    let reason = reason.map_or("something".into(), |reason| tables.str(reason));
    match piece.what {
        What::OnCpu { cpu } => ("on_cpu", format!("ran on {}", name(tables, cpu))),
        What::Running => ("running", "ran".to_owned()),
        What::Syscall => ("syscall", "in a system call".to_owned()),
        What::WaitsForCpu { occupant, is_preempted } => {
            let text = match (occupant, is_preempted) {
                (Occupant::Thread(by), true) => format!("preempted by {}", name(tables, by)),
                (Occupant::Thread(by), false) => {
                    format!("waited for the CPU of {}", name(tables, by))
                }
                (Occupant::Idle, true) => {
                    "preempted, CPU idle (CPU quota, cpuset or migration)".to_owned()
                }
                (Occupant::Idle, false) => "woken, CPU idle (wake-up latency or quota)".to_owned(),
                (_, true) => "preempted".to_owned(),
                (_, false) => "waited for a CPU".to_owned(),
            };
            ("waits_for_cpu", text)
        }
        What::WaitsForProc { proc, holder, kernel } => {
            let proc = proc.map_or("a P".to_owned(), |proc| name(tables, proc));
            let text = match (holder, kernel) {
                (Some(holder), _) => format!("runnable, {proc} ran {}", name(tables, holder)),
                (None, Kernel::Absent) => format!("runnable, {proc} was idle (wake-up latency)"),
                (None, Kernel::Runnable { occupant: Occupant::Thread(by), .. }) => {
                    format!("runnable, the thread of {proc} waited for {}", name(tables, by))
                }
                (None, Kernel::Runnable { .. }) => {
                    format!("runnable, the thread of {proc} had no CPU")
                }
                (None, _) => format!("runnable, {proc} was between goroutines"),
            };
            ("waits_for_p", text)
        }
        What::Throttled => (
            "throttled",
            "throttled: the CPU quota of its cgroup was used up (cpu.stat)".to_owned(),
        ),
        What::Queued { starvation: 0 } => {
            ("queued", "its work item waited in the queue of the thread pool".to_owned())
        }
        What::Queued { starvation } => {
            let text = format!(
                "its work item waited for a worker: thread-pool starvation, the other workers were \
                 blocked and the pool added {starvation}"
            );
            ("queued", text)
        }
        What::Blocked => ("blocked", "blocked in the kernel (disk, page or lock)".to_owned()),
        What::Stopped => ("stopped", "stopped".to_owned()),
        What::Waits { context } => {
            let by = match context {
                Context::SoftIrq => ", ended by a software interrupt (network, timer)",
                Context::HardIrq => ", ended by a hardware interrupt",
                _ => "",
            };
            ("waits", format!("waited for {reason}{by}"))
        }
        What::Unknown => ("unknown", "not known".to_owned()),
    }
}

/// The garbage collector's or runtime's part in a [`Piece`], if it has one.
pub fn during(piece: &Piece, tables: &Tables) -> Option<String> {
    let (kind, name) = piece.during?;
    let name = tables.str(name);
    Some(match kind {
        SpanKind::GcAssist => "GC assist".to_owned(),
        SpanKind::StopTheWorld => format!("stop-the-world: {name}"),
        SpanKind::Jit => format!("JIT {name}"),
        SpanKind::LockWait => format!("lock {name}"),
        _ => name.into_owned(),
    })
}

/// A [`Request`]: `task "checkout" on main.serve (G7)`.
pub fn request(request: &Request, tables: &Tables) -> String {
    let text = tables.str(request.name);
    let kind = match request.kind {
        _ if text.is_empty() => return name(tables, request.subject),
        SpanKind::Task => "task",
        SpanKind::Activity => "activity",
        _ => "region",
    };
    format!("{kind} {text:?} on {}", name(tables, request.subject))
}
