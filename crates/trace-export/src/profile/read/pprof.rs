//! `profile.proto` of <https://github.com/google/pprof>.

use super::{Budget, Error, ReadLimits};
use crate::profile::{Label, Labels, Measure, Profile, Unit};
use flate2::read::MultiGzDecoder;
use std::collections::HashMap;
use std::io::Read;
use trace_common::Cursor;
use trace_timeline::{Entity, EntityId, EntityKind, Frame, Mapping, MappingId, Tables, TextId};

type Result<T> = std::result::Result<T, Error>;

/// What a file of pprof has.
#[derive(Debug)]
#[non_exhaustive]
pub struct PprofFile {
    /// A profile for each sample type, in the order of the file; at least one.
    pub profiles: Vec<Profile>,
    /// The index of the sample type that `go tool pprof` shows: the one that the file names, or the
    /// last one.
    pub default: usize,
    /// The regular expression of frames that `go tool pprof` leaves out with all frames that they call
    /// (`drop_frames`); empty for most files. It is not applied here.
    pub drop_frames: String,
}

/// Reads a profile of pprof, compressed with gzip or not. Stacks and texts are added to `tables`,
/// within their limits.
///
/// A sample type whose unit is one of time or size is in nanoseconds or bytes, and has the nearest
/// sample type before it whose unit is `count` as its number of events. Where the first sample type
/// is `samples`, others in `count` are [`Unit::Occurrences`], and those in the unit of the period have
/// [`Measure::period`]. Other units are part of the name of the weight.
///
/// A sample with the labels `process`, a text, and `pid`, a number, is of that process.
///
/// # Errors
///
/// [`Error`]: the data is no complete profile, or larger than the limits. Profiles with negative
/// values, which are differences, are refused.
pub fn read_pprof(data: &[u8], limits: &ReadLimits, tables: &mut Tables) -> Result<PprofFile> {
    let inflated;
    let data = if data.starts_with(&[0x1f, 0x8b]) {
        inflated = inflate(data, limits.bytes)?;
        &inflated
    } else {
        Budget::new("bytes", limits.bytes).take(data.len())?;
        data
    };
    let mut items = Budget::new("items", limits.items);
    let raw = Raw::read(data, &mut items)?;
    let types = raw.types()?;
    let mut texts = Texts::new(&raw, tables);
    let locations = Locations::new(&raw, &mut items, &mut texts)?;
    let mut all_frames = Budget::new("frames", limits.frames);
    let mut profiles: Vec<Profile> =
        types.iter().map(|of| Profile::new(of.measure.clone())).collect();
    let (mut values, mut frames, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let mut processes = Processes::default();
    for sample in &raw.samples {
        values.clear();
        frames.clear();
        labels.clear();
        each_field(*sample, |field, value, offset| match field {
            1 => value.each_int(field, offset, |id| {
                let found = locations.get(id, offset)?;
                all_frames.take(found.len())?;
                frames.extend_from_slice(found);
                limits.check_depth(frames.len())?;
                Ok(())
            }),
            2 => value.each_int(field, offset, |value| {
                items.take(1)?;
                values.push(value);
                Ok(())
            }),
            3 => {
                // Each profile has them.
                items.take(types.len())?;
                labels.push(texts.label(value.message(field, offset)?)?);
                Ok(())
            }
            _ => Ok(()),
        })?;
        let offset = sample.offset();
        if values.len() != types.len() {
            return Err(Error::Values { expected: types.len(), found: values.len(), offset });
        }
        if let Some(value) = values.iter().map(|value| *value as i64).find(|value| *value < 0) {
            return Err(Error::Negative { value, offset });
        }
        let stack = texts.tables.stack(&frames);
        let process = processes.take(&mut labels, texts.tables);
        for ((profile, of), value) in profiles.iter_mut().zip(&types).zip(&values) {
            let others = labels.as_slice().into();
            let labels = profile.label_set(Labels { entities: [process, None], others });
            let count = of.count.map_or(Some(&1), |index| values.get(index)).copied();
            profile.add(stack, labels, count.unwrap_or(1), value.saturating_mul(of.scale));
        }
    }
    for profile in &mut profiles {
        profile.set_span(raw.time, raw.duration);
    }
    let named = raw.sample_types.iter().position(|(kind, _)| *kind == raw.default_type);
    let default = named.filter(|_| raw.default_type != 0).unwrap_or(profiles.len() - 1);
    let drop_frames = raw.text(raw.drop_frames, 0)?;
    Ok(PprofFile { profiles, default, drop_frames: String::from_utf8_lossy(drop_frames).into() })
}

/// Maximum number of sample types: each is a profile.
const MAX_TYPES: usize = 64;
/// Maximum length of the name and of the unit of a sample type.
const MAX_NAME: usize = 4 << 10;

fn inflate(data: &[u8], limit: usize) -> Result<Vec<u8>> {
    let mut inflated = Vec::new();
    let mut decoder = MultiGzDecoder::new(data).take(limit as u64 + 1);
    decoder.read_to_end(&mut inflated).map_err(Error::Compression)?;
    Budget::new("bytes", limit).take(inflated.len())?;
    Ok(inflated)
}

/// The parts of the message; samples are not decoded yet.
#[derive(Default)]
struct Raw<'a> {
    /// Indexes of name and unit.
    sample_types: Vec<(u64, u64)>,
    samples: Vec<Cursor<'a>>,
    mappings: Vec<Cursor<'a>>,
    locations: Vec<Cursor<'a>>,
    functions: Vec<Cursor<'a>>,
    texts: Vec<&'a [u8]>,
    drop_frames: u64,
    time: u64,
    duration: u64,
    period_type: (u64, u64),
    period: u64,
    default_type: u64,
}

