//! The headers of events: their layouts, and how they are decoded.

use crate::Guid;
use crate::losses::SequenceKey;
use crate::metadata::MetadataTable;
use crate::strings::{guid, varuint32};
use trace_common::{Cursor, ReadError, ReadErrorKind};

/// An event's header, as in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventHeader {
    /// Id of the [`Metadata`](crate::Metadata) that describes the event.
    pub metadata_id: u32,
    /// Number of the event among those that [`EventHeader::capture_thread`] tried to write; 0 in
    /// version 3.
    pub sequence_number: u32,
    /// The thread that the event is about: a thread id, in version 6 a thread index.
    pub thread: u64,
    /// The thread that wrote the event.
    pub capture_thread: u64,
    /// Processor number; `u32::MAX` if the runtime does not know it (on Linux).
    pub processor_number: u32,
    /// Stack id, valid up to the next sequence point; 0 for none.
    pub stack_id: u32,
    /// Ticks of the event clock, as in the stream. [`Event::time`](crate::Event::time) is the same in nanoseconds.
    pub ticks: i64,
    /// Version 6: label list id, valid up to the next sequence point; 0 for none.
    pub label_list_id: u32,
    /// Versions 3 to 5: activity id; see [`Event::activity_id`](crate::Event::activity_id).
    pub activity_id: Guid,
    /// Versions 3 to 5: id of the activity that caused it.
    pub related_activity_id: Guid,
    /// Bytes of payload.
    pub payload_size: u32,
    /// Whether all later events in the stream are at least as new as this one.
    pub is_sorted: bool,
}

impl EventHeader {
    #[inline]
    pub(crate) const fn place(&self) -> SequenceKey {
        SequenceKey {
            thread: self.capture_thread,
            sequence: self.sequence_number,
            ticks: self.ticks,
        }
    }

    pub(crate) const fn set_place(&mut self, place: SequenceKey) {
        self.capture_thread = place.thread;
        self.sequence_number = place.sequence;
        self.ticks = place.ticks;
    }
}

/// Layout of the events in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Version 3: the stack follows the payload.
    NetPerf,
    V4,
    V4Compressed,
    V6,
    V6Compressed,
}

mod flags {
    pub(super) const METADATA: u8 = 1;
    pub(super) const CAPTURE: u8 = 2;
    pub(super) const THREAD: u8 = 4;
    pub(super) const STACK: u8 = 8;
    pub(super) const ACTIVITY: u8 = 16;
    pub(super) const RELATED: u8 = 32;
    pub(super) const SORTED: u8 = 64;
    pub(super) const SIZE: u8 = 128;
}

/// A partly decoded event: its header and the location of its payload and stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoded {
    pub(crate) header: EventHeader,
    /// Index of the metadata row.
    pub(crate) metadata: u32,
    /// Offset of the payload in the whole input.
    pub(crate) payload: u64,
    /// Version 3: offset and size of the stack.
    pub(crate) stack: (u64, u32),
}

impl Decoded {
    /// The state before the first event of a block.
    pub(crate) const NONE: Self = Self {
        header: EventHeader {
            metadata_id: 0,
            sequence_number: 0,
            thread: 0,
            capture_thread: 0,
            processor_number: 0,
            stack_id: 0,
            ticks: 0,
            label_list_id: 0,
            activity_id: Guid::EMPTY,
            related_activity_id: Guid::EMPTY,
            payload_size: 0,
            is_sorted: false,
        },
        metadata: MetadataTable::UNKNOWN,
        payload: 0,
        stack: (0, 0),
    };
}

/// The parts of the shared state of a block that an event contains.
#[derive(Clone, Copy)]
pub(crate) struct Changes {
    /// The metadata id.
    pub(crate) metadata: bool,
    /// Capture thread and sequence number.
    pub(crate) capture: bool,
}

impl Layout {
    #[inline]
    const fn is_compressed(self) -> bool {
        matches!(self, Self::V4Compressed | Self::V6Compressed)
    }
}

