use super::fast::{
    BEGIN_OBJECT, BLOB, BYTE, END_OBJECT, INT16, INT32, INT64, NULL_REFERENCE, OBJECT_REFERENCE,
    SIGNATURE, SKIP_REGION, STRING, compressed, string,
};
use super::write::{self, UNIX_TICKS};
use super::{DumpInfo, GraphType, HeapGraph, Node};
use std::time::{Duration, UNIX_EPOCH};
use trace_common::{Cursor, ReadError, ReadErrorKind};

/// A `.gcdump` file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
#[non_exhaustive]
pub struct GcDumpError {
    /// Offset from the start of the file.
    pub offset: u64,
    /// The kind of error.
    pub kind: GcDumpErrorKind,
}

/// The kind of error in a `.gcdump` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GcDumpErrorKind {
    /// The file does not begin with the FastSerialization header.
    #[error("not a .gcdump file")]
    NotGcDump,
    /// The file contains another object than a heap dump.
    #[error("expected an object of type {expected}, found {found:?}")]
    UnexpectedType {
        /// Expected type.
        expected: &'static str,
        /// Found type.
        found: String,
    },
    /// A version of the format that this reader does not support.
    #[error("version {0} of the format is not supported (8 to 10 are, without deferred types)")]
    UnsupportedVersion(i32),
    /// The file is too short.
    #[error("{0}")]
    Truncated(ReadErrorKind),
    /// A tag that is not valid at this position.
    #[error("unexpected tag {0}")]
    UnexpectedTag(u8),
    /// A count or index that does not fit the rest of the file.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// Name of the count or index.
        what: &'static str,
        /// Its value.
        value: i64,
    },
}

impl From<ReadError> for GcDumpError {
    fn from(error: ReadError) -> Self {
        Self { offset: error.offset, kind: GcDumpErrorKind::Truncated(error.kind) }
    }
}

type Result<T> = std::result::Result<T, GcDumpError>;

/// The type of an object as the file defines it.
#[derive(Clone)]
struct Type {
    name: String,
    version: i32,
    minimum_reader: i32,
}

struct File<'a> {
    bytes: &'a [u8],
    c: Cursor<'a>,
    types: Types,
}

/// Types in the order of the offsets of their definitions; later objects refer to those.
#[derive(Default)]
struct Types(Vec<(u64, Type)>);

impl Types {
    fn defined_at(&self, offset: u64) -> Option<&Type> {
        let index = self.0.binary_search_by_key(&offset, |(at, _)| {
            #[cfg(test)]
            tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
            *at
        });
        self.0.get(index.ok()?).map(|(_, known)| known)
    }
}

impl HeapGraph {
    /// Bytes from the start of a file that [`HeapGraph::is_gcdump`] needs.
    pub const PREFIX: usize = 49;

    /// Whether a file that begins with these bytes is a `.gcdump` file. (NetPerf files have the
    /// same signature and contain another object.)
    pub fn is_gcdump(prefix: &[u8]) -> bool {
        let name = b"GCHeapDump";
        prefix.get(4..4 + SIGNATURE.len()) == Some(SIGNATURE)
            && prefix.get(Self::PREFIX - name.len()..Self::PREFIX) == Some(name)
    }

    /// Reads a `.gcdump` file: those of this crate, of `dotnet-gcdump` and of PerfView for managed
    /// heaps.
    ///
    /// Memory is bounded by a small multiple of the file's length.
    ///
    /// # Errors
    ///
    /// [`GcDumpError`] with the byte offset. Versions 8 to 10 of the format are supported; files of
    /// .NET Native (with deferred types) are not.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut file = File { bytes, c: Cursor::new(bytes), types: Types::default() };
        let begins = file.c.u32().is_ok_and(|n| n as usize == SIGNATURE.len())
            && file.c.bytes(SIGNATURE.len()).is_ok_and(|text| text == SIGNATURE);
        if !begins {
            return Err(GcDumpError { offset: 0, kind: GcDumpErrorKind::NotGcDump });
        }
        let dump = file.object("GCHeapDump")?;
        // No released tool wrote version 8 with this layout, but files of versions 9 and 10 require
        // a reader of version 8.
        if !(8..=10).contains(&dump.version) || dump.minimum_reader > 10 {
            return Err(file.error(GcDumpErrorKind::UnsupportedVersion(dump.version)));
        }
        let graph = file.object("Graphs.MemoryGraph")?;
        if graph.minimum_reader > 0 {
            return Err(file.error(GcDumpErrorKind::UnsupportedVersion(graph.minimum_reader)));
        }
        let mut heap = file.graph()?;
        heap.info = file.info()?;
        Ok(heap)
    }
}

impl<'a> File<'a> {
    fn error(&self, kind: GcDumpErrorKind) -> GcDumpError {
        GcDumpError { offset: self.c.offset(), kind }
    }

    fn tag(&mut self, expected: u8) -> Result<()> {
        let before = self.c;
        let tag = self.c.u8()?;
        if tag == expected {
            return Ok(());
        }
        self.c = before;
        Err(self.error(GcDumpErrorKind::UnexpectedTag(tag)))
    }

