//! Records about processes that started before the recording, from `/proc`.

use crate::error::Result;
use crate::mapped_ids::BuildIds;
use crate::writer::RecordWriter;
use perf_monitor::{RawRecord, RecordLayout};
use perf_sys::*;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use trace_common::unescape_octal;
use zerocopy::IntoBytes;

/// Writes the records that the kernel would have written if the recording had started with the
/// machine: names, parents and mappings of the running processes, and the kernel's own mappings.
///
/// They have no time, and go to the start of a recording. Processes that end meanwhile are left out.
/// Missing is all that this user may not read: the mappings of other users' processes, and the
/// addresses of the kernel if `kernel.kptr_restrict` hides them.
#[derive(Debug)]
pub struct Synthesizer {
    /// Bytes of the sample id at the end of each record.
    trailer: usize,
    /// Whether the sample id ends with the id of the event.
    has_identifier: bool,
    /// With `with_build_ids`.
    build_ids: Option<BuildIds>,
    has_data: bool,
    layout: RecordLayout,
    record: Vec<u8>,
}

/// The process of the kernel's mappings.
const KERNEL: u32 = u32::MAX;

/// Maximum number of files whose build id is remembered.
pub(crate) const MAX_FILES: usize = 1 << 16;

impl Synthesizer {
    /// For a recording whose first event has this attribute.
    ///
    /// With `with_build_ids`, mappings have the build id of their file instead of its inode.
    pub fn new(attr: &perf_event_attr, with_build_ids: bool) -> Self {
        let layout = RecordLayout::new(attr);
        Self {
            trailer: layout.sample_id_size(),
            has_identifier: attr.sample_type & PERF_SAMPLE_IDENTIFIER != 0 && attr.sample_id_all(),
            build_ids: with_build_ids.then(BuildIds::default),
            has_data: false,
            layout,
            record: Vec::new(),
        }
    }

    /// Also writes the mappings that are readable and not executable, as the kernel does for an event with
    /// `mmap_data`. perf(1) reads unwind tables through them: without them, its stacks of samples with
    /// `PERF_SAMPLE_STACK_USER` have one frame.
    #[must_use]
    pub const fn with_data(mut self) -> Self {
        self.has_data = true;
        self
    }

