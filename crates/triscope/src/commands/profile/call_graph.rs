//! How the callers of user space are found.

use crate::failure::{Failure, Result};
use perf_monitor::{BranchFlags, Event, EventBuilder, SampleFlags, Software};
use std::str::FromStr;
use trace_symbols::Architecture;

/// The argument of `--call-graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallGraph {
    /// By the kernel, along frame pointers.
    FramePointers,
    /// The same, when the thread returns to user space (Linux 6.19).
    Deferred,
    /// By unwind tables, from registers and this number of bytes of the stack.
    Dwarf { bytes: u32 },
    /// By the CPU, which records calls and returns.
    LastBranches,
}

/// Bytes of the stack in a sample, as in `perf record`.
const USUAL_BYTES: u32 = 8192;

/// The maximum: a record has less than 64 KiB.
const MAX_BYTES: u32 = 65_528;

impl FromStr for CallGraph {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(',').map_or((text, None), |(kind, bytes)| (kind, Some(bytes))) {
            ("fp", None) => Ok(Self::FramePointers),
            ("fp", Some("defer")) => Ok(Self::Deferred),
            ("dwarf", None) => Ok(Self::Dwarf { bytes: USUAL_BYTES }),
            ("dwarf", Some(bytes)) => match bytes.parse() {
                Ok(bytes @ 8..=MAX_BYTES) if bytes % 8 == 0 => Ok(Self::Dwarf { bytes }),
                _ => Err(format!("the bytes are a multiple of 8, from 8 to {MAX_BYTES}")),
            },
            ("lbr", None) => Ok(Self::LastBranches),
            _ => Err("fp or fp,defer, dwarf or dwarf,BYTES, or lbr".to_owned()),
        }
    }
}

impl CallGraph {
    /// Refuses what cannot be had here: an architecture whose stacks cannot be unwound, last branch
    /// records with an event that the CPU does not count, or goroutines without callers.
    pub(super) fn check(
        self,
        event: Option<&Event>,
        has_switches: bool,
        has_goroutines: bool,
    ) -> Result {
        let unusable = |what: &str| Failure::new(what).with_code(2);
        let type_ = |event: &Event| event.builder().attr().type_;
        let software = type_(&Event::software(Software::Dummy));
        let is_counted =
            |event: &Event| type_(event) != software && event.as_tracepoint().is_none();
        match self {
            Self::LastBranches if has_switches => Err(unusable(
                "--call-graph lbr is for threads that run: --off-cpu and --wall need fp or dwarf",
            )),
            Self::LastBranches if !event.is_some_and(is_counted) => {
                let name = event.map_or("none", Event::name);
                Err(unusable(&format!(
                    "--call-graph lbr needs an event that the CPU counts, and here it would be \
                     {name}: use fp, or dwarf for code without frame pointers"
                )))
            }
            Self::Deferred if has_goroutines => Err(unusable(
                "goroutines are read at each sample, with its callers: use --call-graph fp",
            )),
            Self::Dwarf { .. } if Architecture::of_this_machine().is_none() => {
                Err(Failure::new("--call-graph dwarf works on x86-64 and 64-bit Arm"))
            }
            _ => Ok(()),
        }
    }

    /// An event with call chains, with what is needed for the rest of them. The first event writes the
    /// frames that others are without.
    pub(super) fn apply(self, chains: EventBuilder, is_first: bool) -> EventBuilder {
        let fields = SampleFlags::from_bits_retain(chains.attr().sample_type);
        match (self, Architecture::of_this_machine()) {
            (Self::Dwarf { bytes }, Some(architecture)) => chains
                .sample(fields | SampleFlags::REGS_USER | SampleFlags::STACK_USER)
                .sample_regs_user(architecture.sample_regs_user())
                .sample_stack_user(bytes)
                .exclude_callchain_user(true),
            (Self::Deferred, _) => chains.defer_callchain(true).defer_output(is_first),
            (Self::LastBranches, _) => chains
                .sample(fields | SampleFlags::BRANCH_STACK)
                .branches(BranchFlags::USER | BranchFlags::CALL_STACK)
                .exclude_callchain_user(true),
            _ => chains,
        }
    }

    /// What this way needs, if the kernel refuses an event.
    pub(super) fn explain(self, failure: Failure) -> Failure {
        match self {
            Self::LastBranches => failure.and(
                "--call-graph lbr needs a CPU that keeps call stacks in its last branch records, as \
                 those of Intel since Haswell",
            ),
            _ => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_monitor::Hardware;

    #[test]
    fn arguments_are_those_of_perf_record() {
        assert_eq!("fp".parse(), Ok(CallGraph::FramePointers));
        assert_eq!("fp,defer".parse(), Ok(CallGraph::Deferred));
        assert_eq!("dwarf".parse(), Ok(CallGraph::Dwarf { bytes: 8192 }));
        assert_eq!("dwarf,65528".parse(), Ok(CallGraph::Dwarf { bytes: 65_528 }));
        assert_eq!("lbr".parse(), Ok(CallGraph::LastBranches));
        for wrong in ["", "x", "fp,8", "fp,", "dwarf,", "dwarf,12", "dwarf,65536", "lbr,8"] {
            assert!(wrong.parse::<CallGraph>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_event_writes_the_deferred_frames_of_all() {
        let attr = |call_graph: CallGraph, is_first| {
            let chains = Event::software(Software::CpuClock).builder();
            let attr = *call_graph.apply(chains, is_first).attr();
            (attr.defer_callchain(), attr.defer_output())
        };
        assert_eq!(attr(CallGraph::Deferred, true), (true, true));
        assert_eq!(attr(CallGraph::Deferred, false), (true, false));
        assert_eq!(attr(CallGraph::FramePointers, true), (false, false));
    }

    #[test]
    fn last_branches_are_of_events_that_the_cpu_counts() {
        let lbr = CallGraph::LastBranches;
        let cycles = Event::hardware(Hardware::CpuCycles);
        assert!(lbr.check(Some(&cycles), false, false).is_ok());
        assert!(lbr.check(Some(&cycles), true, false).is_err());
        assert!(lbr.check(Some(&Event::software(Software::CpuClock)), false, false).is_err());
        assert!(lbr.check(None, false, false).is_err());
        assert!(CallGraph::Deferred.check(Some(&cycles), true, false).is_ok());
        assert!(CallGraph::Deferred.check(Some(&cycles), false, true).is_err());
        let attr = *lbr.apply(cycles.builder(), true).attr();
        let fields = SampleFlags::from_bits_retain(attr.sample_type);
        assert!(fields.contains(SampleFlags::BRANCH_STACK));
        let branches = BranchFlags::USER | BranchFlags::CALL_STACK;
        assert_eq!(attr.branch_sample_type, branches.bits());
        assert!(attr.exclude_callchain_user());
    }
}
