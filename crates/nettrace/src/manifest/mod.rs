//! Names and fields of the events of the runtime's own providers.
//!
//! An `EventSource` writes the names and fields of its events into the stream. The runtime's native
//! providers do not, so a reader must know them. `events.txt` beside this file lists them, from the
//! runtime's published event manifest (`ClrEtwAll.man`) and its documentation.

use std::fmt;
use std::sync::OnceLock;

use crate::metadata::{FieldSource, Metadata};
use crate::types::{Field, FieldType};

/// A provider of the runtime or of a collector, with built-in event descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Provider {
    /// `Microsoft-Windows-DotNETRuntime`: GC, JIT, loader, exceptions, contention, threads.
    Runtime,
    /// `Microsoft-Windows-DotNETRuntimeRundown`: methods, modules and so on at the end of the
    /// session.
    Rundown,
    /// `Microsoft-Windows-DotNETRuntimeStress`.
    Stress,
    /// `Microsoft-Windows-DotNETRuntimePrivate`.
    Private,
    /// `Microsoft-DotNETCore-SampleProfiler`: CPU samples.
    SampleProfiler,
    /// `Microsoft-DotNETCore-EventPipe`: information about the process and the session.
    EventPipe,
    /// `System.Threading.Tasks.TplEventSource`: tasks and activities.
    Tpl,
    /// `System.Diagnostics.Metrics`: values of the instruments of meters.
    Metrics,
    /// `Universal.System`: processes, mappings and symbols of version 6.
    UniversalSystem,
    /// `Universal.Events`: samples and context switches of version 6.
    UniversalEvents,
}

impl Provider {
    const ALL: [(Self, &'static str); 10] = [
        (Self::Runtime, "Microsoft-Windows-DotNETRuntime"),
        (Self::Rundown, "Microsoft-Windows-DotNETRuntimeRundown"),
        (Self::Stress, "Microsoft-Windows-DotNETRuntimeStress"),
        (Self::Private, "Microsoft-Windows-DotNETRuntimePrivate"),
        (Self::SampleProfiler, "Microsoft-DotNETCore-SampleProfiler"),
        (Self::EventPipe, "Microsoft-DotNETCore-EventPipe"),
        (Self::Tpl, "System.Threading.Tasks.TplEventSource"),
        (Self::Metrics, "System.Diagnostics.Metrics"),
        (Self::UniversalSystem, "Universal.System"),
        (Self::UniversalEvents, "Universal.Events"),
    ];

    /// The provider with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(p, _)| *p)
    }

    /// The provider's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(p, _)| *p == self).map_or("", |(_, n)| n)
    }
}

/// An event of the built-in manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEvent {
    /// The provider.
    pub provider: Provider,
    /// The event's id.
    pub id: u32,
    /// The event's version.
    pub version: u32,
    /// The event's name, as in the runtime's documentation, without the version.
    pub name: &'static str,
    /// The keywords that enable it (any of them).
    pub keywords: u64,
    /// The level that enables it: 1 critical to 5 verbose, 0 always.
    pub level: u8,
    /// Opcode: 1 start, 2 stop, …
    pub opcode: u8,
    fields: &'static str,
}

impl fmt::Display for Provider {
    /// The provider's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ManifestEvent {
    /// The payload's fields.
    pub fn fields(&self) -> Vec<Field> {
        parse_fields(self.fields.split_ascii_whitespace()).unwrap_or_default()
    }
}

const EVENTS: &str = include_str!("events.txt");

/// All events of the built-in manifest, by provider, id and version.
pub fn events() -> &'static [ManifestEvent] {
    static TABLE: OnceLock<Vec<ManifestEvent>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut provider = None;
        let mut table: Vec<_> = EVENTS
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| match line.strip_prefix("provider ") {
                Some(name) => {
                    provider = Provider::by_name(name);
                    None
                }
                None => parse_event(provider?, line),
            })
            .collect();
        table.sort_by_key(|e| (e.provider, e.id, e.version));
        table
    })
}

/// The description of an event: of its version, otherwise of the newest earlier version (later
/// versions add fields at the end), otherwise of the oldest.
pub fn event(provider: Provider, id: u32, version: u32) -> Option<&'static ManifestEvent> {
    let table = events();
    let after = table.partition_point(|e| (e.provider, e.id, e.version) <= (provider, id, version));
    let is_it = |e: &&ManifestEvent| e.provider == provider && e.id == id;
    let before = after.checked_sub(1).and_then(|i| table.get(i)).filter(is_it);
    before.or_else(|| table.get(after).filter(is_it))
}

