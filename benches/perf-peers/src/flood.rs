//! The process that is traced.

use crate::Error;
use crate::readers::{pin, thread_cpu_nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The argument that makes this program the flood.
pub(crate) const COMMAND: &str = "flood";

/// The CPU that it is on.
const CPU: usize = 1;

/// How long it calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Calls(u64),
    /// Seconds, and the limit of calls per second; 0 is none.
    Seconds(u64, u64),
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Calls(calls) => write!(f, "{calls}"),
            Self::Seconds(seconds, rate) => write!(f, "{seconds}s{rate}"),
        }
    }
}

impl std::str::FromStr for Length {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('s') {
            Some((seconds, rate)) => Ok(Self::Seconds(seconds.parse()?, rate.parse()?)),
            None => text.parse().map(Self::Calls),
        }
    }
}

/// Nanoseconds for each call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// Number of calls.
    pub(crate) calls: u64,
    /// By the clock.
    pub(crate) nanos: f64,
    /// On the CPU.
    pub(crate) cpu_nanos: f64,
}

/// The child process, from its parent's side.
pub(crate) struct Flood {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Flood {
    /// Starts it; it waits for [`go`](Self::go).
    pub(crate) fn prepare(length: Length) -> Result<Self, Error> {
        let mut child = Command::new("/proc/self/exe")
            .args([COMMAND, &length.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the flood has no output")?;
        let mut this = Self { child, output: BufReader::new(output) };
        this.output.read_line(&mut String::new())?;
        Ok(this)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn go(&mut self) -> Result<(), Error> {
        let input = self.child.stdin.as_mut().ok_or("the flood has no input")?;
        Ok(input.write_all(b"\n")?)
    }

    /// Whether it is done with its calls, without waiting.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }

    /// Waits until it is done with its calls.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        poll(&mut [PollFd::new(self.output.get_ref(), PollFlags::IN)], None)?;
        Ok(())
    }

    /// Ends it.
    pub(crate) fn finish(mut self) -> Result<Speed, Error> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut numbers = line.split_whitespace();
        let mut next = || numbers.next().ok_or("the flood printed no speed");
        let (calls, nanos, cpu_nanos) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
        Ok(Speed { calls, nanos, cpu_nanos })
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // it waits for that
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child does.
pub(crate) fn main(length: Length) -> Result<(), Error> {
    /// Calls between looks at the clock.
    const CALLS: u64 = 1000;
    let call = |calls| {
        for _ in 0..calls {
            black_box(rustix::process::getppid());
        }
        calls
    };
    pin(CPU)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let (start, before) = (Instant::now(), thread_cpu_nanos());
    let calls = match length {
        Length::Calls(calls) => call(calls),
        Length::Seconds(seconds, rate) => {
            let mut calls: u64 = 0;
            while start.elapsed().as_secs() < seconds {
                calls += call(CALLS);
                let due = Duration::from_nanos(calls * 1_000_000_000 / rate.max(1));
                while rate > 0 && start.elapsed() < due {
                    std::hint::spin_loop();
                }
            }
            calls
        }
    };
    let (elapsed, cpu) = (start.elapsed().as_nanos(), thread_cpu_nanos() - before);
    // The kernel reports records that did not fit when it writes the next one that does: let the
    // reader make room for that.
    sleep(Duration::from_millis(100));
    println!("{calls} {} {}", elapsed as f64 / calls as f64, cpu as f64 / calls as f64);
    // The reader still reads: the thread must not be gone.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
