//! The bundled program: a producer and consumers with a lock, and one that sleeps.

use crate::failure::{Failure, Result};
use std::hint::black_box;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

const RUNS: Duration = Duration::from_secs(2);

pub(super) fn run() -> Result {
    let end = Instant::now() + RUNS;
    let sum = Arc::new(Mutex::new(0_u64));
    let (jobs, taken) = sync_channel::<u64>(4);
    let taken = Arc::new(Mutex::new(taken));
    let mut threads = Vec::new();
    threads.push(start("producer", move || {
        for job in 0.. {
            if Instant::now() > end || jobs.send(compute(job % 20)).is_err() {
                return;
            }
            if job % 50 == 0 {
                sleep(Duration::from_millis(5));
            }
        }
    })?);
    for number in 0..3 {
        let (sum, taken) = (Arc::clone(&sum), Arc::clone(&taken));
        threads.push(start(&format!("consumer {number}"), move || {
            loop {
                let job = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = job else { return };
                let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                *sum = sum.wrapping_add(compute(job % 40));
            }
        })?);
    }
    threads.push(start("ticker", move || {
        while Instant::now() < end {
            sleep(Duration::from_millis(20));
            compute(10);
        }
    })?);
    for thread in threads {
        thread.join().map_err(|_| Failure::new("a thread of the demo panicked"))?;
    }
    Ok(())
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(body).map_err(|e| Failure::about("a thread", e))
}

/// Some tens of microseconds of work.
fn compute(much: u64) -> u64 {
    (0..much * 5_000).fold(1, |sum, n| black_box(sum * 31 + n) % 1_000_003)
}
