use trace_common::{Cursor, Limits, Timestamp};

use crate::event_header::{Decoded, Layout, decode};
use crate::losses::{Gap, Losses};
use crate::metadata::{Metadata, MetadataTable};
use crate::tables::{RowCache, Thread, ThreadTable};
use crate::{Error, ErrorKind, Result, Trace};

/// Counts of items read and of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of input consumed.
    pub bytes: u64,
    /// Blocks (objects) of all kinds.
    pub blocks: u64,
    /// Skipped blocks of a kind that this crate does not know.
    pub unknown_blocks: u64,
    /// Events.
    pub events: u64,
    /// Metadata records.
    pub metadata: u64,
    /// Stacks.
    pub stacks: u64,
    /// Sequence points.
    pub sequence_points: u64,
    /// Events that are missing, by the gaps in the sequence numbers of each thread: the writer dropped them, or they
    /// were in a damaged block.
    pub lost: u64,
    /// Events without metadata.
    pub events_without_metadata: u64,
    /// Metadata whose fields, or what follows them, could not be parsed; its events have no fields.
    pub unreadable_metadata: u64,
    /// Number of times that events were returned before the stream guaranteed their order, because
    /// more than [`crate::Options::max_reorder_bytes`] were held back, or because a thread to which events can
    /// refer was removed (version 6); and of flushes after which an older event came: see
    /// [`crate::Parser::flush`].
    pub early_flushes: u64,
    /// Blocks that were skipped in part because of an error.
    pub damaged_blocks: u64,
    /// Offset of the end of the input, if the stream is truncated.
    pub truncated_at: Option<u64>,
}

impl Stats {
    /// Counts an event of the type in a row of the metadata table.
    #[inline]
    pub(crate) fn count(&mut self, events: u64, metadata: u32) {
        self.events += events;
        if metadata == MetadataTable::UNKNOWN {
            self.events_without_metadata += events;
        }
    }
}

/// The tables that events refer to.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) trace: Option<Trace>,
    pub(crate) metadata: MetadataTable,
    pub(crate) stacks: RowCache,
    pub(crate) labels: RowCache,
    pub(crate) threads: ThreadTable,
    pub(crate) losses: Losses,
    /// Of each id that is several times in the sequence point that is being read, the number that counts.
    repeated: Vec<(u64, u32)>,
    pub(crate) stats: Stats,
    pub(crate) limits: Limits,
}

/// A sequence point: in the stream, it follows all events that precede it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencePoint {
    /// Its time.
    pub time: Timestamp,
    /// Number of threads whose sequence numbers it contains.
    pub threads: u32,
}

