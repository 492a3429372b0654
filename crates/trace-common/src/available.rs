//! The memory that is available.

use crate::mounts::path_of;
use crate::{CgroupVersion, Mount, mounted_cgroup};
use std::path::{Path, PathBuf};

/// The memory that is available to this process, in bytes: that of the machine, or what is left of the limit
/// of its cgroup or of an ancestor of that, if it is less. What the kernel can take from its cache of files
/// is available. `None` if the system does not say it: it is Linux that does.
pub fn available_memory() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| of_machine(&text));
    // Names in them can be no UTF-8 text.
    let cgroups = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let limits = directories(&cgroups, &mounts).into_iter().filter_map(|(dir, version)| {
        let [limit, used, stat] = files(version).map(|name| read(&dir.join(name)));
        of_cgroup(version, &limit?, &used?, &stat.unwrap_or_default())
    });
    machine.into_iter().chain(limits).min()
}

/// Bytes of `MemAvailable`: `proc_meminfo(5)`.
fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What is left of the limit of a cgroup, in bytes; `None` if it has none.
fn of_cgroup(version: CgroupVersion, limit: &str, used: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?; // or `max`
    let used: u64 = used.trim().parse().ok()?;
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        cached(version).contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
}

/// The files of the limit of a cgroup, of the used memory, and of its parts.
const fn files(version: CgroupVersion) -> [&'static str; 3] {
    match version {
        // Without a limit, it is above all memory that a machine can have.
        CgroupVersion::One => ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"],
        CgroupVersion::Two => ["memory.max", "memory.current", "memory.stat"],
    }
}

/// The parts that are a cache of files and of their names, with those of the cgroups below.
const fn cached(version: CgroupVersion) -> &'static [&'static str] {
    match version {
        CgroupVersion::One => &["total_inactive_file", "total_active_file"],
        CgroupVersion::Two => &["inactive_file", "active_file", "slab_reclaimable"],
    }
}

/// The directories of the cgroups of this process that can limit its memory, innermost first: `cgroups(7)`.
fn directories(cgroups: &[u8], mounts: &[u8]) -> Vec<(PathBuf, CgroupVersion)> {
    const CONTROLLER: &str = "memory";
    let mut directories = Vec::new();
    for line in cgroups.split(|b| *b == b'\n') {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mut names = controllers.split(|b| *b == b',');
        let version = match controllers {
            b"" => CgroupVersion::Two,
            _ if names.any(|name| name == CONTROLLER.as_bytes()) => CgroupVersion::One,
            _ => continue,
        };
        let mut all = mounted_cgroup(mounts, version, CONTROLLER, &path_of(path));
        if all.is_empty() {
            // A container can see its cgroup alone, by another path.
            let mut mounts = Mount::all(mounts);
            let mount = mounts.find(|mount| mount.is_hierarchy(version, CONTROLLER));
            all.extend(mount.map(|mount| mount.point));
        }
        directories.extend(all.into_iter().map(|dir| (dir, version)));
    }
    directories
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "these are tests")]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_and_of_cgroups_is_in_bytes() {
        let meminfo = "MemTotal:       65000000 kB\nMemAvailable:   64000000 kB\n";
        assert_eq!(of_machine(meminfo), Some(64_000_000 << 10));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), None);
        let (one, two) = (CgroupVersion::One, CgroupVersion::Two);
        assert_eq!(of_cgroup(two, "max\n", "1000\n", ""), None);
        assert_eq!(of_cgroup(two, "1000000000\n", "1000\n", ""), Some(999_999_000));
        assert_eq!(of_cgroup(two, "1000\n", "2000\n", ""), Some(0));
        // A cache fills what is not used otherwise.
        let stat = "anon 100\nfile 900\ninactive_file 500\nactive_file 300\nslab_reclaimable 50\n";
        assert_eq!(of_cgroup(two, "1000\n", "1000\n", stat), Some(850));
        let stat = "inactive_file 1\ntotal_inactive_file 50\ntotal_active_file 30\n";
        assert_eq!(of_cgroup(one, "1000\n", "1000\n", stat), Some(80));
    }

    #[test]
    fn the_cgroup_and_its_ancestors_have_limits() {
        let of = |cgroups: &str, mounts: &str| {
            let all = directories(cgroups.as_bytes(), mounts.as_bytes()).into_iter();
            all.map(|(dir, version)| (dir.to_str().unwrap().to_owned(), version))
                .collect::<Vec<_>>()
        };
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let dir = |path: &str, version| (path.to_owned(), version);
        assert_eq!(
            of("0::/user.slice/x.scope\n", unified),
            [
                dir("/sys/fs/cgroup/user.slice/x.scope", CgroupVersion::Two),
                dir("/sys/fs/cgroup/user.slice", CgroupVersion::Two),
                dir("/sys/fs/cgroup", CgroupVersion::Two),
            ]
        );
        // A container of version 1, which sees its own cgroup only.
        let first = "40 32 0:33 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let cgroups = "5:memory:/docker/1/app\n4:cpu,cpuacct:/docker/1\n0::/docker/1\n";
        assert_eq!(
            of(cgroups, first),
            [
                dir("/sys/fs/cgroup/memory/app", CgroupVersion::One),
                dir("/sys/fs/cgroup/memory", CgroupVersion::One),
            ]
        );
        assert_eq!(
            of("5:memory:/other\n", first),
            [dir("/sys/fs/cgroup/memory", CgroupVersion::One)]
        );
        assert_eq!(of(cgroups, ""), []);
        // A part of the hierarchy, of another container, is mounted before.
        let part = "29 25 0:26 /pod /mnt/a rw - cgroup2 none rw\n";
        let of_slice = of("0::/user.slice\n", &format!("{part}{unified}"));
        let (own, all) = ("/sys/fs/cgroup/user.slice", "/sys/fs/cgroup");
        assert_eq!(of_slice, [own, all].map(|path| dir(path, CgroupVersion::Two)));
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_no_text_hide_no_limits() {
        let mounts = b"28 25 0:9 / /mnt/\xff rw - tmpfs none rw\n\
            30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = directories(b"1:name=\xff:/\xff\n0::/\xfe\n", mounts);
        let own = Path::new("/sys/fs/cgroup").join(path_of(b"\xfe"));
        let expected = [own, PathBuf::from("/sys/fs/cgroup")];
        assert_eq!(found, expected.map(|path| (path, CgroupVersion::Two)));
    }
}
