//! The streams and tables of a file.

use crate::error::{Result, Unresolved, malformed};
use std::ops::Range;
use trace_common::{Cursor, Guid, ReadError};

/// Where the parts of a file are.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) id: Guid,
    pub(super) blobs: Range<usize>,
    pub(super) heaps: Heaps,
    pub(super) documents: Table,
    pub(super) methods: Table,
}

/// The widths of indices of heaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heaps(u8);

/// A table of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    /// Its offset in the file.
    pub(super) start: usize,
    pub(super) rows: u32,
    /// Bytes of a row.
    pub(super) width: usize,
}

/// The tables with type definitions have smaller numbers: they are in the assembly.
const DOCUMENT: u32 = 0x30;
const METHOD_DEBUG_INFORMATION: u32 = 0x31;

/// Maximum number of streams; five are described.
const MAX_STREAMS: u16 = 64;

/// Maximum number of bytes of the name of a stream.
const MAX_STREAM_NAME: usize = 32;

impl Heaps {
    const fn width(self, wide: u8) -> usize {
        if self.0 & wide == 0 { 2 } else { 4 }
    }

    const fn blob_width(self) -> usize {
        self.width(4)
    }

    const fn guid_width(self) -> usize {
        self.width(2)
    }

    /// Reads an index of the heap of byte strings.
    pub(super) fn blob(self, columns: &mut Cursor<'_>) -> Result<u32, ReadError> {
        read_index(columns, self.blob_width())
    }
}

impl Table {
    /// Reads the number of a row of this table.
    pub(super) fn index(&self, columns: &mut Cursor<'_>) -> Result<u32, ReadError> {
        read_index(columns, self.index_width())
    }

    const fn index_width(&self) -> usize {
        if self.rows < 1 << 16 { 2 } else { 4 }
    }
}

fn read_index(columns: &mut Cursor<'_>, width: usize) -> Result<u32, ReadError> {
    if width == 2 { columns.u16().map(u32::from) } else { columns.u32() }
}

/// A part of the file.
type Stream<'a> = Option<Cursor<'a>>;

/// The streams that lines need.
#[derive(Default)]
struct Streams<'a> {
    pdb: Stream<'a>,
    tables: Stream<'a>,
    blobs: Stream<'a>,
}

/// Reads where the parts of a file are.
pub(super) fn read(bytes: &[u8]) -> Result<Metadata> {
    let missing = |what| Unresolved::Malformed { what, offset: 0 };
    let streams = streams(bytes)?;
    let mut pdb = streams.pdb.ok_or_else(|| missing("the stream #Pdb"))?;
    let id = pdb.array().map_err(malformed("the id"))?;
    let blobs = streams.blobs.unwrap_or(Cursor::new(&[]));
    let tables = streams.tables.ok_or_else(|| missing("the stream #~"))?;
    let (heaps, documents, methods) = read_tables(tables)?;
    let start = blobs.offset() as usize;
    Ok(Metadata {
        id: Guid::from_bytes(id),
        blobs: start..start + blobs.remaining(),
        heaps,
        documents,
        methods,
    })
}

fn streams(bytes: &[u8]) -> Result<Streams<'_>> {
    const SIGNATURE: [u8; 4] = *b"BSJB";
    let header = malformed("the header");
    let mut cursor = Cursor::new(bytes);
    if cursor.array() != Ok(SIGNATURE) {
        return Err(Unresolved::NotPortablePdb);
    }
    // The version of the format, and reserved bytes.
    cursor.skip(8).map_err(&header)?;
    let version = cursor.u32().map_err(&header)?;
    cursor.skip(version as usize).map_err(&header)?;
    cursor.skip(2).map_err(&header)?;
    let offset = cursor.offset();
    let count = cursor.u16().map_err(&header)?;
    if count > MAX_STREAMS {
        return Err(Unresolved::Malformed { what: "the number of streams", offset });
    }
    let mut streams = Streams::default();
    for _ in 0..count {
        let what = malformed("a stream");
        let start = cursor.u32().map_err(&what)?;
        let size = cursor.u32().map_err(&what)?;
        let name = name(&mut cursor)?;
        let mut stream = Cursor::new(bytes);
        stream.skip(start as usize).map_err(&what)?;
        let stream = stream.sub(size as usize).map_err(&what)?;
        match name {
            b"#Pdb" => streams.pdb = Some(stream),
            b"#~" => streams.tables = Some(stream),
            b"#Blob" => streams.blobs = Some(stream),
            _ => {}
        }
    }
    Ok(streams)
}

/// Reads the name of a stream: it ends with a zero, and is padded to four bytes.
fn name<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let offset = cursor.offset();
    let bytes = cursor.rest();
    let len = bytes.iter().take(MAX_STREAM_NAME).position(|byte| *byte == 0);
    let name = len.and_then(|len| bytes.get(..len));
    let name = name.ok_or(Unresolved::Malformed { what: "the name of a stream", offset })?;
    let padded = (name.len() + 1).next_multiple_of(4);
    cursor.skip(padded).map_err(malformed("the name of a stream"))?;
    Ok(name)
}

fn read_tables(mut cursor: Cursor<'_>) -> Result<(Heaps, Table, Table)> {
    let short = malformed("the header of the tables");
    // Reserved bytes and the version.
    cursor.skip(6).map_err(&short)?;
    let heaps = Heaps(cursor.u8().map_err(&short)?);
    cursor.skip(1).map_err(&short)?;
    let offset = cursor.offset();
    let valid = cursor.u64().map_err(&short)?;
    if valid & ((1 << DOCUMENT) - 1) != 0 {
        return Err(Unresolved::Malformed { what: "a table of types in a PDB file", offset });
    }
    let _sorted = cursor.u64().map_err(&short)?;
    let (mut document_rows, mut method_rows) = (0, 0);
    for number in (0..u64::BITS).filter(|number| valid >> number & 1 == 1) {
        let count = cursor.u32().map_err(&short)?;
        match number {
            DOCUMENT => document_rows = count,
            METHOD_DEBUG_INFORMATION => method_rows = count,
            _ => {}
        }
    }
    let document_width = 2 * heaps.blob_width() + 2 * heaps.guid_width();
    let start = cursor.offset() as usize;
    let documents = Table { start, rows: document_rows, width: document_width };
    let method_width = documents.index_width() + heaps.blob_width();
    let mut skip = |rows: u32, width| {
        let bytes = (rows as usize).saturating_mul(width);
        cursor.skip(bytes).map_err(malformed("the rows of a table"))
    };
    skip(document_rows, document_width)?;
    skip(method_rows, method_width)?;
    let start = start + document_rows as usize * document_width;
    Ok((heaps, documents, Table { start, rows: method_rows, width: method_width }))
}
