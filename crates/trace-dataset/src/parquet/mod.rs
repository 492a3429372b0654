//! A writer of Parquet files with flat columns of four types.
//!
//! Written here instead of with the `parquet` crate: that has 26 dependencies and takes 86 s of CPU
//! to build, and what it would do beside this is not needed. Files are checked with DuckDB and Arrow.
//!
//! Each row group has one page per column, compressed with zstd and with a checksum. Integers are delta-encoded or have
//! a dictionary, whichever is smaller; texts have a dictionary.
//!
//! Sources: `parquet.thrift` and `Encodings.md` of Apache Parquet 2.11.

mod column;
mod encoding;
mod thrift;

use crate::schema::{Column, ColumnType, SCHEMA_VERSION, Table};
use column::{Chunk, Values, encode};
use std::io::{self, Write};
use thrift::{Struct, kind};

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell<'a> {
    Null,
    Int(i64),
    Double(f64),
    Bool(bool),
    Text(&'a str),
}

impl From<Option<i64>> for Cell<'_> {
    fn from(value: Option<i64>) -> Self {
        value.map_or(Self::Null, Self::Int)
    }
}

/// An empty text is not known.
impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(value: Option<&'a str>) -> Self {
        value.filter(|text| !text.is_empty()).map_or(Self::Null, Self::Text)
    }
}

/// Rows of a row group. Readers skip whole groups by their statistics.
const GROUP_ROWS: usize = 1 << 17;

/// Bytes of texts of a row group.
const GROUP_BYTES: usize = 32 << 20;

const MAGIC: &[u8] = b"PAR1";

/// Numbers of the format: `Type`, `CompressionCodec`, `FieldRepetitionType`.
mod number {
    pub(super) const BOOLEAN: i32 = 0;
    pub(super) const INT64: i32 = 2;
    pub(super) const DOUBLE: i32 = 5;
    pub(super) const BYTE_ARRAY: i32 = 6;
    pub(super) const ZSTD: i32 = 6;
    pub(super) const REQUIRED: i32 = 0;
    pub(super) const OPTIONAL: i32 = 1;
    pub(super) const UTF8: i32 = 0;
}

const fn type_number(column: &Column) -> i32 {
    match column.kind {
        ColumnType::Int => number::INT64,
        ColumnType::Double => number::DOUBLE,
        ColumnType::Bool => number::BOOLEAN,
        ColumnType::Text => number::BYTE_ARRAY,
    }
}

/// A row group that is written.
struct Group {
    rows: usize,
    chunks: Vec<Chunk>,
}

/// Writes a table.
pub(crate) struct FileWriter<W> {
    out: W,
    position: u64,
    table: &'static Table,
    columns: Vec<Values>,
    rows: usize,
    groups: Vec<Group>,
    total: u64,
}

impl<W: Write> FileWriter<W> {
    pub(crate) fn new(mut out: W, table: &'static Table) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let columns = table.columns.iter().map(Values::new).collect();
        let (position, groups) = (MAGIC.len() as u64, Vec::new());
        Ok(Self { out, position, table, columns, rows: 0, groups, total: 0 })
    }

