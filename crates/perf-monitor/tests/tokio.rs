//! The rings of a set on tokio's runtime. Needs root.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "a test that fails is to panic")]

use perf_monitor::{AsyncRingSet, Error, RingSet, SampleFlags, Tracefs};
use std::future::Future;
use std::io::Write;
use std::task::Poll;

/// A set for threads that wakes at each `getppid` of them.
fn set(test: &str, tids: &[u32]) -> Option<AsyncRingSet> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("PERF_TEST_STRICT").is_none(), "{test}: must run here");
        let _ = writeln!(std::io::stderr(), "SKIPPED\t{test}\tneeds root");
        return None;
    }
    let tracefs = Tracefs::find_or_detached().unwrap();
    let calls = tracefs.event("raw_syscalls", "sys_enter").unwrap();
    let set = RingSet::builder().pages(8).wakeup_watermark(1);
    let mut set = tids.iter().fold(set, |set, tid| set.thread(*tid)).open().unwrap();
    let calls = set.add(&calls.builder().sample_period(1).sample(SampleFlags::TID)).unwrap();
    set.set_filter(calls, &format!("id == {}", libc::SYS_getppid)).unwrap();
    set.enable_event(calls).unwrap();
    Some(AsyncRingSet::new(set).unwrap())
}

fn samples(set: AsyncRingSet) -> u64 {
    let mut set = set.into_inner();
    set.finish(|_| Ok::<(), Error>(())).unwrap().rings.samples
}

/// Polls a future once, without a wake-up.
async fn is_pending(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[tokio::test]
async fn a_task_waits_for_an_event() {
    let Some(mut set) = set("a_task_waits_for_an_event", &[0]) else { return };
    assert!(is_pending(set.wait()).await, "there is no event, and the wait is cancelled");
    for _ in 0..3 {
        let call = async {
            // The other task waits by now.
            tokio::task::yield_now().await;
            let _ = rustix::process::getppid();
        };
        let (readiness, ()) = tokio::join!(set.wait(), call);
        assert!(readiness.unwrap().readable);
    }
    // One that happened before is reported, too.
    let _ = rustix::process::getppid();
    assert!(set.wait().await.unwrap().readable);
    assert_eq!(samples(set), 4);
}

#[tokio::test]
async fn a_task_waits_for_the_end_of_a_thread() {
    let (ids, id) = tokio::sync::oneshot::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        ids.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let _ = ends.recv();
    });
    let set = set("a_task_waits_for_the_end_of_a_thread", &[id.await.unwrap()]);
    let Some(mut set) = set else { return };
    assert!(is_pending(set.wait()).await);
    drop(end);
    while !set.wait().await.unwrap().hung_up {}
    thread.join().unwrap();
    assert_eq!(samples(set), 0);
}

/// The ends of all threads are reported at once.
#[tokio::test]
async fn a_task_waits_for_the_end_of_many_threads() {
    // Each of them has an event on each CPU.
    let count = 200usize.div_ceil(perf_monitor::online_cpus().len());
    let (ids, all_ids) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for _ in 0..count {
        let ids = ids.clone();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            ids.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ends.recv();
        });
        threads.push((end, thread));
    }
    let tids: Vec<u32> = all_ids.iter().take(count).collect();
    let Some(mut set) = set("a_task_waits_for_the_end_of_many_threads", &tids) else { return };
    for (end, thread) in threads {
        drop(end);
        thread.join().unwrap();
    }
    // The kernel ends the events of a thread before it removes the thread from the list.
    let is_there = |tid: &u32| std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
    while tids.iter().any(is_there) {
        std::thread::yield_now();
    }
    assert!(set.wait().await.unwrap().hung_up, "the first wait has all of them");
    assert_eq!(samples(set), 0);
}
