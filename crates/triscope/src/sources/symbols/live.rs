//! Symbols of running programs.

use crate::failure::{Failure, Result};
use crate::sources::kernel::failure;
use perf_data::{RecordWriter, Synthesizer};
use perf_monitor::{EventBuilder, KernelFeatures, RawRecord, RecordLayout, RingSet};

/// The event with the records that symbols need: of mappings, forks and `execve(2)`, and of functions that
/// the kernel adds, such as programs of BPF.
pub(crate) fn sideband(event: EventBuilder) -> EventBuilder {
    let event = event.mmap(true).mmap2(true).comm(true).comm_exec(true).task(true);
    event.ksymbol(KernelFeatures::has_ksymbols())
}

/// The processes whose tasks and mappings exist before a set is enabled.
pub(crate) enum Before<'a> {
    /// Only the kernel: a command replaces everything else.
    Command,
    /// These, or all if there are none.
    Processes(&'a [u32]),
}

/// Calls `each` with records of the tasks and mappings that exist already, as if they were made now.
pub(crate) fn take_stock(
    set: &RingSet,
    before: &Before<'_>,
    each: impl FnMut(&RecordLayout, RawRecord<'_>),
) -> Result {
    let attr = match set.sideband() {
        Some(event) => set.attr(event).map_err(failure)?,
        None => return Ok(()),
    };
    let mut synthesizer = Synthesizer::new(&attr, true);
    let mut stock = Stock { layout: RecordLayout::new(&attr), each };
    // Its text is where no module is.
    let result = synthesizer.kernel_modules(&mut stock).and_then(|()| match before {
        Before::Command => Ok(()),
        Before::Processes([]) => synthesizer.processes(&mut stock),
        Before::Processes(pids) => {
            pids.iter().try_for_each(|pid| synthesizer.process(*pid, &mut stock))
        }
    });
    result.map_err(Failure::new)
}

struct Stock<F> {
    layout: RecordLayout,
    each: F,
}

impl<F: FnMut(&RecordLayout, RawRecord<'_>)> RecordWriter for Stock<F> {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        (self.each)(&self.layout, record);
        Ok(())
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}
