//! Entities, durations and the pieces of critical paths as text.
//!
//! Names come from programs and can contain any character: escape the result for a terminal.

use crate::answers::{OffCpu, Piece, Request, Waker, What};
use crate::correlate::{Kernel, Occupant, Pause, Stop};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{Context, LossKind, SpanKind};
use crate::tables::{Dropped, Frame, StackId, Tables, TextId};
use std::borrow::Cow;

/// The numbers of what did not fit into the tables, with the consequence. Those that are 0 are left
/// out.
pub fn dropped(dropped: Dropped) -> impl Iterator<Item = (u64, &'static str)> {
    let Dropped { texts, stacks, mappings, entities } = dropped;
    let counts = [
        (entities, "goroutines or threads are missing: there are too many"),
        (texts, "names are shown as ?: there are too many"),
        (stacks, "stacks are missing: there are too many"),
        (mappings, "frames lack their module: there are too many"),
    ];
    counts.into_iter().filter(|(count, _)| *count > 0)
}

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
        Kind::Gc => return format!("GC {number}"),
        Kind::Heap | Kind::ThreadPool | Kind::Machine => return name,
        _ => format!("{number}"),
    };
    if name.is_empty() { number } else { format!("{name} ({number})") }
}

/// A thread with its process, if that says more: `opt cgu.03 (thread 17206) of rustc (16996)`. So are
/// goroutines and .NET threads if there are [several runtimes](crate::Entities::has_several_runtimes).
/// Other entities as in [`name`].
pub fn with_process(tables: &Tables, id: EntityId) -> String {
    let text = name(tables, id);
    let Some(entity) = tables.entities.get(id) else { return text };
    let process = entity.parent.and_then(|process| tables.entities.get(process));
    let Some(process) = process.filter(|process| match entity.kind {
        // The main thread has the number of its process.
        EntityKind::Thread => process.number >= 0 && process.number != entity.number,
        EntityKind::Goroutine | EntityKind::DotnetThread => tables.entities.has_several_runtimes(),
        _ => false,
    }) else {
        return text;
    };
    of_process(text, process, tables)
}

/// A text about a part of a process, with the process.
fn of_process(text: String, process: &Entity, tables: &Tables) -> String {
    let pid = process.number;
    match &*tables.str(process.name) {
        "" if pid < 0 => text,
        "" => format!("{text} of process {pid}"),
        // A Go trace does not record its process id.
        name if pid < 0 => format!("{text} of {name}"),
        name => format!("{text} of {name} ({pid})"),
    }
}

/// The title of a counter of an entity, which its process has once: `Heap gen 0` of the counter `size` of a
/// part of the heap, `Thread pool workers`, `Heap goal`. Of most counters it is their name.
pub fn counter(tables: &Tables, entity: EntityId, name: TextId) -> Cow<'_, str> {
    let given = tables.str(name);
    let entity = tables.entities.get(entity);
    match (&*given, entity.map(|entity| entity.kind)) {
        ("/memory/classes/heap/objects:bytes", _) => "Heap in use".into(),
        ("/gc/heap/goal:bytes", _) => "Heap goal".into(),
        ("/sched/gomaxprocs:threads", _) => "GOMAXPROCS".into(),
        ("size", Some(EntityKind::Heap)) => {
            let heap = entity.map(|heap| tables.str(heap.name)).unwrap_or_default();
            format!("Heap {heap}").into()
        }
        (_, Some(EntityKind::ThreadPool)) => format!("Thread pool {given}").into(),
        _ => given,
    }
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

/// The use of the time of a [`Piece`]: its [stable name](What::name) such as `waits_for_cpu`, and a phrase.
pub fn piece(piece: &Piece, tables: &Tables) -> (&'static str, String) {
    (piece.what.name(), phrase(piece, tables))
}

