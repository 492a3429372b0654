//! The process that owns a probe: its name in the group of the probe, and whether it still exists.
//!
//! A process id alone is reused, so the group also has the start time of the process. Ids are those
//! of a pid namespace, so it also has the number of that namespace: only processes of the same one
//! can detect whether the owner exists.

use crate::files::read_bytes;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use trace_common::start_ticks;

const PREFIX: &str = "triscope";

/// A process, uniquely for as long as the machine is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// In clock ticks since boot.
    start: u64,
    /// The inode of its pid namespace.
    namespace: u64,
}

impl Owner {
    /// This process; `None` if its own entry of `/proc` is not there, as with a `/proc` of another
    /// pid namespace.
    pub(super) fn this() -> Option<Self> {
        let pid = std::process::id();
        let own = std::fs::read_link("/proc/self").ok()?;
        if own.to_str()?.parse() != Ok(pid) {
            return None;
        }
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(Self { pid, start: start_time(pid)?, namespace })
    }

    /// The owner named by a group.
    pub(super) fn of_group(group: &str) -> Option<Self> {
        let mut parts = group.strip_prefix(PREFIX)?.strip_prefix('_')?.split('_');
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        let namespace = parts.next()?.parse().ok()?;
        let owner = Self { pid, start, namespace };
        // Exactly our spelling: anything else is someone else's.
        (owner.to_string() == group).then_some(owner)
    }

    /// Whether this owner certainly exists no more, seen from the process `viewer`.
    pub(super) fn is_gone(self, viewer: Self) -> bool {
        if self.namespace != viewer.namespace {
            return false;
        }
        match start_time(self.pid) {
            Some(start) if start == self.start => false,
            // Start times differ between time namespaces (Linux 5.6).
            Some(_) => time_namespace(self.pid) == time_namespace(viewer.pid),
            None => !std::path::Path::new(&format!("/proc/{}", self.pid)).exists(),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, start, namespace } = self;
        write!(f, "{PREFIX}_{pid}_{start}_{namespace}")
    }
}

fn time_namespace(pid: u32) -> Option<u64> {
    Some(std::fs::metadata(format!("/proc/{pid}/ns/time")).ok()?.ino())
}

fn start_time(pid: u32) -> Option<u64> {
    start_ticks(&read_bytes(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_name_their_owner() {
        let owner = Owner { pid: u32::MAX, start: u64::MAX, namespace: 4_294_967_295 };
        let group = owner.to_string();
        super::super::definition::check_identifier(&group).unwrap();
        assert_eq!(Owner::of_group(&group), Some(owner));
        for other in [
            "triscope",
            "triscope_1",
            "triscope_1_2",
            "triscope_1_2_3_4",
            "triscope_01_2_3",
            "triscope_x_2_3",
            "triscopes_1_2_3",
            "probe_1_2_3",
            "triscope_+1_2_3",
        ] {
            assert_eq!(Owner::of_group(other), None, "{other}");
        }
    }

    #[test]
    fn only_owners_that_do_not_exist_are_gone() {
        let this = Owner::this().unwrap();
        assert!(!this.is_gone(this));
        // The same id, of a process before.
        assert!(Owner { start: this.start - 1, ..this }.is_gone(this));
        // In another namespace the id may be alive.
        assert!(!Owner { start: 1, namespace: 1, ..this }.is_gone(this));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(Owner { pid: child.id(), start: 1, ..this }.is_gone(this));
    }
}
