//! Lines of `kprobe_events` and `uprobe_events`.

use perf_monitor::probe::{ProbeDefinition, ProbeKind};

pub fn target(data: &[u8]) {
    let Some(line) = data.utf8_chunks().next().map(|chunk| chunk.valid()) else { return };
    for kind in [ProbeKind::Kprobe, ProbeKind::Uprobe] {
        if let Ok(probe) = ProbeDefinition::parse(kind, line) {
            let text = probe.to_string();
            assert_eq!(ProbeDefinition::parse(kind, &text).unwrap(), probe, "{text}");
        }
    }
}
