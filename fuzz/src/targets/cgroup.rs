//! Paths of cgroups and their `cpu.stat` files, as a container can have them.

use perf_monitor::Container;
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
}
