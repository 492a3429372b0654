//! Messages to the thread that records.

use super::store::{Dumped, Held};
use crate::failure::{Failure, Result};
use crate::timeline::now;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trace_flight::{Cause, Windows};

/// A reply to a request: a text, or why there is none.
pub(super) type Reply = Sender<std::result::Result<String, String>>;

pub(super) enum Message {
    /// A signal asks to end.
    Stop,
    /// A signal asks to read the configuration again.
    Reload,
    /// A signal asks for a dump.
    Signal(&'static str),
    /// A user asks for a dump.
    Dump {
        reason: String,
        reply: Reply,
    },
    Metrics(Reply),
    /// A dump was written, or not.
    Dumped {
        held: Held,
        result: Result<Box<Dumped>>,
        replies: Vec<Reply>,
    },
}

/// Triggers that fired and are none of the kernel's records, until a round takes them. A program can fire any number
/// in that time.
#[derive(Debug, Default)]
pub(super) struct Fired {
    /// The earliest ones and the latest one, by time: no more than a window names.
    pub(super) causes: Vec<Cause>,
    /// The number of those between.
    pub(super) more: u64,
}

impl Fired {
    fn add(&mut self, cause: Cause) {
        let place = self.causes.partition_point(|other| other.time <= cause.time);
        self.causes.insert(place, cause);
        if self.causes.len() > Windows::MAX_CAUSES {
            self.causes.remove(Windows::MAX_CAUSES - 1);
            self.more += 1;
        }
    }
}

/// Where other threads post messages.
#[derive(Clone)]
pub(super) struct Outbox {
    sender: Sender<Message>,
    bell: Arc<UnixStream>,
    fired: Arc<Mutex<Fired>>,
}

impl Outbox {
    pub(super) fn post(&self, message: Message) {
        // The recorder may have ended. A bell that is full rings already.
        let _ = self.sender.send(message);
        let _ = (&*self.bell).write(&[1]);
    }

    /// A trigger fired. It does not wake the recorder, whose next round is soon: each cause would cost a round.
    pub(super) fn fired(&self, mut cause: Cause) {
        cause.time = cause.time.or_else(|| now().ok());
        self.fired.lock().unwrap_or_else(PoisonError::into_inner).add(cause);
    }
}

/// The messages, and what wakes the recorder.
pub(super) struct Inbox {
    receiver: Receiver<Message>,
    bell: UnixStream,
    fired: Arc<Mutex<Fired>>,
}

pub(super) fn new() -> Result<(Inbox, Outbox)> {
    let fail = |error: std::io::Error| Failure::about("a pair of sockets", error);
    let (bell, ring) = UnixStream::pair().map_err(fail)?;
    bell.set_nonblocking(true).and_then(|()| ring.set_nonblocking(true)).map_err(fail)?;
    let (sender, receiver) = unbounded();
    let fired = Arc::new(Mutex::new(Fired::default()));
    let outbox = Outbox { sender, bell: Arc::new(ring), fired: Arc::clone(&fired) };
    Ok((Inbox { receiver, bell, fired }, outbox))
}

impl Inbox {
    /// Waits for a message, for `other`, or for the time limit.
    pub(super) fn wait(&mut self, other: &impl AsFd, limit: Duration) {
        // The bell of those that are left has rung already.
        let limit = if self.receiver.is_empty() { limit } else { Duration::ZERO };
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(other, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, limit.as_ref());
        let mut rung = [0; 64];
        while matches!((&self.bell).read(&mut rung), Ok(n) if n > 0) {}
    }

    pub(super) fn next(&self) -> Option<Message> {
        self.receiver.try_recv().ok()
    }

    /// Takes the triggers that fired.
    pub(super) fn fired(&self) -> Fired {
        std::mem::take(&mut *self.fired.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the next message.
    pub(super) fn recv(&self) -> Option<Message> {
        self.receiver.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_flight::Timestamp;

    /// A program that fires all the time costs the recorder no round, and no memory.
    #[test]
    fn triggers_are_taken_at_once() {
        let (inbox, outbox) = new().unwrap();
        for n in (0..5_000).rev().chain(5_000..10_000) {
            let mut cause = Cause::new("go-region", "x");
            cause.time = Some(Timestamp::from_nanos(n));
            outbox.fired(cause);
        }
        let no_bell = (&inbox.bell).read(&mut [0]).unwrap_err();
        assert_eq!(no_bell.kind(), std::io::ErrorKind::WouldBlock);
        let Fired { causes, more } = inbox.fired();
        let most = Windows::MAX_CAUSES;
        assert_eq!((causes.len(), more), (most, 10_000 - most as u64));
        let times = causes.iter().map(|cause| cause.time.unwrap().nanos());
        assert!(times.eq((0..most as i64 - 1).chain([9_999])));
        assert!(inbox.fired().causes.is_empty());
        // Others wake it.
        outbox.post(Message::Stop);
        assert_eq!((&inbox.bell).read(&mut [0]).unwrap(), 1);
        assert!(matches!(inbox.next(), Some(Message::Stop)));
    }
}
