//! Lines of `kprobe_events` and `uprobe_events`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use perf_monitor::probe::{ProbeDefinition, ProbeKind};

fuzz_target!(|line: &str| {
    for kind in [ProbeKind::Kprobe, ProbeKind::Uprobe] {
        if let Ok(probe) = ProbeDefinition::parse(kind, line) {
            let text = probe.to_string();
            assert_eq!(ProbeDefinition::parse(kind, &text).unwrap(), probe, "{text}");
        }
    }
});
