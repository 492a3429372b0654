//! The wire events of the v2 format and their arguments.
//!
//! Source: `src/internal/trace/tracev2/events.go` of the Go distribution (1.27).

use std::fmt;

/// The type byte of an event of the v2 wire format (Go ≥ 1.22).
///
/// Associated constants carry the names of the Go runtime without the `Ev` prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventType(pub u8);

/// The specification of one [`EventType`].
#[derive(Debug)]
#[non_exhaustive]
pub struct EventSpec {
    /// Name, as Go prints it.
    pub name: &'static str,
    /// Names of the arguments. The suffix after the last `_` determines the type of an argument; an
    /// argument of type `string` or `stack` is an identifier in the generation's tables. The
    /// argument named just `stack` is the stack of the goroutine that emitted the event.
    pub args: &'static [&'static str],
    /// Whether the event has a timestamp (its first argument, `dt`) and is part of the ordered
    /// stream. All other events are framing and tables.
    pub timed: bool,
    /// Whether a length and data of that length follow the arguments.
    pub has_data: bool,
    /// Whether stack frames follow the arguments: `args[1]` frames of four integers each.
    pub is_stack: bool,
    /// The experiment that the event belongs to.
    pub experiment: Experiment,
    /// The event that begins the range that this one ends or reports as active.
    pub start: EventType,
}

/// An experiment of the Go runtime, which adds its own events to a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Experiment(pub u8);

impl Experiment {
    /// No experiment.
    pub const NONE: Self = Self(0);
    /// `GODEBUG=traceallocfree=1`: heap spans, heap objects and goroutine stacks.
    pub const ALLOC_FREE: Self = Self(1);

    /// Go's name of the experiment, if it has one.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::NONE => Some("None"),
            Self::ALLOC_FREE => Some("AllocFree"),
            _ => None,
        }
    }
}