/// Decodes the event at the cursor if it differs from the previous event `d` in time and payload
/// only, which is the common case in an event flood. Otherwise it changes nothing, and the caller
/// continues with [`decode`].
#[inline]
pub(crate) fn decode_alike(c: &mut Cursor<'_>, d: &mut Decoded, layout: Layout) -> bool {
    if !layout.is_compressed() {
        return false;
    }
    let Some((delta, header)) = alike(c.rest()) else { return false };
    let h = &mut d.header;
    let payload = c.offset() + header as u64;
    if c.skip(header + h.payload_size as usize).is_err() {
        return false;
    }
    h.sequence_number =
        h.sequence_number.wrapping_add(counted(h, matches!(layout, Layout::V6Compressed)));
    h.ticks = h.ticks.wrapping_add(delta);
    h.is_sorted = false;
    d.payload = payload;
    true
}

/// Skips all events at the cursor that [`decode_alike`] would decode, and sets the header of `d` to
/// that of the last of them. Their ticks do not decrease. Returns their number.
pub(crate) fn skip_alike(c: &mut Cursor<'_>, d: &mut Decoded, layout: Layout) -> u32 {
    if !layout.is_compressed() {
        return 0;
    }
    let size = d.header.payload_size as usize;
    let mut ticks = d.header.ticks;
    let mut events = 0u32;
    let mut rest = c.rest();
    while let Some((delta, header)) = alike(rest) {
        let Some(behind) = rest.get(header + size..) else { break };
        // A sum that overflows goes back in time: leave it to `decode`.
        let Some(later) = ticks.checked_add(delta) else { break };
        ticks = later;
        rest = behind;
        events += 1;
    }
    if events > 0 {
        let skipped = c.remaining() - rest.len();
        // Cannot fail: `rest` is a part of the cursor's remaining bytes.
        let _ = c.skip(skipped);
        let h = &mut d.header;
        h.sequence_number = h
            .sequence_number
            .wrapping_add(events.wrapping_mul(counted(h, matches!(layout, Layout::V6Compressed))));
        h.ticks = ticks;
        h.is_sorted = false;
    }
    events
}

/// The time since the previous event and the size of the header, for a compressed header without
/// flags whose time takes one or two bytes.
#[inline]
const fn alike(rest: &[u8]) -> Option<(i64, usize)> {
    match *rest {
        [0, b, ..] if b < 0x80 => Some((b as i64, 2)),
        [0, b, b2, ..] if b2 < 0x80 => Some((b as i64 & 0x7f | (b2 as i64) << 7, 3)),
        _ => None,
    }
}

/// The increment of the sequence number: metadata events of versions 4 and 5 do not count.
#[inline]
const fn counted(h: &EventHeader, v6: bool) -> u32 {
    (h.metadata_id != 0 || v6) as u32
}

/// Decodes the event at the cursor and moves the cursor to the next one. `d` is the previous event
/// in the block, or the default one at the start.
#[inline]
pub(crate) fn decode(
    c: &mut Cursor<'_>,
    d: &mut Decoded,
    layout: Layout,
) -> Result<Changes, ReadError> {
    match layout {
        Layout::V4Compressed => compressed::<false>(c, d),
        Layout::V6Compressed => compressed::<true>(c, d),
        Layout::V4 | Layout::V6 => plain(c, d, layout == Layout::V6),
        Layout::NetPerf => net_perf(c, d),
    }
}

