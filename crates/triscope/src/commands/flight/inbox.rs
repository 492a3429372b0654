//! Messages to the thread that records.

use super::store::{Dumped, Held};
use crate::failure::{Failure, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use trace_flight::Cause;

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
    /// A trigger fired that is none of the kernel's records.
    Fired(Cause),
    /// A dump was written, or not.
    Dumped {
        held: Held,
        result: Result<Box<Dumped>>,
        replies: Vec<Reply>,
    },
}

/// Where other threads post messages.
#[derive(Clone)]
pub(super) struct Outbox {
    sender: Sender<Message>,
    bell: Arc<UnixStream>,
}

impl Outbox {
    pub(super) fn post(&self, message: Message) {
        // The recorder may have ended. A bell that is full rings already.
        let _ = self.sender.send(message);
        let _ = (&*self.bell).write(&[1]);
    }
}

/// The messages, and what wakes the recorder.
pub(super) struct Inbox {
    receiver: Receiver<Message>,
    bell: UnixStream,
}

pub(super) fn new() -> Result<(Inbox, Outbox)> {
    let fail = |error: std::io::Error| Failure::about("a pair of sockets", error);
    let (bell, ring) = UnixStream::pair().map_err(fail)?;
    bell.set_nonblocking(true).and_then(|()| ring.set_nonblocking(true)).map_err(fail)?;
    let (sender, receiver) = unbounded();
    Ok((Inbox { receiver, bell }, Outbox { sender, bell: Arc::new(ring) }))
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

    /// Waits for the next message.
    pub(super) fn recv(&self) -> Option<Message> {
        self.receiver.recv().ok()
    }
}