impl<'a> Raw<'a> {
    fn read(data: &'a [u8], items: &mut Budget) -> Result<Self> {
        let mut raw = Self::default();
        each_field(Cursor::new(data), |field, value, offset| {
            let message = || value.message(field, offset);
            let int = || value.int(field, offset);
            match field {
                1 => raw.sample_types.push(value_type(message()?)?),
                2 => raw.samples.push(message()?),
                3 => raw.mappings.push(message()?),
                4 => raw.locations.push(message()?),
                5 => raw.functions.push(message()?),
                6 => raw.texts.push(message()?.rest()),
                7 => raw.drop_frames = int()?,
                9 => raw.time = int()?,
                10 => raw.duration = int()?,
                11 => raw.period_type = value_type(message()?)?,
                12 => raw.period = int()?,
                14 => raw.default_type = int()?,
                _ => {}
            }
            items.take(usize::from(matches!(field, 1..=6)))
        })?;
        Ok(raw)
    }

    /// A text; the text 0 is empty.
    fn text(&self, index: u64, offset: u64) -> Result<&'a [u8]> {
        let text = usize::try_from(index).ok().and_then(|index| self.texts.get(index));
        match text {
            Some(text) => Ok(text),
            None if index == 0 => Ok(b""),
            None => Err(Error::Reference { what: "text", id: index, offset }),
        }
    }

    fn types(&self) -> Result<Vec<Type>> {
        Budget::new("sample types", MAX_TYPES).take(self.sample_types.len())?;
        let mut named = Vec::new();
        for (kind, unit) in &self.sample_types {
            let (kind, unit) = (self.text(*kind, 0)?, self.text(*unit, 0)?);
            // Each profile has copies.
            Budget::new("bytes of a name of a sample type", MAX_NAME)
                .take(kind.len().max(unit.len()))?;
            let name = |text| String::from_utf8_lossy(text).into_owned();
            named.push((name(kind), Scale::of(unit), name(unit)));
        }
        let (_, period_unit) = self.period_type;
        let period = Scale::of(self.text(period_unit, 0)?);
        let counts_samples = named
            .first()
            .is_some_and(|(name, scale, _)| name == "samples" && *scale == Scale::COUNT);
        let mut types: Vec<Type> = Vec::new();
        let mut counted = None;
        for (index, (name, scale, unit_name)) in named.iter().enumerate() {
            let is_count = *scale == Scale::COUNT;
            let unit = match scale.unit {
                Unit::Count if counts_samples && index > 0 => Unit::Occurrences,
                unit => unit,
            };
            let count = match unit {
                Unit::Count => Some(index),
                Unit::Occurrences if counts_samples => Some(0),
                _ => counted,
            };
            let events = count.and_then(|count| named.get(count));
            let events = events.map_or("samples", |(name, ..)| name).to_owned();
            let weight = match scale.is_known {
                true => name.clone(),
                false => format!("{name} ({unit_name})"),
            };
            // A heap profile has a period too, but its values are sums of many allocations.
            let is_sampled = counts_samples
                && period.unit == scale.unit
                && matches!(unit, Unit::Nanoseconds | Unit::Occurrences);
            let period = if is_sampled { self.period.saturating_mul(period.by) } else { 0 };
            let measure = Measure { events: events.into(), weight: weight.into(), unit, period };
            types.push(Type { measure, count, scale: scale.by });
            if is_count {
                counted = Some(index);
            }
        }
        if types.is_empty() { Err(Error::NoSampleTypes) } else { Ok(types) }
    }
}

