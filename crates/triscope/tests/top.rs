//! `triscope top`, in a terminal that `script` of util-linux makes, and without one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

/// A command that runs until it is ended.
const BUSY: &str = "sh -c 'while :; do :; done'";

fn triscope(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

/// Whether this user may sample its own processes; if not, says so.
fn may_sample() -> bool {
    let ran = triscope(&["top", "--once", "true"]);
    let is_refused = String::from_utf8_lossy(&ran.stderr).contains("perf_event_paranoid");
    testkit::skip::can("samples of own processes", ran.status.success() || !is_refused)
}

/// `triscope top` in a terminal of 80 columns and 24 rows.
struct Terminal {
    script: Child,
    /// The name of the terminal.
    name: String,
    /// The process of `triscope`.
    pid: String,
}

impl Terminal {
    fn start(args: &str) -> Self {
        let program = env!("CARGO_BIN_EXE_triscope");
        // The settings of the terminal must be afterwards what they were before.
        let session = format!(
            "stty rows 24 cols 80; before=$(stty -g); echo TTY=$(tty)=; \
             sh -c 'echo PID=$$=; exec \"$@\"' sh '{program}' top {args}; \
             code=$?; [ \"$(stty -g)\" = \"$before\" ] && echo RESTORED=$code="
        );
        let mut command = Command::new("script");
        command.args(["-qec", &session, "/dev/null"]).env("TERM", "xterm");
        let script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut this = Self { script, name: String::new(), pid: String::new() };
        this.name = this.value("TTY=");
        this.pid = this.value("PID=");
        this
    }

    /// Waits until this is written, and returns all before it.
    fn wait_for(&mut self, part: &str) -> String {
        self.wait_for_one(&[part]).1
    }

    /// Waits until one of these is written. Returns which one, and all before it.
    fn wait_for_one(&mut self, parts: &[&str]) -> (usize, String) {
        let stdout = self.script.stdout.as_mut().unwrap();
        let (mut seen, mut byte) = (Vec::new(), [0]);
        let is_last = |seen: &[u8], part: &&str| seen.ends_with(part.as_bytes());
        let index = loop {
            if let Some(index) = parts.iter().position(|part| is_last(&seen, part)) {
                break index;
            }
            let read = stdout.read(&mut byte).unwrap();
            assert_eq!(read, 1, "no {parts:?} in {:?}", String::from_utf8_lossy(&seen));
            seen.push(byte[0]);
        };
        seen.truncate(seen.len() - parts[index].len());
        (index, String::from_utf8_lossy(&seen).into_owned())
    }

    /// The value of `NAME=VALUE=`.
    fn value(&mut self, name: &str) -> String {
        self.wait_for(name);
        self.wait_for("=")
    }

    fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Presses `q` at each frame, which hides the cursor, until the program leaves the screen: crossterm
    /// does not pass on a key that comes with a change of the size before the next one.
    fn quit(&mut self) {
        loop {
            self.press("q");
            if self.wait_for_one(&["\x1b[?25l", "\x1b[?1049l"]).0 == 1 {
                return;
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program ends with its terminal.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn run(command: &str, args: &[&str]) {
    assert!(Command::new(command).args(args).status().unwrap().success());
}

#[test]
fn a_terminal_shows_rows_and_is_restored() {
    if !may_sample() {
        return;
    }
    let mut terminal = Terminal::start(&format!("--by thread --delay 0.1 {BUSY}"));
    terminal.wait_for("\x1b[?1049h");
    terminal.wait_for("100.00");
    terminal.press("p");
    terminal.wait_for("PAUSED");
    let name = terminal.name.clone();
    run("stty", &["-F", &name, "rows", "30", "cols", "100"]);
    // The last line explains the keys.
    terminal.wait_for("\x1b[30;1H");
    terminal.wait_for("scroll");
    terminal.quit();
    assert_eq!(terminal.value("RESTORED="), "0");
}

/// Whether this user may sample waits; if not, says so.
fn may_sample_waits() -> bool {
    let ran = triscope(&["top", "--off-cpu", "--once", "true"]);
    if !ran.status.success() {
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(error.contains("leaves the CPU in the kernel"), "{error}");
    }
    testkit::skip::can("samples of waits", ran.status.success())
}

/// A wait that continues is in each interval.
#[test]
fn waits_are_shown_while_they_last() {
    if !may_sample_waits() {
        return;
    }
    let mut terminal = Terminal::start("--off-cpu --by thread --delay 0.1 sleep 1000");
    terminal.wait_for("time off the CPU");
    terminal.wait_for("100.00");
    terminal.press("q");
    assert_eq!(terminal.value("RESTORED="), "0");
}

/// The last record of a program that sleeps is that of its sleep. Up to there, the shell waits as long as its child.
#[test]
fn a_wait_has_the_time_up_to_the_end() {
    if !may_sample_waits() {
        return;
    }
    let command = ["sh", "-c", "sleep 0.1; exec sleep 1000"];
    let ran = triscope(&[&["top", "--off-cpu", "--json", "--delay", "2"], &command[..]].concat());
    assert!(ran.status.success(), "{ran:?}");
    let json: Value = serde_json::from_slice(&ran.stdout).unwrap();
    // Each has a half without the second sleep.
    assert!(json["threads"][0]["share"].as_f64() > Some(0.6), "{json}");
}

#[test]
fn a_signal_ends_the_command_and_restores_the_terminal() {
    if !may_sample() {
        return;
    }
    let mut terminal = Terminal::start(&format!("--by thread --delay 0.1 {BUSY}"));
    terminal.wait_for("100.00");
    let pid = terminal.pid.clone();
    run("kill", &["-TERM", &pid]);
    terminal.wait_for("\x1b[?1049l");
    assert_eq!(terminal.value("RESTORED="), "143");
}

#[test]
fn without_a_terminal_one_interval_is_printed() {
    if !may_sample() {
        return;
    }
    // The command ends before the interval does.
    let busy = ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"];
    let top = |args: &[&str]| {
        let ran = triscope(&[&["top", "--delay", "600"], args, &busy].concat());
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&top(&["--json"])).unwrap();
    assert!(json["samples"].as_u64() > Some(0), "{json}");
    assert_eq!(json["threads"][0]["name"], "sh");
    let functions = json["functions"].as_array().unwrap().iter();
    let own: f64 = functions.map(|function| function["self"].as_f64().unwrap()).sum();
    assert!((own - 1.0).abs() < 1e-6, "{own}");
    for (filter, is_shown) in [("SH", true), ("no row", false)] {
        let json: Value = serde_json::from_str(&top(&["--json", "--filter", filter])).unwrap();
        assert_eq!(json["threads"][0]["name"] == "sh", is_shown, "{json}");
    }
    let text = top(&["--once", "--by", "process"]);
    assert!(text.contains("PROCESS") && text.contains("100.00 %"), "{text}");
}

/// Longer than the clock can count.
#[test]
fn an_interval_can_be_longer_than_the_command() {
    if !may_sample() {
        return;
    }
    for top in [&["top", "--once", "--delay", "1e19"][..], &["perf", "top", "-d", "1e19"]] {
        let ran = triscope(&[top, &["true"]].concat());
        assert!(ran.status.success(), "{ran:?}");
    }
}

#[test]
fn without_a_terminal_the_other_modes_are_named() {
    let ran = triscope(&["top", "-a"]);
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{error}");
    assert!(error.contains("needs a terminal") && error.contains("--once"), "{error}");
}
