//! Paths of cgroups and their `cpu.stat` files, as a container can have them; mounts, paths with escapes, and
//! ids and start times of processes in `/proc`.

use perf_monitor::Container;
use std::path::Path;
use trace_common::{CgroupVersion, innermost_pid, mounted_cgroup, start_ticks, unescape_octal};
use trace_timeline::sources::cgroup::CpuStat;

pub fn target(data: &[u8]) {
    let path = String::from_utf8_lossy(data);
    if let Some(container) = Container::of_cgroup(&path) {
        assert!(container.id.len() <= path.len());
        assert!(container.pod.is_none_or(|pod| pod.len() <= path.len()));
    }
    if let Some(stat) = CpuStat::parse(data) {
        let text = format!("nr_throttled {}\nthrottled_time {}\n", stat.periods, stat.nanos);
        assert_eq!(CpuStat::parse(text.as_bytes()), Some(stat));
    }
    let _ = (innermost_pid(data), start_ticks(data));
    assert!(unescape_octal(data, |_| true).len() <= data.len());
    for version in [CgroupVersion::One, CgroupVersion::Two] {
        let directories = mounted_cgroup(data, version, "memory", Path::new("/a/b"));
        assert!(directories.len() <= 3);
    }
}