/// The texts in the tables: each is added once, however many messages refer to it.
struct Texts<'a> {
    raw: &'a Raw<'a>,
    tables: &'a mut Tables,
    known: Vec<Option<TextId>>,
}

impl<'a> Texts<'a> {
    fn new(raw: &'a Raw<'a>, tables: &'a mut Tables) -> Self {
        Self { raw, tables, known: vec![None; raw.texts.len()] }
    }

    fn get(&mut self, index: u64, offset: u64) -> Result<TextId> {
        let text = self.raw.text(index, offset)?;
        let known = usize::try_from(index).ok().and_then(|index| self.known.get_mut(index));
        Ok(match known {
            Some(known) => *known.get_or_insert_with(|| self.tables.text(text)),
            None => TextId::EMPTY,
        })
    }

    fn label(&mut self, message: Cursor<'_>) -> Result<(TextId, Label)> {
        let (mut key, mut text, mut number) = (0, 0, 0);
        each_field(message, |field, value, offset| {
            match field {
                1 => key = value.int(field, offset)?,
                2 => text = value.int(field, offset)?,
                3 => number = value.int(field, offset)?,
                _ => {}
            }
            Ok(())
        })?;
        let offset = message.offset();
        let key = self.get(key, offset)?;
        Ok(match text {
            0 => (key, Label::Number(number as i64)),
            text => (key, Label::Text(self.get(text, offset)?)),
        })
    }
}

/// The processes of samples, by their labels.
#[derive(Default)]
struct Processes(HashMap<(TextId, i64), Option<EntityId>>);

impl Processes {
    /// Takes the name and number of a process from the labels.
    fn take(&mut self, labels: &mut Vec<(TextId, Label)>, tables: &mut Tables) -> Option<EntityId> {
        let position = |name: &[u8]| labels.iter().position(|(key, _)| tables.get(*key) == name);
        let places = [position(b"process")?, position(b"pid")?];
        let [Some((_, Label::Text(name))), Some((_, Label::Number(pid)))] =
            places.map(|place| labels.get(place).copied())
        else {
            return None;
        };
        if pid < 0 {
            return None;
        }
        let of = || tables.entity(Entity::new(EntityKind::Process, pid).name(name));
        // Above the limit of the tables, the labels remain.
        let process = (*self.0.entry((name, pid)).or_insert_with(of))?;
        let mut index = 0;
        labels.retain(|_| {
            index += 1;
            !places.contains(&(index - 1))
        });
        Some(process)
    }
}

/// A kind of value.
struct Type {
    measure: Measure,
    /// The index of the value that is the number of events.
    count: Option<usize>,
    /// Factor of its values.
    scale: u64,
}

/// A unit of pprof in one of [`Unit`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scale {
    unit: Unit,
    by: u64,
    is_known: bool,
}

impl Scale {
    const COUNT: Self = Self { unit: Unit::Count, by: 1, is_known: true };

