//! Where the cgroups of a process are mounted.

use crate::error::{Error, Result};
use crate::files::read_bytes;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use trace_common::{CgroupVersion, mounted_cgroup};

/// The directories of a process's cgroup and of its ancestors in the hierarchy of a controller (`cpu`,
/// `memory`, `perf_event`…), innermost first.
///
/// The hierarchy is the one of cgroup v1 that has the controller, otherwise that of cgroup v2, where
/// the controller may be disabled: its files are then missing. The directories are those that this
/// process sees, in its mount and cgroup namespaces. Empty if the hierarchy is not mounted, or if the
/// cgroup is outside of these namespaces.
///
/// Sources: `cgroups(7)`, `cgroup_namespaces(7)`, `proc_pid_mountinfo(5)`.
///
/// ```
/// # fn main() -> perf_monitor::Result<()> {
/// for dir in perf_monitor::cgroup_dirs(std::process::id(), "cpu")? {
///     println!("{}", dir.join("cpu.stat").display());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::File`] if the process does not exist, or `/proc` cannot be read.
pub fn cgroup_dirs(pid: u32, controller: &str) -> Result<Vec<PathBuf>> {
    let read = |path: String| read_bytes(&path).map_err(|error| Error::file(path, error));
    let cgroups = read(format!("/proc/{pid}/cgroup"))?;
    let mounts = read("/proc/self/mountinfo".to_owned())?;
    Ok(dirs(&cgroups, &mounts, controller))
}

fn dirs(cgroups: &[u8], mounts: &[u8], controller: &str) -> Vec<PathBuf> {
    match path_of(cgroups, controller) {
        Some((path, version)) => mounted_cgroup(mounts, version, controller, &path),
        None => Vec::new(),
    }
}

/// The path of a cgroup in its hierarchy, and the version of that.
fn path_of(cgroups: &[u8], controller: &str) -> Option<(PathBuf, CgroupVersion)> {
    let mut unified = None;
    for line in cgroups.split(|b| *b == b'\n') {
        // number:controllers:path
        let mut parts = line.splitn(3, |b| *b == b':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        if controllers.split(|b| *b == b',').any(|name| name == controller.as_bytes()) {
            return Some((path, CgroupVersion::One));
        }
        if number == b"0" && controllers.is_empty() {
            unified = Some((path, CgroupVersion::Two));
        }
    }
    unified
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(cgroups: &str, mounts: &str) -> Vec<String> {
        let dirs = dirs(cgroups.as_bytes(), mounts.as_bytes(), "cpu");
        dirs.iter().map(|dir| dir.display().to_string()).collect()
    }

    const UNIFIED: &str =
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_2_with_ancestors() {
        let expected = [
            "/sys/fs/cgroup/kube.slice/pod:1/x y",
            "/sys/fs/cgroup/kube.slice/pod:1",
            "/sys/fs/cgroup/kube.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(texts("0::/kube.slice/pod:1/x y\n", UNIFIED), expected);
        assert_eq!(texts("0::/\n", UNIFIED), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn version_1_has_the_controller() {
        let mounts = "\
            31 30 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
            32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 30 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let cgroups = "3:cpuset:/s\n2:cpu,cpuacct:/a\n1:name=systemd:/u\n0::/u\n";
        assert_eq!(
            texts(cgroups, mounts),
            ["/sys/fs/cgroup/cpu,cpuacct/a", "/sys/fs/cgroup/cpu,cpuacct"]
        );
        // The controller belongs to version 1, which is not mounted here.
        assert_eq!(texts(cgroups, UNIFIED), [""; 0]);
    }

    #[test]
    fn a_part_of_the_hierarchy_is_mounted() {
        let mounts = "1 2 0:27 /docker/ab /sys/fs/cgro\\040up rw - cgroup2 cgroup2 rw\n";
        assert_eq!(texts("0::/docker/ab/in\n", mounts), ["/sys/fs/cgro up/in", "/sys/fs/cgro up"]);
        assert_eq!(texts("0::/docker/abc\n", mounts), [""; 0], "a neighbour");
        assert_eq!(texts("0::/../../other\n", UNIFIED), [""; 0], "outside of the namespace");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        assert!(matches!(cgroup_dirs(u32::MAX, "cpu"), Err(Error::File { .. })));
    }

    proptest! {
        #[test]
        fn any_files_are_no_panic(cgroups: Vec<u8>, mounts: Vec<u8>) {
            let _ = dirs(&cgroups, &mounts, "cpu");
            let _ = dirs(&cgroups, UNIFIED.as_bytes(), "cpu");
        }
    }
}