fn phrase(piece: &Piece, tables: &Tables) -> String {
    match piece.what {
        What::OnCpu { cpu } => format!("ran on {}", name(tables, cpu)),
        What::Running => "ran".to_owned(),
        What::Syscall => "in a system call".to_owned(),
        What::NotRecorded => "not known: the scheduler was not recorded".to_owned(),
        What::WaitsForCpu { occupant, is_preempted } => match (occupant, is_preempted) {
            (Occupant::Thread(by), true) => format!("preempted by {}", with_process(tables, by)),
            (Occupant::Thread(by), false) => {
                format!("waited for the CPU of {}", with_process(tables, by))
            }
            (Occupant::Idle, true) => {
                "preempted, CPU idle (CPU quota, cpuset or migration)".to_owned()
            }
            (Occupant::Idle, false) => "woken, CPU idle (wake-up latency or quota)".to_owned(),
            (_, true) => "preempted".to_owned(),
            (_, false) => "waited for a CPU".to_owned(),
        },
        What::WaitsForProc { proc, holder, kernel } => {
            let proc = proc.map(|proc| name(tables, proc));
            waits_for_proc(proc.as_deref(), holder, kernel, is_stopped(piece), tables)
        }
        What::Throttled => {
            "throttled: the CPU quota of its cgroup was used up (cpu.stat)".to_owned()
        }
        What::Queued { starvation: 0 } => {
            "its work item waited in the queue of the thread pool".to_owned()
        }
        What::Queued { starvation } => format!(
            "its work item waited for a worker: thread-pool starvation, the other workers were \
             blocked and the pool added {starvation}"
        ),
        What::Blocked => "blocked in the kernel (disk, page or lock)".to_owned(),
        What::Stopped => "stopped".to_owned(),
        What::Waits { context } => waits(piece, context, tables),
        What::Unknown => "not known".to_owned(),
    }
}

/// Whether the world is stopped meanwhile.
fn is_stopped(piece: &Piece) -> bool {
    piece.during.is_some_and(|(kind, _)| kind == SpanKind::StopTheWorld)
}

/// A goroutine that could have run, and its P if that is known.
fn waits_for_proc(
    proc: Option<&str>,
    holder: Option<EntityId>,
    kernel: Kernel,
    is_stopped: bool,
    tables: &Tables,
) -> String {
    let of = proc.unwrap_or("a P");
    match (holder.map(|holder| name(tables, holder)), kernel) {
        (Some(holder), Kernel::Runnable { occupant: Occupant::Thread(by), .. }) => {
            let by = with_process(tables, by);
            format!("runnable, {of} had {holder}, whose thread waited for {by}")
        }
        (Some(holder), Kernel::Runnable { .. }) => {
            format!("runnable, {of} had {holder}, whose thread had no CPU")
        }
        (Some(holder), Kernel::Sleeping | Kernel::Blocked | Kernel::Stopped) => {
            format!("runnable, {of} had {holder}, which waited in the kernel")
        }
        (Some(holder), _) => format!("runnable, {of} ran {holder}"),
        // An idle P takes no goroutine then.
        (None, Kernel::Absent) if is_stopped => "runnable, the world was stopped".to_owned(),
        (None, Kernel::Absent) => format!("runnable, {of} was idle (wake-up latency)"),
        (None, Kernel::Runnable { occupant: Occupant::Thread(by), .. }) => {
            format!("runnable, the thread of {of} waited for {}", with_process(tables, by))
        }
        (None, Kernel::Runnable { .. }) => format!("runnable, the thread of {of} had no CPU"),
        (None, _) if proc.is_none() => "runnable, its P is not known".to_owned(),
        (None, _) => format!("runnable, {of} was between goroutines"),
    }
}

/// The use of the time of a [`Piece`] as in [`piece`], without the CPU or P: pieces with equal uses can
/// be summed.
pub fn use_of_time(piece: &Piece, tables: &Tables) -> String {
    match piece.what {
        What::OnCpu { .. } => "ran on a CPU".to_owned(),
        What::WaitsForProc { proc: Some(_), holder, kernel } => {
            waits_for_proc(Some("a P"), holder, kernel, is_stopped(piece), tables)
        }
        _ => phrase(piece, tables),
    }
}

/// A wait that nobody is known to have ended. The reason of a wait is that of its own runtime.
fn waits(piece: &Piece, context: Context, tables: &Tables) -> String {
    // A timer of the runtime's thread, which waits for the same as its waiter: of a packet, nobody knows when it came
    // before that.
    let is_proxy = piece.waiter.is_some()
        && piece.reason == piece.waiter_reason
        && tables.entities.kind(piece.entity) == Some(EntityKind::Thread);
    let is_polled = is_proxy && tables.get(piece.reason) == b"network";
    let by = match context {
        Context::HardIrq if is_polled => "",
        Context::SoftIrq => ", ended by a software interrupt (network, timer)",
        Context::HardIrq => ", ended by a hardware interrupt",
        _ => "",
    };
    match (tables.str(piece.reason), piece.thread, by) {
        // A method, in which .NET waits for a pulse.
        (reason, ..) if reason == "Monitor.Wait" => format!("waited in {reason}{by}"),
        (reason, ..) if reason == "wait handle" => format!("waited for a {reason}{by}"),
        (reason, ..) if !reason.is_empty() => format!("waited for {reason}{by}"),
        (_, Some(_), "") => "slept, no runtime reports why".to_owned(),
        (_, Some(_), by) => format!("slept{by}"),
        (_, None, "") => "waited, the reason is not recorded".to_owned(),
        (_, None, by) => format!("waited{by}"),
    }
}

