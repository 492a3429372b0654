//! Decodes the fields of a payload on demand, without copying.

use std::fmt;

use trace_common::{Cursor, ReadError, ReadErrorKind};

use crate::Metadata;
use crate::filetime::FileTime;
use crate::strings::{bytesz, guid, utf16z, varint64};
use crate::types::{Facts, Field, FieldType, Layout};
use crate::value::{Text, Value};

/// A payload that does not have the fields that its metadata declares.
///
/// The bytes are still available: see [`crate::Event::payload`] and [`Fields::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset} of the payload")]
#[non_exhaustive]
pub struct PayloadError {
    /// Offset of the error from the start of the payload, in bytes.
    pub offset: u64,
    /// The kind of error.
    pub kind: PayloadErrorKind,
}

/// Why the fields of a payload cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadErrorKind {
    /// A field extends beyond the end of the payload, or a number does not fit.
    #[error(transparent)]
    Read(ReadErrorKind),
    /// The payload does not have the length of its declared fields, so their values would be wrong.
    /// Event sources that pass other types to `WriteEvent` than they declare cause this.
    #[error("payload of {found} bytes does not match its declared fields")]
    Length {
        /// Bytes of the payload.
        found: usize,
    },
    /// Bytes follow the last declared field. Values before them may be wrong.
    #[error("{bytes} bytes follow the last declared field")]
    Trailing {
        /// Bytes that no field covers.
        bytes: usize,
    },
    /// The payload matches both the field sizes of manifest-based events and those of
    /// self-describing events, and the metadata does not determine which apply.
    #[error("booleans may have one byte or four: both fit")]
    Ambiguous,
    /// The field with the number of elements of an array cannot be decoded.
    #[error("missing number of array elements")]
    Count,
    /// The elements of an array take no bytes, refer to bytes elsewhere, or have many fields without bytes:
    /// a short payload could have any number of them.
    #[error("the payload does not bound the number of array elements")]
    Unbounded,
}

impl From<ReadError> for PayloadError {
    fn from(error: ReadError) -> Self {
        Self { offset: error.offset, kind: PayloadErrorKind::Read(error.kind) }
    }
}

type Read<T> = Result<T, PayloadError>;

/// Where a payload may end, relative to its declared fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadEnd {
    /// After the last field: the runtime that wrote the metadata also wrote the payload.
    Exact,
    /// After the last field, then up to three bytes of padding (version 3).
    Padded,
    /// Also earlier, at the end of a field, or later: the fields are from the built-in manifest,
    /// and the runtime may be older or newer.
    Open,
    /// Also after additional data: collectors of version 6 append fields without declaring them.
    Appended,
}

impl PayloadEnd {
    const fn padding(self) -> usize {
        match self {
            Self::Exact => 0,
            Self::Padded => 3,
            Self::Open | Self::Appended => usize::MAX,
        }
    }
}

/// The elements of an array. They were checked when the array was decoded: iteration does not fail.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: &'a FieldType,
    layout: Option<&'a Layout>,
    count: usize,
    rest: Cursor<'a>,
    payload: &'a [u8],
    pointer_size: u32,
}

impl Array<'_> {
    /// Number of remaining elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no elements remain.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Iterator for Array<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.count = self.count.checked_sub(1)?;
        let reader = Reader { payload: self.payload, pointer_size: self.pointer_size };
        let value = reader.value(self.element, self.layout, &mut self.rest, None);
        if value.is_err() {
            self.count = 0;
        }
        value.ok()
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.eq_by_items(*other)
    }
}

impl<'a> Array<'a> {
    fn eq_by_items(self, other: Array<'_>) -> bool {
        let mut other = other;
        self.count == other.count && { self }.all(|a| other.next().is_some_and(|b| a == b))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// The fields of a payload: an iterator over names and values.
///
/// A payload that does not match its metadata yields an error, then the iterator ends.
/// [`Fields::rest`] returns the bytes that were not decoded. A runtime older than the built-in
/// [manifest](crate::manifest) writes fewer fields, which is not an error.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    object: Object<'a>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading(PayloadEnd),
    /// An error that is known before any field is decoded.
    Wrong(PayloadErrorKind),
    Done,
}

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn of_payload(metadata: &'a Metadata, payload: &'a [u8]) -> Self {
        let object = Object::new(&metadata.fields, payload, metadata.pointer_size);
        if let Some(compact) = &metadata.compact {
            return Self::of_either(metadata, object, Object { fields: compact, ..object });
        }
        let state = if has_declared_length(metadata, payload) {
            State::Reading(metadata.payload_end)
        } else {
            State::Wrong(PayloadErrorKind::Length { found: payload.len() })
        };
        Self { object, state }
    }