const fn spec(name: &'static str, args: &'static [&'static str]) -> EventSpec {
    EventSpec {
        name,
        args,
        timed: false,
        has_data: false,
        is_stack: false,
        experiment: Experiment::NONE,
        start: EventType(0),
    }
}

macro_rules! event_types {
    ($($(#[$doc:meta])+ $number:literal $constant:ident $name:literal $kind:ident ($($arg:literal)*) $([$start:ident])?;)*) => {
        impl EventType {
            $(
                #[doc = concat!("`Ev", $name, "`:")]
                $(#[$doc])+
                pub const $constant: Self = Self($number);
            )*
        }

        const SPECS: [EventSpec; 256] = {
            let mut specs = [const { spec("", &[]) }; 256];
            $(
                specs[$number] = spec($name, event_types!(@args $kind $($arg)*));
                event_types!(@$kind specs[$number]);
                $(specs[$number].start = EventType::$start;)?
            )*
            specs
        };
    };
    (@args timed $($arg:literal)*) => { &["dt", $($arg),*] };
    (@args alloc_free $($arg:literal)*) => { &["dt", $($arg),*] };
    (@args $kind:ident $($arg:literal)*) => { &[$($arg),*] };
    (@plain $spec:expr) => {};
    (@stack $spec:expr) => { $spec.is_stack = true; };
    (@data $spec:expr) => { $spec.has_data = true; };
    (@timed $spec:expr) => { $spec.timed = true; };
    (@alloc_free $spec:expr) => {
        $spec.timed = true;
        $spec.experiment = Experiment::ALLOC_FREE;
    };
}

event_types! {
    // Framing and tables.
    /// The header of a batch: the generation and thread of the events that follow, their base time
    /// and their size in bytes.
    1 EVENT_BATCH "EventBatch" plain ("gen" "m" "time" "size");
    /// The batch contains stacks.
    2 STACKS "Stacks" plain ();
    /// A stack of the table of the generation: its identifier and its frames.
    3 STACK "Stack" stack ("id" "nframes");
    /// The batch contains strings.
    4 STRINGS "Strings" plain ();
    /// A string of the table of the generation: its identifier and its bytes.
    5 STRING "String" data ("id");
    /// The batch contains CPU samples.
    6 CPU_SAMPLES "CPUSamples" plain ();
    /// A sample of the CPU profiler: time, thread, proc, goroutine and stack.
    7 CPU_SAMPLE "CPUSample" plain ("time" "m" "p" "g" "stack");
    /// The frequency of the clock of the trace, in ticks per second.
    8 FREQUENCY "Frequency" plain ("freq");
    // Procs.
    /// `GOMAXPROCS` has this value now.
    9 PROCS_CHANGE "ProcsChange" timed ("procs_value" "stack");
    /// The thread starts to use a proc.
    10 PROC_START "ProcStart" timed ("p" "p_seq");
    /// The thread releases its proc, which becomes idle.
    11 PROC_STOP "ProcStop" timed ();
    /// The thread takes a proc away from a thread in a system call.
    12 PROC_STEAL "ProcSteal" timed ("p" "p_seq" "m");
    /// The state of a proc when the generation starts or the proc is first mentioned.
    13 PROC_STATUS "ProcStatus" timed ("p" "pstatus");
    // Goroutines.
    /// A goroutine is created and is runnable.
    14 GO_CREATE "GoCreate" timed ("new_g" "new_stack" "stack");
    /// A goroutine appears in a system call: a thread of C calls Go.
    15 GO_CREATE_SYSCALL "GoCreateSyscall" timed ("new_g");
    /// A goroutine starts to run.
    16 GO_START "GoStart" timed ("g" "g_seq");
    /// The running goroutine ends.
    17 GO_DESTROY "GoDestroy" timed ();
    /// A goroutine in a system call ends: a thread of C returns from Go.
    18 GO_DESTROY_SYSCALL "GoDestroySyscall" timed ();
    /// The running goroutine yields or is preempted and remains runnable.
    19 GO_STOP "GoStop" timed ("reason_string" "stack");
    /// The running goroutine blocks, for this reason.
    20 GO_BLOCK "GoBlock" timed ("reason_string" "stack");
    /// A blocked goroutine becomes runnable.
    21 GO_UNBLOCK "GoUnblock" timed ("g" "g_seq" "stack");
    /// The running goroutine enters a system call.
    22 GO_SYSCALL_BEGIN "GoSyscallBegin" timed ("p_seq" "stack");
    /// The goroutine returns from a system call and still has its proc.
    23 GO_SYSCALL_END "GoSyscallEnd" timed () [GO_SYSCALL_BEGIN];
    /// The goroutine returns from a system call without a proc and is runnable.
    24 GO_SYSCALL_END_BLOCKED "GoSyscallEndBlocked" timed () [GO_SYSCALL_BEGIN];
    /// The state of a goroutine when the generation starts or the goroutine is first mentioned.
    25 GO_STATUS "GoStatus" timed ("g" "m" "gstatus");
    // Stop-the-world.
    /// A stop-the-world begins, for this reason.
    26 STW_BEGIN "STWBegin" timed ("kind_string" "stack");
    /// The stop-the-world ends.
    27 STW_END "STWEnd" timed () [STW_BEGIN];
    // Garbage collection.
    /// The mark phase is active since before the generation.
    28 GC_ACTIVE "GCActive" timed ("gc_seq") [GC_BEGIN];
    /// The concurrent mark phase of the GC begins.
    29 GC_BEGIN "GCBegin" timed ("gc_seq" "stack");
    /// The concurrent mark phase of the GC ends.
    30 GC_END "GCEnd" timed ("gc_seq") [GC_BEGIN];
    /// A proc sweeps since before the generation.
    31 GC_SWEEP_ACTIVE "GCSweepActive" timed ("p") [GC_SWEEP_BEGIN];
    /// The proc begins to sweep.
    32 GC_SWEEP_BEGIN "GCSweepBegin" timed ("stack");
    /// The proc ends to sweep: the bytes that it swept and reclaimed.
    33 GC_SWEEP_END "GCSweepEnd" timed ("swept_value" "reclaimed_value") [GC_SWEEP_BEGIN];
    /// A goroutine assists the GC since before the generation.
    34 GC_MARK_ASSIST_ACTIVE "GCMarkAssistActive" timed ("g") [GC_MARK_ASSIST_BEGIN];
    /// The goroutine begins to assist the mark phase.
    35 GC_MARK_ASSIST_BEGIN "GCMarkAssistBegin" timed ("stack");
    /// The goroutine ends to assist the mark phase.
    36 GC_MARK_ASSIST_END "GCMarkAssistEnd" timed () [GC_MARK_ASSIST_BEGIN];
    /// Bytes of live and of unswept dead objects in the heap.
    37 HEAP_ALLOC "HeapAlloc" timed ("heapalloc_value");
    /// The heap size in bytes at which the next GC cycle is to end.
    38 HEAP_GOAL "HeapGoal" timed ("heapgoal_value");
    // Annotations by the program.
    /// The goroutine gets a label, such as the kind of a GC worker.
    39 GO_LABEL "GoLabel" timed ("label_string");
    /// `runtime/trace.NewTask`: a task begins.
    40 USER_TASK_BEGIN "UserTaskBegin" timed ("task" "parent_task" "name_string" "stack");
    /// `runtime/trace.Task.End`: a task ends.
    41 USER_TASK_END "UserTaskEnd" timed ("task" "stack");
    /// `runtime/trace.StartRegion`: a region begins.
    42 USER_REGION_BEGIN "UserRegionBegin" timed ("task" "name_string" "stack");
    /// `runtime/trace.Region.End`: a region ends.
    43 USER_REGION_END "UserRegionEnd" timed ("task" "name_string" "stack") [USER_REGION_BEGIN];
    /// `runtime/trace.Log`: a message with its category.
    44 USER_LOG "UserLog" timed ("task" "key_string" "value_string" "stack");
    // Since Go 1.23: coroutines, goroutine status with a stack, experiments.
    /// The running goroutine hands its proc to another and blocks (coroutines).
    45 GO_SWITCH "GoSwitch" timed ("g" "g_seq");
    /// The running goroutine hands its proc to another and ends (coroutines).
    46 GO_SWITCH_DESTROY "GoSwitchDestroy" timed ("g" "g_seq");
    /// A goroutine is created and is blocked (coroutines).
    47 GO_CREATE_BLOCKED "GoCreateBlocked" timed ("new_g" "new_stack" "stack");
    /// As [`Self::GO_STATUS`], with the stack of the goroutine.
    48 GO_STATUS_STACK "GoStatusStack" timed ("g" "m" "gstatus" "stack");
    /// A batch of an experiment, not interpreted: the experiment, generation, thread, time and
    /// data.
    49 EXPERIMENTAL_BATCH "ExperimentalBatch" data ("exp" "gen" "m" "time");
    // Since Go 1.25: the batch that begins a generation.
    /// The first batch of a generation follows: frequency and clocks.
    50 SYNC "Sync" plain ();
    /// Readings of the trace's, the monotonic and the wall clock at one moment.
    51 CLOCK_SNAPSHOT "ClockSnapshot" timed ("mono" "sec" "nsec");
    // Since Go 1.26: a bare byte after each generation.
    /// The generation is complete.
    52 END_OF_GENERATION "EndOfGeneration" plain ();
    // Experiment AllocFree, since Go 1.23.
    /// A span of the heap exists when tracing starts: its page number, number of pages, and kind.
    128 SPAN "Span" alloc_free ("id" "npages_value" "kindclass");
    /// A span of the heap is allocated.
    129 SPAN_ALLOC "SpanAlloc" alloc_free ("id" "npages_value" "kindclass");
    /// A span of the heap is freed.
    130 SPAN_FREE "SpanFree" alloc_free ("id");
    /// An object exists when tracing starts: its number, by address, and its type.
    131 HEAP_OBJECT "HeapObject" alloc_free ("id" "type");
    /// An object is allocated.
    132 HEAP_OBJECT_ALLOC "HeapObjectAlloc" alloc_free ("id" "type");
    /// An object is freed.
    133 HEAP_OBJECT_FREE "HeapObjectFree" alloc_free ("id");
    /// A goroutine stack exists when tracing starts: its number, by address, and its size class.
    134 GOROUTINE_STACK "GoroutineStack" alloc_free ("id" "order");
    /// A goroutine stack is allocated.
    135 GOROUTINE_STACK_ALLOC "GoroutineStackAlloc" alloc_free ("id" "order");
    /// A goroutine stack is freed.
    136 GOROUTINE_STACK_FREE "GoroutineStackFree" alloc_free ("id");
}

static SPEC_TABLE: [EventSpec; 256] = SPECS;

impl EventType {
    /// Returns the specification of this type, or `None` if no version of Go defines it.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a table of 256, and an index of eight bits")]
    pub fn spec(self) -> Option<&'static EventSpec> {
        let spec = &SPEC_TABLE[self.0 as usize];
        (!spec.name.is_empty()).then_some(spec)
    }

    /// Returns the specification of this type. That of an undefined type has no name and no
    /// arguments.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a table of 256, and an index of eight bits")]
    pub(crate) fn entry(self) -> &'static EventSpec {
        &SPEC_TABLE[self.0 as usize]
    }

    /// Returns the data of this type that the decoder and the ordering need.
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "a table of 256, and an index of eight bits")]
    pub(crate) fn plan(self) -> &'static Plan {
        &PLANS[usize::from(self.0)]
    }

    /// Returns the type with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        (1..=u8::MAX).map(Self).find(|ty| ty.spec().is_some_and(|spec| spec.name == name))
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EventType {
    /// The name, or `Invalid(N)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spec() {
            Some(spec) => f.write_str(spec.name),
            None => write!(f, "Invalid({})", self.0),
        }
    }
}

