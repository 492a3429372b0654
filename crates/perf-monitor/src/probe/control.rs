//! Creates and removes probes through the files of tracefs.

use super::definition::{self, ProbeDefinition, ProbeKind};
use super::owner::Owner;
use crate::error::{Error, Result};
use crate::system::{self, read_text};
use crate::tracefs::Tracefs;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most that is read of a list of probes: a kernel has at most 64 Ki events.
const MAX_LIST: u64 = 64 << 20;

/// A probe in the kernel, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) tracefs: Tracefs,
    pub(super) kind: ProbeKind,
    pub(super) group: String,
    pub(super) name: String,
    /// A child process that was forked while this existed must not remove it.
    creator: u32,
}

/// What the probes of this process share.
struct Shared {
    has_swept: bool,
    /// Probes that could not be removed, mostly because they were in use.
    left: Vec<Installed>,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { has_swept: false, left: Vec::new() });

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Installed {
    /// Creates one event with these definitions, which differ in their location only.
    pub(super) fn create(tracefs: &Tracefs, definitions: &[ProbeDefinition]) -> Result<Self> {
        let Some(first) = definitions.first() else {
            return Err(definition::refused("", 0, "no location"));
        };
        definitions.iter().try_for_each(ProbeDefinition::check)?;
        let mut shared = shared();
        if !shared.has_swept {
            shared.has_swept = true;
            // A probe that cannot be swept does not stop a new one. Those of this process are of the
            // program that it was before an `execve(2)`.
            let _ = sweep_unlocked(tracefs, |owner, this| owner == this || owner.is_gone(this));
        }
        retry(&mut shared.left);
        let full_name = format!("{}:{}", first.group, first.name);
        // The kernel would append a second probe to the event, if their arguments agree.
        let dir = tracefs.root().join("events").join(&first.group).join(&first.name);
        if dir.exists() {
            return Err(Error::ProbeExists { name: full_name });
        }
        let installed = Self {
            tracefs: tracefs.clone(),
            kind: first.kind,
            group: first.group.clone(),
            name: first.name.clone(),
            creator: std::process::id(),
        };
        for (before, definition) in definitions.iter().enumerate() {
            if let Err(failed) = append(tracefs, definition.kind.file(), &definition.to_string()) {
                let error = explain(tracefs, definition, &full_name, failed, before == 0);
                if before > 0 {
                    // The locations before this one.
                    shared.left.push(installed);
                    retry(&mut shared.left);
                } else {
                    // The probe is that of another process.
                    installed.forget();
                }
                return Err(error);
            }
        }
        Ok(installed)
    }

    /// Removes it now. Without success it is queued.
    pub(super) fn remove(self) -> Result<()> {
        let result = self.try_remove();
        match is_left(&result) {
            true => drop(self), // queues it
            false => self.forget(),
        }
        result
    }

    /// Leaves it in the kernel.
    pub(super) fn forget(mut self) {
        self.creator = 0;
    }

    /// What the kernel counted: the lines of `kprobe_profile` are in the order of `kprobe_events`,
    /// which has the groups.
    pub(super) fn counts(&self) -> Result<super::ProbeCounts> {
        const ATTEMPTS: usize = 16;
        let path = self.tracefs.root().join(match self.kind.is_user() {
            true => "uprobe_profile",
            false => "kprobe_profile",
        });
        // Probes of other processes come and go between the two reads.
        for _ in 0..ATTEMPTS {
            let before = list(&self.tracefs, self.kind)?;
            let profile = read_list(&path).map_err(|e| Error::file(&path, e))?;
            if list(&self.tracefs, self.kind)? == before {
                let mut sum = super::ProbeCounts::default();
                for (probe, line) in before.iter().zip(profile.lines()) {
                    if (probe.group.as_str(), probe.name.as_str()) == (&self.group, &self.name) {
                        sum.add(self.kind, line)?;
                    }
                }
                return Ok(sum);
            }
        }
        Err(Error::file(path, std::io::Error::other("the list of probes changes all the time")))
    }

    fn try_remove(&self) -> Result<()> {
        remove(&self.tracefs, self.kind, &self.group, &self.name)
    }
}