    /// The value of one field of a payload.
    #[inline]
    pub(crate) fn one(
        metadata: &'a Metadata,
        payload: &'a [u8],
        index: usize,
    ) -> Option<Value<'a>> {
        if metadata.compact.is_some() {
            return Self::of_payload(metadata, payload).at(index);
        }
        if !has_declared_length(metadata, payload) {
            return None;
        }
        Object::new(&metadata.fields, payload, metadata.pointer_size).at(index)
    }

    /// Selects the layout by the length of the payload: metadata has one type code for booleans of
    /// four bytes and of one, and one for decimals of sixteen bytes and those written as a double.
    #[cold]
    fn of_either(metadata: &Metadata, declared: Object<'a>, compact: Object<'a>) -> Self {
        let end = metadata.payload_end;
        let reading = |object| Self { object, state: State::Reading(end) };
        let wrong = |kind| Self { object: declared, state: State::Wrong(kind) };
        match (declared.fits(end.padding()), compact.fits(end.padding())) {
            (false, false) => wrong(PayloadErrorKind::Length { found: declared.data.len() }),
            (false, true) => reading(compact),
            (true, false) => reading(declared),
            // Events of a manifest always have the keyword bits 44 to 47.
            _ if metadata.keywords & manifest_keywords::ALL == 0 => reading(compact),
            // Padding of version 3 hides the difference: use the sizes of the type codes.
            _ if end == PayloadEnd::Padded => reading(declared),
            _ => wrong(PayloadErrorKind::Ambiguous),
        }
    }

    /// The value of the field with this index; `None` if it does not exist or cannot be decoded.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Value<'a>> {
        match self.state {
            State::Wrong(_) => None,
            _ => self.object.at(index),
        }
    }

    /// The value of the field with this name; `None` if it does not exist or cannot be decoded.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        match self.state {
            State::Wrong(_) => None,
            _ => self.object.get(name),
        }
    }

    /// The bytes after the fields that were iterated over.
    pub fn rest(&self) -> &'a [u8] {
        self.object.rest()
    }

    /// Decodes the remaining fields and drops the values.
    ///
    /// # Errors
    ///
    /// The first field that cannot be read, or bytes that no field covers.
    pub fn check(mut self) -> Result<(), PayloadError> {
        self.try_for_each(|field| field.map(drop))
    }

    /// The end of the declared fields, or a field that cannot be decoded.
    #[cold]
    fn end(&mut self, error: Option<PayloadError>) -> Option<PayloadError> {
        let state = std::mem::replace(&mut self.state, State::Done);
        let offset = self.object.base + self.object.position as u64;
        let left = self.object.rest().len();
        match (state, error) {
            (State::Done, _) => None,
            (State::Wrong(kind), _) => Some(PayloadError { offset, kind }),
            (State::Reading(PayloadEnd::Open), Some(_)) if left == 0 => None,
            (State::Reading(_), Some(error)) => Some(error),
            (State::Reading(end), None) if left > end.padding() => {
                Some(PayloadError { offset, kind: PayloadErrorKind::Trailing { bytes: left } })
            }
            (State::Reading(_), None) => None,
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(&'a str, Value<'a>), PayloadError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let error = match self.state {
            State::Reading(_) => match self.object.step() {
                Some(Ok(field)) => return Some(Ok(field)),
                Some(Err(error)) => Some(error),
                None => None,
            },
            State::Wrong(_) | State::Done => None,
        };
        self.end(error).map(Err)
    }
}

impl PartialEq for Fields<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.eq_by_items(*other)
    }
}

impl<'a> Fields<'a> {
    fn eq_by_items(self, mut other: Fields<'_>) -> bool {
        { self }.all(|a| other.next().is_some_and(|b| a == b)) && other.next().is_none()
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for field in *self {
            match field {
                Ok((name, value)) => map.entry(&name, &value),
                Err(error) => map.entry(&"error", &error),
            };
        }
        map.finish()
    }
}

/// Whether a payload has the length of its fields, as far as that is known without decoding them.
#[inline]
fn has_declared_length(metadata: &Metadata, payload: &[u8]) -> bool {
    let padding = metadata.payload_end.padding();
    metadata.fixed_size.is_none_or(|size| payload.len().wrapping_sub(size) <= padding)
}

/// Keyword bits of event sources.
mod manifest_keywords {
    /// Bits that every event of a manifest-based event source has in addition to its own.
    pub(super) const ALL: u64 = 0xf000_0000_0000;
}

/// The fields of an object within a payload: an iterator over names and values. They were checked
/// when the object was decoded: iteration does not fail.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    fields: &'a [Field],
    /// Index of the next field.
    next: usize,
    /// The object's bytes, from its first field on.
    data: &'a [u8],
    /// Offset of the next field in `data`.
    position: usize,
    /// Offset of `data` in the payload.
    base: u64,
    payload: &'a [u8],
    pointer_size: u32,
}

