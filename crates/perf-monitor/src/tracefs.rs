//! The mounted tracefs and its tracepoints.

use crate::error::{Error, Result};
use crate::event::Event;
use crate::files::{read_bytes, tracefs_mounts};
use crate::format::TracepointFormat;
use crate::probe;
use crate::system::{self, read_text};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mounted tracefs: the kernel's list of tracepoints.
///
/// Its mount points are in `/proc/self/mountinfo`; the usual ones are tried first. To mount it, as
/// root: `mount -t tracefs nodev /sys/kernel/tracing`. Only root may read its files unless it is
/// mounted with `-o gid=GROUP,mode=0750`, or with `-o remount,gid=GROUP,mode=0750` where it is mounted.
#[derive(Clone, Debug)]
pub struct Tracefs {
    root: PathBuf,
    /// Keeps a detached mount alive.
    _mount: Option<Arc<OwnedFd>>,
}

impl PartialEq for Tracefs {
    fn eq(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

impl Eq for Tracefs {}

impl Tracefs {
    /// The mounted tracefs.
    ///
    /// # Errors
    ///
    /// [`Error::NoTracefs`].
    pub fn find() -> Result<Self> {
        let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let mounted = tracefs_mounts(&read_bytes("/proc/self/mountinfo").unwrap_or_default());
        usual
            .iter()
            .map(PathBuf::from)
            .filter(|p| mounted.contains(p))
            .chain(mounted.iter().cloned())
            // A mount that is hidden by another mount shows no events.
            .find(|p| p.join("events").is_dir() || read_text(p.join("README")).is_ok())
            // A mount that this user may not read is still reported.
            .or_else(|| mounted.first().cloned())
            .map(Self::at)
            .ok_or(Error::NoTracefs)
    }

    /// The mounted tracefs, otherwise a private one: [`find`](Self::find), then
    /// [`detached`](Self::detached).
    ///
    /// # Errors
    ///
    /// [`Error::NoTracefs`].
    pub fn find_or_detached() -> Result<Self> {
        match Self::find() {
            // The remedy is to mount it, or to have the privilege for a private mount.
            Err(Error::NoTracefs) => Self::detached().map_err(|_| Error::NoTracefs),
            other => other,
        }
    }

    /// A tracefs that is not attached to the file system: other processes do not see it,
    /// and it disappears when its last clone is dropped.
    ///
    /// For machines without a mounted tracefs ([`Tracefs::find`]). Needs `CAP_SYS_ADMIN` and
    /// `/proc`.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn detached() -> Result<Self> {
        let failed = |call| move |errno| Error::System { call, errno };
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("fsopen"))?;
        fsconfig_create(&context).map_err(failed("fsconfig"))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(failed("fsmount"))?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Self { root, _mount: Some(Arc::new(mount)) })
    }

    /// The tracefs at this directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), _mount: None }
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The names of all systems of tracepoints, sorted.
    ///
    /// # Errors
    ///
    /// [`Error::File`].
    pub fn systems(&self) -> Result<Vec<String>> {
        directories(&self.root.join("events"))
    }

    /// The names of the events of a system, sorted.
    ///
    /// # Errors
    ///
    /// [`Error::File`], and [`Error::UnknownEvent`] if there is no such system.
    pub fn events_of(&self, system: &str) -> Result<Vec<String>> {
        if !is_name(system) {
            return Err(self.unknown(system, ""));
        }
        let dir = self.root.join("events").join(system);
        match directories(&dir) {
            Err(error) if is_missing(&error) => Err(self.unknown(system, "")),
            other => other,
        }
    }

    /// Every event as `system:name`, sorted.
    ///
    /// # Errors
    ///
    /// [`Error::File`].
    pub fn events(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for system in self.systems()? {
            match directories(&self.root.join("events").join(&system)) {
                // The group of a probe that was removed meanwhile.
                Err(error) if is_missing(&error) => {}
                names => all.extend(names?.into_iter().map(|name| format!("{system}:{name}"))),
            }
        }
        Ok(all)
    }

    /// A tracepoint by its system and name.
    ///
    /// # Errors
    ///
    /// [`Error::File`], and [`Error::UnknownEvent`] with similar names.
    pub fn event(&self, system: &str, name: &str) -> Result<Event> {
        let path = self.file(system, name, "id")?;
        let text = self.read(&path, system, name)?;
        let id = text.trim().parse().map_err(|_| Error::Format {
            what: "the id file of a tracepoint",
            offset: 0,
            why: "not a number",
        })?;
        let mut event = Event::tracepoint_id(format!("{system}:{name}"), id);
        // The kernel puts the list of uprobes together at each reading.
        if !event.is_at_user_registers {
            event.is_at_user_registers = probe::is_uprobe(self, system, name);
        }
        Ok(event)
    }

    /// The layout of a tracepoint's data.
    ///
    /// # Errors
    ///
    /// [`Error::File`], [`Error::Format`], and [`Error::UnknownEvent`] with similar names.
    pub fn format(&self, system: &str, name: &str) -> Result<TracepointFormat> {
        let path = self.file(system, name, "format")?;
        TracepointFormat::parse(system, &self.read(&path, system, name)?)
    }

    /// The kernel's explanation of a rejected filter: `perf_event_open(2)` gives none, but tracefs
    /// does. The filter is tried in an instance of tracefs that only lives for that, so that no
    /// tracer is affected.
    pub(crate) fn explain_filter(&self, system: &str, name: &str, filter: &str) -> Option<String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let instance = format!("perf-monitor-{}-{number}", std::process::id());
        let instance = self.root.join("instances").join(instance);
        std::fs::create_dir(&instance).ok()?;
        let file = instance.join("events").join(system).join(name).join("filter");
        // It fails, and the file then has the explanation.
        let tried = std::fs::write(&file, filter);
        let text = tried.is_err().then(|| read_at_once(&file).ok()).flatten();
        // A failure leaves an empty instance behind, which affects nothing.
        let _ = std::fs::remove_dir(&instance);
        explanation(&text?)
    }

    fn file(&self, system: &str, name: &str, file: &str) -> Result<PathBuf> {
        if !is_name(system) || !is_name(name) {
            return Err(self.unknown(system, name));
        }
        Ok(self.root.join("events").join(system).join(name).join(file))
    }

    fn read(&self, path: &Path, system: &str, name: &str) -> Result<String> {
        read_text(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => self.unknown(system, name),
            _ => Error::file(path, e),
        })
    }

    fn unknown(&self, system: &str, name: &str) -> Error {
        let asked = format!("{system}:{name}");
        let events = self.events().unwrap_or_default();
        let near = system::near_matches(&asked, events.iter().map(String::as_str), 3);
        Error::UnknownEvent { name: asked, near }
    }
}

