//! Reading the rings until the command, the processes or the time have ended.

use super::Args;
use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::io::progress::Status;
use crate::io::recording::Recording;
use crate::run::stop::Beginning;
use crate::run::watch::Watch;
use crate::sources::kernel::failure;
use crate::sources::kernel::hotplug::Hotplug;
use crate::sources::kernel::sampling::{Opened, SLICE, watermark};
use crate::sources::runtimes::Runtimes;
use crate::timeline::counted;
use crossbeam_channel::after;
use perf_data::{RecordWriter, Synthesizer};
use perf_monitor::{ClockDomain, RingSet, SetStats, Timestamp, now, set_time_slice};
use std::collections::BTreeSet;
use std::time::Duration;

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(20);

/// What takes the records.
pub(super) trait Consumer: RecordWriter {
    /// Whether it needs the mapping of the kernel's text, which takes long to find out.
    const NEEDS_KERNEL_TEXT: bool;

    /// Reads what the rings have. Returns the number of bytes, as far as more may be there already.
    fn round(&mut self, set: &mut RingSet) -> Result<u64>;

    /// Reads the rest: the events are disabled.
    fn rest(&mut self, set: &mut RingSet) -> Result;

    /// Whether events can be opened after the start, on CPUs that come online.
    fn takes_ids(&self) -> bool;

    /// Adds ids of the events, in their order.
    fn add_ids(&mut self, ids: Vec<Vec<u64>>) -> Result;

    /// The processes that were sampled, as far as the consumer knows them.
    fn sampled(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }
}

impl Consumer for Recording {
    const NEEDS_KERNEL_TEXT: bool = true;

    fn round(&mut self, set: &mut RingSet) -> Result<u64> {
        let bytes = set.read_chunks(|chunk| self.chunk(&chunk))?;
        self.finish_round()?;
        Ok(bytes)
    }

    fn rest(&mut self, set: &mut RingSet) -> Result {
        self.round(set).map(drop)
    }

    fn takes_ids(&self) -> bool {
        self.takes_ids()
    }

    fn add_ids(&mut self, ids: Vec<Vec<u64>>) -> Result {
        self.add_ids(ids);
        Ok(())
    }
}

/// A capture that has ended.
pub(super) struct Ran {
    pub(super) watch: Watch,
    pub(super) stats: SetStats,
    /// The losses of each event that the kernel counted, by its id.
    pub(super) losses: Vec<(u64, u64)>,
    /// The begin and the end of the time that was captured, by the monotonic clock.
    pub(super) span: Option<(Timestamp, Timestamp)>,
}

/// Captures up to the end. The output, if it is written meanwhile, is kept once the subject runs.
pub(super) fn run(
    args: &Args,
    opened: &mut Opened,
    consumer: &mut impl Consumer,
    runtimes: Option<&mut Runtimes>,
    output: Option<&OutputFile>,
    beginning: &Beginning,
) -> Result<Ran> {
    let target = &args.target;
    let set = &mut opened.set;
    // Processes that start while the list is written are in the records about tasks.
    if !target.starts_on_exec() {
        set.sideband().map_or(Ok(()), |event| set.enable_event(event)).map_err(failure)?;
    }
    let attr = opened.events.first().map(|event| event.attr).unwrap_or_default();
    let synthesizer = Synthesizer::new(&attr, true);
    let mut synthesizer = if args.records_data() { synthesizer.with_data() } else { synthesizer };
    synthesize(args, &mut synthesizer, consumer).map_err(Failure::new)?;
    let begin = now(ClockDomain::Monotonic);
    if !target.starts_on_exec() {
        set.enable().map_err(failure)?;
    }
    let mut watch = match &target.command[..] {
        [] => {
            let watch = Watch::running(&target.pids(), args.seconds)?;
            beginning.end();
            watch
        }
        command => Watch::command(command, args.seconds, |_| beginning.end())?,
    };
    // From now on, what was written can be read, however the program ends.
    if let Some(output) = output {
        output.keep();
    }
    let captured = capture(args, opened, consumer, runtimes, &mut watch);
    if captured.is_err() {
        let _ = opened.set.disable(); // they are closed at the end of the command
    }
    let captured = captured.map_err(|failure| match output {
        Some(output) => output.with_kept(failure),
        None => failure,
    });
    let Captured { stats, losses, end } = watch.see_out(captured)?;
    Ok(Ran { watch, stats, losses, span: begin.zip(end) })
}

/// What is known at the end.
struct Captured {
    stats: SetStats,
    losses: Vec<(u64, u64)>,
    end: Option<Timestamp>,
}

/// Reads the rings until the end.
fn capture(
    args: &Args,
    opened: &mut Opened,
    consumer: &mut impl Consumer,
    mut runtimes: Option<&mut Runtimes>,
    watch: &mut Watch,
) -> Result<Captured> {
    let pids = args.target.pids();
    let set = &mut opened.set;
    // Some containers forbid it; losses are counted in any case.
    let _ = set_time_slice(SLICE);
    let mut status = Status::new(args.progress);
    // After so much, the next may be there already.
    let watermark = watermark(set);
    let mut hotplug = Hotplug::new(args.target.starts_on_exec());
    loop {
        if let Some(runtimes) = &mut runtimes {
            runtimes.look(watch, &pids, || consumer.sampled());
        }
        let has_ended = watch.wait(&after(Duration::ZERO))?;
        if consumer.takes_ids() {
            hotplug.ids(set, &opened.writers)?.map_or(Ok(()), |ids| consumer.add_ids(ids))?;
        }
        let bytes = consumer.round(set)?;
        if has_ended {
            break;
        }
        status.update(|_| {
            let rings = set.stats().rings;
            format!("{}, {} lost", counted(rings.samples, "sample"), rings.lost)
        });
        if bytes < watermark {
            set.wait(Some(ROUND)).map_err(failure)?;
        }
    }
    drop(status);
    set.disable().map_err(failure)?;
    let end = now(ClockDomain::Monotonic);
    consumer.rest(set)?;
    set.count_losses().map_err(failure)?;
    let mut losses = Vec::new();
    for event in &opened.writers {
        // Unknown before Linux 6.0.
        let lost = set.counts(*event).map_err(failure)?.lost.unwrap_or(0);
        let id = set.ids(*event).map_err(failure)?.first().copied();
        losses.push((id.unwrap_or(0), lost));
    }
    Ok(Captured { stats: set.stats(), losses, end })
}

/// Passes on what was there before.
fn synthesize<C: Consumer>(
    args: &Args,
    synthesizer: &mut Synthesizer,
    out: &mut C,
) -> perf_data::Result<()> {
    match C::NEEDS_KERNEL_TEXT {
        true => synthesizer.kernel(out)?,
        false => synthesizer.kernel_modules(out)?,
    }
    if args.target.is_system_wide() {
        return synthesizer.processes(out);
    }
    args.target.pids().into_iter().try_for_each(|pid| synthesizer.process(pid, out))
}
