//! Records and format files of a real kernel, decoded without one: `tests/data`, see its README.
//!
//! `cargo xtask update-golden` regenerates the expected texts.

#![cfg(feature = "symbols")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use perf_monitor::probe::{ElfFile, ProbeDefinition, ProbeKind};
use perf_monitor::{Decoder, RawRecord, TracepointFormat};
use perf_sys::perf_event_attr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn files(extension: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files
}

#[track_caller]
fn check(file: &Path, text: &str) {
    let mut expected = file.as_os_str().to_owned();
    expected.push(".txt");
    testkit::golden::check(Path::new(&expected), text);
}

#[test]
fn recorded_records_decode_as_before() {
    for file in files("perf") {
        let bytes = std::fs::read(&file).unwrap();
        let (head, records) = bytes.split_at(48);
        let words: Vec<u64> =
            head.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        let attr = perf_event_attr {
            sample_type: words[0],
            read_format: words[1],
            flags: words[2],
            branch_sample_type: words[3],
            sample_regs_user: words[4],
            sample_regs_intr: words[5],
            ..perf_event_attr::default()
        };
        let decoder = Decoder::new(&attr);
        let (mut text, mut rest) = (String::new(), records);
        while let Some((raw, after)) = RawRecord::split_first(rest, 0) {
            rest = after;
            writeln!(text, "{:?}", decoder.decode(raw).unwrap()).unwrap();
        }
        assert!(rest.is_empty(), "{}: {} bytes are no records", file.display(), rest.len());
        check(&file, &text);
    }
}

#[test]
fn recorded_format_files_are_read_as_before() {
    for file in files("format") {
        let bytes = std::fs::read(&file).unwrap();
        let at = bytes.iter().position(|b| *b == 0).unwrap();
        let format =
            TracepointFormat::parse("test", std::str::from_utf8(&bytes[..at]).unwrap()).unwrap();
        let raw = &bytes[at + 1..];
        let mut text = format!("{} {}\n", format.name(), format.id());
        for field in format.common_fields().iter().chain(format.fields()) {
            let value = field.value(raw).unwrap();
            writeln!(text, "{} {:?} = {value}", field.name(), field.kind()).unwrap();
        }
        check(&file, &text);
    }
}

#[test]
fn an_assembled_file_has_functions_and_usdt_probes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/functions.elf");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.iter().position(|b| *b == 0).unwrap();
    let mut elf = ElfFile::new(std::io::Cursor::new(&bytes[at + 1..]), &path).unwrap();
    let name = std::str::from_utf8(&bytes[..at]).unwrap();
    assert_eq!((name, elf.function(name).unwrap().offset), ("main", 0x110));
    let probes = elf.usdt_probes().unwrap();
    assert_eq!(probes.iter().map(|p| p.offset).collect::<Vec<_>>(), [0x114, 0x124]);
}

#[test]
fn lines_of_probes_are_written_as_they_were_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/names.probes");
    let text = std::fs::read_to_string(path).unwrap();
    for line in text.lines() {
        let kind = if line.contains(" /") { ProbeKind::Uprobe } else { ProbeKind::Kprobe };
        assert_eq!(ProbeDefinition::parse(kind, line).unwrap().to_string(), line);
    }
    assert_eq!(text.lines().count(), 6);
}
