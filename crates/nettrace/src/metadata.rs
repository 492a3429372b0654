use std::cell::Cell;
use std::collections::HashMap;

use trace_common::{Cursor, Limits};

use crate::manifest;
use crate::payload::PayloadEnd;
use crate::strings::{string16, utf8, varuint32};
use crate::types::{Field, FieldType, compact, fixed_size, place};
use crate::{Error, Guid, Result, table_space};

/// The origin of an event's name and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FieldSource {
    /// From the stream's metadata.
    Stream,
    /// From the built-in manifest: the stream has none, or those that a collector gave events of the runtime
    /// (version 6).
    Manifest,
    /// Unknown: neither the stream nor the built-in manifest has them.
    None,
}

/// A type of event: the data that all events of one metadata id share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metadata {
    /// The id that events refer to.
    pub id: u32,
    /// Provider (event source) name.
    pub provider: Box<str>,
    /// Event id within the provider; 0 where there is none.
    pub event_id: u32,
    /// Event name: the stream's, or the built-in manifest's where the stream has none or `Unknown(ID)`.
    pub name: Box<str>,
    /// Keywords (a bit set) of the event.
    pub keywords: u64,
    /// Version of the event. Where the stream has none (version 6), events of the runtime are of the newest.
    pub version: u32,
    /// Level: 1 critical to 5 verbose, 0 always.
    pub level: u8,
    /// Opcode: 1 start, 2 stop, …; 0 info.
    pub opcode: u8,
    /// The payload's fields, as declared: see [`crate::Event::fields`] for booleans and decimals.
    pub fields: Vec<Field>,
    /// Origin of `name` and `fields`.
    pub source: FieldSource,
    /// Version 6: text with `{field}` placeholders.
    pub message_template: Option<Box<str>>,
    /// Version 6: description of the event.
    pub description: Option<Box<str>>,
    /// Version 6: the provider's GUID.
    pub provider_guid: Option<Guid>,
    /// Version 6: key/value pairs.
    pub properties: Vec<(String, String)>,
    /// The provider, if it is one of the runtime's own, so that consumers need not compare strings.
    pub(crate) known: Option<manifest::Provider>,
    /// Whether the stream has the version.
    pub(crate) has_version: bool,
    pub(crate) pointer_size: u32,
    /// The fields with the sizes of self-describing events, if those differ.
    pub(crate) compact: Option<Box<[Field]>>,
    /// Size of every payload in bytes, if the declared fields have a fixed size.
    pub(crate) fixed_size: Option<usize>,
    pub(crate) payload_end: PayloadEnd,
}

impl Metadata {
    pub(crate) fn empty(id: u32) -> Self {
        Self {
            id,
            provider: "".into(),
            event_id: 0,
            name: "".into(),
            keywords: 0,
            version: 0,
            level: 0,
            opcode: 0,
            fields: Vec::new(),
            source: FieldSource::None,
            message_template: None,
            description: None,
            provider_guid: None,
            properties: Vec::new(),
            known: None,
            has_version: true,
            pointer_size: 8,
            compact: None,
            fixed_size: None,
            payload_end: PayloadEnd::Open,
        }
    }

    /// Bytes of memory.
    fn memory(&self) -> usize {
        let Self { provider, name, message_template, description, properties, .. } = self;
        let texts = [message_template, description].into_iter().flatten();
        let text = provider.len() + name.len() + texts.map(|text| text.len()).sum::<usize>();
        let properties = crate::tables::memory_of(properties);
        let compact = self.compact.iter().flat_map(|fields| fields.iter());
        let fields: usize = self.fields.iter().chain(compact).map(Field::memory).sum();
        size_of::<Self>() + text + properties + fields
    }

    /// Whether the stream has no metadata for events of this type.
    pub fn is_unknown(&self) -> bool {
        self.provider.is_empty()
    }