    /// The mappings of the kernel and of its modules.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn kernel(&mut self, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        let text = File::open("/proc/kallsyms").map(|file| kernel_text(BufReader::new(file)));
        if let Some((symbol, start, end)) = text.ok().flatten() {
            let map = perf_record_mmap {
                pid: KERNEL,
                tid: 0,
                addr: start,
                len: end - start,
                pgoff: start,
            };
            self.kernel_map(out, map, format!("[kernel.kallsyms]{symbol}").as_bytes())?;
        }
        self.kernel_modules(out)
    }

    /// The mappings of the modules of the kernel. A reader that takes every other address of the kernel
    /// for its text needs no more, and `/proc/kallsyms` is not read for it: the kernel takes tens of
    /// milliseconds to write all its symbols.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn kernel_modules(&mut self, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        modules().into_iter().try_for_each(|Module { start, size, path }| {
            let map = perf_record_mmap { pid: KERNEL, tid: 0, addr: start, len: size, pgoff: 0 };
            self.kernel_map(out, map, &path)
        })
    }

    fn kernel_map(
        &mut self,
        out: &mut (impl RecordWriter + ?Sized),
        map: perf_record_mmap,
        name: &[u8],
    ) -> Result<()> {
        let (type_, misc) = (PERF_RECORD_MMAP, PERF_RECORD_MISC_KERNEL);
        self.put(out, type_, misc, map.as_bytes(), Some(name), None)
    }

    /// All processes that this user can see.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn processes(&mut self, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        for pid in perf_monitor::processes() {
            self.process(pid, out)?;
        }
        Ok(())
    }

    /// A process with its threads. For the id of a thread, its process.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn process(&mut self, pid: u32, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        let Some(status) = Status::read(Path::new(&format!("/proc/{pid}/status"))) else {
            return Ok(());
        };
        let pid = status.process;
        self.task(pid, pid, &status, out)?;
        self.mappings(pid, out)?;
        for tid in perf_monitor::threads(pid) {
            let path = format!("/proc/{pid}/task/{tid}/status");
            if let (false, Some(status)) = (tid == pid, Status::read(Path::new(&path))) {
                self.task(pid, tid, &status, out)?;
            }
        }
        Ok(())
    }

    /// The number of records of an event that the kernel lost (`PERF_FORMAT_LOST`, Linux 6.0), as
    /// `perf record` writes it at the end: a `PERF_RECORD_LOST_SAMPLES` without a time. The
    /// `PERF_RECORD_LOST` of the kernel are a part of this number.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn lost(
        &mut self,
        id: u64,
        count: u64,
        out: &mut (impl RecordWriter + ?Sized),
    ) -> Result<()> {
        let fixed = perf_record_lost_samples { lost: count };
        let identifier = self.has_identifier.then_some(id);
        self.put(out, PERF_RECORD_LOST_SAMPLES, 0, fixed.as_bytes(), None, identifier)
    }

    fn task(
        &mut self,
        pid: u32,
        tid: u32,
        status: &Status,
        out: &mut (impl RecordWriter + ?Sized),
    ) -> Result<()> {
        let parent = if pid == tid { status.parent } else { pid };
        let fork = perf_record_fork { pid, ppid: parent, tid, ptid: parent, time: 0 };
        // Its mappings follow: readers must not take those of the parent for them.
        let misc = PERF_RECORD_MISC_FORK_EXEC;
        self.put(out, PERF_RECORD_FORK, misc, fork.as_bytes(), None, None)?;
        let comm = perf_record_comm { pid, tid };
        self.put(out, PERF_RECORD_COMM, 0, comm.as_bytes(), Some(&status.name), None)
    }

    fn mappings(&mut self, pid: u32, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        // The lines of a process with many mappings are megabytes: as perf does, only those of
        // code are written, if others are not wanted.
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        for map in maps.split(|b| *b == b'\n').filter_map(Mapping::parse) {
            let is_data = map.prot & PROT_EXEC == 0;
            if is_data && (!self.has_data || map.prot & PROT_READ == 0) {
                continue;
            }
            let kind = if is_data { PERF_RECORD_MISC_MMAP_DATA } else { 0 };
            let (major, minor) = map.device;
            let device = u64::from(major) | u64::from(minor) << 32;
            let mut file = [0; 24];
            file.copy_from_slice([device, map.inode, 0].as_bytes());
            let fixed = perf_record_mmap2 {
                pid,
                tid: pid,
                addr: map.start,
                len: map.end - map.start,
                pgoff: map.offset,
                file,
                prot: map.prot,
                flags: map.flags,
            };
            self.put(
                out,
                PERF_RECORD_MMAP2,
                PERF_RECORD_MISC_USER | kind,
                fixed.as_bytes(),
                Some(&map.name),
                None,
            )?;
        }
        Ok(())
    }

    /// Writes a record: its fixed part, a text with its NUL, padding, a sample id that is empty or
    /// has only the id of the event.
    fn put(
        &mut self,
        out: &mut (impl RecordWriter + ?Sized),
        type_: u32,
        misc: u16,
        fixed: &[u8],
        text: Option<&[u8]>,
        identifier: Option<u64>,
    ) -> Result<()> {
        let text_size = text.map_or(0, |text| (text.len() + 1).next_multiple_of(8));
        let size = size_of::<perf_event_header>() + fixed.len() + text_size + self.trailer;
        // Paths in /proc have at most 4096 bytes; one that does not fit is no path.
        let Ok(size) = u16::try_from(size) else { return Ok(()) };
        self.record.clear();
        self.record.extend(perf_event_header { type_, misc, size }.as_bytes());
        self.record.extend(fixed);
        self.record.extend(text.unwrap_or_default());
        self.record.resize(size.into(), 0);
        if let (Some(id), Some(last)) = (identifier, self.record.last_chunk_mut()) {
            *last = id.to_ne_bytes();
        }
        match RawRecord::split_first(&self.record, 0) {
            Some((record, _)) => out.record(match &mut self.build_ids {
                Some(build_ids) => build_ids.apply(&self.layout, record),
                None => record,
            }),
            None => Ok(()),
        }
    }
}

/// The parts of `/proc/PID/status` that records have.
struct Status {
    name: Vec<u8>,
    process: u32,
    parent: u32,
}

