//! Every command against every runtime, with real processes.
//!
//! After each test the target must still run and answer: [`Checked`] sees to it.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

#[cfg(feature = "tokio")]
mod asynchronous;
mod commands;
mod discovery;
mod faults;
mod reverse;
mod sessions;

use diag_ipc::{Client, ProcessInfoCommand};
use std::ops::{Deref, DerefMut};
use testkit::dotnet::{Builder, Runtime, Target};

/// Whether `text` occurs in `stream` as UTF-16, which is how events carry it.
fn holds(stream: &[u8], text: &str) -> bool {
    let text: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    stream.windows(text.len()).any(|window| window == text)
}

/// A part of a test that cannot run here. In CI it must.
fn skip(what: &str, why: &dyn std::fmt::Display) {
    assert!(std::env::var_os("CI").is_none(), "{what}: {why}");
    eprintln!("\n==== SKIPPED: {what}\n==== because: {why}\n");
}

/// A target that has to be alive and to answer when the test is done with it.
struct Checked(Target);

impl Checked {
    fn start(builder: Builder) -> Self {
        Self(builder.start())
    }

    fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// Asks for `ProcessInfo`, which .NET Core 3.1 does not know, and says so.
    fn check(&mut self) {
        self.assert_alive();
        match (self.runtime(), self.client().process_info_by(ProcessInfoCommand::ProcessInfo)) {
            (Runtime::Core31, Err(e)) if e.is_unknown_command() => {}
            (Runtime::Core31, other) => panic!(".NET Core 3.1 answered {other:?}"),
            (_, Ok(info)) => assert_eq!(info.pid, u64::from(self.pid())),
            (runtime, Err(e)) => panic!("{runtime:?} does not answer: {e}"),
        }
    }
}

impl Deref for Checked {
    type Target = Target;
    fn deref(&self) -> &Target {
        &self.0
    }
}

impl DerefMut for Checked {
    fn deref_mut(&mut self) -> &mut Target {
        &mut self.0
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}
