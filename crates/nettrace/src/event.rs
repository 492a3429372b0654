use trace_common::Timestamp;

use crate::event_header::EventHeader;
use crate::payload::{Fields, PayloadError};
use crate::state::StreamState;
use crate::tables::{Label, Labels, Stack, Thread};
use crate::value::Value;
use crate::{Guid, Metadata, Trace, manifest};

/// One event, borrowed from the parser's buffer.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub(crate) header: &'a EventHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) payload_offset: u64,
    pub(crate) inline_stack: &'a [u8],
    pub(crate) metadata: &'a Metadata,
    pub(crate) state: &'a StreamState,
}

impl<'a> Event<'a> {
    /// The header, as in the stream.
    #[inline]
    pub fn header(&self) -> &'a EventHeader {
        self.header
    }

    /// The metadata that all events of this type share.
    #[inline]
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// The provider's name.
    #[inline]
    pub fn provider(&self) -> &'a str {
        &self.metadata.provider
    }

    /// The event's id within its provider.
    #[expect(clippy::misnamed_getters, reason = "`Metadata::id` is the row's number in the stream")]
    #[inline]
    pub fn id(&self) -> u32 {
        self.metadata.event_id
    }

    /// The event's name.
    #[inline]
    pub fn name(&self) -> &'a str {
        &self.metadata.name
    }

    /// The payload's bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Offset of the payload's first byte from the start of the stream. The stream has the payload as it is.
    #[inline]
    pub fn payload_offset(&self) -> u64 {
        self.payload_offset
    }

    /// The time of the event: on `CLOCK_MONOTONIC` if the stream was recorded on Linux.
    #[inline]
    pub fn time(&self) -> Timestamp {
        self.state.time(self.header.ticks)
    }

    /// The stream's `Trace` object.
    pub fn trace(&self) -> Option<&'a Trace> {
        self.state.trace.as_ref()
    }

    /// The thread that the event is about, with its name (version 6).
    pub fn thread(&self) -> Option<&'a Thread> {
        self.state.threads.get(self.header.thread)
    }

    /// Operating system id of the thread that the event is about.
    #[inline]
    pub fn tid(&self) -> u64 {
        match &self.state.trace {
            Some(trace) if trace.version >= 6 => self.thread().and_then(|t| t.tid).unwrap_or(0),
            _ => self.header.thread,
        }
    }

    /// Operating system id of the process that the event is about.
    pub fn pid(&self) -> u64 {
        match self.thread().and_then(|t| t.pid) {
            Some(pid) => pid,
            None => self.state.trace.as_ref().map_or(0, |t| t.pid.into()),
        }
    }

    /// The call stack of the event; empty if it has none.
    #[inline]
    pub fn stack(&self) -> Stack<'a> {
        let bytes = match self.header.stack_id {
            0 => self.inline_stack,
            id => self.state.stacks.get(id).unwrap_or_default(),
        };
        Stack::new(bytes, self.state.pointer_size())
    }

    /// Labels of version 6.
    pub fn labels(&self) -> Labels<'a> {
        Labels::new(match self.header.label_list_id {
            0 => None,
            id => self.state.labels.get(id),
        })
    }

    #[inline]
    fn label<T>(&self, pick: impl Fn(Label<'a>) -> Option<T>) -> Option<T> {
        if self.header.label_list_id == 0 { None } else { self.labels().find_map(pick) }
    }

    /// The activity that the event belongs to, if any.
    pub fn activity_id(&self) -> Option<Guid> {
        if !self.header.activity_id.is_empty() {
            return Some(self.header.activity_id);
        }
        self.label(|l| if let Label::ActivityId(id) = l { Some(id) } else { None })
    }

    /// The path that .NET packed into the activity's id, such as `//1/2/13`, if it is one: see
    /// [`activity_path`](fn@crate::activity_path).
    pub fn activity_path(&self) -> Option<String> {
        // The id has a checksum with the number of the process in its container. Version 6 has that of the host.
        let pid = match self.trace() {
            Some(trace) if trace.version >= 6 => None,
            _ => u32::try_from(self.pid()).ok(),
        };
        crate::activity_path(self.activity_id()?, pid)
    }

    /// The activity that caused it, if any.
    pub fn related_activity_id(&self) -> Option<Guid> {
        if !self.header.related_activity_id.is_empty() {
            return Some(self.header.related_activity_id);
        }
        self.label(|l| if let Label::RelatedActivityId(id) = l { Some(id) } else { None })
    }

    /// The event's version: from a label, otherwise from the metadata.
    #[inline]
    pub fn version(&self) -> u32 {
        self.label(|l| if let Label::Version(v) = l { Some(v.into()) } else { None })
            .unwrap_or(self.metadata.version)
    }

    /// The event's opcode: from a label, otherwise from the metadata.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.label(|l| if let Label::Opcode(v) = l { Some(v) } else { None })
            .unwrap_or(self.metadata.opcode)
    }

    /// The event's level: from a label, otherwise from the metadata.
    #[inline]
    pub fn level(&self) -> u8 {
        self.label(|l| if let Label::Level(v) = l { Some(v) } else { None })
            .unwrap_or(self.metadata.level)
    }

    /// The event's keywords: from a label, otherwise from the metadata.
    #[inline]
    pub fn keywords(&self) -> u64 {
        self.label(|l| if let Label::Keywords(v) = l { Some(v) } else { None })
            .unwrap_or(self.metadata.keywords)
    }

    /// The payload's fields, decoded on demand.
    ///
    /// Versions 3 to 5 use one type code for booleans of four bytes (manifest-based events) and of
    /// one byte (self-describing events), and one for decimals of sixteen bytes and those written
    /// as a double. The length of the payload determines the layout. If it does not, the first item
    /// is an error.
    #[inline]
    pub fn fields(&self) -> Fields<'a> {
        Fields::of_payload(self.metadata, self.payload)
    }

    /// Decodes all fields and drops the values.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] if the payload does not have the fields that its metadata declares.
    pub fn check_payload(&self) -> Result<(), PayloadError> {
        self.fields().check()
    }

    /// The field with this name; `None` if it does not exist or cannot be decoded.
    /// [`Event::check_payload`] distinguishes the two.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        self.field_at(self.metadata.field_index(name)?)
    }

    /// The field with an index from [`Metadata::field_index`].
    #[inline]
    pub fn field_at(&self, index: usize) -> Option<Value<'a>> {
        Fields::one(self.metadata, self.payload, index)
    }

    /// The provider, if it is one of the runtime's own.
    pub(crate) fn known(&self) -> Option<manifest::Provider> {
        self.metadata.known
    }
}

impl std::fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event")
            .field("provider", &self.provider())
            .field("name", &self.name())
            .field("header", self.header)
            .field("fields", &self.fields())
            .finish()
    }
}