impl Drop for Installed {
    // Never dropped while `SHARED` is locked.
    fn drop(&mut self) {
        if self.creator != std::process::id() {
            return;
        }
        if is_left(&self.try_remove()) {
            let queued = Self {
                tracefs: self.tracefs.clone(),
                kind: self.kind,
                group: std::mem::take(&mut self.group),
                name: std::mem::take(&mut self.name),
                creator: self.creator,
            };
            shared().left.push(queued);
        }
    }
}

/// Removes the probes that could not be removed before, and returns how many still cannot.
pub(super) fn retry_removals() -> usize {
    let mut shared = shared();
    retry(&mut shared.left);
    shared.left.len()
}

fn retry(left: &mut Vec<Installed>) {
    for installed in std::mem::take(left) {
        if is_left(&installed.try_remove()) {
            left.push(installed);
        } else {
            installed.forget();
        }
    }
}

/// Whether a probe can still be there after its removal, and be removed later. Not if no file of the
/// kernel is there to remove it by.
fn is_left(removed: &Result<()>) -> bool {
    match removed {
        Ok(()) | Err(Error::UnknownEvent { .. } | Error::NoProbeFile { .. }) => false,
        Err(Error::File { source, .. }) => source.kind() != std::io::ErrorKind::NotFound,
        Err(_) => true,
    }
}

/// Removes a probe.
pub(super) fn remove(tracefs: &Tracefs, kind: ProbeKind, group: &str, name: &str) -> Result<()> {
    match append(tracefs, kind.file(), &format!("-:{group}/{name}")) {
        Ok(()) => Ok(()),
        Err(Failed { errno: Some(Errno::BUSY), .. }) => {
            Err(Error::ProbeBusy { name: format!("{group}:{name}") })
        }
        Err(Failed { errno: Some(Errno::NOENT), .. }) => {
            Err(Error::UnknownEvent { name: format!("{group}:{name}"), near: Vec::new() })
        }
        Err(failed) => Err(failed.into()),
    }
}

/// The probes in the file of `kind`, of all processes.
pub(super) fn list(tracefs: &Tracefs, kind: ProbeKind) -> Result<Vec<ProbeDefinition>> {
    let path = tracefs.root().join(kind.file());
    match read_list(&path) {
        // Kernels without such probes do not have the file.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && has_root(tracefs) => {
            Ok(Vec::new())
        }
        Err(error) => Err(Error::file(path, error)),
        Ok(text) => text.lines().map(|line| ProbeDefinition::parse(kind, line)).collect(),
    }
}

/// Whether the file of `kind` can be read and has a probe of this name, whatever its other lines are.
pub(super) fn has(tracefs: &Tracefs, kind: ProbeKind, group: &str, name: &str) -> bool {
    let text = read_list(&tracefs.root().join(kind.file()));
    text.is_ok_and(|text| text.lines().any(|line| is_of(line, group, name)))
}

/// Whether a line is that of the probe of this name.
fn is_of(line: &str, group: &str, name: &str) -> bool {
    let head = line.split_ascii_whitespace().next().and_then(|head| head.split_once(':'));
    let full_name = head.and_then(|(_, full_name)| full_name.split_once(['/', '.']));
    full_name == Some((group, name))
}

fn read_list(path: &Path) -> std::io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_LIST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl super::ProbeCounts {
    /// Adds a line: `NAME HITS MISSED` of a kprobe, `FILE NAME HITS` of a uprobe.
    fn add(&mut self, kind: ProbeKind, line: &str) -> Result<()> {
        let mut words = line.split_ascii_whitespace().rev();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let missed = if kind.is_user() { None } else { number() };
        let (Some(hits), true) = (number(), kind.is_user() || missed.is_some()) else {
            let what = "a line of kprobe_profile or uprobe_profile";
            return Err(Error::Format { what, offset: 0, why: "no counts at its end" });
        };
        self.hits = self.hits.saturating_add(hits);
        if let Some(missed) = missed {
            self.missed = Some(self.missed.unwrap_or(0).saturating_add(missed));
        }
        Ok(())
    }
}

/// Removes the probes of processes that do not exist any more: [`super::sweep`].
pub(super) fn sweep(tracefs: &Tracefs) -> Result<super::Swept> {
    let _shared = shared();
    sweep_unlocked(tracefs, Owner::is_gone)
}

