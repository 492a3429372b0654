//! `triscope open`, asked as a browser asks.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::process::Running;

/// The parts of a page that the program replaces.
const PAGE: &str = "<meta content=\"default-src 'none'; connect-src 'none'\">\
                    <script type=\"application/json\" id=\"served\">[]</script>";

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace")
}

/// A program that serves traces.
struct Opened {
    child: Running,
    messages: BufReader<ChildStderr>,
    /// What it printed before the address.
    before: String,
    host: String,
    path: String,
}

impl Opened {
    /// Runs `triscope open`, with pages below `data` only, up to its address.
    fn new(args: &[&Path], data: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        command.args(["open", "--no-browser"]).args(args);
        command.env("XDG_DATA_HOME", data).env("XDG_DATA_DIRS", data.join("none"));
        let mut child = Running::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let messages = BufReader::new(child.child().stderr.take().unwrap());
        let [before, host, path] = [const { String::new() }; 3];
        let mut opened = Self { child, messages, before, host, path };
        loop {
            let mut line = String::new();
            assert!(opened.messages.read_line(&mut line).unwrap() > 0, "{}", opened.before);
            if let Some(url) = line.strip_prefix("open http://") {
                let (host, path) = url.split(' ').next().unwrap().split_once('/').unwrap();
                (opened.host, opened.path) = (host.to_owned(), format!("/{path}"));
                return opened;
            }
            opened.before.push_str(&line);
        }
    }

    /// The reply to a request for a file of the page.
    fn get(&self, name: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(stream, "GET {}{name} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.host).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        (String::from_utf8(reply[..end].to_vec()).unwrap(), reply[end..].to_vec())
    }

    fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.messages.read_to_string(&mut rest).unwrap();
        (self.child.child().wait().unwrap(), self.before + &rest)
    }
}

#[test]
fn the_page_gets_its_traces() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("triscope/page.html");
    fs::create_dir(page.parent().unwrap()).unwrap();
    fs::write(&page, PAGE).unwrap();
    let hostile = dir.path().join("<!--<script>.trace");
    fs::copy(trace(), &hostile).unwrap();
    let opened = Opened::new(&[&trace(), &hostile], dir.path());
    let (head, page) = opened.get("");
    let page = String::from_utf8(page).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html"), "{head}");
    let own = format!("connect-src http://{}{}files/\"", opened.host, opened.path);
    assert!(page.contains(&own) && !page.contains("connect-src 'none'"), "{page}");
    assert!(page.contains(r#"["shop.trace","\u003c!--\u003cscript>.trace"]"#), "{page}");
    assert!(opened.get("files/2").0.starts_with("HTTP/1.1 404"));
    for file in ["files/0", "files/1"] {
        let (head, bytes) = opened.get(file);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(bytes == fs::read(trace()).unwrap(), "{file}: {} bytes", bytes.len());
    }
    let (status, messages) = opened.end();
    assert!(status.success(), "{messages}");
}

#[test]
fn connections_of_another_user_keep_no_place() {
    use std::os::unix::process::CommandExt as _;
    let is_root = rustix::process::geteuid().is_root();
    let has_python = Command::new("python3").arg("-V").output().is_ok();
    if !testkit::skip::can("root and python3", is_root && has_python) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let opened = Opened::new(&[Path::new("--report"), &trace()], dir.path());
    // As many as are served at a time.
    let script = "import socket, sys
held = [socket.create_connection((sys.argv[1], sys.argv[2])) for _ in range(64)]
print('connected', flush=True)
sys.stdin.read()";
    let (address, port) = opened.host.split_once(':').unwrap();
    let mut other = Command::new("python3");
    other.args(["-c", script, address, port]).stdin(Stdio::piped()).current_dir("/");
    let nobody = testkit::process::nobody();
    let mut other = Running::start(other.uid(nobody).gid(nobody));
    other.wait_for("connected");
    assert!(opened.get("").0.starts_with("HTTP/1.1 200"));
    let (status, messages) = opened.end();
    assert!(status.success(), "{messages}");
}

/// The kernel has no user of a connection of which the client has ended its half.
#[test]
fn a_connection_of_an_unknown_user_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = Opened::new(&[Path::new("--report"), &trace()], dir.path());
    let (host, is_over) = (opened.host.clone(), AtomicBool::new(false));
    let mut line = String::new();
    std::thread::scope(|scope| {
        // The program can look before the end.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(&host).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let _ = stream.read(&mut [0]); // its end
            }
        });
        let read = opened.messages.read_line(&mut line);
        is_over.store(true, Ordering::Relaxed);
        read.unwrap();
    });
    assert_eq!(line, "triscope: a connection was closed: its user is not known\n");
    assert!(opened.get("").0.starts_with("HTTP/1.1 200"));
    let (status, messages) = opened.end();
    assert!(status.success() && !messages.contains("connection"), "{messages}");
}

#[test]
fn without_a_page_the_report_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Opened::new(&[&trace()], dir.path());
    assert!(opened.before.contains("cargo xtask web --install"), "{}", opened.before);
    let (_, page) = opened.get("");
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("<title>") && page.contains("shop.trace"));
    assert!(opened.before.contains("\nshop.trace: "), "{}", opened.before);
    let (status, messages) = opened.end();
    assert!(status.success(), "{messages}");
}

#[test]
fn a_signal_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Opened::new(&[Path::new("--report"), &trace()], dir.path());
    opened.child.signal("INT");
    assert_eq!(opened.end().0.code(), Some(130));
}

/// The signal comes when the page is begun, or a little later.
#[test]
fn a_signal_leaves_no_part_of_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let (page, partial) = (dir.path().join("a.html"), dir.path().join("a.html.partial"));
    for (command, option) in [("report", "--html"), ("convert", "-o")] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_triscope"));
        run.arg(command).arg(trace()).arg(option).arg(&page);
        let mut child = Running::spawn(run.stdin(Stdio::null()).stderr(Stdio::null()));
        let mut ended = None;
        while ended.is_none() && !partial.exists() {
            ended = child.child().try_wait().unwrap();
        }
        if ended.is_none() {
            child.signal("INT");
        }
        let status = child.child().wait().unwrap();
        assert!(status.success() || status.code() == Some(130), "{command}: {status}");
        assert!(!partial.exists(), "{command}: {status}");
    }
}

#[test]
fn other_pages_and_inputs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("other.html");
    fs::write(&page, "<p>another page").unwrap();
    let (trace, missing) = (trace(), dir.path().join("missing"));
    let run = |args: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        command.args(["open", "--no-browser"]).args(args).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (args, why) in [
        (&[Path::new("--page"), &page, &trace][..], "is not a page of this version"),
        (&[Path::new("-")][..], "save it to a file first"),
        (&[missing.as_path()][..], "o such file"),
        (&[Path::new("--page"), &page, Path::new("--report"), &trace][..], "--report"),
    ] {
        let (code, message) = run(args);
        assert!(code.is_some_and(|code| code > 0) && message.contains(why), "{message}");
    }
}