impl StreamState {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            trace: None,
            metadata: MetadataTable::new(),
            stacks: RowCache::default(),
            labels: RowCache::default(),
            threads: ThreadTable::default(),
            losses: Losses::default(),
            repeated: Vec::new(),
            stats: Stats::default(),
            limits,
        }
    }

    #[inline]
    pub(crate) fn pointer_size(&self) -> u32 {
        self.trace.as_ref().map_or(8, |t| t.pointer_size)
    }

    /// The time of these ticks. Without a `Trace` object there are no events.
    #[inline]
    pub(crate) fn time(&self, ticks: i64) -> Timestamp {
        match &self.trace {
            Some(trace) => trace.timestamp(ticks),
            None => Timestamp::from_nanos(ticks),
        }
    }

    fn version(&self) -> u32 {
        self.trace.as_ref().map_or(4, |t| t.version)
    }

    /// Reads the header of an event block (versions 4 and later) or of a metadata block (versions 4
    /// and 5), and returns the layout of its events.
    pub(crate) fn block_layout(&self, c: &mut Cursor<'_>) -> Result<Layout> {
        let version = match &self.trace {
            Some(trace) => trace.version,
            None => return Err(Error::new(c.offset(), ErrorKind::NoTrace)),
        };
        if version < 4 {
            return Ok(Layout::NetPerf);
        }
        let at = c.offset();
        let size = c.u16()?;
        if size < 20 {
            return Err(Error::invalid(at, "block header size", size.into()));
        }
        let compressed = c.u16()? & 1 != 0;
        c.skip(usize::from(size) - 4)?;
        Ok(match (version >= 6, compressed) {
            (false, false) => Layout::V4,
            (false, true) => Layout::V4Compressed,
            (true, false) => Layout::V6,
            (true, true) => Layout::V6Compressed,
        })
    }

    /// Metadata blocks of any version; calls `added` with the index of each new row.
    pub(crate) fn metadata_block(
        &mut self,
        c: &mut Cursor<'_>,
        mut added: impl FnMut(u32),
    ) -> Result<()> {
        if self.version() >= 6 {
            let header = c.u16()?;
            c.skip(header.into())?;
            while !c.is_empty() {
                let at = c.offset();
                let size = c.u16()?;
                let mut row = c.sub(size.into())?;
                let mut head = row;
                let metadata = Metadata::parse_v6(&mut row, &self.limits);
                let metadata = self.or_head(metadata, || Metadata::parse_head_v6(&mut head))?;
                added(self.add_metadata(metadata, at)?);
            }
        } else {
            let layout = self.block_layout(c)?;
            let mut d = Decoded::NONE;
            while !c.is_empty() {
                let before = *c;
                decode(c, &mut d, layout)?;
                let mut row = before;
                row.skip((d.payload - before.offset()) as usize)?;
                let mut row = row.sub(d.header.payload_size as usize)?;
                added(self.metadata_event(&mut row)?);
            }
        }
        Ok(())
    }

    /// A metadata event of versions 3 to 5; `c` is its payload.
    pub(crate) fn metadata_event(&mut self, c: &mut Cursor<'_>) -> Result<u32> {
        let at = c.offset();
        let mut head = *c;
        let metadata = Metadata::parse(c, &self.limits);
        let metadata = self.or_head(metadata, || Metadata::parse_head(&mut head))?;
        self.add_metadata(metadata, at)
    }

    /// Metadata, or its part before the fields if those cannot be parsed: the headers and payloads of its
    /// events are valid. An exceeded limit is an error.
    fn or_head(
        &mut self,
        metadata: Result<Metadata>,
        head: impl FnOnce() -> Result<Metadata>,
    ) -> Result<Metadata> {
        match metadata {
            Err(e) if !matches!(e.kind, ErrorKind::Limit { .. }) => {
                self.stats.unreadable_metadata += 1;
                head()
            }
            other => other,
        }
    }

    fn add_metadata(&mut self, mut metadata: Metadata, at: u64) -> Result<u32> {
        metadata.complete(self.pointer_size(), self.version());
        self.stats.metadata += 1;
        self.metadata.insert(metadata, &self.limits, at)
    }

    pub(crate) fn stack_block(&mut self, c: &mut Cursor<'_>) -> Result<()> {
        self.stacks.add_stacks(c, &self.limits)?;
        self.stats.stacks = self.stacks.total;
        Ok(())
    }

    pub(crate) fn label_block(&mut self, c: &mut Cursor<'_>) -> Result<()> {
        self.labels.add_labels(c, &self.limits)
    }

    pub(crate) fn thread_block(&mut self, c: &mut Cursor<'_>) -> Result<()> {
        while !c.is_empty() {
            let at = c.offset();
            let size = c.u16()?;
            let mut row = c.sub(size.into())?;
            let (index, thread) = Thread::parse(&mut row)?;
            self.threads.insert(index, thread, &self.limits, at)?;
        }
        Ok(())
    }

    /// The first of the remaining rows of a block of removed threads that shows a loss; `None` at its end.
    fn next_removed(&mut self, c: &mut Cursor<'_>) -> Result<Option<Gap>> {
        while !c.is_empty() {
            let index = c.uvarint()?;
            let sequence = crate::strings::varuint32(c)?;
            let gap = self.losses.sequence_point(index, sequence, 0, &self.limits);
            self.losses.remove(index);
            self.threads.remove(index);
            if let Some(gap) = gap {
                // The block has no timestamp.
                return Ok(Some(Gap { before: gap.after.unwrap_or(0), ..gap }));
            }
        }
        Ok(None)
    }

    /// The first of the remaining threads of a sequence point that shows a loss; `None` at its end.
    fn next_in_point(&mut self, c: &mut Cursor<'_>, point: &mut Point) -> Result<Option<Gap>> {
        let v6 = self.version() >= 6;
        while point.left > 0 {
            let (thread, sequence) = if v6 {
                (c.uvarint()?, crate::strings::varuint32(c)?)
            } else {
                (c.u64()?, c.u32()?)
            };
            point.left -= 1;
            let known = self.repeated.binary_search_by_key(&thread, |(thread, _)| *thread).ok();
            let own = known.and_then(|known| self.repeated.get(known));
            if own.is_some_and(|(_, own)| *own != sequence) {
                continue;
            }
            let ticks = point.ticks;
            let gap = self.losses.sequence_point(thread, sequence, ticks, &self.limits);
            if gap.is_some() {
                return Ok(gap);
            }
        }
        Ok(None)
    }

    /// The head of a sequence point.
    pub(crate) fn begin_point(&mut self, c: &mut Cursor<'_>) -> Result<Point> {
        let ticks = c.i64()?;
        let flags = if self.version() >= 6 { c.u32()? } else { 0 };
        let threads = c.u32()?;
        // The indexes of version 6 are not used again.
        if self.version() < 6 {
            self.repeated = self.repeated(*c, threads);
        }
        Ok(Point { ticks, flags, threads, left: threads })
    }

    /// Threads that have ended and new ones with their ids can be in one sequence point. Of the numbers of an
    /// id, the first one that its events have not passed is that of the thread that wrote them.
    fn repeated(&self, mut c: Cursor<'_>, threads: u32) -> Vec<(u64, u32)> {
        let mut entry = || Some((c.u64().ok()?, c.u32().ok()?));
        let mut entries: Vec<_> = (0..threads).map_while(|_| entry()).collect();
        entries.sort_unstable();
        let of_ids = entries.chunk_by(|(one, _), (other, _)| one == other);
        let several = of_ids.filter(|entries| entries.len() > 1);
        let left =
            |(thread, sequence): &&(u64, u32)| sequence.wrapping_sub(self.losses.reached(*thread));
        several.filter_map(|entries| entries.iter().min_by_key(left).copied()).collect()
    }

    /// What follows in the block of a sequence point, or of removed threads.
    pub(crate) fn next_of_threads(
        &mut self,
        c: &mut Cursor<'_>,
        of: &mut ThreadsBlock,
    ) -> Result<ThreadsStep> {
        let lost = match of {
            ThreadsBlock::Point(point) => self.next_in_point(c, point)?,
            ThreadsBlock::Removed => self.next_removed(c)?,
        };
        self.stats.lost = self.losses.total;
        Ok(match (lost, of) {
            (Some(lost), _) => ThreadsStep::Loss(lost),
            (None, ThreadsBlock::Removed) => ThreadsStep::End,
            (None, ThreadsBlock::Point(point)) => {
                self.end_point(*point);
                ThreadsStep::Point(*point)
            }
        })
    }

    fn end_point(&mut self, point: Point) {
        let flags = point.flags;
        self.stats.sequence_points += 1;
        self.stacks.clear();
        self.labels.clear();
        // Version 6 has blocks of the threads that have ended.
        if self.version() < 6 {
            self.losses.keep_listed();
        }
        if flags & 1 != 0 {
            self.threads.clear();
            self.losses.clear();
        }
        if flags & 2 != 0 {
            self.metadata.clear();
        }
    }
}

/// A sequence point that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    ticks: i64,
    flags: u32,
    threads: u32,
    /// Threads that were not read yet.
    left: u32,
}

impl Point {
    pub(crate) fn sequence_point(self, time: impl Fn(i64) -> Timestamp) -> SequencePoint {
        SequencePoint { time: time(self.ticks), threads: self.threads }
    }
}

/// A block about threads, each of which can have lost events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ThreadsBlock {
    Point(Point),
    Removed,
}

/// A part of such a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ThreadsStep {
    Loss(Gap),
    /// The end of a sequence point.
    Point(Point),
    /// The end of the block.
    End,
}