    /// Reads a count of items that take at least `least` bytes each.
    fn count(&mut self, what: &'static str, least: usize) -> Result<usize> {
        let before = self.c;
        let value = self.c.i32()?;
        match usize::try_from(value) {
            Ok(count) if count <= self.c.remaining() / least => Ok(count),
            _ => {
                self.c = before;
                Err(self.error(GcDumpErrorKind::Invalid { what, value: value.into() }))
            }
        }
    }

    /// Reads the begin tag and the type of an object.
    fn object(&mut self, expected: &'static str) -> Result<Type> {
        self.tag(BEGIN_OBJECT)?;
        let found = self.object_type()?;
        if found.name == expected {
            return Ok(found);
        }
        Err(self.error(GcDumpErrorKind::UnexpectedType { expected, found: found.name }))
    }

    /// The type of an object: a definition, or a reference to an earlier one.
    fn object_type(&mut self) -> Result<Type> {
        let at = self.c.offset();
        if self.c.peek() == Some(OBJECT_REFERENCE) {
            self.c.skip(1)?;
            let label = u64::from(self.c.u32()?);
            return self.types.defined_at(label).cloned().ok_or_else(|| {
                self.error(GcDumpErrorKind::Invalid { what: "type reference", value: label as i64 })
            });
        }
        self.tag(BEGIN_OBJECT)?;
        self.tag(NULL_REFERENCE)?; // the type of types
        let (version, minimum_reader) = (self.c.i32()?, self.c.i32()?);
        let name = string(&mut self.c)?.unwrap_or_default();
        self.tag(END_OBJECT)?;
        let defined = Type { name, version, minimum_reader };
        // The file is only read forward.
        self.types.0.push((at, defined.clone()));
        Ok(defined)
    }

    fn graph(&mut self) -> Result<HeapGraph> {
        self.c.skip(8)?; // bytes of all objects
        let root = self.c.u32()?;
        let type_count = self.count("number of types", 12)?;
        let mut types = Vec::with_capacity(type_count);
        let mut sizes = Vec::with_capacity(type_count);
        for _ in 0..type_count {
            let name = string(&mut self.c)?.unwrap_or_default();
            sizes.push(self.c.i32()?);
            types.push(GraphType { name, module: string(&mut self.c)? });
        }
        let node_count = self.count("number of nodes", 4)?;
        let mut labels = self.c.sub(4 * node_count)?;
        let blob_length = self.count("size of nodes", 1)?;
        let blob = self.c.sub(blob_length)?;
        let address_count = self.count("number of addresses", 8)?;
        if address_count != node_count {
            let value = address_count as i64;
            return Err(self.error(GcDumpErrorKind::Invalid { what: "number of addresses", value }));
        }

        let mut heap = HeapGraph { types, root, ..HeapGraph::default() };
        heap.nodes.reserve_exact(node_count);
        for index in 0..node_count {
            let mut c = blob;
            c.skip(labels.u32()? as usize)?;
            let node = node(&mut c, &mut heap, index, node_count, &sizes, blob_length)?;
            heap.nodes.push(Node { address: self.c.u64()?, ..node });
        }
        if heap.nodes.get(root as usize).is_none() {
            let kind = GcDumpErrorKind::Invalid { what: "index of the root", value: root.into() };
            return Err(self.error(kind));
        }
        self.rest_of_object()?;
        Ok(heap)
    }

    fn info(&mut self) -> Result<DumpInfo> {
        self.c.skip(1 + 4 + 4)?; // 64-bit, multipliers of count and size
        self.optional("JSHeapInfo", |_, _| Ok(()))?;
        self.optional("DotNetHeapInfo", |file, _| {
            file.c.skip(8)?;
            for _ in 0..file.count("number of segments", 1)? {
                file.optional("GCHeapDumpSegment", |file, segment| {
                    Ok(file.c.skip(if segment.version >= 1 { 56 } else { 48 })?)
                })?;
            }
            Ok(())
        })?;
        string(&mut self.c)?; // log of the collection
        let ticks = self.c.i64()?.saturating_sub(UNIX_TICKS);
        let collected = u64::try_from(ticks).ok().and_then(|ticks| {
            UNIX_EPOCH.checked_add(Duration::from_nanos(ticks.checked_mul(100)?))
        });
        let machine = string(&mut self.c)?;
        let process_name = string(&mut self.c)?;
        let pid = self.c.u32()?;
        self.c.skip(8 + 8)?; // commit size, working set
        let multipliers = self.count("number of multipliers", 4)?;
        self.c.skip(4 * multipliers)?;
        let tool = self.rest_of_object()?;
        Ok(DumpInfo { process_name, pid, machine, collected, tool })
    }

    /// Reads an object of a type, or null.
    fn optional(
        &mut self,
        name: &'static str,
        fields: impl FnOnce(&mut Self, &Type) -> Result<()>,
    ) -> Result<()> {
        if self.c.peek() == Some(NULL_REFERENCE) {
            self.c.skip(1)?;
            return Ok(());
        }
        let kind = self.object(name)?;
        fields(self, &kind)?;
        self.rest_of_object().map(drop)
    }

