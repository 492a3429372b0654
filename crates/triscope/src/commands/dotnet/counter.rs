use nettrace::{Options, Order, Parser};
use std::io::Read;
use std::time::{Duration, Instant};

/// Counts the events of a stream while it is recorded, as long as the overhead is small.
///
/// The recorder must keep up with the runtime, or the runtime loses events. A stream that takes too
/// much time to parse is counted from the file when it is complete.
pub(super) struct Counter {
    parser: Parser,
    start: Instant,
    spent: Duration,
    gave_up: bool,
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

    pub(super) fn new() -> Self {
        let parser = Parser::new(Options::new().order(Order::Stream));
        Self { parser, start: Instant::now(), spent: Duration::ZERO, gave_up: false }
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
        self.gave_up = self.spent > allowed + Duration::from_millis(100);
    }

    fn pull(&mut self) {
        // The parser counts damage and resumes after it where possible.
        while !matches!(self.parser.next_event(), Ok(None)) {}
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
        self.pull();
        self.counts()
    }

    /// Counts the events of a whole stream.
    pub(super) fn of(mut source: impl Read) -> std::io::Result<Counts> {
        let mut parser = Self::new();
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
