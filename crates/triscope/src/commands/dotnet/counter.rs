use super::stopping::StoppingEvent;
use nettrace::{Options, Order, Parser};
use std::io::Read;
use std::time::{Duration, Instant};

/// Counts the events of a stream while it is recorded, as long as the overhead is small.
///
/// The recorder must keep up with the runtime, or the runtime loses events. A stream that takes too
/// much time to parse is counted from the file when it is complete. Until an event that ends the recording was
/// found, it is parsed in any case.
pub(super) struct Counter {
    parser: Parser,
    start: Instant,
    spent: Duration,
    gave_up: bool,
    stopping: Option<StoppingEvent>,
    /// Whether the stream has had that event.
    has_stopped: bool,
    errors: u64,
}

/// Totals of the events of a stream.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    /// Events that the runtime dropped.
    pub(super) lost: u64,
}

impl Counter {
    /// Counting may take 1/`SHARE` of the time.
    const SHARE: u32 = 20;

    /// Counts, and looks for an event.
    pub(super) fn new(stopping: Option<StoppingEvent>) -> Self {
        let parser = Parser::new(Options::new().order(Order::Stream));
        let (start, spent) = (Instant::now(), Duration::ZERO);
        Self { parser, start, spent, gave_up: false, stopping, has_stopped: false, errors: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if self.gave_up {
            return;
        }
        let before = Instant::now();
        self.parser.push(bytes);
        self.pull();
        self.spent += before.elapsed();
        let allowed = before.duration_since(self.start) / Self::SHARE;
        self.gave_up = self.spent > allowed + Duration::from_millis(100) && !self.is_looking();
    }

    fn pull(&mut self) {
        loop {
            match self.parser.next_event() {
                Ok(Some(event)) => {
                    let stopping = self.stopping.as_ref().filter(|_| !self.has_stopped);
                    self.has_stopped |= stopping.is_some_and(|stopping| stopping.is(&event));
                }
                Ok(None) => break,
                // The parser counts damage and resumes after it where possible.
                Err(_) => self.errors += 1,
            }
        }
    }

    /// Whether an event is looked for that was not found.
    const fn is_looking(&self) -> bool {
        self.stopping.is_some() && !self.has_stopped
    }

    /// Whether the stream has had the event.
    pub(super) const fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Number of errors of the stream, so far as it was parsed.
    pub(super) const fn errors(&self) -> u64 {
        self.errors
    }

    /// The counts so far, unless counting was given up.
    pub(super) fn counts(&self) -> Option<Counts> {
        (!self.gave_up).then(|| self.so_far())
    }

    fn so_far(&self) -> Counts {
        let stats = self.parser.stats();
        Counts { events: stats.events, lost: stats.lost }
    }

    /// The final counts, unless counting was given up.
    pub(super) fn finish(mut self) -> Option<Counts> {
        self.parser.finish();
        self.stopping = None; // it is too late
        self.pull();
        self.counts()
    }

    /// Counts the events of a whole stream.
    pub(super) fn of(mut source: impl Read) -> std::io::Result<Counts> {
        let mut parser = Self::new(None);
        let mut buffer = vec![0; 1 << 18];
        loop {
            let len = source.read(&mut buffer)?;
            if len == 0 {
                parser.parser.finish();
                parser.pull();
                return Ok(parser.so_far());
            }
            parser.parser.push(&buffer[..len]);
            parser.pull();
        }
    }
}
