//! Lines of `kprobe_events` and `uprobe_events`, and the syntax of `perf probe`.

use perf_monitor::probe::{Probe, ProbeDefinition, ProbeKind};
use std::path::Path;

pub fn target(data: &[u8]) {
    let Some(line) = data.utf8_chunks().next().map(|chunk| chunk.valid()) else { return };
    for kind in [ProbeKind::Kprobe, ProbeKind::Uprobe] {
        if let Ok(probe) = ProbeDefinition::parse(kind, line) {
            let text = probe.to_string();
            assert_eq!(ProbeDefinition::parse(kind, &text).unwrap(), probe, "{text}");
        }
    }
    // Reads no file.
    for file in [None, Some(Path::new("/program"))] {
        let _ = Probe::parse(line, file);
    }
}
