//! Readings of `cpu.stat`, as `triscope record --keep` writes them: which processes were in which
//! cgroup, and the counters of its CPU quota.
//!
//! A text with one record a line. Times are nanoseconds of `CLOCK_MONOTONIC`, cgroups are numbered.
//!
//! ```text
//! triscope cpu.stat 1
//! cgroup GROUP DIRECTORY
//! enter TIME GROUP PID
//! leave TIME GROUP PID
//! read TIME GROUP NR_THROTTLED NANOSECONDS
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use trace_timeline::sources::cgroup::{CgroupSource, CpuStat};
use trace_timeline::{Event, Tables, TextId, Timestamp};

/// The file in the directory of a recording.
pub(crate) const QUOTAS: &str = "cpu.stat.txt";

/// The first bytes of the file.
pub(crate) const SIGNATURE: &[u8] = b"triscope cpu.stat 1\n";

/// Cgroups of a recording, and processes that are in them at one time.
pub(crate) const MAX_GROUPS: usize = 1 << 10;
const MAX_MEMBERS: usize = 1 << 16;

/// Bytes of a line: a directory has at most `PATH_MAX`.
const MAX_LINE: usize = 2 * 4096;

/// Writes readings.
pub(crate) struct QuotaWriter {
    path: PathBuf,
    file: BufWriter<Box<dyn Write>>,
}

impl QuotaWriter {
    /// Starts the file, which has this path.
    pub(crate) fn start(path: PathBuf, file: Box<dyn Write>) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        file.write_all(SIGNATURE)?;
        // A recorder that is killed leaves a file of this format.
        file.flush()?;
        Ok(Self { path, file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn cgroup(&mut self, group: u32, dir: &Path) -> io::Result<()> {
        // The kernel permits no newline in a name.
        writeln!(self.file, "cgroup {group} {}", dir.display())
    }

    /// A process is in the cgroup, or has left it.
    pub(crate) fn member(
        &mut self,
        at: Timestamp,
        group: u32,
        pid: u32,
        is_in: bool,
    ) -> io::Result<()> {
        let verb = if is_in { "enter" } else { "leave" };
        writeln!(self.file, "{verb} {} {group} {pid}", at.nanos())
    }

    pub(crate) fn read(&mut self, at: Timestamp, group: u32, stat: CpuStat) -> io::Result<()> {
        writeln!(self.file, "read {} {group} {} {}", at.nanos(), stat.periods, stat.nanos)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads them as events of the model.
pub(crate) struct QuotaReader<R> {
    input: BufReader<R>,
    /// Nanoseconds that are added to all times.
    offset: i64,
    line: Vec<u8>,
    number: u64,
    groups: BTreeMap<u32, Group>,
    members: usize,
}

#[derive(Default)]
struct Group {
    /// Its directory.
    name: TextId,
    /// The last reading.
    last: Option<(Timestamp, CpuStat)>,
    members: BTreeMap<u32, CgroupSource>,
}

/// What is wrong with a line.
#[derive(Debug)]
pub(crate) enum QuotaError {
    Io(io::Error),
    Line { number: u64, why: &'static str },
}

impl Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Line { number, why } => write!(f, "line {number}: {why}"),
        }
    }
}

impl std::error::Error for QuotaError {}

impl<R: Read> QuotaReader<R> {
    /// `offset` nanoseconds are added to all times.
    pub(crate) fn new(input: R, offset: i64) -> Self {
        Self {
            input: BufReader::new(input),
            offset,
            line: Vec::new(),
            number: 0,
            groups: BTreeMap::new(),
            members: 0,
        }
    }

    /// Appends the events of the next line. Returns whether there was one.
    pub(crate) fn next_line(
        &mut self,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) -> Result<bool, QuotaError> {
        self.number += 1;
        self.line.clear();
        let mut limited = (&mut self.input).take(MAX_LINE as u64 + 1);
        let read = limited.read_until(b'\n', &mut self.line).map_err(QuotaError::Io)?;
        if read == 0 {
            return Ok(false);
        }
        if self.line.last() != Some(&b'\n') {
            return Err(self.wrong("it has no end"));
        }
        let line = String::from_utf8_lossy(&self.line).into_owned();
        if self.number == 1 {
            let is_known = line.as_bytes() == SIGNATURE;
            return if is_known { Ok(true) } else { Err(self.wrong("an unknown format")) };
        }
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let numbers: Vec<i64> = words.map_while(|word| word.parse().ok()).collect();
        let unsigned = |n: i64| u64::try_from(n).ok();
        let small = |n: i64| u32::try_from(n).ok();
        match (verb, numbers.as_slice()) {
            ("cgroup", &[group, ..]) => {
                let Some(group) = small(group) else { return Err(self.wrong("an unknown record")) };
                // A directory can have spaces.
                let dir = line.trim_end_matches('\n').splitn(3, ' ').nth(2).unwrap_or_default();
                self.group(group)?.name = tables.text(dir.as_bytes());
                Ok(true)
            }
            ("enter", &[at, group, pid]) => match (small(group), small(pid)) {
                (Some(group), Some(pid)) => self.enter(self.time(at), group, pid, tables, out),
                _ => Err(self.wrong("a number is out of range")),
            },
            ("leave", &[_, group, pid]) => {
                let group = small(group).and_then(|group| self.groups.get_mut(&group));
                let left =
                    group.zip(small(pid)).and_then(|(group, pid)| group.members.remove(&pid));
                self.members -= usize::from(left.is_some());
                Ok(true)
            }
            ("read", &[at, group, periods, nanos]) => {
                match (small(group), unsigned(periods), unsigned(nanos)) {
                    (Some(group), Some(periods), Some(nanos)) => {
                        let (at, stat) = (self.time(at), CpuStat::new(periods, nanos));
                        self.read(at, group, stat, tables, out)
                    }
                    _ => Err(self.wrong("a number is out of range")),
                }
            }
            _ => Err(self.wrong("an unknown record")),
        }
    }

    fn time(&self, nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos).saturating_add_nanos(self.offset)
    }

    fn wrong(&self, why: &'static str) -> QuotaError {
        QuotaError::Line { number: self.number, why }
    }

    fn group(&mut self, group: u32) -> Result<&mut Group, QuotaError> {
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&group) {
            return Err(self.wrong("too many cgroups"));
        }
        Ok(self.groups.entry(group).or_default())
    }