/// Removes the probes whose owner `is_gone`, seen from this process.
fn sweep_unlocked(
    tracefs: &Tracefs,
    is_gone: impl Fn(Owner, Owner) -> bool,
) -> Result<super::Swept> {
    let mut swept = super::Swept::default();
    let Some(this) = Owner::this() else { return Ok(swept) };
    for group in tracefs.systems()? {
        let Some(owner) = Owner::of_group(&group) else { continue };
        if !is_gone(owner, this) {
            continue;
        }
        for name in tracefs.events_of(&group).unwrap_or_default() {
            let is_removed = [ProbeKind::Kprobe, ProbeKind::Uprobe]
                .iter()
                .any(|kind| remove(tracefs, *kind, &group, &name).is_ok());
            let list = if is_removed { &mut swept.removed } else { &mut swept.busy };
            list.push(format!("{group}:{name}"));
        }
    }
    Ok(swept)
}

/// A write that failed.
#[derive(Debug)]
struct Failed {
    path: PathBuf,
    errno: Option<Errno>,
    error: std::io::Error,
    is_missing: bool,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        if failed.is_missing {
            return Self::NoProbeFile { path: failed.path };
        }
        Self::file(failed.path, failed.error)
    }
}

fn has_root(tracefs: &Tracefs) -> bool {
    tracefs.root().join("events").is_dir()
}

/// Appends one line in one write: every other way to open the file removes all probes.
fn append(tracefs: &Tracefs, file: &str, line: &str) -> Result<(), Failed> {
    let path = tracefs.root().join(file);
    let failed = |error: std::io::Error, path: &Path, is_missing| Failed {
        path: path.to_owned(),
        errno: Errno::from_io_error(&error),
        error,
        is_missing,
    };
    let mut file = OpenOptions::new().append(true).open(&path).map_err(|e| {
        // Where a file does not exist, tracefs refuses to create it.
        let is_missing = has_root(tracefs) && !path.exists();
        failed(e, &path, is_missing)
    })?;
    file.write_all(format!("{line}\n").as_bytes()).map_err(|e| failed(e, &path, false))
}

/// The error of a write. The event of a definition after the first one is there in any case.
fn explain(
    tracefs: &Tracefs,
    definition: &ProbeDefinition,
    full_name: &str,
    failed: Failed,
    is_first: bool,
) -> Error {
    match failed.errno {
        Some(Errno::EXIST) if is_first && definition_exists(tracefs, definition) => {
            Error::ProbeExists { name: full_name.to_owned() }
        }
        None | Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => failed.into(),
        Some(_) if failed.is_missing => failed.into(),
        Some(errno) => {
            let text = definition.to_string();
            let log = read_text(tracefs.root().join("error_log")).unwrap_or_default();
            let (why, offset) = match from_log(&log, &text) {
                Some((why, offset)) => (Some(with_remedy(why)), offset),
                None => (None, None),
            };
            Error::Probe { near: near_symbols(definition), definition: text, errno, why, offset }
        }
    }
}

/// An explanation of the kernel, with a remedy if it is that of `DIFF_ARG_TYPE`.
fn with_remedy(why: String) -> String {
    match why.starts_with("Argument type or name is different") {
        true => format!("{why}; give each argument a type, as in $arg1:u64"),
        false => why,
    }
}

fn definition_exists(tracefs: &Tracefs, definition: &ProbeDefinition) -> bool {
    let events = tracefs.root().join("events");
    events.join(&definition.group).join(&definition.name).exists()
}

/// Similar symbols of the kernel, if it has none with the name in this definition.
fn near_symbols(definition: &ProbeDefinition) -> Vec<String> {
    if definition.kind.is_user() || definition.location.starts_with("0x") {
        return Vec::new();
    }
    let location = &definition.location;
    let symbol = location.split_once('+').map_or(location.as_str(), |(symbol, _)| symbol);
    let symbol = symbol.rsplit_once(':').map_or(symbol, |(_, symbol)| symbol);
    let Ok(text) = read_list(Path::new("/proc/kallsyms")) else { return Vec::new() };
    // ADDRESS TYPE NAME [MODULE]
    let functions = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next().filter(|type_| matches!(*type_, "t" | "T" | "w" | "W"))?;
        words.next()
    });
    if functions.clone().any(|name| name == symbol) {
        return Vec::new();
    }
    system::near_matches(symbol, functions, 3)
}

