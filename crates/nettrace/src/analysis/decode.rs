//! How the fields of a known event are read.

use crate::manifest::Provider;
use crate::{Event, PayloadError, Text};

/// Why an event of the runtime cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeEventError {
    /// The payload does not have the fields that its metadata declares.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The payload ends before a field of this version of the event, or the field has another type.
    #[error("a field is missing")]
    MissingField,
}

pub(super) type Decoded<T> = Result<T, RuntimeEventError>;

/// Decodes an event of the runtime. `read` returns `None` for one that it does not know.
pub(super) fn decode<'a, T>(
    event: &Event<'a>,
    read: impl FnOnce(Payload<'_, 'a>) -> Decoded<Option<T>>,
) -> Decoded<Option<T>> {
    if event.known() != Some(Provider::Runtime) {
        return Ok(None);
    }
    let decoded = read(Payload(event));
    if !matches!(decoded, Ok(None)) {
        // Not all fields are read. And this error says where the payload is wrong.
        event.check_payload()?;
    }
    decoded
}

/// The fields of one event. One that is missing is an error: a size of 0 would be a guess.
#[derive(Clone, Copy)]
pub(super) struct Payload<'e, 'a>(&'e Event<'a>);

impl<'a> Payload<'_, 'a> {
    pub(super) fn id(self) -> u32 {
        self.0.id()
    }

    pub(super) fn u64(self, name: &str) -> Decoded<u64> {
        super::number(self.0, name).ok_or(RuntimeEventError::MissingField)
    }

    pub(super) fn u32(self, name: &str) -> Decoded<u32> {
        self.u64(name)?.try_into().map_err(|_| RuntimeEventError::MissingField)
    }

    pub(super) fn u16(self, name: &str) -> Decoded<u16> {
        self.u64(name)?.try_into().map_err(|_| RuntimeEventError::MissingField)
    }

    pub(super) fn f64(self, name: &str) -> Decoded<f64> {
        let value = self.0.field(name).and_then(|value| value.as_f64());
        value.ok_or(RuntimeEventError::MissingField)
    }

    pub(super) fn text(self, name: &str) -> Decoded<Text<'a>> {
        let value = self.0.field(name).and_then(|value| value.as_text());
        value.ok_or(RuntimeEventError::MissingField)
    }

    /// Reads a field that a later version of the event added: `None` in versions before.
    pub(super) fn added<'n, T>(
        self,
        name: &'n str,
        read: impl FnOnce(Self, &'n str) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        match self.0.metadata().field_index(name) {
            Some(_) => read(self, name).map(Some),
            None => Ok(None),
        }
    }
}
