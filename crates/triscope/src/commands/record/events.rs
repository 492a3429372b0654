//! The kernel's scheduler events, as they are recorded.

use super::drawing::{Drawing, DrawingError, Drawn, ThreadExits};
use super::keep::KeptFile;
use super::members::Members;
use super::raw::{Existing, RawRecords};
use super::samples::{Samples, Sampling, Wanted};
use crate::failure::Failure;
use crate::io::output_file::OutputFile;
use crate::run::open_files;
use crate::sources::kernel;
use crate::sources::kernel::hotplug::{GoneCpus, Hotplug};
use crate::sources::kernel::sampling::{Scope, THIS_THREAD, max_depth};
use crate::sources::kernel::switch_records::SwitchRecords;
use crate::sources::processes::ProcessWriter;
use crate::sources::symbols;
use crate::timeline::{Timeline, now};
use perf_monitor::{
    Event, EventBuilder, ProcessInfo, RingSet, SampleFlags, SetEvent, SetRecord, Software, Tracefs,
};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use trace_export::{CpuIntervals, Timestamp};
use trace_timeline::sources::kernel::Record;
use trace_timeline::sources::perf::SchedDecoder;

/// Fewer pages of 4 KiB than this are reported: 4 MiB hold more than a million events per second between two
/// rounds.
const FEW_PAGES: usize = 1024;

/// Bytes of a CPU's sideband buffer, for forks, exits and names of threads: if switches are lost,
/// their threads are still known.
const SIDE_BYTES: usize = 64 << 10;

/// Bytes of that buffer if the raw records are kept: it is not read while the file is begun, see
/// [`Scheduler::keep_raw`]. Programs that are started meanwhile have some kilobytes of mappings each. It is half of what a user
/// without `CAP_IPC_LOCK` can lock for each CPU by default.
const KEPT_SIDE_BYTES: usize = 256 << 10;

/// Pages if only the command is recorded, for a user who can lock little memory.
const OWN_PAGES: usize = 64;

/// An error of the kernel, or of the output. Small, as each event returns one or none.
pub(super) enum Error {
    Perf(Box<perf_monitor::Error>),
    Output(io::Error),
    /// Of the raw records that are kept.
    Raw(Box<perf_data::Error>),
    Samples(Box<perf_data::Error>),
    /// Of another file that is kept.
    Kept(Box<Failure>),
}

impl Error {
    pub(super) fn into_failure(self, output: &OutputFile) -> Failure {
        match self {
            Self::Perf(error) => kernel::failure(*error),
            Self::Output(error) => output.failure(&error),
            Self::Raw(error) => Failure::about("the kept records", *error),
            Self::Samples(error) => Failure::about("the samples", *error),
            Self::Kept(failure) => *failure,
        }
    }
}

fn kept(path: &Path, error: &io::Error) -> Error {
    Error::Kept(Box::new(Failure::about(path.display(), error)))
}

impl From<DrawingError> for Error {
    fn from(error: DrawingError) -> Self {
        match error {
            DrawingError::Output(error) => Self::Output(error),
            DrawingError::Processes(path, error) => kept(&path, &error),
        }
    }
}

impl From<perf_monitor::Error> for Error {
    fn from(error: perf_monitor::Error) -> Self {
        Self::Perf(Box::new(error))
    }
}

fn of_raw(error: perf_data::Error) -> Error {
    Error::Raw(Box::new(error))
}