    /// The index of the field called `name`.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|f| &*f.name == name)
    }

    /// The part of a metadata event of versions 3 to 5 before the fields.
    pub(crate) fn parse_head(c: &mut Cursor<'_>) -> Result<Self> {
        let id = c.u32()?;
        let mut m = Self::empty(id);
        m.provider = string16(c)?.into();
        m.event_id = c.u32()?;
        m.name = string16(c)?.into();
        m.keywords = c.u64()?;
        m.version = c.u32()?;
        m.level = c.u32()? as u8;
        Ok(m)
    }

    /// The payload of a metadata event of versions 3 to 5.
    pub(crate) fn parse(c: &mut Cursor<'_>, limits: &Limits) -> Result<Self> {
        let mut m = Self::parse_head(c)?;
        // The 3.0 previews end here for events without fields.
        if c.is_empty() {
            return Ok(m);
        }
        let memory = Cell::new(0);
        let layout = |tagged| Layout { tagged, limits, memory: &memory };
        m.fields = layout(false).fields(c, 0)?;
        // Tags: written since .NET 5, under format version 4 too, so read while bytes are left.
        while c.remaining() >= 5 {
            let size = c.u32()? as usize;
            let kind = c.u8()?;
            let mut tag = c.sub(size)?;
            match kind {
                1 => m.opcode = tag.u8()?,
                2 => m.fields = layout(true).fields(&mut tag, 0)?,
                _ => {} // a tag of a later version
            }
        }
        Ok(m)
    }

    /// The part of a metadata row of version 6 before the fields.
    pub(crate) fn parse_head_v6(c: &mut Cursor<'_>) -> Result<Self> {
        let mut m = Self::empty(varuint32(c)?);
        m.has_version = false;
        m.provider = utf8(c)?.into();
        m.event_id = varuint32(c)?;
        m.name = utf8(c)?.into();
        Ok(m)
    }

    /// A metadata row of version 6; `c` is the row alone.
    pub(crate) fn parse_v6(c: &mut Cursor<'_>, limits: &Limits) -> Result<Self> {
        let mut m = Self::parse_head_v6(c)?;
        m.fields = fields_v6(c, limits, 0)?;
        let size = c.u16()?;
        let mut optional = c.sub(size.into())?;
        while !optional.is_empty() {
            match optional.u8()? {
                1 => m.opcode = optional.u8()?,
                3 => m.keywords = optional.u64()?,
                4 => m.message_template = Some(utf8(&mut optional)?.into()),
                5 => m.description = Some(utf8(&mut optional)?.into()),
                6 => {
                    let key = utf8(&mut optional)?.into_owned();
                    m.properties.push((key, utf8(&mut optional)?.into_owned()));
                }
                7 => m.provider_guid = Some(crate::strings::guid(&mut optional)?),
                8 => m.level = optional.u8()?,
                9 => {
                    m.version = optional.u8()?.into();
                    m.has_version = true;
                }
                // Elements have no size field: the data after an unknown one is unreadable.
                _ => break,
            }
        }
        Ok(m)
    }

    /// Completes the parsed metadata with the built-in manifest and the payload layout.
    pub(crate) fn complete(&mut self, pointer_size: u32, format_version: u32) {
        self.pointer_size = pointer_size;
        self.known = manifest::Provider::by_name(&self.provider);
        if !self.fields.is_empty() {
            self.source = FieldSource::Stream;
        }
        self.unwrap_fields();
        manifest::complete(self);
        place(&mut self.fields, pointer_size);
        if self.source != FieldSource::Stream {
            return;
        }
        self.payload_end = match format_version {
            ..=3 => PayloadEnd::Padded,
            4 | 5 => PayloadEnd::Exact,
            _ => PayloadEnd::Appended,
        };
        if format_version < 6 {
            self.fixed_size = fixed_size(&self.fields, pointer_size).map(|size| size as usize);
            self.compact = compact(&self.fields).map(|mut fields| {
                place(&mut fields, pointer_size);
                fields.into()
            });
        }
    }

    /// Self-describing events written from one object have a single field without a name, which
    /// contains that object. Replaces it by the object's fields.
    fn unwrap_fields(&mut self) {
        while let [Field { name, ty: FieldType::Object(inner), .. }] = &mut self.fields[..] {
            if !name.is_empty() {
                break;
            }
            self.fields = std::mem::take(inner);
        }
    }
}

/// The two field layouts of versions 3 to 5: the original one, and that of the `V2Params` tag.
struct Layout<'l> {
    tagged: bool,
    limits: &'l Limits,
    /// Bytes of memory of the fields so far.
    memory: &'l Cell<usize>,
}

impl Layout<'_> {
    /// Counts the memory of `count` fields or types of `size` bytes each, which can be held twice: see
    /// [`Metadata::compact`].
    fn charge(&self, count: usize, size: usize, at: u64) -> Result<()> {
        let memory = self.memory.get().saturating_add(count.saturating_mul(2 * size));
        self.memory.set(memory);
        if memory > self.limits.max_buffer {
            return Err(Error::limit(at, "metadata size", memory as u64, self.limits.max_buffer));
        }
        Ok(())
    }

    fn fields(&self, c: &mut Cursor<'_>, depth: usize) -> Result<Vec<Field>> {
        check_depth(c, depth, self.limits)?;
        let at = c.offset();
        let count = c.u32()? as usize;
        // The shortest field is a type code and an empty name.
        if count > c.remaining() / 6 {
            return Err(Error::invalid(at, "field count", count as i64));
        }
        self.charge(count, size_of::<Field>(), at)?;
        let mut fields = Vec::with_capacity(count);
        for _ in 0..count {
            if self.tagged {
                let at = c.offset();
                let size = c.u32()? as usize;
                let Some(size) = size.checked_sub(4) else {
                    return Err(Error::invalid(at, "field size", size as i64));
                };
                let mut field = c.sub(size)?;
                let name = string16(&mut field)?;
                fields.push(Field::new(name, self.ty(&mut field, depth)?));
            } else {
                let ty = self.ty(c, depth)?;
                fields.push(Field::new(string16(c)?, ty));
            }
        }
        Ok(fields)
    }

    fn ty(&self, c: &mut Cursor<'_>, depth: usize) -> Result<FieldType> {
        check_depth(c, depth, self.limits)?;
        let at = c.offset();
        let code = c.u32()?;
        match code {
            1 => Ok(FieldType::Object(self.fields(c, depth + 1)?)),
            19 => {
                self.charge(1, size_of::<FieldType>(), at)?;
                Ok(FieldType::Array(Box::new(self.ty(c, depth + 1)?)))
            }
            _ => u8::try_from(code).ok().and_then(simple_type).ok_or(Error::invalid(
                at,
                "type code",
                code.into(),
            )),
        }
    }
}

