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
    ($($number:literal $constant:ident $name:literal $kind:ident ($($arg:literal)*) $([$start:ident])?;)*) => {
        impl EventType {
            $(
                #[doc = concat!("`Ev", $name, "`.")]
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
    1 EVENT_BATCH "EventBatch" plain ("gen" "m" "time" "size");
    2 STACKS "Stacks" plain ();
    3 STACK "Stack" stack ("id" "nframes");
    4 STRINGS "Strings" plain ();
    5 STRING "String" data ("id");
    6 CPU_SAMPLES "CPUSamples" plain ();
    7 CPU_SAMPLE "CPUSample" plain ("time" "m" "p" "g" "stack");
    8 FREQUENCY "Frequency" plain ("freq");
    // Procs.
    9 PROCS_CHANGE "ProcsChange" timed ("procs_value" "stack");
    10 PROC_START "ProcStart" timed ("p" "p_seq");
    11 PROC_STOP "ProcStop" timed ();
    12 PROC_STEAL "ProcSteal" timed ("p" "p_seq" "m");
    13 PROC_STATUS "ProcStatus" timed ("p" "pstatus");
    // Goroutines.
    14 GO_CREATE "GoCreate" timed ("new_g" "new_stack" "stack");
    15 GO_CREATE_SYSCALL "GoCreateSyscall" timed ("new_g");
    16 GO_START "GoStart" timed ("g" "g_seq");
    17 GO_DESTROY "GoDestroy" timed ();
    18 GO_DESTROY_SYSCALL "GoDestroySyscall" timed ();
    19 GO_STOP "GoStop" timed ("reason_string" "stack");
    20 GO_BLOCK "GoBlock" timed ("reason_string" "stack");
    21 GO_UNBLOCK "GoUnblock" timed ("g" "g_seq" "stack");
    22 GO_SYSCALL_BEGIN "GoSyscallBegin" timed ("p_seq" "stack");
    23 GO_SYSCALL_END "GoSyscallEnd" timed () [GO_SYSCALL_BEGIN];
    24 GO_SYSCALL_END_BLOCKED "GoSyscallEndBlocked" timed () [GO_SYSCALL_BEGIN];
    25 GO_STATUS "GoStatus" timed ("g" "m" "gstatus");
    // Stop-the-world.
    26 STW_BEGIN "STWBegin" timed ("kind_string" "stack");
    27 STW_END "STWEnd" timed () [STW_BEGIN];
    // Garbage collection.
    28 GC_ACTIVE "GCActive" timed ("gc_seq") [GC_BEGIN];
    29 GC_BEGIN "GCBegin" timed ("gc_seq" "stack");
    30 GC_END "GCEnd" timed ("gc_seq") [GC_BEGIN];
    31 GC_SWEEP_ACTIVE "GCSweepActive" timed ("p") [GC_SWEEP_BEGIN];
    32 GC_SWEEP_BEGIN "GCSweepBegin" timed ("stack");
    33 GC_SWEEP_END "GCSweepEnd" timed ("swept_value" "reclaimed_value") [GC_SWEEP_BEGIN];
    34 GC_MARK_ASSIST_ACTIVE "GCMarkAssistActive" timed ("g") [GC_MARK_ASSIST_BEGIN];
    35 GC_MARK_ASSIST_BEGIN "GCMarkAssistBegin" timed ("stack");
    36 GC_MARK_ASSIST_END "GCMarkAssistEnd" timed () [GC_MARK_ASSIST_BEGIN];
    37 HEAP_ALLOC "HeapAlloc" timed ("heapalloc_value");
    38 HEAP_GOAL "HeapGoal" timed ("heapgoal_value");
    // Annotations by the program.
    39 GO_LABEL "GoLabel" timed ("label_string");
    40 USER_TASK_BEGIN "UserTaskBegin" timed ("task" "parent_task" "name_string" "stack");
    41 USER_TASK_END "UserTaskEnd" timed ("task" "stack");
    42 USER_REGION_BEGIN "UserRegionBegin" timed ("task" "name_string" "stack");
    43 USER_REGION_END "UserRegionEnd" timed ("task" "name_string" "stack") [USER_REGION_BEGIN];
    44 USER_LOG "UserLog" timed ("task" "key_string" "value_string" "stack");
    // Since Go 1.23: coroutines, goroutine status with a stack, experiments.
    45 GO_SWITCH "GoSwitch" timed ("g" "g_seq");
    46 GO_SWITCH_DESTROY "GoSwitchDestroy" timed ("g" "g_seq");
    47 GO_CREATE_BLOCKED "GoCreateBlocked" timed ("new_g" "new_stack" "stack");
    48 GO_STATUS_STACK "GoStatusStack" timed ("g" "m" "gstatus" "stack");
    49 EXPERIMENTAL_BATCH "ExperimentalBatch" data ("exp" "gen" "m" "time");
    // Since Go 1.25: the batch that begins a generation.
    50 SYNC "Sync" plain ();
    51 CLOCK_SNAPSHOT "ClockSnapshot" timed ("mono" "sec" "nsec");
    // Since Go 1.26: a bare byte after each generation.
    52 END_OF_GENERATION "EndOfGeneration" plain ();
    // Experiment AllocFree, since Go 1.23.
    128 SPAN "Span" alloc_free ("id" "npages_value" "kindclass");
    129 SPAN_ALLOC "SpanAlloc" alloc_free ("id" "npages_value" "kindclass");
    130 SPAN_FREE "SpanFree" alloc_free ("id");
    131 HEAP_OBJECT "HeapObject" alloc_free ("id" "type");
    132 HEAP_OBJECT_ALLOC "HeapObjectAlloc" alloc_free ("id" "type");
    133 HEAP_OBJECT_FREE "HeapObjectFree" alloc_free ("id");
    134 GOROUTINE_STACK "GoroutineStack" alloc_free ("id" "order");
    135 GOROUTINE_STACK_ALLOC "GoroutineStackAlloc" alloc_free ("id" "order");
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
}

impl Plan {
    pub(crate) const NOT_TIMED: u8 = u8::MAX;
    pub(crate) const NONE: u8 = u8::MAX;
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
static PLANS: [Plan; 256] = {
    let mut plans = [Plan {
        args: Plan::NOT_TIMED,
        stack: Plan::NONE,
        other_stack: Plan::NONE,
        string: Plan::NONE,
        other_string: Plan::NONE,
        has_other_ids: false,
    }; 256];
    let mut ty = 0;
    while ty < 256 {
        let spec = &SPECS[ty];
        if spec.timed {
            assert!(spec.args.len() <= MAX_ARGS + 1);
            let plan = &mut plans[ty];
            plan.args = spec.args.len() as u8 - 1;
            let mut i = 1;
            while i < spec.args.len() {
                let (name, index) = (spec.args[i].as_bytes(), i as u8 - 1);
                if equal(name, b"stack") {
                    plan.stack = index;
                } else if ends_with(name, b"_stack") {
                    plan.other_stack = index;
                } else if ends_with(name, b"_string") {
                    if plan.string == Plan::NONE {
                        plan.string = index;
                    } else {
                        plan.other_string = index;
                    }
                }
                i += 1;
            }
            plan.has_other_ids = plan.other_stack != Plan::NONE || plan.other_string != Plan::NONE;
        }
        ty += 1;
    }
    // It is not in a thread's stream, but it becomes an event: with its stack as the first
    // argument.
    plans[EventType::CPU_SAMPLE.0 as usize].stack = 0;
    plans
};

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