fn of_samples(error: perf_data::Error) -> Error {
    Error::Samples(Box::new(error))
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Statistics of the recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stats {
    pub(super) drawn: Drawn,
    pub(super) late: u64,
    /// Records of an unknown layout.
    pub(super) undecodable: u64,
    /// Pages of the buffer of a CPU.
    pub(super) pages: usize,
}

/// The tracepoints.
pub(super) const TRACEPOINTS: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// The tracepoints that are recorded.
#[derive(Clone, Copy)]
struct Tracepoints([SetEvent; TRACEPOINTS.len()]);

/// Records switches, wake-ups, forks, exits and names on all CPUs.
pub(super) struct Scheduler {
    set: RingSet,
    /// `None` if only the command is recorded.
    tracepoints: Option<Tracepoints>,
    /// With the tracepoints.
    switch_records: Option<SwitchRecords>,
    drawing: Drawing,
    hotplug: Hotplug,
    gone: GoneCpus,
    /// Records of tracepoints that cannot be decoded.
    undecodable: u64,
    /// The raw records, if they are kept.
    raw: Option<RawRecords<KeptFile>>,
    /// The events with stacks.
    sampling: Option<Sampling>,
    samples: Option<Samples>,
}

/// A recording that has ended.
pub(super) struct Finished {
    pub(super) stats: Stats,
    pub(super) intervals: Option<CpuIntervals>,
    pub(super) samples: Option<Sampled>,
    drawing: Drawing,
}

/// The samples of a recording.
pub(super) struct Sampled {
    pub(super) file: KeptFile,
    /// The number of samples of the CPU, and the name of their event.
    pub(super) of_cpu: Option<(u64, String)>,
}

/// Sample fields of all events. The CPU is for raw records that are kept: it is known from the ring.
const COMMON: SampleFlags = SampleFlags::TID.union(SampleFlags::CPU);

/// The sideband event: forks, exits and names of threads; with stacks also mappings.
fn sideband(wanted: Wanted) -> EventBuilder {
    let dummy = Event::software(Software::Dummy).builder().sample(COMMON);
    match wanted.is_any() {
        true => symbols::live::sideband(dummy),
        false => dummy.comm(true).comm_exec(true).task(true),
    }
}

impl Scheduler {
    /// Opens the events, with buffers of `pages` pages, or of the default size. `is_kept` is whether
    /// [`keep_raw`](Self::keep_raw) follows.
    pub(super) fn open(
        pages: Option<usize>,
        is_kept: bool,
        all_tasks: bool,
        wanted: Wanted,
    ) -> perf_monitor::Result<Self> {
        let tracefs = kernel::tracefs()?;
        open_files::raise();
        // By default, `perf_monitor::default_ring_pages`.
        let rings = pages.map_or(RingSet::builder(), |pages| RingSet::builder().pages(pages));
        let side_bytes = if is_kept { KEPT_SIDE_BYTES } else { SIDE_BYTES };
        let side_pages = kernel::pages_of(side_bytes);
        let mut set = rings.sideband_ring(&sideband(wanted), side_pages).open()?;
        if pages.is_none() {
            kernel::report_small_rings_of(&set, FEW_PAGES, Some("--pages"));
        }
        let mut add = |name| {
            let event = tracefs.event("sched", name)?;
            let builder = event.builder().sample_period(1);
            set.add(&match wanted.off_cpu {
                true => builder
                    .sample(COMMON | SampleFlags::RAW | SampleFlags::CALLCHAIN)
                    .sample_max_stack(max_depth()),
                false => builder.sample(COMMON | SampleFlags::RAW),
            })
        };
        let [switch, waking, new] = TRACEPOINTS.map(&mut add);
        let tracepoints = Tracepoints([switch?, waking?, new?]);
        let switch_records = SwitchRecords::add(&mut set, COMMON)?;
        let sampling = Sampling::open(wanted, &Scope::default(), &mut set)?;
        let (decoder, members) = (decoder(&tracefs)?, Members::new(all_tasks));
        let drawing = Drawing::new(decoder, members, &release());
        let this = Self::of(set, Some(tracepoints), drawing, sampling);
        Ok(Self { switch_records: Some(switch_records), ..this })
    }

    /// Opens the events that need no privilege while `kernel.perf_event_paranoid` is 2 or less:
    /// context switches, forks, exits and names of the command's threads. This thread must start
    /// the command.
    pub(super) fn open_own(pages: Option<usize>, wanted: Wanted) -> perf_monitor::Result<Self> {
        let side = sideband(wanted)
            .exclude_kernel(true)
            .exclude_hv(true)
            .context_switch(true)
            .inherit(true)
            .enable_on_exec(true);
        let rings = kernel::rings(pages, OWN_PAGES).thread(THIS_THREAD);
        let mut set = rings.sideband(&side).open()?;
        if pages.is_none() {
            kernel::report_small_rings_of(&set, OWN_PAGES, Some("--pages"));
        }
        let tids = vec![THIS_THREAD];
        let scope = Scope { tids, inherit: true, on_exec: true, ..Scope::default() };
        let sampling = Sampling::open(wanted, &scope, &mut set)?;
        let (decoder, members) = (SchedDecoder::default(), Members::new(false));
        Ok(Self::of(set, None, Drawing::new(decoder, members, &release()), sampling))
    }

    fn of(
        set: RingSet,
        tracepoints: Option<Tracepoints>,
        drawing: Drawing,
        sampling: Option<Sampling>,
    ) -> Self {
        Self {
            set,
            tracepoints,
            switch_records: None,
            drawing,
            // Without tracepoints, the events are those of the threads of the command.
            hotplug: Hotplug::new(tracepoints.is_none()),
            gone: GoneCpus::default(),
            undecodable: 0,
            raw: None,
            sampling,
            samples: None,
        }
    }

    /// Statistics of the recording so far.
    pub(super) fn stats(&self) -> Stats {
        let of_set = self.set.stats();
        let undecodable = self.undecodable + of_set.undecodable + of_set.rings.unknown_ids;
        Stats {
            drawn: self.drawing.drawn(),
            late: of_set.late,
            undecodable,
            pages: self.set.pages(),
        }
    }

    pub(super) fn enable(&mut self) -> Result<(), Error> {
        // If only the command is recorded, its events begin with its start.
        if self.tracepoints.is_none() {
            return Ok(());
        }
        // Where the records are kept, the sideband is enabled already.
        if self.raw.is_none() {
            self.look_before()?;
        }
        self.set.enable()?;
        if self.drawing.members().are_all() { Ok(self.drawing.scan()?) } else { Ok(()) }
    }

    /// Reads what must be known before the first fork and `execve(2)` is recorded.
    fn look_before(&mut self) -> Result<(), Error> {
        if self.drawing.members().are_all() {
            self.drawing.scan()?;
        }
        self.drawing.read_programs();
        Ok(())
    }

    /// Sets the process of the command, which is recorded with its children.
    pub(super) fn follow(&mut self, pid: u32) -> Result<(), Error> {
        self.drawing.follow(pid);
        if let (None, Some(raw)) = (&self.tracepoints, &mut self.raw) {
            raw.process(pid).map_err(of_raw)?;
        }
        Ok(())
    }

    /// Sets the running process to record, with its future children. Call this before and after the
    /// events are enabled.
    pub(super) fn follow_running(&mut self, pid: u32) -> Result<(), Error> {
        Ok(self.drawing.follow_running(pid)?)
    }

    /// Whether there are samples.
    pub(super) const fn has_samples(&self) -> bool {
        self.sampling.is_some()
    }

    /// Starts the file of the samples, if there are any: of a running process, or of a command. Call this after the
    /// events were enabled, and before the command is started.
    pub(super) fn start_samples(
        &mut self,
        file: KeptFile,
        running: Option<u32>,
    ) -> Result<(), Error> {
        let Some(sampling) = &self.sampling else { return Ok(()) };
        let existing = match running {
            _ if self.drawing.members().are_all() => Existing::All,
            Some(pid) => Existing::Process(pid),
            None => Existing::None,
        };
        let tracefs = self.tracepoints.as_ref().map(|_| kernel::tracefs()).transpose()?;
        let of_scheduler = self.tracepoints.map(Tracepoints::events).unwrap_or_default();
        let samples = sampling.start(file, tracefs.as_ref(), &self.set, of_scheduler, existing);
        self.samples = Some(samples.map_err(of_samples)?);
        Ok(())
    }

    /// The running processes of the command.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        self.drawing.members().processes()
    }

    /// Writes the raw records to a `perf.data` file too. Without tracepoints it has the switches of the
    /// command's own threads.
    ///
    /// It begins with the processes that run, which are read for a while: threads, programs and mappings that begin
    /// meanwhile are in the records of the sideband, which begin before.
    pub(super) fn keep_raw(&mut self, file: KeptFile) -> Result<(), Error> {
        if let Some(side) = self.set.sideband().filter(|_| self.tracepoints.is_some()) {
            self.look_before()?;
            self.set.enable_event(side)?;
        }
        let side = self.set.sideband().map(|side| ("dummy:u".to_owned(), side));
        let mut events: Vec<(String, SetEvent)> = side.into_iter().collect();
        events.extend(self.tracepoints.into_iter().flat_map(Tracepoints::events));
        let switches = self.switch_records.as_ref();
        events.extend(switches.map(|records| ("dummy".to_owned(), records.event())));
        events.extend(self.sampling.iter().flat_map(|sampling| sampling.sampled.clone()));
        let tracefs = self.tracepoints.as_ref().map(|_| kernel::tracefs()).transpose()?;
        let has_stacks = self.sampling.is_some();
        let existing = Existing::All;
        let raw =
            RawRecords::create(file, tracefs.as_ref(), &self.set, &events, existing, has_stacks);
        self.raw = Some(raw.map_err(of_raw)?);
        Ok(())
    }

    /// Writes what `/proc` shows of processes to a file: now, and when they execute a program. Call
    /// this after the events were enabled, so that none is missed in between.
    pub(super) fn keep_processes(&mut self, mut file: ProcessWriter) -> Result<(), Error> {
        for process in perf_monitor::processes().into_iter().filter_map(ProcessInfo::read) {
            file.write(None, &process).map_err(|error| kept(file.path(), &error))?;
        }
        self.drawing.keep_processes(file);
        Ok(())
    }

    /// Keeps the intervals in which threads had a CPU, for the samples of their runtimes.
    pub(super) fn keep_intervals(&mut self) {
        self.drawing.keep_intervals();
    }

    /// Reads the available events, and draws those that no earlier event can precede.
    pub(super) fn round(&mut self, sink: &mut Timeline) -> Result<(), Error> {
        // The events that are opened again begin later.
        let at = now()?;
        let changes = self.hotplug.look(&mut self.set);
        self.gone.add(at, &changes.gone);
        if !changes.opened.is_empty() {
            if let Some(raw) = &mut self.raw {
                raw.refresh_ids(&self.set).map_err(of_raw)?;
            }
            if let Some(samples) = &mut self.samples {
                samples.refresh_ids(&self.set).map_err(of_samples)?;
            }
        }
        self.read(sink, false)?;
        self.drawing.finish_round();
        if let Some(records) = &mut self.switch_records {
            records.adjust(&mut self.set, self.drawing.seen())?;
        }
        if let Some(raw) = &mut self.raw {
            raw.finish_round().map_err(of_raw)?;
        }
        if let Some(samples) = &mut self.samples {
            samples.finish_round().map_err(of_samples)?;
        }
        Ok(())
    }

    /// Reads and draws the events that no earlier event can precede, or all the rest.
    fn read(&mut self, sink: &mut Timeline, is_rest: bool) -> Result<(), Error> {
        let Self { set, tracepoints, drawing, undecodable, raw, samples, gone, .. } = self;
        let each = |record: SetRecord<'_>| {
            while let Some(cpu) = gone.next(record.time) {
                end_cpu(cpu, raw, drawing, sink)?;
            }
            if let Some(raw) = raw {
                raw.record(record.raw).map_err(of_raw)?;
            }
            let decoded = drawing.decode(&record);
            if let Some(samples) = samples {
                let pushed = samples.push(&record, decoded.as_ref(), drawing.members());
                pushed.map_err(of_samples)?;
            }
            if let Some(decoded) = decoded {
                drawing.push(record.time, record.cpu, decoded, sink)?;
            } else if tracepoints.is_some_and(|known| known.0.contains(&record.event)) {
                // Only samples have it at this place.
                *undecodable += u64::from(record.layout.pid_tid(record.raw).is_some());
            }
            Ok::<(), Error>(())
        };
        if is_rest {
            set.drain(each)?
        } else {
            set.round(each)?
        };
        if is_rest {
            while let Some(cpu) = gone.next(Timestamp::MAX) {
                end_cpu(cpu, raw, drawing, sink)?;
            }
        }
        Ok(())
    }

    /// Reads and draws the rest, except names and the [ends](ThreadExits) of threads.
    pub(super) fn finish(mut self, sink: &mut Timeline) -> Result<Finished, Error> {
        let read = self.read_rest(sink);
        let kept = self.complete_raw();
        read.and(kept)?;
        self.drawing.finish(sink)?;
        let stats = self.stats();
        let samples = match self.samples {
            Some(samples) => {
                let (file, count) = samples.finish().map_err(of_samples)?;
                let sampled = self.sampling.and_then(|sampling| sampling.sampled);
                Some(Sampled { file, of_cpu: sampled.map(|(name, _)| (count, name)) })
            }
            None => None,
        };
        let mut drawing = self.drawing;
        let intervals = drawing.take_intervals();
        Ok(Finished { stats, intervals, samples, drawing })
    }

    /// Completes the raw records of a recording that has failed.
    pub(super) fn finish_raw(mut self) -> Result<(), Error> {
        self.complete_raw()
    }

    fn complete_raw(&mut self) -> Result<(), Error> {
        if let Some(raw) = self.raw.take() {
            raw.finish().map_err(of_raw)?;
        }
        Ok(())
    }

    fn read_rest(&mut self, sink: &mut Timeline) -> Result<(), Error> {
        // Otherwise they report the last switches alone.
        if let Some(records) = &mut self.switch_records {
            records.refuse(&mut self.set)?;
        }
        self.set.disable()?;
        let end = now()?;
        self.read(sink, true)?;
        let Self { set, drawing, raw, .. } = self;
        set.count_losses()?;
        // Losses that no record reported.
        for (cpu, ring) in set.rings() {
            let count = ring.lost_at_end.unwrap_or(0); // unknown before Linux 6.0
            if count > 0 {
                raw.iter_mut().try_for_each(|raw| raw.lost(end, cpu, count)).map_err(of_raw)?;
                drawing.push(end, cpu, Record::Lost { cpu, count }, sink)?;
            }
        }
        Ok(())
    }
}