/// The wait during which a [`Piece`] was: `main.serve (G7) waits: chan receive`; see [`mutex`].
pub fn waiter(piece: &Piece, tables: &Tables) -> Option<String> {
    if let Some(text) = mutex(piece, tables) {
        return Some(text);
    }
    let waiter = with_process(tables, piece.waiter?);
    let reason = piece.waiter_reason;
    if piece.during == Some((SpanKind::StopTheWorld, reason)) {
        return Some(format!("{waiter} waits for the stop-the-world"));
    }
    Some(match tables.str(reason) {
        reason if reason.is_empty() => format!("{waiter} waits"),
        reason => format!("{waiter} waits: {reason}"),
    })
}

/// The wait during which a [`Piece`] was, if it was for a mutex of Go or a lock of .NET: `main.serve (G7)
/// waited for a mutex held by main.worker (G9)`, `thread 7 waited for a lock held by thread 9`.
pub fn mutex(piece: &Piece, tables: &Tables) -> Option<String> {
    const LOCKS: [&[u8]; 4] = [
        b"sync.(*Mutex).Lock",
        b"sync.(*Mutex).lockSlow",
        b"sync.(*RWMutex).Lock",
        b"sync.(*RWMutex).RLock",
    ];
    let is_lock = |frame: &Frame| {
        let function = tables.get(frame.function);
        LOCKS.into_iter().any(|lock| {
            function.strip_suffix(lock).is_some_and(|before| matches!(before, b"" | b"internal/"))
        })
    };
    if let (Some(waiter), Some(owner)) = (piece.waiter, piece.waiter_lock_owner) {
        let [waiter, owner] = [waiter, owner].map(|id| with_process(tables, id));
        return Some(format!("{waiter} waited for a lock held by {owner}"));
    }
    let (waiter, holder) = (piece.waiter?, piece.unblocker?);
    if !tables.frames(piece.waiter_stack?).iter().any(is_lock) {
        return None;
    }
    let [waiter, holder] = [waiter, holder].map(|id| with_process(tables, id));
    Some(format!("{waiter} waited for a mutex held by {holder}"))
}

/// The innermost frames of a stack, at most `most`: `sync.(*Mutex).Lock mutex.go:90 ← main.worker
/// shop.go:12 ← 3 more`.
pub fn stack(tables: &Tables, stack: StackId, most: usize) -> String {
    frames(tables, tables.frames(stack), most)
}

/// Frames of a stack: see [`stack`].
pub fn frames(tables: &Tables, frames: &[Frame], most: usize) -> String {
    let mut parts: Vec<String> = frames.iter().take(most).map(|f| frame(tables, f)).collect();
    if frames.len() > most {
        parts.push(format!("{} more", frames.len() - most));
    }
    parts.join(" ← ")
}

/// A frame: the function, and the file and line if they are known; without a function the address in
/// its file, or `?`.
pub fn frame(tables: &Tables, frame: &Frame) -> String {
    if let (true, Some(mapping)) = (frame.function.is_empty(), frame.mapping) {
        let path = tables.str(tables.mapping(mapping).path);
        let file = path.rsplit(['/', '\\']).next().unwrap_or_default();
        return format!("{file}+{:#x}", frame.address);
    }
    let function = match tables.str(frame.function) {
        unknown if unknown.is_empty() => "?".into(),
        function => function,
    };
    let file = tables.str(frame.file);
    match file.rsplit(['/', '\\']).next() {
        Some(file) if !file.is_empty() => format!("{function} {file}:{}", frame.line),
        _ => function.into_owned(),
    }
}

/// Why something was not on a CPU: a stable name such as `waits_for_p`, and a phrase.
pub fn off_cpu(reason: OffCpu, tables: &Tables) -> (&'static str, String) {
    match reason {
        OffCpu::Preempted => ("preempted", "preempted".to_owned()),
        OffCpu::Woken => ("woken", "woken, waits for a CPU".to_owned()),
        OffCpu::WaitsForProc => ("waits_for_p", "waits for a P".to_owned()),
        OffCpu::Waits(reason) if reason.is_empty() => {
            ("waits", "waits, the reason is not recorded".to_owned())
        }
        OffCpu::Waits(reason) => ("waits", format!("waits: {}", tables.str(reason))),
        OffCpu::Syscall => ("syscall", "sleeps in a system call".to_owned()),
        OffCpu::Sleeping => ("sleeping", "sleeps, no runtime reports why".to_owned()),
        OffCpu::Blocked => ("blocked", "blocked in the kernel (disk, page or lock)".to_owned()),
        OffCpu::Stopped => ("stopped", "stopped".to_owned()),
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
        SpanKind::LockWait => {
            // Locks of .NET have no name.
            let name = Some(&*name).filter(|name| !matches!(*name, "" | "lock"));
            let lock = name.map_or_else(|| "lock".to_owned(), |name| format!("lock {name}"));
            match piece.lock_owner {
                Some(owner) => format!("{lock} held by {}", with_process(tables, owner)),
                None => lock,
            }
        }
        _ => name.into_owned(),
    })
}

