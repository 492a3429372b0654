//! The memory that is available.

use std::path::{Path, PathBuf};

/// The memory that is available to this process, in bytes: that of the machine, or what is left of the limit
/// of its cgroup or of an ancestor of that, if it is less. What the kernel can take from its cache of files
/// is available. `None` if the system does not say it: it is Linux that does.
pub fn available_memory() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| of_machine(&text));
    let cgroups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let limits = directories(&cgroups, &mounts).into_iter().filter_map(|(dir, version)| {
        let [limit, used, stat] = version.files().map(|name| read(&dir.join(name)));
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
fn of_cgroup(version: Version, limit: &str, used: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?; // or `max`
    let used: u64 = used.trim().parse().ok()?;
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        version.cached().contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
}

/// A version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The files of the limit, of the used memory, and of its parts.
    const fn files(self) -> [&'static str; 3] {
        match self {
            // Without a limit, it is above all memory that a machine can have.
            Self::One => ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"],
            Self::Two => ["memory.max", "memory.current", "memory.stat"],
        }
    }

    /// The parts that are a cache of files and of their names, with those of the cgroups below.
    const fn cached(self) -> &'static [&'static str] {
        match self {
            Self::One => &["total_inactive_file", "total_active_file"],
            Self::Two => &["inactive_file", "active_file", "slab_reclaimable"],
        }
    }
}

/// The directories of the cgroups of this process that can limit its memory, innermost first: `cgroups(7)`.
fn directories(cgroups: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut directories = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = match controllers {
            "" => Version::Two,
            _ if controllers.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        let Some((root, point)) = mounts.lines().find_map(|line| mount(line, version)) else {
            continue;
        };
        // In a container, a part of the hierarchy can be mounted, which the path is in or not.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let all = below.ancestors().map(|below| (Path::new(point).join(below), version));
        directories.extend(all);
    }
    directories
}

/// The root and the place of a mounted hierarchy with the memory controller: `proc_pid_mountinfo(5)`. A
/// name with spaces, which are escaped there, is not found.
fn mount(line: &str, version: Version) -> Option<(&str, &str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1)?);
    let is_it = match version {
        Version::One => name == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::Two => name == "cgroup2",
    };
    let mut fields = mount.split(' ').skip(3);
    is_it.then_some((fields.next()?, fields.next()?))
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
        let (one, two) = (Version::One, Version::Two);
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
        let of = |cgroups, mounts| {
            let all = directories(cgroups, mounts).into_iter();
            all.map(|(dir, version)| (dir.to_str().unwrap().to_owned(), version))
                .collect::<Vec<_>>()
        };
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let dir = |path: &str, version| (path.to_owned(), version);
        assert_eq!(
            of("0::/user.slice/x.scope\n", unified),
            [
                dir("/sys/fs/cgroup/user.slice/x.scope", Version::Two),
                dir("/sys/fs/cgroup/user.slice", Version::Two),
                dir("/sys/fs/cgroup/", Version::Two),
            ]
        );
        // A container of version 1, which sees its own cgroup only.
        let first = "40 32 0:33 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let cgroups = "5:memory:/docker/1/app\n4:cpu,cpuacct:/docker/1\n0::/docker/1\n";
        assert_eq!(
            of(cgroups, first),
            [
                dir("/sys/fs/cgroup/memory/app", Version::One),
                dir("/sys/fs/cgroup/memory/", Version::One),
            ]
        );
        assert_eq!(of("5:memory:/other\n", first), [dir("/sys/fs/cgroup/memory/", Version::One)]);
        assert_eq!(of(cgroups, ""), []);
    }
}