impl Status {
    fn read(path: &Path) -> Option<Self> {
        let status = fs::read(path).ok()?;
        let field = |name: &[u8]| {
            let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_ascii())
        };
        let number = |name| std::str::from_utf8(field(name)?).ok()?.parse().ok();
        Some(Self {
            name: unescape(field(b"Name:")?),
            process: number(b"Tgid:")?,
            parent: number(b"PPid:")?,
        })
    }
}

/// Undoes the escapes of `/proc/PID/status`: `\n` and `\\`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(b) = bytes.next() {
        out.push(match (b, bytes.clone().next()) {
            (b'\\', Some(next @ (b'n' | b'\\'))) => {
                bytes.next();
                if next == b'n' { b'\n' } else { b'\\' }
            }
            _ => b,
        });
    }
    out
}

const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;
const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;

/// A line of `/proc/PID/maps`.
#[derive(Debug, PartialEq)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    prot: u32,
    flags: u32,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    /// As the kernel has it in its own records: with a newline in place of the escape.
    name: Cow<'a, [u8]>,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        // start-end perms offset major:minor inode   name; the name can have spaces.
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_at(rest.iter().position(|b| *b == b' ')?);
            rest = after.trim_ascii_start();
            std::str::from_utf8(word).ok()
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = word()?.split_once('-')?;
        let permissions = word()?;
        let offset = hex(word()?)?;
        let (major, minor) = word()?.split_once(':')?;
        let inode = word()?.parse().ok()?;
        let has = |letter: char, bit: u32| if permissions.contains(letter) { bit } else { 0 };
        let (start, end) = (hex(start)?, hex(end)?);
        Some(Self {
            start,
            end: Some(end).filter(|end| *end > start)?,
            prot: has('r', PROT_READ) | has('w', PROT_WRITE) | has('x', PROT_EXEC),
            flags: if permissions.ends_with('s') { MAP_SHARED } else { MAP_PRIVATE },
            offset,
            device: (hex(major)? as u32, hex(minor)? as u32),
            inode,
            name: match rest {
                b"" => Cow::Borrowed(b"//anon"),
                name => unescape_octal(name, |byte| byte == b'\n'),
            },
        })
    }
}

/// The symbol at the start of the kernel's text, its address and the end, from `/proc/kallsyms`. `None` if
/// its addresses are hidden.
///
/// The symbols are in the order of their addresses: those of modules, behind the end, are not read.
fn kernel_text(mut kallsyms: impl BufRead) -> Option<(&'static str, u64, u64)> {
    let (mut text, mut stext, mut end) = (None, None, None);
    let mut line = Vec::new();
    while end.is_none() || text.or(stext).is_none() {
        line.clear();
        // What cannot be read is missing, as the end is where the file has none.
        if !kallsyms.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            break;
        }
        for (name, found) in
            [(&b" _text"[..], &mut text), (b" _stext", &mut stext), (b" _etext", &mut end)]
        {
            if line.trim_ascii_end().ends_with(name) && found.is_none() {
                *found = Some(address(&line).unwrap_or_default());
            }
        }
    }
    // Those of arm64 without CONFIG_KALLSYMS_ALL begin with _stext.
    let symbols = [("_text", text), ("_stext", stext)];
    let (symbol, start) = symbols.into_iter().find_map(|(name, found)| Some((name, found?)))?;
    (start != 0).then(|| (symbol, start, end.filter(|end| *end > start).unwrap_or(u64::MAX)))
}