/// Maximum number of arguments of a timed event after `dt`.
pub(crate) const MAX_ARGS: usize = 4;

/// The data of a type that the decoder and the ordering need for every event, in eight bytes.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub(crate) struct Plan {
    /// Number of arguments after `dt`, or [`Plan::NOT_TIMED`].
    pub(crate) args: u8,
    /// Indexes among those arguments; [`Plan::NONE`] where there is no such argument.
    pub(crate) stack: u8,
    pub(crate) other_stack: u8,
    pub(crate) string: u8,
    pub(crate) other_string: u8,
    /// Whether `other_stack` or `other_string` is present.
    pub(crate) has_other_ids: bool,
    /// The index of the arguments in [`LAYOUTS`]; after the last one if it is not timed.
    pub(crate) layout: u8,
}

/// The number of arguments of an event, and which of them are stacks and strings, as bit masks.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) args: usize,
    pub(crate) stacks: u8,
    pub(crate) strings: u8,
}

/// The layouts of all events.
pub(crate) const LAYOUTS: [Layout; 15] = {
    const fn layout(args: usize, stacks: u8, strings: u8) -> Layout {
        Layout { args, stacks, strings }
    }
    [
        layout(0, 0, 0),
        layout(1, 0, 0),
        layout(1, 0b1, 0),
        layout(1, 0, 0b1),
        layout(2, 0, 0),
        layout(2, 0b10, 0),
        layout(2, 0b10, 0b1),
        layout(3, 0, 0),
        layout(3, 0b100, 0),
        layout(3, 0b110, 0),
        layout(3, 0b100, 0b10),
        layout(4, 0, 0),
        layout(4, 0b1000, 0),
        layout(4, 0b1000, 0b100),
        layout(4, 0b1000, 0b110),
    ]
};

