//! The CPU quotas of the cgroups in which recorded processes are.

use super::keep::Keep;
use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::sources::quota::{MAX_GROUPS, QuotaWriter};
use crate::timeline::{Timeline, counted, now};
use perf_monitor::cgroup_dirs;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use trace_export::{CounterValue, Sink, Timestamp, Track, TrackId, Unit};
use trace_timeline::sources::cgroup::CpuStat;
use trace_timeline::text::duration;

/// Known processes whose cgroup is read again at each look: a process can be moved.
const AGAIN: usize = 16;

/// Cgroups above the limit that are counted.
const MAX_IGNORED: usize = 1 << 12;

/// Reads `cpu.stat` of the cgroups of recorded processes, and of the ancestors of these cgroups.
pub(super) struct Quotas {
    groups: Vec<Group>,
    /// Their numbers; `None` for a cgroup without the counters.
    by_dir: HashMap<PathBuf, Option<u32>>,
    /// The cgroups of each process.
    members: BTreeMap<u32, Vec<u32>>,
    /// The process whose cgroup was read again last.
    examined: u32,
    writer: Option<QuotaWriter>,
    /// Cgroups above the limit: the first [`MAX_IGNORED`].
    ignored: HashSet<PathBuf>,
}

/// A process that was in a cgroup.
struct Member {
    group: u32,
    pid: u32,
}

struct Group {
    dir: PathBuf,
    first: CpuStat,
    last: CpuStat,
    at: Timestamp,
    /// The track, once it was throttled.
    track: Option<TrackId>,
    /// Whether the last reading differed from the one before.
    is_changed: bool,
}

impl Group {
    fn nanos(&self) -> u64 {
        self.last.nanos.saturating_sub(self.first.nanos)
    }
}

impl Quotas {
    /// Writes the readings to the directory too, if sources are kept.
    pub(super) fn new(keep: Option<&mut Keep>) -> Result<Self> {
        Ok(Self {
            groups: Vec::new(),
            by_dir: HashMap::new(),
            members: BTreeMap::new(),
            examined: 0,
            writer: keep.map(Keep::quotas).transpose()?,
            ignored: HashSet::new(),
        })
    }

    /// Reads the counters, which ascribes what they say to these processes.
    pub(super) fn look(
        &mut self,
        processes: &BTreeSet<u32>,
        sink: &mut Timeline,
        output: &OutputFile,
    ) -> Result {
        let at = now().map_err(Failure::new)?;
        let left = self.follow(at, processes).map_err(|error| self.failure(&error))?;
        for number in 0..self.groups.len() {
            self.read(number, sink, output)?;
        }
        // Processes that have left were in their cgroups for a part of the time since the last look.
        self.leave(at, &left).map_err(|error| self.failure(&error))
    }

    /// Reads the counters for the last time. Returns a summary.
    pub(super) fn finish(
        mut self,
        sink: &mut Timeline,
        output: &OutputFile,
    ) -> Result<Option<String>> {
        for number in 0..self.groups.len() {
            self.read(number, sink, output)?;
        }
        let flushed = self.writer.as_mut().map_or(Ok(()), QuotaWriter::flush);
        flushed.map_err(|error| self.failure(&error))?;
        if !self.ignored.is_empty() {
            let at_least = if self.ignored.len() < MAX_IGNORED { "" } else { "at least " };
            let what = format!("{at_least}{}", counted(self.ignored.len() as u64, "cgroup"));
            Failure::new(format_args!("{what} not examined for a CPU quota: too many")).print();
        }
        let most = self.groups.iter().max_by_key(|group| group.nanos());
        Ok(most.filter(|group| group.nanos() > 0).map(|group| {
            let time = duration(i64::try_from(group.nanos()).unwrap_or(i64::MAX));
            let periods = counted(group.last.periods.saturating_sub(group.first.periods), "period");
            format!("throttled for {time} in {periods} by the CPU quota of {}", group.dir.display())
        }))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let path = self.writer.as_ref().map_or(Path::new("cpu.stat"), QuotaWriter::path);
        Failure::about(path.display(), error)
    }

    /// Finds the cgroups of processes that are new, and again those of a few others. Returns the
    /// cgroups that processes have left.
    fn follow(&mut self, at: Timestamp, processes: &BTreeSet<u32>) -> io::Result<Vec<Member>> {
        let mut left = Vec::new();
        self.members.retain(|pid, groups| {
            let runs = processes.contains(pid);
            if !runs {
                left.extend(groups.iter().map(|group| Member { group: *group, pid: *pid }));
            }
            runs
        });
        let new: Vec<u32> =
            processes.iter().filter(|pid| !self.members.contains_key(pid)).copied().collect();
        let after = self.members.range(self.examined.saturating_add(1)..);
        let again: Vec<u32> = after.map(|(pid, _)| *pid).take(AGAIN).collect();
        // From the beginning, when all had their turn.
        self.examined = again.last().copied().unwrap_or_default();
        for pid in new.into_iter().chain(again) {
            // A process that has ended is gone at the next look.
            let dirs = cgroup_dirs(pid, "cpu").unwrap_or_default();
            let mut groups = Vec::new();
            for dir in dirs {
                groups.extend(self.group(at, dir)?);
            }
            let before = self.members.insert(pid, groups.clone()).unwrap_or_default();
            let member = |group: &u32| Member { group: *group, pid };
            left.extend(before.iter().filter(|group| !groups.contains(group)).map(member));
            let Some(writer) = &mut self.writer else { continue };
            for group in groups.iter().filter(|group| !before.contains(group)) {
                writer.member(at, *group, pid, true)?;
            }
        }
        Ok(left)
    }

