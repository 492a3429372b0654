//! Lines of .NET methods: Portable PDB files.
//!
//! ```no_run
//! use trace_symbols::pdb::{Assembly, PdbFiles};
//!
//! # fn lines(signature: trace_symbols::Guid) {
//! // As the runtime's `ModuleLoad` and `MethodLoad` events report them.
//! let assembly = Assembly { path: "/app/App.dll", pdb_path: "/src/App.pdb", signature, process: None };
//! let mut files = PdbFiles::default();
//! match files.find(&assembly) {
//!     Ok(pdb) => println!("{:?}", pdb.line(0x0600_0001, 0)),
//!     Err(why) => println!("{}: {why}", assembly.path),
//! }
//! # }
//! ```
//!
//! Compilers for .NET write a Portable PDB file beside each assembly, or into it. [`PdbFiles`] finds it,
//! and uses it only if it has the id of the assembly. [`PortablePdb`] has its lines: those of an offset in
//! the IL of a method. The runtime reports which IL an address of compiled code has
//! (`MethodILToNativeMap`).
//!
//! The format is described in `PortablePdb-Metadata.md` of the runtime and in ECMA-335, partition II.
//! Input is not trusted: errors have the offset in the file, and nothing is allocated by a length in it.

mod assembly;
mod compressed;
mod document;
mod files;
mod metadata;
mod points;

pub use assembly::embedded;
pub use files::{Assembly, PdbFiles};

use crate::error::{Result, Unresolved, malformed};
use metadata::{Heaps, Metadata, Table};
use std::ops::Range;
use trace_common::{Cursor, Guid};

/// A position in a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Line {
    /// The path of the source file, as its compiler had it.
    pub file: String,
    /// The line, from 1 on.
    pub line: u32,
    /// The column, from 1 on; 0 if it is unknown.
    pub column: u32,
}

/// A Portable PDB file.
#[derive(Clone)]
pub struct PortablePdb {
    bytes: Vec<u8>,
    id: Guid,
    /// The heap of byte strings, in the file.
    blobs: Range<usize>,
    heaps: Heaps,
    documents: Table,
    methods: Table,
}

impl std::fmt::Debug for PortablePdb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortablePdb")
            .field("id", &self.id)
            .field("bytes", &self.bytes.len())
            .field("documents", &self.documents.rows)
            .field("methods", &self.methods.rows)
            .finish_non_exhaustive()
    }
}

impl PortablePdb {
    /// Reads the tables of a file.
    ///
    /// # Errors
    ///
    /// [`Unresolved::NotPortablePdb`] for another format, and [`Unresolved::Malformed`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        let Metadata { id, blobs, heaps, documents, methods } = metadata::read(&bytes)?;
        Ok(Self { bytes, id, blobs, heaps, documents, methods })
    }

    /// The id that an assembly has, too.
    pub const fn id(&self) -> Guid {
        self.id
    }

    /// Number of methods.
    pub const fn methods(&self) -> u32 {
        self.methods.rows
    }

    /// The bytes of the file.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The line of an offset in the IL of a method, by its token. `None` if it has none: the compiler
    /// made the code up, or the token is none of a method of this assembly.
    ///
    /// # Errors
    ///
    /// [`Unresolved::Malformed`], and [`Unresolved::TooLarge`] of a method whose lines have more than 4 MiB.
    pub fn line(&self, token: u32, il_offset: u32) -> Result<Option<Line>> {
        const METHOD_DEF: u32 = 0x06;
        let row = token & 0x00ff_ffff;
        if token >> 24 != METHOD_DEF || row == 0 || row > self.methods.rows {
            return Ok(None);
        }
        let mut columns = self.row(&self.methods, row)?;
        let short = malformed("the table of methods");
        let document = self.documents.index(&mut columns).map_err(&short)?;
        let points = self.heaps.blob(&mut columns).map_err(&short)?;
        if points == 0 {
            return Ok(None);
        }
        let Some(point) = points::at(self.blob(points)?, document, il_offset)? else {
            return Ok(None);
        };
        let file = self.document(point.document)?;
        Ok(Some(Line { file, line: point.line, column: point.column }))
    }

    /// A row of a table, from 1 on.
    fn row(&self, table: &Table, row: u32) -> Result<Cursor<'_>> {
        let past =
            || Unresolved::Malformed { what: "the row of a table", offset: table.start as u64 };
        let before = (row as usize).checked_sub(1).filter(|_| row <= table.rows);
        let start = before.map(|before| table.start + before * table.width).ok_or_else(past)?;
        let bytes = self.bytes.get(start..start + table.width).ok_or_else(past)?;
        Ok(Cursor::with_base(bytes, start as u64))
    }

    /// The byte string at an index of the heap.
    fn blob(&self, index: u32) -> Result<Cursor<'_>> {
        let short = malformed("a byte string");
        let heap = self.bytes.get(self.blobs.clone()).unwrap_or_default();
        let mut heap = Cursor::with_base(heap, self.blobs.start as u64);
        heap.skip(index as usize).map_err(&short)?;
        let size = compressed::unsigned(&mut heap, "a byte string")?;
        heap.sub(size as usize).map_err(&short)
    }
}

#[cfg(test)]
mod tests;