impl<'a> Object<'a> {
    #[inline]
    const fn new(fields: &'a [Field], payload: &'a [u8], pointer_size: u32) -> Self {
        Self { fields, next: 0, data: payload, position: 0, base: 0, payload, pointer_size }
    }

    /// The value of the field with this index.
    #[inline]
    pub fn at(&self, index: usize) -> Option<Value<'a>> {
        let field = self.fields.get(index)?;
        if let Some(offset) = field.offset {
            let mut c = Cursor::new(self.data.get(offset as usize..)?);
            return self
                .reader()
                .value(&field.ty, field.layout.as_deref(), &mut c, Some(self))
                .ok();
        }
        Self { next: 0, position: 0, ..*self }.nth(index).map(|(_, value)| value)
    }

    /// The value of the field with this name.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        self.at(self.fields.iter().position(|f| &*f.name == name)?)
    }

    fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    const fn reader(&self) -> Reader<'a> {
        Reader { payload: self.payload, pointer_size: self.pointer_size }
    }

    /// The next field.
    #[inline]
    fn step(&mut self) -> Option<Read<(&'a str, Value<'a>)>> {
        let field = self.fields.get(self.next)?;
        let mut c = Cursor::with_base(self.rest(), self.base + self.position as u64);
        Some(match self.reader().value(&field.ty, field.layout.as_deref(), &mut c, Some(self)) {
            Ok(value) => {
                self.position += c.position();
                self.next += 1;
                Ok((&field.name, value))
            }
            Err(error) => {
                self.next = self.fields.len();
                Err(error)
            }
        })
    }

    /// Whether the fields cover the payload to its end, and all booleans are 0 or 1.
    fn fits(&self, padding: usize) -> bool {
        let mut c = Cursor::new(self.data);
        let walked = self.reader().walk(self.fields, &mut c);
        walked == Ok(true) && c.remaining() <= padding
    }
}

impl<'a> Iterator for Object<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.step()?.ok()
    }
}

impl PartialEq for Object<'_> {
    fn eq(&self, other: &Self) -> bool {
        let mut other = *other;
        { *self }.all(|a| other.next().is_some_and(|b| a == b)) && other.next().is_none()
    }
}

impl fmt::Debug for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(*self).finish()
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    payload: &'a [u8],
    pointer_size: u32,
}