/// The kernel's explanation of why it refused this command (Linux 5.2), with the offset in it.
///
/// ```text
/// [12341.446694] trace_uprobe: error: Failed to find the given file
///   Command: p:pt_1/a /bin/nosuch:0x99 x=%di
///                     ^
/// ```
fn from_log(log: &str, command: &str) -> Option<(String, Option<u64>)> {
    const COMMAND: &str = "  Command: ";
    let mut found = None;
    let mut lines = log.lines().peekable();
    let mut why = None;
    while let Some(line) = lines.next() {
        if let Some((_, message)) = line.split_once(": error: ") {
            why = Some(message);
        } else if line.strip_prefix(COMMAND).is_some_and(|text| text.trim_end() == command) {
            let caret = lines.peek().filter(|line| line.trim_start() == "^");
            let offset = caret.and_then(|line| line.find('^')?.checked_sub(COMMAND.len()));
            // The log is ordered: the last one is the newest.
            found = why.map(|why| (why.to_owned(), offset.map(|offset| offset as u64)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_that_of_a_probe_by_its_name() {
        for line in ["p:g/f /bin/x:0x10", "r:g/f /bin/x:0x10 a=%ax", "p:g.f /bin/x:0x10", "new:g/f"]
        {
            assert!(is_of(line, "g", "f"), "{line}");
        }
        for line in ["", "p", "p:g", "p:g/ff /bin/x:0x10", "p:gg/f /bin/x:0x10", "p:h/y g/f"] {
            assert!(!is_of(line, "g", "f"), "{line}");
        }
    }

    #[test]
    fn counts_are_at_the_end_of_a_line() {
        let mut counts = super::super::ProbeCounts::default();
        counts.add(ProbeKind::Kprobe, "  open_1          12              3").unwrap();
        counts.add(ProbeKind::Kretprobe, "  open_1          8              0").unwrap();
        assert_eq!((counts.hits, counts.missed), (20, Some(3)));
        let mut counts = super::super::ProbeCounts::default();
        counts.add(ProbeKind::Uprobe, "  /bin/x f_1       12").unwrap();
        assert_eq!((counts.hits, counts.missed), (12, None));
        for bad in ["", "  f_1", "  f_1 x"] {
            assert!(counts.add(ProbeKind::Uprobe, bad).is_err(), "{bad}");
        }
        assert!(counts.add(ProbeKind::Kprobe, "  f_1 7").is_err());
    }

    /// A directory that looks like a tracefs, one at a time: its probes are those of the process. It is
    /// removed at the end.
    struct Fake {
        tracefs: Tracefs,
        _one: MutexGuard<'static, ()>,
    }

    impl Fake {
        fn new(name: &str) -> Self {
            static ONE: Mutex<()> = Mutex::new(());
            let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            std::fs::create_dir_all(root.join("events")).unwrap();
            Self { tracefs: Tracefs::at(root), _one: one }
        }

        /// What was written to the file of uprobes.
        fn written(&self) -> String {
            std::fs::read_to_string(self.tracefs.root().join("uprobe_events")).unwrap()
        }

        /// Opening the file fails, as with too many open files.
        fn set_refusal(&self, is_refused: bool) {
            let file = self.tracefs.root().join("uprobe_events");
            let _ = (std::fs::remove_file(&file), std::fs::remove_dir(&file));
            match is_refused {
                true => std::fs::create_dir(file).unwrap(),
                false => std::fs::write(file, "").unwrap(),
            }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            std::fs::remove_dir_all(self.tracefs.root()).unwrap();
        }
    }

    fn place(kind: ProbeKind, group: &str) -> ProbeDefinition {
        ProbeDefinition {
            kind,
            group: group.to_owned(),
            name: "x".to_owned(),
            location: "/bin/x:0x1".to_owned(),
            max_active: 0,
            arguments: Vec::new(),
        }
    }

    #[test]
    fn a_probe_that_cannot_be_removed_is_removed_later() {
        let fake = Fake::new("perf-monitor-left");
        fake.set_refusal(false);
        let installed =
            Installed::create(&fake.tracefs, &[place(ProbeKind::Uprobe, "left")]).unwrap();
        assert_eq!(fake.written(), "p:left/x /bin/x:0x1\n");
        fake.set_refusal(true);
        drop(installed);
        fake.set_refusal(false);
        retry_removals();
        assert_eq!(fake.written(), "-:left/x\n");
        retry_removals();
        assert_eq!(fake.written(), "-:left/x\n", "once");
        // One whose second place is refused: there is no file for it.
        fake.set_refusal(false);
        let places = [ProbeKind::Uprobe, ProbeKind::Kprobe].map(|kind| place(kind, "left"));
        let error = Installed::create(&fake.tracefs, &places).unwrap_err();
        assert!(matches!(error, Error::NoProbeFile { .. }), "{error}");
        retry_removals();
        assert_eq!(fake.written(), "p:left/x /bin/x:0x1\n-:left/x\n");
    }

    #[test]
    fn an_event_exists_already_only_for_its_first_place() {
        let fake = Fake::new("perf-monitor-places");
        let (root, second) = (fake.tracefs.root(), place(ProbeKind::Uprobe, "places"));
        std::fs::create_dir_all(root.join("events/places/x")).unwrap();
        let log = format!(
            "[1.0] trace_uprobe: error: Argument type or name is different from existing probe\n  \
             Command: {second}\n             ^\n"
        );
        std::fs::write(root.join("error_log"), log).unwrap();
        let explained = |is_first| {
            let (path, errno) = (root.join("uprobe_events"), Errno::EXIST);
            let failed =
                Failed { path, errno: Some(errno), error: errno.into(), is_missing: false };
            explain(&fake.tracefs, &second, "places:x", failed, is_first)
        };
        let error = explained(true);
        assert!(matches!(error, Error::ProbeExists { .. }), "{error}");
        let error = explained(false);
        assert!(matches!(error, Error::Probe { errno: Errno::EXIST, .. }), "{error}");
        let text = error.to_string();
        for part in ["is different from existing probe", "as in $arg1:u64", "at byte 2"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn probes_of_the_program_before_an_execve_are_removed() {
        let fake = Fake::new("perf-monitor-execve");
        fake.set_refusal(false);
        let own = Owner::this().unwrap().to_string();
        let probe = fake.tracefs.root().join("events").join(&own).join("main_1");
        std::fs::create_dir_all(&probe).unwrap();
        // Not by a call at any time.
        assert_eq!(sweep(&fake.tracefs).unwrap(), super::super::Swept::default());
        shared().has_swept = false;
        Installed::create(&fake.tracefs, &[place(ProbeKind::Uprobe, "kept")]).unwrap().forget();
        let expected = format!("-:{own}/main_1\np:kept/x /bin/x:0x1\n");
        assert_eq!(fake.written(), expected);
    }

    #[test]
    fn a_probe_without_a_file_to_remove_it_by_is_forgotten() {
        let file = |kind: std::io::ErrorKind| Err(Error::file("x", std::io::Error::from(kind)));
        let name = || "a:b".to_owned();
        assert!(is_left(&Err(Error::ProbeBusy { name: name() })));
        assert!(is_left(&file(std::io::ErrorKind::OutOfMemory)));
        assert!(!is_left(&Ok(())));
        assert!(!is_left(&Err(Error::UnknownEvent { name: name(), near: Vec::new() })));
        assert!(!is_left(&Err(Error::NoProbeFile { path: "x".into() })));
        assert!(!is_left(&file(std::io::ErrorKind::NotFound)));
    }

    #[test]
    fn explanations_are_found_in_the_log() {
        let log = "[1.0] trace_kprobe: error: Old one\n  Command: p:a/b c\n             ^\n\
            [2.0] trace_uprobe: error: Failed to find the given file\n  Command: p:a/x y:0\n  \
            \u{20}               ^\n\
            [3.0] trace_kprobe: error: Bad argument name\n  Command: p:a/b c\n             ^\n";
        let found = |command| from_log(log, command);
        assert_eq!(found("p:a/b c"), Some(("Bad argument name".to_owned(), Some(2))));
        assert_eq!(found("p:a/x y:0").unwrap().0, "Failed to find the given file");
        assert_eq!(found("p:a/b"), None);
        assert_eq!(from_log("  Command: x\n", "x"), None);
    }
}
