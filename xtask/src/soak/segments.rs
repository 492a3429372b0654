//! Reads each segment of a recorder once it is sealed, and counts what it has.

use perf_data::{Reader, TracingData};
use perf_monitor::FieldFormat;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use task_support::Result;

/// Time between two looks at the directory.
const LOOK: Duration = Duration::from_millis(100);

/// The records of a tracepoint about a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfThread {
    /// It left a CPU.
    pub(super) out: u64,
    /// It came to a CPU.
    pub(super) r#in: u64,
    /// It was woken.
    pub(super) woken: u64,
}

/// What the segments have.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) segments: u64,
    pub(super) bytes: u64,
    /// Losses in the names of the files.
    pub(super) lost: u64,
    /// Samples by event.
    pub(super) samples: BTreeMap<String, u64>,
    pub(super) threads: HashMap<u32, OfThread>,
    /// Switches from another thread than the one that the CPU had switched to: one is missing before.
    pub(super) gaps: u64,
    /// Switches from the idle thread among them.
    pub(super) idle_gaps: u64,
    /// The thread on each CPU.
    running: HashMap<u32, u32>,
    /// The number of the next segment.
    next: u64,
}

struct Fields {
    prev: FieldFormat,
    next: FieldFormat,
    woken: FieldFormat,
}

impl Fields {
    fn of(tracing: &TracingData) -> Option<Self> {
        let field = |event: &str, name: &str| {
            let mut formats = tracing.formats();
            formats.find(|format| format.name() == event)?.field(name).cloned()
        };
        Some(Self {
            prev: field("sched_switch", "prev_pid")?,
            next: field("sched_switch", "next_pid")?,
            woken: field("sched_waking", "pid")?,
        })
    }
}

/// Reads the segments until the recorder has ended, and those that it leaves.
pub(super) fn follow(dir: &Path, has_ended: &AtomicBool) -> Result<Counts> {
    let mut counts = Counts::default();
    loop {
        let is_last = has_ended.load(Ordering::Acquire);
        counts.read_new(dir)?;
        if is_last {
            return Ok(counts);
        }
        std::thread::sleep(LOOK); // between two looks
    }
}

impl Counts {
    fn read_new(&mut self, dir: &Path) -> Result {
        let mut sealed: Vec<(u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(name) = name.strip_suffix(".perf.data") else { continue };
            let id = name.split('-').next().unwrap_or_default().parse()?;
            if id >= self.next {
                sealed.push((id, path));
            }
        }
        sealed.sort();
        for (id, path) in sealed {
            if id != self.next {
                return Err(format!("segment {} was removed before it was read", self.next).into());
            }
            self.read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.next += 1;
        }
        Ok(())
    }

    fn read(&mut self, path: &Path) -> Result {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let lost = name.strip_suffix(".perf.data").and_then(|name| name.split('-').nth(3));
        self.lost += lost.ok_or("a name without losses")?.parse::<u64>()?;
        self.segments += 1;
        self.bytes += fs::metadata(path)?.len();
        let mut reader = Reader::new(File::open(path)?)?;
        let events: Vec<String> =
            reader.session().events().iter().map(|event| event.name.clone()).collect();
        let index = |name: &str| events.iter().position(|event| event == name);
        let switch = index("sched:sched_switch").ok_or("no event of switches")?;
        let waking = index("sched:sched_waking").ok_or("no event of wake-ups")?;
        let tracing = reader.session().features().tracing.as_ref();
        let fields = tracing.and_then(Fields::of).ok_or("no formats of tracepoints")?;
        let mut samples = vec![0; events.len()];
        while let Some(entry) = reader.next_record()? {
            if entry.raw.type_() != PERF_RECORD_SAMPLE {
                continue;
            }
            let event = entry.session.event_of(entry.raw).ok_or("a sample of no event")?;
            samples[event] += 1;
            if event != switch && event != waking {
                continue;
            }
            let layout = entry.layout().ok_or("a sample without a layout")?;
            let data = layout.raw_data(entry.raw).ok_or("a tracepoint without data")?;
            let tid = |field: &FieldFormat| -> Result<u32> {
                Ok(u32::try_from(field.i64(data).ok_or("a record without a thread")?)?)
            };
            if event == waking {
                self.threads.entry(tid(&fields.woken)?).or_default().woken += 1;
                continue;
            }
            let (prev, next) = (tid(&fields.prev)?, tid(&fields.next)?);
            self.threads.entry(prev).or_default().out += 1;
            self.threads.entry(next).or_default().r#in += 1;
            let cpu = layout.cpu(entry.raw).ok_or("a switch without a CPU")?;
            let before = self.running.insert(cpu, next);
            if before.is_some_and(|before| before != prev) {
                self.gaps += 1;
                self.idle_gaps += u64::from(before == Some(0));
            }
        }
        for (event, count) in events.into_iter().zip(samples) {
            *self.samples.entry(event).or_default() += count;
        }
        Ok(())
    }
}

/// `perf_event_open(2)`.
const PERF_RECORD_SAMPLE: u32 = 9;
