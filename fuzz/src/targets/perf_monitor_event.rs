//! Descriptions of events, one in each line, as a user would write them.

use perf_monitor::{Error, Event};

pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines().take(8) {
        match Event::parse(line) {
            Ok(event) => {
                // Nothing is opened: that would be an event of this machine.
                let _ = (event.to_string(), event.builder().attr().config);
            }
            Err(error) => {
                if let Error::File { path, .. } = &error {
                    assert!(path.starts_with("/sys"), "{line:?} leads to {}", path.display());
                }
                let _ = error.to_string();
            }
        }
    }
}