/// A [`Request`]: `task "checkout" on main.serve (G7)`.
pub fn request(request: &Request, tables: &Tables) -> String {
    let text = tables.str(request.name);
    let subject = with_process(tables, request.subject);
    if text.is_empty() {
        return subject;
    }
    let kind = request.kind;
    format!("{kind} {text:?} on {subject}")
}

/// The occupant of a CPU for which a thread waited.
pub fn occupant(occupant: Occupant, tables: &Tables) -> String {
    match occupant {
        Occupant::Thread(thread) => with_process(tables, thread),
        Occupant::Idle => "idle (CPU quota, cpuset, or wake-up of the CPU)".to_owned(),
        Occupant::Unrecorded => "a thread that was not recorded".to_owned(),
        Occupant::Unknown => "unknown".to_owned(),
    }
}

/// The source of a wake-up of a thread or goroutine. That of goroutines has their process if there are [several
/// runtimes](crate::Entities::has_several_runtimes).
pub fn waker(waker: Waker, tables: &Tables) -> String {
    match waker {
        Waker::Goroutines(process, entry) => {
            let entry = if entry.is_empty() { "(unknown)".into() } else { tables.str(entry) };
            let text = format!("goroutines {entry}");
            let process = process.filter(|_| tables.entities.has_several_runtimes());
            match process.and_then(|process| tables.entities.get(process)) {
                Some(process) => of_process(text, process, tables),
                None => text,
            }
        }
        Waker::Thread(thread) => with_process(tables, thread),
        Waker::HardIrq => "hardware interrupt".to_owned(),
        Waker::SoftIrq => "software interrupt (network, timers)".to_owned(),
        Waker::Unknown => "unknown".to_owned(),
    }
}

/// The name of a kind of loss.
pub const fn loss(kind: LossKind) -> &'static str {
    match kind {
        LossKind::SchedulerRecords => "records lost, the buffer of a CPU was full",
        LossKind::UnreportedSwitch => {
            "switches that the kernel did not report; states were repaired"
        }
        LossKind::CpuOffline => "a CPU went offline",
        LossKind::Samples => "samples lost, the buffer of a CPU was full",
        LossKind::GoTrace => "damaged or missing parts of a Go trace",
        LossKind::DotnetEvents => "events lost, the buffers of the .NET runtime were full",
    }
}

/// A thread that was late to stop for a stop-the-world: `main.worker (G7) stopped after 1.2 ms: 1.1 ms on a
/// CPU, 100 us without one`.
pub fn late(pause: &Pause, stop: &Stop, tables: &Tables) -> String {
    let who = name(tables, stop.holder.or(stop.thread).unwrap_or(stop.entity));
    let mut text = format!("{who} stopped after {}", duration(stop.time.nanos_since(pause.start)));
    if stop.on_cpu.max(stop.runnable) > 0 {
        let (on_cpu, runnable) = (duration(stop.on_cpu), duration(stop.runnable));
        text.push_str(&format!(": {on_cpu} on a CPU, {runnable} without one"));
    }
    text
}

/// The requester of a stop-the-world, if it was without a CPU: `main.main (G59), without a CPU for
/// 4.1 ms (9.1 us of it until all had stopped); that CPU: worker (thread 99) of server (98) 4.1 ms`.
pub fn requester(pause: &Pause, tables: &Tables) -> Option<String> {
    let requester = pause.requester.as_ref()?;
    let stopping = requester.stopping.runnable;
    let runnable = stopping.saturating_add(requester.stopped.runnable);
    if runnable == 0 {
        return None;
    }
    let who = name(tables, pause.by.unwrap_or(requester.thread));
    let mut text = format!("{who}, without a CPU for {}", duration(runnable));
    if pause.stopped.is_some() {
        text.push_str(&format!(" ({} of it until all had stopped)", duration(stopping)));
    }
    for (place, (by, nanos)) in requester.occupants.iter().take(3).enumerate() {
        let before = if place == 0 { "; that CPU: " } else { ", " };
        text.push_str(&format!("{before}{} {}", occupant(*by, tables), duration(*nanos)));
    }
    if let Some(more @ 1..) = requester.occupants.len().checked_sub(3) {
        text.push_str(&format!(", {more} more"));
    }
    Some(text)
}