    /// The names are those that `go tool pprof` accepts (`internal/measurement`): in any case, and in the
    /// plural those of more than two letters.
    fn of(unit: &[u8]) -> Self {
        let lower = unit.to_ascii_lowercase();
        let singular = lower.strip_suffix(b"s").filter(|_| lower.len() > 2);
        const SECOND: u64 = 1_000_000_000;
        let (unit, by) = match singular.unwrap_or(&lower) {
            b"nanosecond" | b"ns" => (Unit::Nanoseconds, 1),
            b"microsecond" | b"us" => (Unit::Nanoseconds, 1_000),
            b"millisecond" | b"ms" => (Unit::Nanoseconds, 1_000_000),
            b"second" | b"sec" | b"s" => (Unit::Nanoseconds, SECOND),
            b"hour" | b"hr" => (Unit::Nanoseconds, 3600 * SECOND),
            b"byte" | b"b" => (Unit::Bytes, 1),
            b"kilobyte" | b"kbyte" | b"kb" => (Unit::Bytes, 1 << 10),
            b"megabyte" | b"mbyte" | b"mb" => (Unit::Bytes, 1 << 20),
            b"gigabyte" | b"gbyte" | b"gb" => (Unit::Bytes, 1 << 30),
            b"terabyte" | b"tbyte" | b"tb" => (Unit::Bytes, 1 << 40),
            b"petabyte" | b"pbyte" | b"pb" => (Unit::Bytes, 1 << 50),
            b"count" | b"" => return Self::COUNT,
            _ => return Self { unit: Unit::Occurrences, by: 1, is_known: false },
        };
        Self { unit, by, is_known: true }
    }
}

/// The frames of locations.
struct Locations {
    index: HashMap<u64, (usize, usize)>,
    frames: Vec<Frame>,
}

impl Locations {
    fn new(raw: &Raw<'_>, items: &mut Budget, texts: &mut Texts<'_>) -> Result<Self> {
        let mappings = mappings(raw, texts)?;
        let functions = functions(raw, texts)?;
        let mut locations = Self { index: HashMap::new(), frames: Vec::new() };
        for message in &raw.locations {
            let (mut id, mut mapping, mut address) = (0, 0, 0);
            let first = locations.frames.len();
            each_field(*message, |field, value, offset| {
                match field {
                    1 => id = value.int(field, offset)?,
                    2 => mapping = value.int(field, offset)?,
                    3 => address = value.int(field, offset)?,
                    4 => {
                        items.take(1)?;
                        let line = line(value.message(field, offset)?, &functions)?;
                        locations.frames.push(line);
                    }
                    _ => {}
                }
                Ok(())
            })?;
            let (mapping, base) = match mapping {
                0 => (None, 0),
                id => *mappings.get(&id).ok_or(Error::Reference {
                    what: "mapping",
                    id,
                    offset: message.offset(),
                })?,
            };
            if locations.frames.len() == first {
                locations.frames.push(Frame::default());
            }
            for frame in locations.frames.get_mut(first..).unwrap_or_default() {
                frame.mapping = mapping;
                frame.address = if address > 0 { address.wrapping_sub(base) } else { 0 };
            }
            locations.index.insert(id, (first, locations.frames.len()));
        }
        Ok(locations)
    }

    fn get(&self, id: u64, offset: u64) -> Result<&[Frame]> {
        let found = self.index.get(&id).and_then(|(first, end)| self.frames.get(*first..*end));
        found.ok_or(Error::Reference { what: "location", id, offset })
    }
}

/// A line of a location, without its place in memory.
fn line(message: Cursor<'_>, functions: &HashMap<u64, (TextId, TextId)>) -> Result<Frame> {
    let (mut id, mut line) = (0, 0);
    each_field(message, |field, value, offset| {
        match field {
            1 => id = value.int(field, offset)?,
            2 => line = value.int(field, offset)?,
            _ => {}
        }
        Ok(())
    })?;
    let (function, file) = match id {
        0 => (TextId::EMPTY, TextId::EMPTY),
        id => *functions.get(&id).ok_or(Error::Reference {
            what: "function",
            id,
            offset: message.offset(),
        })?,
    };
    Ok(Frame { function, file, line: u32::try_from(line).unwrap_or(0), ..Frame::default() })
}