#[inline]
fn compressed<const V6: bool>(c: &mut Cursor<'_>, d: &mut Decoded) -> Result<Changes, ReadError> {
    let h = &mut d.header;
    let f = c.u8()?;
    if f & flags::METADATA != 0 {
        h.metadata_id = varuint32(c)?;
    }
    if f & flags::CAPTURE != 0 {
        h.sequence_number = h.sequence_number.wrapping_add(varuint32(c)?);
        h.capture_thread = c.uvarint()?;
        h.processor_number = varuint32(c)?;
    }
    h.sequence_number = h.sequence_number.wrapping_add(counted(h, V6));
    if f & flags::THREAD != 0 {
        h.thread = c.uvarint()?;
    }
    if f & flags::STACK != 0 {
        h.stack_id = varuint32(c)?;
    }
    // Going back in time is a delta modulo 2^64.
    h.ticks = h.ticks.wrapping_add(c.uvarint()? as i64);
    if f & (flags::ACTIVITY | flags::RELATED) != 0 {
        if V6 {
            if f & flags::ACTIVITY != 0 {
                h.label_list_id = varuint32(c)?;
            }
        } else {
            if f & flags::ACTIVITY != 0 {
                h.activity_id = guid(c)?;
            }
            if f & flags::RELATED != 0 {
                h.related_activity_id = guid(c)?;
            }
        }
    }
    h.is_sorted = f & flags::SORTED != 0;
    if f & flags::SIZE != 0 {
        h.payload_size = varuint32(c)?;
    }
    d.payload = c.offset();
    c.skip(h.payload_size as usize)?;
    Ok(Changes { metadata: f & flags::METADATA != 0, capture: f & flags::CAPTURE != 0 })
}

fn plain(c: &mut Cursor<'_>, d: &mut Decoded, v6: bool) -> Result<Changes, ReadError> {
    let start = *c;
    let size = c.u32()?;
    let h = &mut d.header;
    let id = c.u32()?;
    h.metadata_id = id & 0x7fff_ffff;
    // The bit is set in events that are not sorted, unlike the flag of compressed headers.
    h.is_sorted = id >> 31 == 0;
    h.sequence_number = c.u32()?;
    h.thread = c.u64()?;
    h.capture_thread = c.u64()?;
    h.processor_number = c.u32()?;
    h.stack_id = c.u32()?;
    h.ticks = c.i64()?;
    if v6 {
        h.label_list_id = c.u32()?;
    } else {
        h.activity_id = guid(c)?;
        h.related_activity_id = guid(c)?;
    }
    h.payload_size = c.u32()?;
    d.payload = c.offset();
    c.skip(h.payload_size as usize)?;
    skip_rest(c, &start, size, !v6)?;
    Ok(Changes { metadata: true, capture: true })
}

fn net_perf(c: &mut Cursor<'_>, d: &mut Decoded) -> Result<Changes, ReadError> {
    let start = *c;
    let size = c.u32()?;
    let h = &mut d.header;
    h.metadata_id = c.u32()?;
    h.thread = c.u32()?.into();
    h.capture_thread = h.thread;
    h.processor_number = u32::MAX;
    h.ticks = c.i64()?;
    h.activity_id = guid(c)?;
    h.related_activity_id = guid(c)?;
    h.payload_size = c.u32()?;
    d.payload = c.offset();
    c.skip(h.payload_size as usize)?;
    let stack_size = c.u32()?;
    d.stack = (c.offset(), stack_size);
    c.skip(stack_size as usize)?;
    skip_rest(c, &start, size, true)?;
    Ok(Changes { metadata: true, capture: true })
}

/// Skips to the end of an event that contains its size (without the 4 bytes of the size) and over
/// the padding to a multiple of 4 bytes of the file, if the version has padding.
fn skip_rest(
    c: &mut Cursor<'_>,
    start: &Cursor<'_>,
    size: u32,
    align: bool,
) -> Result<(), ReadError> {
    let read = c.position() - start.position();
    let size = size as usize + 4;
    if size > read {
        c.skip(size - read)?;
    } else if size + 3 < read {
        // The size is smaller than the part already read: padding of up to 3 bytes may be omitted.
        return Err(ReadError {
            offset: start.offset(),
            kind: ReadErrorKind::UnexpectedEnd { wanted: read, left: size },
        });
    }
    if align {
        let over = (c.offset() % 4) as usize;
        if over != 0 {
            c.skip((4 - over).min(c.remaining()))?;
        }
    }
    Ok(())
}
