//! ELF files: functions and USDT probes by name.

use perf_monitor::probe::ElfFile;
use std::io::Cursor;
use std::path::Path;

// The name to look up ends at the first NUL, so that real files can be seeds.
pub fn target(data: &[u8]) {
    let at = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (name, file) = data.split_at(at);
    let name = String::from_utf8_lossy(name);
    let file = file.get(1..).unwrap_or_default();
    let Ok(mut elf) = ElfFile::new(Cursor::new(file), Path::new("fuzz")) else { return };
    if let Ok(function) = elf.function(&name) {
        // It is in the file's address space, not beyond it.
        assert!(function.at(0).is_ok());
    }
    for probe in elf.usdt_probes().unwrap_or_default() {
        let _ = elf.usdt_probes_of(&probe.provider, &probe.name);
        let _ = format!("{probe:?}");
    }
}