impl Finished {
    /// Names the processes and threads, after everything else that is drawn of them but their ends.
    pub(super) fn declare(self, sink: &mut Timeline) -> io::Result<ThreadExits> {
        self.drawing.declare(sink)
    }
}

impl Tracepoints {
    /// Their names.
    fn events(self) -> Vec<(String, SetEvent)> {
        let named = TRACEPOINTS.iter().zip(self.0);
        named.map(|(name, event)| (format!("sched:{name}"), event)).collect()
    }
}

/// Ends what is known of a CPU that went offline at this time: no other record ends the state of the thread that runs
/// there.
fn end_cpu(
    (at, cpu): (Timestamp, u32),
    raw: &mut Option<RawRecords<KeptFile>>,
    drawing: &mut Drawing,
    sink: &mut Timeline,
) -> Result<(), Error> {
    raw.iter_mut().try_for_each(|raw| raw.offline(at, cpu)).map_err(of_raw)?;
    Ok(drawing.push(at, cpu, Record::Offline { cpu }, sink)?)
}

/// The release of this kernel.
fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// What decodes the tracepoints of this kernel.
fn decoder(tracefs: &Tracefs) -> perf_monitor::Result<SchedDecoder> {
    let formats: perf_monitor::Result<Vec<_>> =
        TRACEPOINTS.into_iter().map(|name| tracefs.format("sched", name)).collect();
    let decoder = SchedDecoder::new(formats?);
    if !decoder.has_switches() {
        let name = "the fields of sched:sched_switch".to_owned();
        return Err(perf_monitor::Error::UnknownEvent { name, near: Vec::new() });
    }
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_export::{ClockDomain, PerfettoSink};
    use trace_timeline::sources::kernel::Task;

    /// The last switch there is to the kernel's thread that ends the events of the CPU.
    #[test]
    fn a_cpu_that_comes_back_has_no_gap() {
        let members = Members::new(true);
        let mut drawing = Drawing::new(SchedDecoder::default(), members, "6.1.0");
        let out: Box<dyn io::Write + Send> = Box::new(io::sink());
        let mut sink: Timeline = PerfettoSink::new(out, ClockDomain::Boottime);
        let at = Timestamp::from_nanos;
        let switch = |prev, next| {
            let [prev, next] = [prev, next].map(|tid| Task::new(tid, b"x", 120));
            Record::Switch { cpu: 1, prev, prev_state: 1, next }
        };
        assert!(drawing.push(at(10), 1, switch(0, 23), &mut sink).is_ok());
        let (mut gone, mut raw) = (GoneCpus::default(), None);
        gone.add(at(20), &[1]);
        while let Some(cpu) = gone.next(at(40)) {
            assert!(end_cpu(cpu, &mut raw, &mut drawing, &mut sink).is_ok());
        }
        assert!(drawing.push(at(40), 1, switch(0, 7), &mut sink).is_ok());
        assert!(drawing.finish(&mut sink).is_ok());
        let drawn = drawing.drawn();
        assert_eq!((drawn.switches, drawn.gaps, drawn.lost), (2, 0, 0));
        assert!(drawing.declare(&mut sink).unwrap().draw(&mut sink).is_ok());
        assert_eq!(sink.stats().losses, 1);
    }
}