fn parse_event(provider: Provider, line: &'static str) -> Option<ManifestEvent> {
    let mut words = line.splitn(6, ' ');
    let (id, version) = words.next()?.split_once('.')?;
    Some(ManifestEvent {
        provider,
        id: id.parse().ok()?,
        version: version.parse().ok()?,
        name: words.next()?,
        keywords: u64::from_str_radix(words.next()?, 16).ok()?,
        level: words.next()?.parse().ok()?,
        opcode: words.next()?.parse().ok()?,
        fields: words.next().unwrap_or(""),
    })
}

fn parse_fields<'t>(words: impl Iterator<Item = &'t str>) -> Option<Vec<Field>> {
    let mut fields: Vec<Field> = Vec::new();
    for word in words {
        let (name, ty) = word.split_once(':')?;
        let (element, count) = match ty.strip_suffix(']') {
            Some(ty) => {
                let (element, count) = ty.rsplit_once('[')?;
                (element, Some(fields.iter().position(|f| &*f.name == count)?))
            }
            None => (ty, None),
        };
        let element = match element.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            Some(inner) => FieldType::Object(parse_fields(inner.split(','))?),
            None => simple(element)?,
        };
        let ty = match count {
            Some(by) => FieldType::Counted(Box::new(element), by),
            None => element,
        };
        fields.push(Field::new(name, ty));
    }
    Some(fields)
}

fn simple(name: &str) -> Option<FieldType> {
    Some(match name {
        "u8" => FieldType::U8,
        "u16" => FieldType::U16,
        "u32" => FieldType::U32,
        "u64" => FieldType::U64,
        "i32" => FieldType::I32,
        "i64" => FieldType::I64,
        "f64" => FieldType::F64,
        "bool" => FieldType::Bool32,
        "ptr" => FieldType::Pointer,
        "guid" => FieldType::Guid,
        "str" => FieldType::Utf16,
        "astr" => FieldType::Utf8Z,
        _ => return None,
    })
}

/// Fills in the names, versions and fields that the stream does not contain.
pub(crate) fn complete(metadata: &mut Metadata) {
    let Some(provider) = metadata.known else { return };
    // one-collect declares the strings of Universal.System as single UTF-8 code units, but writes a
    // 16-bit length and bytes, as the description of these providers specifies.
    if provider == Provider::UniversalSystem {
        for field in &mut metadata.fields {
            if field.ty == FieldType::Utf8Unit {
                field.ty = FieldType::Utf8Len16;
            }
        }
    }
    // one-collect writes no version in the metadata of the runtime's events, no fields or its own, and the name
    // `Unknown(ID)` or its own. It receives these events from .NET 10 and later, whose versions are the newest.
    let is_native = matches!(provider, Provider::Runtime | Provider::Rundown);
    let is_newest = is_native && !metadata.has_version;
    let version = if is_newest { u32::MAX } else { metadata.version };
    let Some(event) = event(provider, metadata.event_id, version) else { return };
    if metadata.name.is_empty() || is_newest && metadata.name.starts_with("Unknown(") {
        metadata.name = event.name.into();
        metadata.opcode = event.opcode;
    }
    if metadata.fields.is_empty() || is_newest {
        metadata.fields = event.fields();
        metadata.source = FieldSource::Manifest;
    }
    if is_newest {
        metadata.version = event.version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_manifest_is_understood() {
        let lines = EVENTS.lines().filter(|l| !l.starts_with('#') && !l.starts_with("provider "));
        assert_eq!(events().len(), lines.count());
        for event in events() {
            let parsed = parse_fields(event.fields.split_ascii_whitespace());
            assert!(parsed.is_some(), "{event:?}");
        }
    }

    #[test]
    fn unknown_versions_take_the_newest_known_one_before() {
        let at = |version| event(Provider::Runtime, 10, version).unwrap().version;
        assert_eq!((at(0), at(4), at(9)), (0, 4, 4));
        assert_eq!(event(Provider::Runtime, 204, 0).unwrap().version, 3, "or the oldest");
        assert_eq!(event(Provider::Runtime, 9_999, 0), None);
        assert_eq!(event(Provider::Tpl, 10, 0), None);
    }
}
