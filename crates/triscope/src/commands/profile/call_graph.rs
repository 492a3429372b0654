//! How the callers of user space are found.

use crate::failure::{Failure, Result};
use perf_monitor::{EventBuilder, SampleFlags};
use std::str::FromStr;
use trace_symbols::Architecture;

/// The argument of `--call-graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallGraph {
    /// By the kernel, along frame pointers.
    FramePointers,
    /// By unwind tables, from registers and this number of bytes of the stack.
    Dwarf { bytes: u32 },
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
            ("dwarf", None) => Ok(Self::Dwarf { bytes: USUAL_BYTES }),
            ("dwarf", Some(bytes)) => match bytes.parse() {
                Ok(bytes @ 8..=MAX_BYTES) if bytes % 8 == 0 => Ok(Self::Dwarf { bytes }),
                _ => Err(format!("the bytes are a multiple of 8, from 8 to {MAX_BYTES}")),
            },
            ("lbr", _) => Err("the last branch records of the CPU are not supported: use fp, or \
                               dwarf for code without frame pointers"
                .to_owned()),
            _ => Err("fp, dwarf or dwarf,BYTES".to_owned()),
        }
    }
}

impl CallGraph {
    /// Refuses an architecture whose stacks cannot be unwound.
    pub(super) fn check(self) -> Result {
        match self {
            Self::Dwarf { .. } if Architecture::of_this_machine().is_none() => {
                Err(Failure::new("--call-graph dwarf works on x86-64 and 64-bit Arm"))
            }
            _ => Ok(()),
        }
    }

    /// An event with call chains, with what is needed for the rest of them.
    pub(super) fn apply(self, chains: EventBuilder) -> EventBuilder {
        let (Self::Dwarf { bytes }, Some(architecture)) = (self, Architecture::of_this_machine())
        else {
            return chains;
        };
        let fields = SampleFlags::from_bits_retain(chains.attr().sample_type);
        chains
            .sample(fields | SampleFlags::REGS_USER | SampleFlags::STACK_USER)
            .sample_regs_user(architecture.sample_regs_user())
            .sample_stack_user(bytes)
            .exclude_callchain_user(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_perf_record() {
        assert_eq!("fp".parse(), Ok(CallGraph::FramePointers));
        assert_eq!("dwarf".parse(), Ok(CallGraph::Dwarf { bytes: 8192 }));
        assert_eq!("dwarf,65528".parse(), Ok(CallGraph::Dwarf { bytes: 65_528 }));
        for wrong in ["", "x", "fp,8", "dwarf,", "dwarf,12", "dwarf,65536", "lbr"] {
            assert!(wrong.parse::<CallGraph>().is_err(), "{wrong}");
        }
    }
}