    /// Skips tagged fields up to the end of an object and returns the last string among them.
    fn rest_of_object(&mut self) -> Result<Option<String>> {
        let mut last = None;
        loop {
            let before = self.c;
            match self.c.u8()? {
                END_OBJECT => return Ok(last),
                BYTE => self.c.skip(1)?,
                INT16 => self.c.skip(2)?,
                INT32 => self.c.skip(4)?,
                INT64 => self.c.skip(8)?,
                STRING => last = string(&mut self.c)?,
                BLOB => {
                    let length = self.count("size of a blob", 1)?;
                    self.c.skip(length)?;
                }
                SKIP_REGION => {
                    let reference = self.c.u32()?;
                    self.go_to(reference)?;
                }
                tag => {
                    self.c = before;
                    return Err(self.error(GcDumpErrorKind::UnexpectedTag(tag)));
                }
            }
        }
    }

    /// Moves to the target of a forward reference, using the table at the offset in the last four
    /// bytes.
    fn go_to(&mut self, reference: u32) -> Result<()> {
        let at = |offset: usize| {
            let mut c = Cursor::new(self.bytes);
            c.skip(offset).and_then(|()| c.u32()).map(|label| label as usize)
        };
        let trailer = at(self.bytes.len().saturating_sub(4))?;
        let table = at(trailer)?;
        let target =
            at(table.saturating_add(4).saturating_add((reference as usize).saturating_mul(4)))?;
        // Only forward: a backward reference would read the same bytes in an endless loop.
        if (target as u64) <= self.c.offset() {
            let kind = GcDumpErrorKind::Invalid { what: "forward reference", value: target as i64 };
            return Err(self.error(kind));
        }
        let mut c = Cursor::new(self.bytes);
        c.skip(target)?;
        self.c = c;
        Ok(())
    }
}

/// Reads one node of the compressed graph; its address is in another table.
fn node(
    c: &mut Cursor<'_>,
    heap: &mut HeapGraph,
    index: usize,
    node_count: usize,
    sizes: &[i32],
    blob_length: usize,
) -> Result<Node> {
    let at = c.offset();
    let invalid = |what, value: i32| GcDumpError {
        offset: at,
        kind: GcDumpErrorKind::Invalid { what, value: value.into() },
    };
    let kind_and_size = compressed(c)?;
    let kind = kind_and_size >> 1;
    let size = sizes.get(usize::try_from(kind).unwrap_or(usize::MAX)).copied();
    let size = size.ok_or_else(|| invalid("index of a type", kind))?;
    let size = if kind_and_size & 1 != 0 { compressed(c)? } else { size };
    // A negative size did not fit in 32 bits.
    let size = u64::try_from(size).unwrap_or(write::LARGEST);
    let children = compressed(c)?;
    let edge_count =
        u32::try_from(children).map_err(|_| invalid("number of references", children))?;
    // Nodes do not share references, so all references must fit in the bytes of the graph.
    if edge_count as usize > blob_length.saturating_sub(heap.edges.len()) {
        return Err(invalid("number of references", children));
    }
    let first_edge = heap.edges.len() as u32;
    for _ in 0..edge_count {
        let delta = compressed(c)?;
        let child = index as i64 + i64::from(delta);
        match u32::try_from(child) {
            Ok(child) if (child as usize) < node_count => heap.edges.push(child),
            _ => return Err(invalid("reference", delta)),
        }
    }
    Ok(Node { address: 0, size, kind: kind as u32, first_edge, edge_count })
}

#[cfg(test)]
mod tests {
    use super::super::fast::put_string;
    use super::*;

    thread_local! {
        /// Number of definitions that references to types were compared with.
        pub(super) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Each object can define its type again, or refer to any definition.
    #[test]
    fn a_reference_is_compared_with_few_of_many_types() {
        const MANY: u32 = 1_000;
        let mut bytes = Vec::new();
        let mut references = Vec::new();
        for version in 0..MANY {
            bytes.push(BEGIN_OBJECT);
            references.push(bytes.len() as u32);
            bytes.extend([BEGIN_OBJECT, NULL_REFERENCE]);
            bytes.extend([version, 0].map(u32::to_le_bytes).concat());
            put_string(&mut bytes, Some("Segment"));
            bytes.push(END_OBJECT);
        }
        references.push(1_000_000);
        for reference in references {
            bytes.extend([BEGIN_OBJECT, OBJECT_REFERENCE]);
            bytes.extend(reference.to_le_bytes());
        }
        let mut file = File { bytes: &bytes, c: Cursor::new(&bytes), types: Types::default() };
        let before = COMPARED.get();
        for version in (0..MANY).chain(0..MANY) {
            let found = file.object("Segment").map(|found| found.version);
            assert_eq!(found, Ok(version as i32));
        }
        let compared = COMPARED.get() - before;
        assert!(compared < 20 * u64::from(MANY), "{compared}");
        let kind = file.object("Segment").err().map(|error| error.kind);
        let unknown = GcDumpErrorKind::Invalid { what: "type reference", value: 1_000_000 };
        assert_eq!(kind, Some(unknown));
    }
}
