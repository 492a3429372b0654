//! The output of `go tool trace` of the newest toolchain for a file, stored compressed beside it.

use std::fs;
use std::path::Path;
use std::process::Command;
use task_support::{Result, run};

/// The output of a command for a trace, and whether it accepted the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    pub(crate) text: Vec<u8>,
    pub(crate) exit: Option<i32>,
    /// The standard error.
    pub(crate) remark: String,
}

impl Printed {
    /// Runs `command` to completion.
    pub(crate) fn of(command: &mut Command) -> Result<Printed> {
        let output = run::attempt(command.env("TZ", "UTC"))?;
        let remark = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        Ok(Printed { text: output.stdout, exit: output.status.code(), remark })
    }

    pub(crate) fn accepted(&self) -> bool {
        self.exit == Some(0)
    }

    fn save(&self, path: &Path) -> Result {
        let mut bytes = format!("{:?}\n", self.exit).into_bytes();
        bytes.extend_from_slice(self.remark.replace('\n', " ").as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.text);
        Ok(fs::write(path, zstd::encode_all(&bytes[..], 1)?)?)
    }

    fn load(path: &Path) -> Result<Printed> {
        let bytes = zstd::decode_all(fs::File::open(path)?)?;
        let broken = || format!("{}: not what was saved", path.display());
        let mut parts = bytes.splitn(3, |&b| b == b'\n');
        let exit = std::str::from_utf8(parts.next().ok_or_else(broken)?)?;
        let exit = exit.strip_prefix("Some(").and_then(|e| e.strip_suffix(')'));
        let exit = exit.map(str::parse).transpose()?;
        let remark = String::from_utf8_lossy(parts.next().ok_or_else(broken)?).into_owned();
        Ok(Printed { text: parts.next().ok_or_else(broken)?.to_vec(), exit, remark })
    }
}

/// Both texts of the reference for one trace.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// `-d=parsed`: the ordered events.
    pub(crate) events: Printed,
    /// `-d=wire`: the contents of the file, in its order.
    pub(crate) wire: Printed,
}

impl Reference {
    /// Runs the trace tool at `tool`.
    pub(crate) fn ask(tool: &Path, trace: &Path) -> Result<Reference> {
        let ask = |mode| Printed::of(Command::new(tool).arg(mode).arg(trace));
        Ok(Reference { events: ask("-d=parsed")?, wire: ask("-d=wire")? })
    }

    pub(crate) fn save(&self, dir: &Path) -> Result {
        self.events.save(&dir.join("events.zst"))?;
        self.wire.save(&dir.join("wire.zst"))
    }

    pub(crate) fn load(dir: &Path) -> Result<Reference> {
        Ok(Reference {
            events: Printed::load(&dir.join("events.zst"))?,
            wire: Printed::load(&dir.join("wire.zst"))?,
        })
    }
}