/// The name and file of functions.
fn functions(raw: &Raw<'_>, texts: &mut Texts<'_>) -> Result<HashMap<u64, (TextId, TextId)>> {
    let mut functions = HashMap::new();
    for message in &raw.functions {
        let (mut id, mut name, mut system_name, mut file) = (0, 0, 0, 0);
        each_field(*message, |field, value, offset| {
            match field {
                1 => id = value.int(field, offset)?,
                2 => name = value.int(field, offset)?,
                3 => system_name = value.int(field, offset)?,
                4 => file = value.int(field, offset)?,
                _ => {}
            }
            Ok(())
        })?;
        let name = if name == 0 { system_name } else { name };
        let [name, file] = [name, file].map(|text| texts.get(text, message.offset()));
        functions.insert(id, (name?, file?));
    }
    Ok(functions)
}

/// The mappings, with the address in memory of the first byte of their files.
fn mappings(
    raw: &Raw<'_>,
    texts: &mut Texts<'_>,
) -> Result<HashMap<u64, (Option<MappingId>, u64)>> {
    let mut mappings = HashMap::new();
    for message in &raw.mappings {
        let mut mapping = Mapping::default();
        let (mut id, mut path, mut build_id) = (0, 0, 0);
        each_field(*message, |field, value, offset| {
            let place = match field {
                1 => &mut id,
                2 => &mut mapping.start,
                3 => &mut mapping.end,
                4 => &mut mapping.offset,
                5 => &mut path,
                6 => &mut build_id,
                _ => return Ok(()),
            };
            *place = value.int(field, offset)?;
            Ok(())
        })?;
        let offset = message.offset();
        mapping.path = texts.get(path, offset)?;
        mapping.build_id = texts.get(build_id, offset)?;
        mapping.is_kernel = raw.text(path, offset)?.starts_with(b"[kernel");
        let base = mapping.start.wrapping_sub(mapping.offset);
        mappings.insert(id, (texts.tables.add_mapping(mapping), base));
    }
    Ok(mappings)
}

fn value_type(message: Cursor<'_>) -> Result<(u64, u64)> {
    let (mut kind, mut unit) = (0, 0);
    each_field(message, |field, value, offset| {
        match field {
            1 => kind = value.int(field, offset)?,
            2 => unit = value.int(field, offset)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok((kind, unit))
}

/// The value of a field.
#[derive(Clone, Copy)]
enum Value<'a> {
    Int(u64),
    Bytes(Cursor<'a>),
    /// Of a type that profiles do not have.
    Other(u8),
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

impl<'a> Value<'a> {
    fn mismatch(self, field: u64, offset: u64) -> Error {
        let wire_type = match self {
            Self::Int(_) => VARINT,
            Self::Bytes(_) => BYTES,
            Self::Other(wire_type) => wire_type,
        };
        Error::WireType { field, wire_type, offset }
    }

    fn int(self, field: u64, offset: u64) -> Result<u64> {
        if let Self::Int(value) = self { Ok(value) } else { Err(self.mismatch(field, offset)) }
    }

    fn message(self, field: u64, offset: u64) -> Result<Cursor<'a>> {
        match self {
            Self::Bytes(message) => Ok(message),
            _ => Err(self.mismatch(field, offset)),
        }
    }

    /// The numbers of a repeated field, packed or not.
    fn each_int(
        self,
        field: u64,
        offset: u64,
        mut each: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Int(value) => each(value),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    each(packed.uvarint()?)?;
                }
                Ok(())
            }
            Self::Other(_) => Err(self.mismatch(field, offset)),
        }
    }
}

/// Calls `each` with the number, value and offset of each field of a message.
fn each_field<'a>(
    mut message: Cursor<'a>,
    mut each: impl FnMut(u64, Value<'a>, u64) -> Result<()>,
) -> Result<()> {
    while !message.is_empty() {
        let offset = message.offset();
        let key = message.uvarint()?;
        let (field, wire_type) = (key >> 3, (key & 7) as u8);
        let value = match wire_type {
            VARINT => Value::Int(message.uvarint()?),
            BYTES => {
                let len = message.uvarint()?;
                Value::Bytes(message.sub(usize::try_from(len).unwrap_or(usize::MAX))?)
            }
            FIXED64 | FIXED32 => {
                message.skip(if wire_type == FIXED64 { 8 } else { 4 })?;
                Value::Other(wire_type)
            }
            _ => return Err(Error::WireType { field, wire_type, offset }),
        };
        each(field, value, offset)?;
    }
    Ok(())
}