/// The address of a line of `/proc/kallsyms`.
fn address(line: &[u8]) -> Option<u64> {
    let digits = line.split(|b| *b == b' ').next()?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

struct Module {
    start: u64,
    size: u64,
    /// The name in brackets: the file of the module is for its reader to find.
    path: Vec<u8>,
}

fn modules() -> Vec<Module> {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    let module = |line: &str| {
        // name size references users state address
        let mut words = line.split(' ');
        let (name, size) = (words.next()?, words.next()?.parse().ok()?);
        let address = words.find_map(|word| word.strip_prefix("0x"))?;
        let start = u64::from_str_radix(address, 16).ok().filter(|start| *start != 0)?;
        Some(Module { start, size, path: format!("[{name}]").into_bytes() })
    };
    text.lines().filter_map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_parse() {
        let line = b"7f00-8000 r-xp 00001000 fd:1a 42                 /a b (deleted)";
        let map = Mapping::parse(line).unwrap();
        let expected = Mapping {
            start: 0x7f00,
            end: 0x8000,
            prot: PROT_READ | PROT_EXEC,
            flags: MAP_PRIVATE,
            offset: 0x1000,
            device: (0xfd, 0x1a),
            inode: 42,
            name: b"/a b (deleted)".into(),
        };
        assert_eq!(map, expected);
        let anonymous = Mapping::parse(b"1-2 rw-s 00000000 00:00 0 ").unwrap();
        assert_eq!((&*anonymous.name, anonymous.flags), (&b"//anon"[..], MAP_SHARED));
        // A backslash is no escape there.
        let newline = Mapping::parse(b"7f00-8000 r-xp 0 fd:1a 42 /a\\012b\\040").unwrap();
        assert_eq!(*newline.name, *b"/a\nb\\040");
        assert_eq!(Mapping::parse(b"2-1 rw-s 00000000 00:00 0 "), None);
        assert_eq!(Mapping::parse(b""), None);
    }

    /// Passes each record to a closure.
    struct Each<F>(F);

    impl<F: FnMut(RawRecord<'_>)> RecordWriter for Each<F> {
        fn record(&mut self, record: RawRecord<'_>) -> Result<()> {
            (self.0)(record);
            Ok(())
        }

        fn finish_round(&mut self) -> Result<()> {
            Ok(())
        }

        fn bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn data_is_written_on_request_and_marked() {
        let attr = perf_event_attr::default();
        let layout = RecordLayout::new(&attr);
        // The mappings of this process.
        let kinds = |mut synthesizer: Synthesizer| {
            let (mut data, mut code) = (0, 0);
            let mut each = Each(|record: RawRecord<'_>| {
                if let Ok(perf_monitor::Record::Mmap(map)) = layout.decode(record) {
                    let is_executable = map.prot & PROT_EXEC != 0;
                    assert_ne!(map.is_data, is_executable, "{map:?}");
                    *(if map.is_data { &mut data } else { &mut code }) += 1;
                }
            });
            synthesizer.process(std::process::id(), &mut each).unwrap();
            (data, code)
        };
        let (data, code) = kinds(Synthesizer::new(&attr, false));
        assert!(data == 0 && code > 0);
        let (data, code) = kinds(Synthesizer::new(&attr, false).with_data());
        assert!(data > 0 && code > 0);
    }

    #[test]
    fn losses_have_the_id_of_their_event_where_records_have_one() {
        for has_ids in [true, false] {
            let mut attr = perf_event_attr {
                sample_type: PERF_SAMPLE_IDENTIFIER,
                ..perf_event_attr::default()
            };
            attr.set_sample_id_all(has_ids);
            let (layout, mut seen) = (RecordLayout::new(&attr), Vec::new());
            let mut each = Each(|record: RawRecord<'_>| {
                if let Ok(perf_monitor::Record::LostSamples(loss)) = layout.decode(record) {
                    seen.push((loss.lost, layout.id(record)));
                }
            });
            Synthesizer::new(&attr, false).lost(7, 1000, &mut each).unwrap();
            assert_eq!(seen, [(1000, has_ids.then_some(7))]);
        }
    }

    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape(b"a\\nb\\\\c\\"), b"a\nb\\c\\");
    }

    #[test]
    fn the_text_of_the_kernel_is_between_two_symbols() {
        let text = |lines: &[&str]| kernel_text(lines.join("\n").as_bytes());
        let (start, end) = ("ffffffff81000000 T _text", "ffffffff82000000 T _etext");
        let (others, module) = ("0000 A x_text", "10 t _text\t[module]");
        let first = "ffffffff81000040 T _stext";
        let (from, to) = (0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000);
        assert_eq!(text(&[others, start, module, end]), Some(("_text", from, to)));
        assert_eq!(text(&[others, end, start]), Some(("_text", from, to)));
        assert_eq!(text(&[start, others]), Some(("_text", from, u64::MAX)));
        assert_eq!(text(&[first, start, end]), Some(("_text", from, to)));
        assert_eq!(text(&[first, module, end]), Some(("_stext", from + 0x40, to)));
        assert_eq!(text(&["0 T _text", "0 T _etext"]), None);
        assert_eq!(text(&[end, others, module]), None);
    }
}