    fn leave(&mut self, at: Timestamp, left: &[Member]) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        left.iter().try_for_each(|member| writer.member(at, member.group, member.pid, false))
    }

    /// The number of a cgroup, if it has the counters.
    fn group(&mut self, at: Timestamp, dir: PathBuf) -> io::Result<Option<u32>> {
        if let Some(known) = self.by_dir.get(&dir) {
            return Ok(*known);
        }
        if self.by_dir.len() >= MAX_GROUPS {
            // Each look meets it again.
            if self.ignored.len() < MAX_IGNORED {
                self.ignored.insert(dir);
            }
            return Ok(None);
        }
        let stat = read_stat(&dir);
        let number = stat.and_then(|_| u32::try_from(self.groups.len()).ok());
        self.by_dir.insert(dir.clone(), number);
        if let (Some(number), Some(stat)) = (number, stat) {
            if let Some(writer) = &mut self.writer {
                writer.cgroup(number, &dir)?;
                writer.read(at, number, stat)?;
            }
            let (first, last) = (stat, stat);
            self.groups.push(Group { dir, first, last, at, track: None, is_changed: false });
        }
        Ok(number)
    }

    /// Reads the counters of a cgroup. One that was removed has its last values.
    fn read(&mut self, number: usize, sink: &mut Timeline, output: &OutputFile) -> Result {
        let Some(group) = self.groups.get_mut(number) else { return Ok(()) };
        let Some(stat) = read_stat(&group.dir) else { return Ok(()) };
        let at = now().map_err(Failure::new)?;
        let nanos = stat.nanos.saturating_sub(group.last.nanos);
        let since = std::mem::replace(&mut group.at, at);
        let before = std::mem::replace(&mut group.last, stat);
        // The kernel counts a period at the begin of its throttling, and the time at its end.
        let was_changed = std::mem::replace(&mut group.is_changed, stat != before);
        if !group.is_changed && !was_changed {
            return Ok(());
        }
        if nanos > 0 || group.track.is_some() {
            group.draw(since, nanos, sink).map_err(|error| output.failure(&error))?;
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        // Equal readings are not written, but the last of them.
        let last = if was_changed { Ok(()) } else { writer.read(since, number, before) };
        let written = last.and_then(|()| writer.read(at, number, stat));
        written.map_err(|error| self.failure(&error))
    }
}

impl Group {
    /// Draws what was counted since that time as the value from then on.
    fn draw(&mut self, since: Timestamp, nanos: u64, sink: &mut Timeline) -> io::Result<()> {
        let track = match self.track {
            Some(track) => track,
            None => {
                let name = format!("throttled: {}", self.dir.display());
                let about =
                    b"Time between two readings of cpu.stat in which the CPU quota was used \
                    up, summed over CPUs: throttled_usec, or throttled_time of cgroup v1";
                let track = Track::counter(name.as_bytes(), Unit::Nanoseconds).description(about);
                *self.track.insert(sink.track(&track)?)
            }
        };
        sink.counter(since, track, CounterValue::from(i64::try_from(nanos).unwrap_or(i64::MAX)))
    }
}

fn read_stat(dir: &Path) -> Option<CpuStat> {
    CpuStat::parse(&std::fs::read(dir.join("cpu.stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::quota::{QUOTAS, QuotaReader};
    use trace_timeline::{EventKind, Tables};

    /// A cgroup is throttled for several periods: the time is counted at the end.
    #[test]
    fn the_last_reading_before_a_throttling_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(QUOTAS);
        let file = std::fs::File::create(&path).unwrap();
        let mut quotas = Quotas::new(None).unwrap();
        quotas.writer = Some(QuotaWriter::start(path.clone(), Box::new(file)).unwrap());
        let mut output = OutputFile::discarded();
        let mut sink = crate::timeline::open(&mut output, true).unwrap().0;
        let mut at = Vec::new();
        for (periods, usec) in [(0, 0), (0, 0), (0, 0), (1, 0), (2, 50_000), (2, 50_000)] {
            let stat = format!("nr_throttled {periods}\nthrottled_usec {usec}\n");
            std::fs::write(dir.path().join("cpu.stat"), stat).unwrap();
            if at.is_empty() {
                let (start, dir) = (now().unwrap(), dir.path().to_owned());
                quotas.group(start, dir).unwrap();
                quotas.writer.as_mut().unwrap().member(start, 0, 10, true).unwrap();
            }
            quotas.read(0, &mut sink, &output).unwrap();
            at.push(quotas.groups[0].at);
        }
        quotas.finish(&mut sink, &output).unwrap();

        let mut reader = QuotaReader::new(std::fs::File::open(&path).unwrap(), 0);
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        while reader.next_line(&mut tables, &mut events).unwrap() {}
        let throttles = events.iter().filter_map(|event| match event.kind {
            EventKind::Throttle { since, nanos, periods, .. } => {
                Some((since, event.time, nanos, periods))
            }
            _ => None,
        });
        assert_eq!(throttles.collect::<Vec<_>>(), [(at[2], at[4], 50_000_000, 2)]);
    }

    #[test]
    fn cgroups_above_the_limit_are_counted_once() {
        let mut quotas = Quotas::new(None).unwrap();
        let at = Timestamp::from_nanos(1);
        let mut group = |dir: String| quotas.group(at, PathBuf::from(dir)).unwrap();
        for number in 0..MAX_GROUPS {
            assert_eq!(group(format!("/not/there/{number}")), None);
        }
        for dir in ["a", "b", "a", "b", "a"] {
            assert_eq!(group(format!("/not/there/{dir}")), None);
        }
        assert_eq!(quotas.ignored.len(), 2);
    }
}