impl<'a> Reader<'a> {
    /// Decodes the value at the cursor and moves past it. `siblings` are the fields around it.
    #[inline]
    fn value(
        self,
        ty: &'a FieldType,
        layout: Option<&'a Layout>,
        c: &mut Cursor<'a>,
        siblings: Option<&Object<'a>>,
    ) -> Read<Value<'a>> {
        Ok(match ty {
            FieldType::I32 => Value::I32(c.i32()?),
            FieldType::U32 => Value::U32(c.u32()?),
            FieldType::I64 => Value::I64(c.i64()?),
            FieldType::U64 => Value::U64(c.u64()?),
            FieldType::U16 => Value::U16(c.u16()?),
            FieldType::U8 => Value::U8(c.u8()?),
            FieldType::F64 => Value::F64(c.f64()?),
            FieldType::Bool32 => Value::Bool(c.u32()? != 0),
            FieldType::Utf16 => Value::Text(Text::Utf16(utf16z(c)?)),
            _ => return self.rare_value(ty, layout, c, siblings),
        })
    }

    fn rare_value(
        self,
        ty: &'a FieldType,
        layout: Option<&'a Layout>,
        c: &mut Cursor<'a>,
        siblings: Option<&Object<'a>>,
    ) -> Read<Value<'a>> {
        let of_element = layout.and_then(|layout| layout.element.as_deref());
        Ok(match ty {
            FieldType::Bool8 => Value::Bool(c.u8()? != 0),
            FieldType::Utf16Unit => Value::Char(c.u16()?),
            FieldType::Utf8Unit | FieldType::U8 => Value::U8(c.u8()?),
            FieldType::I8 => Value::I8(c.u8()? as i8),
            FieldType::I16 => Value::I16(c.i16()?),
            FieldType::F32 => Value::F32(c.f32()?),
            FieldType::Decimal => Value::Decimal(c.array()?),
            FieldType::DateTime => Value::DateTime(FileTime(c.i64()?)),
            FieldType::Guid => Value::Guid(guid(c)?),
            FieldType::VarInt => Value::I64(varint64(c)?),
            FieldType::VarUInt => Value::U64(c.uvarint()?),
            FieldType::Pointer if self.pointer_size == 4 => Value::Pointer(c.u32()?.into()),
            FieldType::Pointer => Value::Pointer(c.u64()?),
            FieldType::Utf8Z => Value::Text(Text::Utf8(bytesz(c)?)),
            FieldType::Utf8Len16 => {
                let len = c.u16()?;
                Value::Text(Text::Utf8(c.bytes(len.into())?))
            }
            FieldType::Object(fields) => {
                let object = self.object(fields, c);
                for field in fields {
                    self.skip(&field.ty, field.layout.as_deref(), c, Some(&object))?;
                }
                Value::Object(object)
            }
            FieldType::Array(element) => {
                let count = c.u16()?;
                self.array(element, of_element, count.into(), c)?
            }
            FieldType::FixedArray(element, count) => {
                self.array(element, of_element, (*count).into(), c)?
            }
            FieldType::Counted(element, by) => {
                let count = siblings.and_then(|s| s.at(*by)).and_then(|v| v.as_u64());
                let Some(count) = count.and_then(|n| usize::try_from(n).ok()) else {
                    let offset = c.offset();
                    return Err(PayloadError { offset, kind: PayloadErrorKind::Count });
                };
                self.array(element, of_element, count, c)?
            }
            FieldType::RelLoc(element) | FieldType::DataLoc(element) => {
                let at = c.offset();
                let facts = Facts::of(element, of_element, self.pointer_size);
                if facts.has_location {
                    return Err(PayloadError { offset: at, kind: PayloadErrorKind::Unbounded });
                }
                let location = c.u32()?;
                let (size, position) = ((location >> 16) as usize, (location & 0xffff) as usize);
                // The bytes left in the payload after this field are those left at the cursor.
                let from = match ty {
                    FieldType::RelLoc(_) => self.payload.len().saturating_sub(c.remaining()),
                    _ => 0,
                };
                let start = from + position;
                let Some(data) = self.payload.get(start..start + size) else {
                    let left = self.payload.len().saturating_sub(start);
                    let kind = ReadErrorKind::UnexpectedEnd { wanted: size, left };
                    return Err(ReadError { offset: at, kind }.into());
                };
                let count = match facts.fixed_size {
                    Some(0) | None => 0,
                    Some(each) => size / each as usize,
                };
                self.array(element, of_element, count, &mut Cursor::new(data))?
            }
            // `value` decodes the other types.
            _ => return self.value(ty, layout, c, siblings),
        })
    }

    /// The object at the cursor.
    fn object(self, fields: &'a [Field], c: &Cursor<'a>) -> Object<'a> {
        let base = c.offset();
        let Self { payload, pointer_size } = self;
        Object { fields, next: 0, data: c.rest(), position: 0, base, payload, pointer_size }
    }

    /// Skips a value. Also checks the data that it refers to elsewhere in the payload.
    fn skip(
        self,
        ty: &'a FieldType,
        layout: Option<&'a Layout>,
        c: &mut Cursor<'a>,
        siblings: Option<&Object<'a>>,
    ) -> Read<()> {
        match Facts::of(ty, layout, self.pointer_size).inline_size() {
            Some(size) => Ok(c.skip(size as usize)?),
            None => self.value(ty, layout, c, siblings).map(drop),
        }
    }

    /// Skips fields; `false` if a boolean among them is neither 0 nor 1.
    fn walk(self, fields: &'a [Field], c: &mut Cursor<'a>) -> Read<bool> {
        let object = self.object(fields, c);
        let mut booleans = true;
        for field in fields {
            match &field.ty {
                FieldType::Bool32 => booleans &= c.u32()? <= 1,
                FieldType::Bool8 => booleans &= c.u8()? <= 1,
                FieldType::Object(inner) => booleans &= self.walk(inner, c)?,
                ty => self.skip(ty, field.layout.as_deref(), c, Some(&object))?,
            }
        }
        Ok(booleans)
    }

    /// Decodes the elements at the cursor and moves past them. `layout` is that of an element.
    fn array(
        self,
        element: &'a FieldType,
        layout: Option<&'a Layout>,
        count: usize,
        c: &mut Cursor<'a>,
    ) -> Read<Value<'a>> {
        let start = *c;
        let facts = Facts::of(element, layout, self.pointer_size);
        if count > 0 && facts.is_unbounded() {
            let offset = start.offset();
            return Err(PayloadError { offset, kind: PayloadErrorKind::Unbounded });
        }
        match facts.inline_size() {
            Some(size) => c.skip(count.saturating_mul(size as usize))?,
            None => {
                for _ in 0..count {
                    self.skip(element, layout, c, None)?;
                }
            }
        }
        let bytes = start.rest().get(..c.position() - start.position()).unwrap_or_default();
        Ok(match element {
            FieldType::U8 => Value::Bytes(bytes),
            FieldType::Utf16Unit => Value::Text(Text::Utf16(bytes)),
            FieldType::Utf8Unit => Value::Text(Text::Utf8(bytes)),
            _ => Value::Array(Array {
                element,
                layout,
                count,
                rest: start,
                payload: self.payload,
                pointer_size: self.pointer_size,
            }),
        })
    }
}
