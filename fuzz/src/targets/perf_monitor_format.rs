//! Format files of tracefs, raw data in the layout that they describe, and its line as the kernel prints it.

use perf_monitor::{PrintFormat, TracepointFormat};

// The text ends at the first NUL, so that real files and real data can be seeds.
pub fn target(data: &[u8]) {
    let at = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (text, raw) = data.split_at(at);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let raw = raw.get(1..).unwrap_or_default();
    let Ok(format) = TracepointFormat::parse("fuzz", text) else { return };
    for field in format.common_fields().iter().chain(format.fields()) {
        if let Some(value) = field.value(raw) {
            let _ = value.to_string();
        }
    }
    let Ok(print) = PrintFormat::new(&format) else { return };
    let name = |address: u64| (address % 2 == 0).then(|| "a name".to_owned());
    let line = print.display(raw, &name).to_string();
    assert!(!line.contains('\x1b'), "{line:?} controls a terminal");
}
