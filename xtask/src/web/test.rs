//! `cargo xtask test-web`: the page in headless Chromium, beside the native program.

use crate::html;
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use task_support::{Result, lane, run, target_dir, workspace};
use testkit::nettrace;

pub(crate) const OPTIONS: &str = "\
[TRACE]

  TRACE   a large Go trace: the page must convert it in 200 MB; the ratio of the times is printed";

const DRIVE: &str = include_str!("drive.js");

/// Directories of traces that have been committed.
const FIXTURES: [&str; 4] = [
    "crates/gotrace/tests/data",
    "crates/nettrace/tests/data",
    "crates/perf-data/tests/data",
    "crates/trace-timeline/tests/data",
];

/// How the names of traces end, before `.gz`.
const ENDINGS: [&str; 2] = ["trace", ".perf.data"];

/// Those that are damaged, cut and packed in every way.
const DAMAGED: [&str; 6] = [
    "shop.trace",
    "t10-activity.nettrace",
    "go1.23-mixed.trace.gz",
    "scheduler.perf.data",
    "perf-z.perf.data",
    "perf-pipe.perf.data",
];

/// Those that are compressed with zstd and gzip.
const COMPRESSED: [&str; 5] = [
    "shop.trace",
    "go1.23-mixed.trace.gz",
    "t9-runtime.nettrace.gz",
    "scheduler.perf.data",
    "perf.perf.data",
];

/// Bytes of a bomb, decompressed.
const BOMB: u64 = 256 << 20;

pub(crate) fn task(args: &[String]) -> Result {
    let node = match html::node() {
        Ok(node) => node,
        Err(why) => return lane::skip("the web page in a browser", &why),
    };
    let page = super::build()?;
    let dir = target_dir().join("web/test");
    let inputs = dir.join("inputs");
    if inputs.exists() {
        fs::remove_dir_all(&inputs)?;
    }
    fs::create_dir_all(&inputs)?;
    let native = Native { program: run::triscope()?, inputs };
    let mut cases = Vec::new();
    let mut names = native.fixtures()?;
    names.extend(native.damaged()?);
    names.extend(native.compressed()?);
    for name in names {
        cases.push(native.case(&name)?);
    }
    for name in native.bombs()? {
        cases.push(json!({ "kind": "bomb", "file": native.inputs.join(name) }));
    }
    let mut large = |name: &str| {
        let mut case = native.case(name)?;
        case["kind"] = "large".into();
        cases.push(case);
        Result::Ok(())
    };
    fs::write(native.inputs.join("large.nettrace"), large_trace())?;
    large("large.nettrace")?;
    if let Some(trace) = args.first() {
        fs::copy(trace, native.inputs.join("large.trace"))?;
        large("large.trace")?;
    }
    let plan = dir.join("plan.json");
    fs::write(&plan, serde_json::to_vec(&Value::Array(cases))?)?;
    run::run(node.drive(&dir, DRIVE)?.arg(&dir).arg(page).arg(plan).arg(&native.program))
}

/// Exceptions in the generated trace: about 60 bytes each.
const EXCEPTIONS: i64 = 300_000;

/// A .NET trace of many exceptions.
fn large_trace() -> Vec<u8> {
    let types = [("Microsoft-Windows-DotNETRuntime", 80, 1)];
    let kind = nettrace::utf16("System.InvalidOperationException");
    let event = |at| {
        let message = nettrace::utf16(&format!("number {}", at % 100));
        let rest = [0; 8 + 4 + 2 + 2]; // the address, the code, flags, the runtime
        nettrace::event(1, at * 1000, 7 + at as u64 % 5, &[&kind, &message, &rest])
    };
    nettrace::trace(&types, &(0..EXCEPTIONS).map(event).collect::<Vec<_>>())
}

/// The beginning of a Go trace, of a .NET trace and of a recording of perf in pipe mode.
const GO: &[u8] = b"go 1.26 trace\0\0\0";
const DOTNET: &[u8] = b"Nettrace\x14\0\0\0!FastSerialization.1";
const PERF: &[u8] = b"PERFILE2\x10\0\0\0\0\0\0\0";

/// The exponent of the window of zstd in its form in a file: 128 KiB, and 2 TiB.
const BOMB_WINDOW: u8 = 7 << 3;
const MAX_WINDOW: u8 = 31 << 3;

/// A frame of zstd with this text and [`BOMB`] zeros: blocks of one byte each that is repeated.
///
/// Source: RFC 8878, 3.1.1.
fn zstd_bomb(head: &[u8], window: u8) -> Vec<u8> {
    const RAW: u32 = 0;
    const REPEATED: u32 = 1 << 1;
    const LAST: u32 = 1;
    const BLOCK: u32 = 1 << 17;
    let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    let mut block = |kind: u32, size: u32, bytes: &[u8]| {
        file.extend(&(kind | size << 3).to_le_bytes()[..3]);
        file.extend(bytes);
    };
    block(RAW, head.len() as u32, head);
    for _ in 0..BOMB / u64::from(BLOCK) {
        block(REPEATED, BLOCK, &[0]);
    }
    block(RAW | LAST, 0, b"");
    file
}

/// The native program, and the directory where it runs.
struct Native {
    program: PathBuf,
    inputs: PathBuf,
}