impl Plan {
    pub(crate) const NOT_TIMED: u8 = u8::MAX;
    pub(crate) const NONE: u8 = u8::MAX;
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
// Not a static: each unit of code that uses it has a copy, which it addresses directly.
const PLANS: [Plan; 256] = {
    let mut plans = [Plan {
        args: Plan::NOT_TIMED,
        stack: Plan::NONE,
        other_stack: Plan::NONE,
        string: Plan::NONE,
        other_string: Plan::NONE,
        has_other_ids: false,
        layout: LAYOUTS.len() as u8,
    }; 256];
    let mut ty = 0;
    while ty < 256 {
        let spec = &SPECS[ty];
        if spec.timed {
            assert!(spec.args.len() <= MAX_ARGS + 1);
            let plan = &mut plans[ty];
            plan.args = spec.args.len() as u8 - 1;
            let (mut stacks, mut strings) = (0, 0);
            let mut i = 1;
            while i < spec.args.len() {
                let (name, index) = (spec.args[i].as_bytes(), i as u8 - 1);
                if equal(name, b"stack") {
                    plan.stack = index;
                    stacks |= 1 << index;
                } else if ends_with(name, b"_stack") {
                    plan.other_stack = index;
                    stacks |= 1 << index;
                } else if ends_with(name, b"_string") {
                    strings |= 1 << index;
                    if plan.string == Plan::NONE {
                        plan.string = index;
                    } else {
                        plan.other_string = index;
                    }
                }
                i += 1;
            }
            plan.has_other_ids = plan.other_stack != Plan::NONE || plan.other_string != Plan::NONE;
            plan.layout = layout(plan.args, stacks, strings);
        }
        ty += 1;
    }
    // It is not in a thread's stream, but it becomes an event: with its stack as the first
    // argument.
    plans[EventType::CPU_SAMPLE.0 as usize].stack = 0;
    plans
};

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn layout(args: u8, stacks: u8, strings: u8) -> u8 {
    let mut index = 0;
    loop {
        let found = LAYOUTS[index]; // a layout that is missing fails to compile
        if found.args == args as usize && found.stacks == stacks && found.strings == strings {
            return index as u8;
        }
        index += 1;
    }
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && ends_with(a, b)
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn ends_with(name: &[u8], suffix: &[u8]) -> bool {
    if name.len() < suffix.len() {
        return false;
    }
    let mut i = 0;
    while i < suffix.len() {
        if name[name.len() - suffix.len() + i] != suffix[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_follow_the_argument_names() {
        let plan = EventType::plan;
        let create = plan(EventType::GO_CREATE);
        assert_eq!((create.args, create.stack, create.other_stack), (3, 2, 1));
        let log = plan(EventType::USER_LOG);
        assert_eq!((log.args, log.string, log.other_string, log.stack), (4, 1, 2, 3));
        assert_eq!(plan(EventType::PROC_STOP).args, 0);
        assert_eq!(plan(EventType::STRING).args, Plan::NOT_TIMED);
        assert_eq!(plan(EventType(77)).args, Plan::NOT_TIMED);
    }

    #[test]
    fn every_type_is_found_by_its_name() {
        let known: Vec<EventType> =
            (0..=255).map(EventType).filter(|ty| ty.spec().is_some()).collect();
        assert_eq!(known.len(), 52 + 9);
        for ty in known {
            assert_eq!(EventType::by_name(&ty.to_string()), Some(ty));
        }
        assert_eq!(EventType::by_name(""), None);
        assert_eq!(EventType(99).to_string(), "Invalid(99)");
    }

    #[test]
    fn ranges_name_the_event_that_starts_them() {
        assert_eq!(EventType::STW_END.spec().unwrap().start, EventType::STW_BEGIN);
        assert_eq!(EventType::SPAN.spec().unwrap().experiment, Experiment::ALLOC_FREE);
    }
}
