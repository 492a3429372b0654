//! The load: pairs of threads that wake each other in turn, at a fixed rate.
//!
//! The kernel counts the switches of each thread. When a pair has done its work, both threads wait, and stay
//! off the CPU until their process ends: from then on their counts are final.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use task_support::Result;

/// Round trips between two looks at the clock.
const BURST: u64 = 32;

/// A pair that is late makes up for at most this much.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Other work of the machine would set the rate otherwise. The recorder comes before it.
const NICE: &str = "-5";

/// Time between two looks at a thread that is about to wait.
const LOOK: Duration = Duration::from_millis(1);

/// How a thread of a pair wakes the other one.
const KINDS: [fn() -> Result<[End; 2]>; 2] = [sockets, flags];

/// A thread of a pair, with the kernel's counts of its switches, from its start until it waits at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) tid: u32,
    /// The thread gave up the CPU, to wait.
    pub(super) voluntary: u64,
    /// The kernel took the CPU away.
    pub(super) involuntary: u64,
}

/// A pair in a process of its own.
pub(super) struct Pair {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Pair {
    /// Starts pair number `n`, which switches `rate` times a second for this time, on this CPU or on any.
    pub(super) fn start(n: usize, cpu: Option<usize>, rate: u64, time: Duration) -> Result<Self> {
        // Not by its path, where a check can write another build.
        let program = format!("/proc/{}/exe", std::process::id());
        let mut command = Command::new("nice");
        command.args(["-n", NICE]);
        if let Some(cpu) = cpu {
            command.args(["taskset", "-c", &cpu.to_string()]);
        }
        let numbers = [n as u64, rate, time.as_secs()].map(|number| number.to_string());
        command.args([&program, "soak", "--pair"]).args(numbers).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("no standard output")?;
        Ok(Self { child, stdout: BufReader::new(stdout) })
    }

    /// Waits until both threads wait. They do so until this is dropped.
    pub(super) fn counted(&mut self) -> Result<[Counted; 2]> {
        let mut next = || -> Result<Counted> {
            let mut line = String::new();
            self.stdout.read_line(&mut line)?;
            let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
            match numbers[..] {
                [tid, voluntary, involuntary] => {
                    Ok(Counted { tid: u32::try_from(tid)?, voluntary, involuntary })
                }
                _ => Err(format!("a pair of the load has said {line:?}").into()),
            }
        };
        Ok([next()?, next()?])
    }
}

impl Pair {
    /// CPU time in seconds.
    pub(super) fn cpu_time(&self) -> Result<f64> {
        super::recorder::cpu_time(self.child.id())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have failed
        let _ = self.child.wait();
    }
}

/// The process of a pair: the number of the pair, switches a second, seconds.
pub(super) fn run(args: &[String]) -> Result {
    let numbers: Vec<u64> = args.iter().flat_map(|arg| arg.parse()).collect();
    let [n, rate, seconds] = numbers[..] else {
        return Err("--pair takes the number of a pair, switches a second, and seconds".into());
    };
    let rate = rate.max(1);
    let [ping, pong] = KINDS[n as usize % KINDS.len()]()?;
    let (done, both) = mpsc::channel();
    let time = Duration::from_secs(seconds);
    let other = done.clone();
    let _threads = [
        thread::spawn(move || hold(ping.lead(rate, time), done)),
        thread::spawn(move || hold(pong.follow(), other)),
    ];
    for _ in 0..2 {
        let tid = both.recv()??;
        let Counted { tid, voluntary, involuntary } = at_rest(tid)?;
        println!("{tid} {voluntary} {involuntary}");
    }
    // Until it is killed, or who has started it is gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A thread that is done, or why it is not.
type Tid = std::result::Result<u32, String>;

/// Waits for ever, once this thread has said who it is.
fn hold(result: Result, done: Sender<Tid>) {
    let tid = result.and_then(|()| {
        let link = fs::read_link("/proc/thread-self")?;
        Ok(link.file_name().and_then(|name| name.to_str()).ok_or("no thread")?.parse()?)
    });
    let (_never, forever): (_, Receiver<()>) = mpsc::channel();
    if done.send(tid.map_err(|error| error.to_string())).is_ok() {
        let _ = forever.recv();
    }
}

/// The counts of a thread that waits for ever.
fn at_rest(tid: u32) -> Result<Counted> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{name}"));
    loop {
        // The kernel shows a system call only of a thread that is off the CPU and not runnable.
        if read("syscall")?.starts_with(|c: char| c.is_ascii_digit()) {
            let status = read("status")?;
            let number = |name: &str| -> Result<u64> {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                Ok(line.ok_or_else(|| format!("no {name} in the status"))?.trim().parse()?)
            };
            let voluntary = number("voluntary_ctxt_switches:")?;
            let involuntary = number("nonvoluntary_ctxt_switches:")?;
            return Ok(Counted { tid, voluntary, involuntary });
        }
        thread::sleep(LOOK);
    }
}

/// One side of a pair.
enum End {
    Socket(UnixStream),
    Flag { own: Arc<Flag>, other: Arc<Flag> },
}

/// The last byte on a socket, and the last value of a flag.
const LAST: u8 = 2;

/// A futex.
#[derive(Default)]
struct Flag {
    value: Mutex<u8>,
    changed: Condvar,
}

fn sockets() -> Result<[End; 2]> {
    let (here, there) = UnixStream::pair()?;
    Ok([End::Socket(here), End::Socket(there)])
}

fn flags() -> Result<[End; 2]> {
    let [a, b] = [Arc::<Flag>::default(), Arc::<Flag>::default()];
    let here = End::Flag { own: Arc::clone(&a), other: Arc::clone(&b) };
    Ok([here, End::Flag { own: b, other: a }])
}

impl End {
    /// Goes there and back until the time is over.
    fn lead(mut self, rate: u64, time: Duration) -> Result {
        let start = Instant::now();
        let (mut since, mut switches) = (start, 0);
        while start.elapsed() < time {
            for _ in 0..BURST {
                self.wake(1)?;
                self.wait()?;
                switches += 2;
            }
            let due = Duration::from_nanos(switches * 1_000_000_000 / rate);
            let elapsed = since.elapsed();
            match due.checked_sub(elapsed) {
                Some(early) => thread::sleep(early),
                None if elapsed - due > CATCH_UP => (since, switches) = (Instant::now(), 0),
                None => {}
            }
        }
        self.wake(LAST)
    }

    fn follow(mut self) -> Result {
        while self.wait()? != LAST {
            self.wake(1)?;
        }
        Ok(())
    }

    fn wake(&mut self, value: u8) -> Result {
        match self {
            Self::Socket(stream) => stream.write_all(&[value])?,
            Self::Flag { other, .. } => {
                *other.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
                other.changed.notify_one();
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<u8> {
        match self {
            Self::Socket(stream) => {
                let mut value = [0];
                stream.read_exact(&mut value)?;
                Ok(value[0])
            }
            Self::Flag { own, .. } => {
                let value = own.value.lock().unwrap_or_else(PoisonError::into_inner);
                let set = own.changed.wait_while(value, |value| *value == 0);
                Ok(std::mem::take(&mut *set.unwrap_or_else(PoisonError::into_inner)))
            }
        }
    }
}