fn fields_v6(c: &mut Cursor<'_>, limits: &Limits, depth: usize) -> Result<Vec<Field>> {
    check_depth(c, depth, limits)?;
    let at = c.offset();
    let count = usize::from(c.u16()?);
    // The shortest field is its size, an empty name and a type code.
    if count > c.remaining() / 4 {
        return Err(Error::invalid(at, "field count", count as i64));
    }
    let mut fields = Vec::with_capacity(count);
    for _ in 0..count {
        let size = c.u16()?;
        let mut field = c.sub(size.into())?;
        let name = utf8(&mut field)?.into_owned();
        fields.push(Field::new(name, type_v6(&mut field, limits, depth)?));
    }
    Ok(fields)
}

fn type_v6(c: &mut Cursor<'_>, limits: &Limits, depth: usize) -> Result<FieldType> {
    check_depth(c, depth, limits)?;
    let at = c.offset();
    let code = c.u8()?;
    let element = |c: &mut Cursor<'_>| type_v6(c, limits, depth + 1).map(Box::new);
    Ok(match code {
        1 => FieldType::Object(fields_v6(c, limits, depth + 1)?),
        19 => FieldType::Array(element(c)?),
        22 => {
            let element = element(c)?;
            FieldType::FixedArray(element, c.u16()?)
        }
        24 => FieldType::RelLoc(element(c)?),
        25 => FieldType::DataLoc(element(c)?),
        _ => simple_type(code).ok_or(Error::invalid(at, "type code", code.into()))?,
    })
}

fn simple_type(code: u8) -> Option<FieldType> {
    Some(match code {
        3 => FieldType::Bool32,
        4 => FieldType::Utf16Unit,
        5 => FieldType::I8,
        6 => FieldType::U8,
        7 => FieldType::I16,
        8 => FieldType::U16,
        9 => FieldType::I32,
        10 => FieldType::U32,
        11 => FieldType::I64,
        12 => FieldType::U64,
        13 => FieldType::F32,
        14 => FieldType::F64,
        15 => FieldType::Decimal,
        16 => FieldType::DateTime,
        17 => FieldType::Guid,
        18 => FieldType::Utf16,
        20 => FieldType::VarInt,
        21 => FieldType::VarUInt,
        23 => FieldType::Utf8Unit,
        26 => FieldType::Bool8,
        _ => return None,
    })
}

fn check_depth(c: &Cursor<'_>, depth: usize, limits: &Limits) -> Result<()> {
    if depth > limits.max_depth {
        return Err(Error::limit(c.offset(), "depth of a type", depth as u64, limits.max_depth));
    }
    Ok(())
}

/// The metadata of a stream, by id.
#[derive(Debug)]
pub(crate) struct MetadataTable {
    rows: Vec<Metadata>,
    by_id: HashMap<u32, u32>,
    /// Placeholder for missing metadata.
    unknown: Metadata,
    /// Bytes of memory of the rows.
    bytes: usize,
}

impl MetadataTable {
    /// The index of [`MetadataTable::unknown`].
    pub(crate) const UNKNOWN: u32 = u32::MAX;

    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), by_id: HashMap::new(), unknown: Metadata::empty(0), bytes: 0 }
    }

    pub(crate) fn insert(&mut self, row: Metadata, limits: &Limits, at: u64) -> Result<u32> {
        if self.rows.len() >= limits.max_entries {
            return Err(Error::limit(at, "metadata", self.rows.len() as u64, limits.max_entries));
        }
        let bytes = self.bytes.saturating_add(row.memory());
        if bytes > limits.max_buffer {
            return Err(Error::limit(at, "metadata size", bytes as u64, limits.max_buffer));
        }
        self.bytes = bytes;
        let index = self.rows.len() as u32;
        self.by_id.insert(row.id, index);
        self.rows.push(row);
        Ok(index)
    }

    pub(crate) fn index(&self, id: u32) -> u32 {
        self.by_id.get(&id).copied().unwrap_or(Self::UNKNOWN)
    }

    /// The row with an index from [`MetadataTable::index`].
    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Metadata {
        self.rows.get(index as usize).unwrap_or(&self.unknown)
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        table_space::empty(&mut self.by_id);
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_cleared_has_no_space() {
        let mut table = MetadataTable::new();
        for id in 0..10_000 {
            table.insert(Metadata::empty(id), &Limits::default(), 0).unwrap();
        }
        table.clear();
        assert_eq!(table.by_id.capacity(), 0);
    }
}