    fn enter(
        &mut self,
        at: Timestamp,
        group: u32,
        pid: u32,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) -> Result<bool, QuotaError> {
        if self.members >= MAX_MEMBERS {
            return Err(self.wrong("too many processes"));
        }
        let group = self.group(group)?;
        let mut source = CgroupSource::new(pid).named(group.name);
        // Before it was there, it was not throttled.
        if let Some((_, stat)) = group.last {
            source.push_stat(at, stat, tables, out);
        }
        let is_new = group.members.insert(pid, source).is_none();
        self.members += usize::from(is_new);
        Ok(true)
    }

    fn read(
        &mut self,
        at: Timestamp,
        group: u32,
        stat: CpuStat,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) -> Result<bool, QuotaError> {
        let group = self.group(group)?;
        group.last = Some((at, stat));
        for source in group.members.values_mut() {
            source.push_stat(at, stat, tables, out);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trace_timeline::EventKind;

    /// Pid, directory of the cgroup, nanoseconds, periods.
    type Throttled = (i64, String, i64, u32);

    /// The throttled processes, and how reading ended.
    fn read(text: &[u8]) -> (Vec<Throttled>, Result<(), String>) {
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        let mut reader = QuotaReader::new(text, 0);
        let end = loop {
            match reader.next_line(&mut tables, &mut out) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        let throttled = out.iter().filter_map(|event| match event.kind {
            EventKind::Throttle { process, cgroup, nanos, periods, .. } => {
                let cgroup = tables.str(cgroup).into_owned();
                Some((tables.entities.get(process)?.number, cgroup, nanos, periods))
            }
            _ => None,
        });
        (throttled.collect(), end)
    }

    #[test]
    fn written_counters_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = Timestamp::from_nanos;
        let path = dir.path().join(QUOTAS);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = QuotaWriter::start(path, Box::new(file)).unwrap();
        writer.cgroup(0, Path::new("/sys/fs/cgroup/a b")).unwrap();
        writer.member(at(1), 0, 10, true).unwrap();
        writer.read(at(1), 0, CpuStat::new(5, 100)).unwrap();
        writer.read(at(2), 0, CpuStat::new(6, 150)).unwrap();
        writer.member(at(2), 0, 11, true).unwrap();
        writer.read(at(3), 0, CpuStat::new(8, 350)).unwrap();
        writer.member(at(3), 0, 10, false).unwrap();
        writer.read(at(4), 0, CpuStat::new(9, 351)).unwrap();
        writer.flush().unwrap();
        let text = std::fs::read(writer.path()).unwrap();
        let expected = [(10, 50, 1), (10, 200, 2), (11, 200, 2), (11, 1, 1)];
        let expected = expected
            .map(|(pid, nanos, periods)| (pid, "/sys/fs/cgroup/a b".to_owned(), nanos, periods));
        assert_eq!(read(&text), (expected.to_vec(), Ok(())));
    }

    /// The quota of an ancestor throttles the processes of both cgroups below it: each has the name of the
    /// ancestor.
    #[test]
    fn readings_of_an_ancestor_have_its_name() {
        let text = b"triscope cpu.stat 1\n\
            cgroup 0 /sys/fs/cgroup/s/a\nread 1 0 0 0\n\
            cgroup 1 /sys/fs/cgroup/s\nread 1 1 0 0\n\
            cgroup 2 /sys/fs/cgroup/s/b\nread 1 2 0 0\n\
            enter 1 0 10\nenter 1 1 10\nenter 1 2 11\nenter 1 1 11\n\
            read 2 1 1 50\nread 2 2 1 7\n";
        let expected = [(10, "s", 50), (11, "s", 50), (11, "s/b", 7)];
        let expected =
            expected.map(|(pid, name, nanos)| (pid, format!("/sys/fs/cgroup/{name}"), nanos, 1));
        assert_eq!(read(text), (expected.to_vec(), Ok(())));
    }

    #[test]
    fn times_have_the_offset() {
        let text = b"triscope cpu.stat 1\nread 1 0 0 0\nenter 2 0 10\nread 5 0 1 50\n";
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        let mut reader = QuotaReader::new(&text[..], 1000);
        while reader.next_line(&mut tables, &mut out).unwrap() {}
        let throttles = out.iter().filter_map(|event| match event.kind {
            EventKind::Throttle { since, .. } => Some((since.nanos(), event.time.nanos())),
            _ => None,
        });
        assert_eq!(throttles.collect::<Vec<_>>(), [(1002, 1005)]);
    }

    #[test]
    fn damage_is_an_error_with_its_line() {
        let with = |line: &str| [SIGNATURE, line.as_bytes()].concat();
        let error = |text: &[u8]| read(text).1.unwrap_err();
        assert_eq!(error(b"triscope cpu.stat 2\n"), "line 1: an unknown format");
        assert_eq!(error(&with("read 1 0 1")), "line 2: it has no end");
        assert_eq!(error(&with("read 1 0 1\n")), "line 2: an unknown record");
        assert_eq!(error(&with("read 1 -1 1 1\n")), "line 2: a number is out of range");
        let long = "a".repeat(MAX_LINE + 10) + "\n";
        assert_eq!(error(&with(&long)), "line 2: it has no end");
        let many: String = (0..=MAX_GROUPS).map(|group| format!("read 1 {group} 0 0\n")).collect();
        assert_eq!(error(&with(&many)), format!("line {}: too many cgroups", MAX_GROUPS + 2));
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(bytes: Vec<u8>, lines in "((read|enter|leave|cgroup)( -?[0-9]{1,20}){0,4}\n){0,40}") {
            let _ = read(&bytes);
            let _ = read(&[SIGNATURE, &bytes].concat());
            let _ = read(&[SIGNATURE, lines.as_bytes()].concat());
        }
    }
}