impl Native {
    /// Copies the fixtures, and returns their names.
    fn fixtures(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in FIXTURES {
            for entry in fs::read_dir(workspace().join(dir))? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if ENDINGS.iter().any(|e| name.trim_end_matches(".gz").ends_with(e)) {
                    fs::copy(&path, self.inputs.join(&name))?;
                    names.push(name);
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes damaged traces, and returns their names.
    fn damaged(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut write = |name: String, bytes: &[u8]| {
            fs::write(self.inputs.join(&name), bytes)?;
            names.push(name);
            Result::Ok(())
        };
        write("empty.trace".to_owned(), b"")?;
        write("text.trace".to_owned(), b"not a trace\n")?;
        write("header.trace".to_owned(), b"go 1.26 trace\0\0\0")?;
        write("header.nettrace".to_owned(), b"Nettrace")?;
        write("markup<img src=x onerror=owned=1>.trace".to_owned(), b"<b id=owned>")?;
        for fixture in DAMAGED {
            let bytes = fs::read(self.inputs.join(fixture))?;
            for part in [1, 2, 3] {
                let at = bytes.len() * part / 4;
                write(format!("cut-{part}-{fixture}"), &bytes[..at])?;
                let mut changed = bytes.clone();
                changed[at] ^= 0x55;
                write(format!("changed-{part}-{fixture}"), &changed)?;
                let mut filled = bytes.clone();
                filled[at..].fill(0xff);
                write(format!("filled-{part}-{fixture}"), &filled)?;
            }
        }
        Ok(names)
    }

    /// Writes compressed traces, and returns their names. Of recordings of perf, which are read twice, one is
    /// cut: the page keeps the content of such an input in a file.
    fn compressed(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut write = |name: String, bytes: &[u8]| {
            fs::write(self.inputs.join(&name), bytes)?;
            names.push(name);
            Result::Ok(())
        };
        for fixture in COMPRESSED {
            let mut bytes = fs::read(self.inputs.join(fixture))?;
            if fixture.ends_with(".gz") {
                let mut content = Vec::new();
                MultiGzDecoder::new(&bytes[..]).read_to_end(&mut content)?;
                bytes = content;
            }
            let name = fixture.trim_end_matches(".gz");
            let compressed = compress_to_vec(&bytes[..], CompressionLevel::Fastest);
            write(format!("{name}.zst"), &compressed)?;
            let packed = super::gzip(&bytes)?;
            write(format!("packed-{name}.gz"), &packed)?;
            if name.ends_with(".perf.data") {
                write(format!("cut-packed-{name}.gz"), &packed[..packed.len() / 2])?;
            }
            // Another frame, and one that is to be skipped.
            let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            let frames = [head, tail].map(|b| compress_to_vec(b, CompressionLevel::Fastest));
            write(format!("frames-{name}.zst"), &[&frames[0], &skipped[..], &frames[1]].concat())?;
        }
        Ok(names)
    }

    /// Writes small files that become large when they are decompressed, and returns their names.
    fn bombs(&self) -> Result<Vec<&'static str>> {
        let bomb = |name: &'static str, head: &[u8]| {
            let file = fs::File::create(self.inputs.join(name))?;
            let mut encoder = GzEncoder::new(file, Compression::fast());
            encoder.write_all(head)?;
            std::io::copy(&mut std::io::repeat(0).take(BOMB), &mut encoder)?;
            encoder.finish()?;
            Result::Ok(name)
        };
        let zstd = |name: &'static str, head: &[u8], window: u8| {
            fs::write(self.inputs.join(name), zstd_bomb(head, window))?;
            Result::Ok(name)
        };
        Ok(vec![
            bomb("zeros.gz", b"")?,
            bomb("go.gz", GO)?,
            bomb("dotnet.gz", DOTNET)?,
            bomb("perf.gz", PERF)?,
            zstd("zeros.zst", b"", BOMB_WINDOW)?,
            zstd("go.zst", GO, BOMB_WINDOW)?,
            zstd("dotnet.zst", DOTNET, BOMB_WINDOW)?,
            zstd("perf.zst", PERF, BOMB_WINDOW)?,
            zstd("window.zst", GO, MAX_WINDOW)?,
        ])
    }

    /// What the native program makes of a file.
    fn case(&self, name: &str) -> Result<Value> {
        let (timeline, page) = (self.output(name, "pftrace"), self.output(name, "html"));
        let convert = ["convert", "--uncompressed", "-o"];
        let (converted, seconds) = self.messages(&convert, &timeline, name)?;
        let (reported, _) = self.messages(&["report", "--html"], &page, name)?;
        Ok(json!({
            "kind": "same",
            "file": self.inputs.join(name),
            "timeline": timeline.exists().then_some(&timeline),
            "seconds": seconds,
            "convert": converted,
            "report": reported,
        }))
    }

    fn output(&self, name: &str, kind: &str) -> PathBuf {
        self.inputs.join("..").join(format!("{name}.{kind}"))
    }

    /// The errors of a command, without the name of the program, and its seconds of CPU time.
    fn messages(&self, args: &[&str], out: &Path, name: &str) -> Result<(Vec<String>, f64)> {
        if out.exists() {
            fs::remove_file(out)?;
        }
        let mut command = Command::new(&self.program);
        command.args(args).arg(out).arg("--").arg(name).current_dir(&self.inputs);
        let start = Instant::now();
        let output = run::attempt(&mut command)?;
        let seconds = start.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let errors = text.lines().filter_map(|line| line.strip_prefix("triscope: "));
        Ok((errors.map(str::to_owned).collect(), seconds))
    }
}