/// Reads a file that has its text only for the first read.
fn read_at_once(path: &Path) -> std::io::Result<String> {
    let mut text = vec![0; 1 << 16];
    let len = std::fs::File::open(path)?.read(&mut text)?;
    text.truncate(len);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The explanation in the text of a `filter` file: the filter, a `^` below the place, the reason.
fn explanation(text: &str) -> Option<String> {
    let (before, reason) = text.split_once("parse_error: ")?;
    let reason = reason.lines().next().unwrap_or(reason).trim();
    Some(match before.lines().last().and_then(|line| line.find('^')) {
        Some(at) => format!("{reason}, at byte {at}"),
        None => reason.to_owned(),
    })
}

/// Names come from users and must not lead out of the directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/') && !name.contains('\0')
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn directories(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::file(dir, e))? {
        let entry = entry.map_err(|e| Error::file(dir, e))?;
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_of_filters_are_found() {
        let text = "id == \n     ^\nparse_error: Invalid value (did you forget quotes)?\n";
        let expected = "Invalid value (did you forget quotes)?, at byte 5";
        assert_eq!(explanation(text).as_deref(), Some(expected));
        assert_eq!(explanation("parse_error: Why").as_deref(), Some("Why"));
        assert_eq!(explanation("none"), None);
    }

    #[test]
    fn names_do_not_leave_the_directory() {
        let tracefs = Tracefs::at("/proc");
        for (system, name) in [("..", "x"), ("sched", ".."), ("a/b", "c"), ("", "")] {
            assert!(matches!(tracefs.event(system, name), Err(Error::UnknownEvent { .. })));
        }
    }

    #[test]
    fn directories_that_are_no_systems_have_no_events() {
        let root = std::env::temp_dir().join(format!("perf-tracefs-{}", std::process::id()));
        for dir in ["events/.git", "events/a/b"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let tracefs = Tracefs::at(&root);
        assert_eq!(tracefs.events().unwrap(), ["a:b"]);
        let error = tracefs.events_of(".git").unwrap_err();
        assert!(matches!(error, Error::UnknownEvent { .. }), "{error}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_missing_file_is_an_unknown_event() {
        let error = Tracefs::at("/nonexistent").format("sched", "sched_switch").unwrap_err();
        assert!(matches!(error, Error::UnknownEvent { .. }), "{error}");
    }
}