    /// Appends a row, which has a cell of the right type for each column.
    pub(crate) fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.table.name);
        for (index, column) in self.columns.iter_mut().enumerate() {
            column.push(cells.get(index).copied().unwrap_or(Cell::Null));
        }
        self.rows += 1;
        self.total += 1;
        if self.rows >= GROUP_ROWS || self.columns.iter().any(|c| c.text_bytes() > GROUP_BYTES) {
            self.flush()?;
        }
        Ok(())
    }

    /// Number of rows so far.
    pub(crate) const fn rows(&self) -> u64 {
        self.total
    }

    /// Writes the row group.
    fn flush(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let sorted_by = self.sorted_by().and_then(|index| self.columns.get(index));
        let order = sorted_by.and_then(Values::order);
        let mut chunks = Vec::with_capacity(self.columns.len());
        for (values, column) in self.columns.iter_mut().zip(self.table.columns) {
            if let Some(order) = &order {
                values.permute(order);
            }
            let encoded = encode(values, column, self.position)?;
            self.out.write_all(&encoded.bytes)?;
            self.position += encoded.bytes.len() as u64;
            chunks.push(encoded.chunk);
            values.clear();
        }
        self.groups.push(Group { rows: std::mem::take(&mut self.rows), chunks });
        Ok(())
    }

    fn sorted_by(&self) -> Option<usize> {
        let name = self.table.sorted_by?;
        self.table.columns.iter().position(|column| column.name == name)
    }

    /// Writes the rest. The result is the output and its size in bytes.
    pub(crate) fn finish(mut self, recording: i64) -> io::Result<(W, u64)> {
        self.flush()?;
        let metadata = self.metadata(recording);
        self.out.write_all(&metadata)?;
        let len = u32::try_from(metadata.len()).map_err(io::Error::other)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()?;
        let bytes = self.position + metadata.len() as u64 + 8;
        Ok((self.out, bytes))
    }

    /// `FileMetaData`.
    fn metadata(&self, recording: i64) -> Vec<u8> {
        let mut s = Struct::default();
        s.i32(1, 2);
        s.list(2, kind::STRUCT, self.table.columns.len() + 1);
        s.begin_element();
        s.binary(4, b"schema");
        s.i32(5, i32::try_from(self.table.columns.len()).unwrap_or(0));
        s.end();
        for column in self.table.columns {
            s.begin_element();
            s.i32(1, type_number(column));
            s.i32(3, if column.is_nullable { number::OPTIONAL } else { number::REQUIRED });
            s.binary(4, column.name.as_bytes());
            if column.kind == ColumnType::Text {
                s.i32(6, number::UTF8);
                s.begin(10);
                s.begin(1);
                s.end();
                s.end();
            }
            s.end();
        }
        s.i64(3, self.total as i64);
        s.list(4, kind::STRUCT, self.groups.len());
        for group in &self.groups {
            self.group(group, &mut s);
        }
        let values = [
            ("triscope.schema_version", SCHEMA_VERSION.to_string()),
            ("triscope.table", self.table.name.to_owned()),
            ("triscope.recording", recording.to_string()),
        ];
        s.list(5, kind::STRUCT, values.len());
        for (key, value) in values {
            s.begin_element();
            s.binary(1, key.as_bytes());
            s.binary(2, value.as_bytes());
            s.end();
        }
        s.binary(6, concat!("triscope version ", env!("CARGO_PKG_VERSION")).as_bytes());
        // `TYPE_ORDER`: without it, readers ignore the statistics.
        s.list(7, kind::STRUCT, self.table.columns.len());
        for _ in self.table.columns {
            s.begin_element();
            s.begin(1);
            s.end();
            s.end();
        }
        s.finish()
    }

    /// `RowGroup`.
    fn group(&self, group: &Group, s: &mut Struct) {
        s.begin_element();
        s.list(1, kind::STRUCT, group.chunks.len());
        for (chunk, column) in group.chunks.iter().zip(self.table.columns) {
            s.begin_element();
            s.i64(2, 0);
            s.begin(3);
            s.i32(1, type_number(column));
            s.list(2, kind::I32, chunk.encodings.len());
            chunk.encodings.iter().for_each(|encoding| s.i32_element(*encoding));
            s.list(3, kind::BINARY, 1);
            s.binary_element(column.name.as_bytes());
            s.i32(4, number::ZSTD);
            s.i64(5, group.rows as i64);
            s.i64(6, chunk.uncompressed as i64);
            s.i64(7, chunk.compressed as i64);
            s.i64(9, chunk.data_page as i64);
            if let Some(page) = chunk.dictionary_page {
                s.i64(11, page as i64);
            }
            s.begin(12);
            s.i64(3, chunk.nulls as i64);
            if let Some((least, greatest)) = &chunk.range {
                s.binary(5, greatest);
                s.binary(6, least);
            }
            s.end();
            s.end();
            s.end();
        }
        let sum = |of: fn(&Chunk) -> u64| group.chunks.iter().map(of).sum::<u64>() as i64;
        s.i64(2, sum(|chunk| chunk.uncompressed));
        s.i64(3, group.rows as i64);
        if let Some(index) = self.sorted_by() {
            s.list(4, kind::STRUCT, 1);
            s.begin_element();
            s.i32(1, i32::try_from(index).unwrap_or(0));
            s.bool(2, false);
            s.bool(3, false);
            s.end();
        }
        s.i64(6, sum(|chunk| chunk.compressed));
        s.end();
    }
}
