//! Programs that are written by a test and executed by it.
//!
//! Another process writes them. A file that is open for writing cannot be executed (`ETXTBSY`,
//! `execve(2)`), and it is open in each child that another thread of the test starts meanwhile.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies a program, which can then be executed by everyone who reaches it.
///
/// # Panics
///
/// If it cannot be copied.
#[track_caller]
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut install = Command::new("install");
    let status = install.args(["-m", "755", "--"]).arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(status.unwrap().success());
}

/// Writes a script, which can then be executed.
///
/// # Panics
///
/// If it cannot be written.
#[track_caller]
pub fn script(path: impl AsRef<Path>, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "--", "/dev/stdin"]).arg(path.as_ref());
    let mut child = install.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}
