//! Startup hooks, checked before a runtime loads them.
//!
//! A process ends if its runtime cannot run a startup hook. So the file is parsed here first, by
//! the layout of PE/COFF and ECMA-335 (6th edition, II.22 to II.25), and searched for the method
//! that the runtime calls.

use trace_common::{Cursor, ReadError};

/// Why an assembly is not a startup hook that a runtime can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupHookError {
    /// The path is relative. A runtime would use it as the name of an assembly.
    #[error("the path is not absolute")]
    RelativePath,
    /// The path contains a colon, at which a suspended runtime splits it.
    #[error("the path contains a colon, at which a suspended runtime splits it")]
    Colon,
    /// The file cannot be read in the target's file system.
    #[error("the target's file cannot be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// The file is larger than 256 MiB.
    #[error("the file has {0} bytes, more than the limit of 256 MiB")]
    TooLarge(u64),
    /// The target's files cannot be read from this process: the target is another user's process,
    /// or not on this Linux machine, or it is not known which process it is.
    #[error(
        "the process that would run it is not known (a proxy, or the first process of a container), \
         or its file system is not visible from here, so the hook cannot be checked"
    )]
    Unverifiable,
    /// The file is not a .NET assembly.
    #[error("not a .NET assembly: {what} at byte {offset}")]
    NotAnAssembly {
        /// Name of the structure.
        what: &'static str,
        /// The offset in the file.
        offset: u64,
    },
    /// The assembly is for x86 processes only: no 64-bit runtime can load it.
    #[error("the assembly is for 32-bit x86 processes only")]
    X86Only,
    /// The assembly has no class `StartupHook` in the global namespace.
    #[error("the assembly has no class StartupHook in the global namespace")]
    NoClass,
    /// The class has no method `static void Initialize()`.
    #[error("StartupHook has no method static void Initialize()")]
    NoMethod,
}

impl StartupHookError {
    const fn malformed(what: &'static str, offset: u64) -> Self {
        Self::NotAnAssembly { what, offset }
    }
}

impl From<ReadError> for StartupHookError {
    fn from(error: ReadError) -> Self {
        Self::malformed("the data ends early", error.offset)
    }
}

type Result<T> = std::result::Result<T, StartupHookError>;

/// Checks that an assembly has the entry point of a startup hook: the method
/// `static void Initialize()` of a class `StartupHook` in the global namespace.
///
/// A runtime can still fail to load the assembly, for example because a reference is missing, and
/// the hook itself can throw an exception. Both end the process.
///
/// # Errors
///
/// [`StartupHookError::NotAnAssembly`] with the byte offset, [`StartupHookError::X86Only`],
/// [`StartupHookError::NoClass`] or [`StartupHookError::NoMethod`].
pub fn check_startup_hook(assembly: &[u8]) -> Result<()> {
    let metadata = Metadata::of_file(assembly)?;
    let types = metadata.table(Table::TypeDef);
    let methods = metadata.table(Table::MethodDef);
    for row in 0..types.rows {
        let mut c = types.row(row)?;
        let flags = c.u32()?;
        let named = metadata.is_string(&mut c, b"StartupHook\0")?;
        let global = metadata.is_string(&mut c, b"\0")?;
        // The visibility of a nested class is 2 or more.
        if !named || !global || flags & 0x7 > 1 {
            continue;
        }
        metadata.coded(&mut c, &TYPE_DEF_OR_REF)?; // the base class
        metadata.index(&mut c, Table::Field)?;
        let first = metadata.index(&mut c, Table::MethodDef)?;
        let end = match types.row(row + 1) {
            Ok(mut next) => {
                next.skip(4 + 2 * metadata.string_size())?;
                metadata.coded(&mut next, &TYPE_DEF_OR_REF)?;
                metadata.index(&mut next, Table::Field)?;
                metadata.index(&mut next, Table::MethodDef)?
            }
            Err(_) => methods.rows + 1,
        };
        for method in first..end.min(methods.rows + 1) {
            if metadata.is_entry_point(methods.row(method.wrapping_sub(1))?)? {
                return Ok(());
            }
        }
        return Err(StartupHookError::NoMethod);
    }
    Err(StartupHookError::NoClass)
}

/// The numbers of the tables that are used here (II.22).
#[derive(Clone, Copy)]
#[repr(u8)]
enum Table {
    Module = 0x00,
    TypeRef = 0x01,
    TypeDef = 0x02,
    Field = 0x04,
    MethodDef = 0x06,
    Param = 0x08,
    ModuleRef = 0x1a,
    TypeSpec = 0x1b,
    Assembly = 0x20,
    AssemblyRef = 0x23,
}

/// Tables that one index can refer to, and the number of its tag bits.
struct Coded<const N: usize> {
    bits: u32,
    tables: [Table; N],
}

const TYPE_DEF_OR_REF: Coded<3> =
    Coded { bits: 2, tables: [Table::TypeDef, Table::TypeRef, Table::TypeSpec] };
const RESOLUTION_SCOPE: Coded<4> = Coded {
    bits: 2,
    tables: [Table::Module, Table::ModuleRef, Table::AssemblyRef, Table::TypeRef],
};

/// The rows of a table.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [u8],
    offset: u64,
    rows: u32,
    size: usize,
}

impl<'a> Rows<'a> {
    fn row(&self, index: u32) -> Result<Cursor<'a>> {
        let start = (index as usize).saturating_mul(self.size);
        let offset = self.offset + start as u64;
        match start.checked_add(self.size).and_then(|end| self.data.get(start..end)) {
            Some(row) if index < self.rows => Ok(Cursor::with_base(row, offset)),
            _ => Err(StartupHookError::malformed("a row that does not exist", offset)),
        }
    }
}

/// A part of the file.
#[derive(Clone, Copy)]
struct Heap<'a> {
    data: &'a [u8],
    offset: u64,
}

/// The metadata of an assembly (II.24).
struct Metadata<'a> {
    strings: Heap<'a>,
    blobs: Heap<'a>,
    /// Bit 0: indices into the string heap have four bytes; bit 1: GUIDs; bit 2: blobs.
    heap_sizes: u8,
    row_counts: [u32; 64],
    /// The rows of all tables, in order.
    rows: Heap<'a>,
}

impl<'a> Metadata<'a> {
    fn of_file(file: &'a [u8]) -> Result<Self> {
        let image = Image::read(file)?;
        let (rva, size) = image.cli_metadata()?;
        let metadata = image.slice(rva, size)?;
        let mut c = Cursor::with_base(metadata.data, metadata.offset);
        if c.u32()? != 0x424a_5342 {
            return Err(StartupHookError::malformed("metadata without signature", metadata.offset));
        }
        c.skip(8)?; // version of the format, reserved
        let version = c.u32()? as usize;
        c.skip(version)?;
        c.skip(2)?; // flags
        let streams = c.u16()?;
        let (mut tables, mut strings, mut blobs) = (None, None, None);
        for _ in 0..streams {
            let at = c.offset();
            let (start, size) = (c.u32()? as usize, c.u32()? as usize);
            let name_start = c.position();
            while c.u8()? != 0 {}
            let name = metadata.data.get(name_start..c.position() - 1).unwrap_or_default();
            c.skip((4 - c.position() % 4) % 4)?; // to four bytes
            let data = start
                .checked_add(size)
                .and_then(|end| metadata.data.get(start..end))
                .ok_or(StartupHookError::malformed("a stream outside of the metadata", at))?;
            let heap = Heap { data, offset: metadata.offset + start as u64 };
            match name {
                b"#~" => tables = Some(heap),
                b"#Strings" => strings = Some(heap),
                b"#Blob" => blobs = Some(heap),
                _ => {}
            }
        }
        let missing = StartupHookError::malformed("metadata without a stream", metadata.offset);
        let (Some(tables), Some(strings), Some(blobs)) = (tables, strings, blobs) else {
            return Err(missing);
        };
        let mut c = Cursor::with_base(tables.data, tables.offset);
        c.skip(6)?; // reserved, version of the schema
        let heap_sizes = c.u8()?;
        c.skip(1)?;
        let valid = c.u64()?;
        c.skip(8)?; // sorted tables
        let mut row_counts = [0; 64];
        for (table, count) in row_counts.iter_mut().enumerate() {
            if valid >> table & 1 == 1 {
                let at = c.offset();
                *count = c.u32()?;
                // An index has 24 bits (II.22: a token).
                if *count > 0x00ff_ffff {
                    return Err(StartupHookError::malformed("too many rows", at));
                }
            }
        }
        if heap_sizes & 0x40 != 0 {
            c.skip(4)?; // extra data
        }
        let rows = Heap { offset: c.offset(), data: c.rest() };
        let metadata = Self { strings, blobs, heap_sizes, row_counts, rows };
        // Tables that only the uncompressed form has would shift the others.
        if valid & (1 << 3 | 1 << 5 | 1 << 7) != 0 {
            return Err(StartupHookError::malformed("uncompressed metadata", tables.offset));
        }
        if metadata.row_count(Table::Assembly) == 0 {
            return Err(StartupHookError::malformed("a module without assembly", tables.offset));
        }
        Ok(metadata)
    }

    fn row_count(&self, table: Table) -> u32 {
        self.row_counts.get(table as usize).copied().unwrap_or_default()
    }

    const fn string_size(&self) -> usize {
        if self.heap_sizes & 1 == 0 { 2 } else { 4 }
    }

    const fn guid_size(&self) -> usize {
        if self.heap_sizes & 2 == 0 { 2 } else { 4 }
    }

    const fn blob_size(&self) -> usize {
        if self.heap_sizes & 4 == 0 { 2 } else { 4 }
    }

    fn index_size(&self, table: Table) -> usize {
        if self.row_count(table) <= 0xffff { 2 } else { 4 }
    }

    fn coded_size<const N: usize>(&self, coded: &Coded<N>) -> usize {
        let limit = 0xffff >> coded.bits;
        if coded.tables.iter().all(|t| self.row_count(*t) <= limit) { 2 } else { 4 }
    }

    /// The rows of a table, one of at most seven up to `MethodDef`.
    fn table(&self, table: Table) -> Rows<'a> {
        let type_def = 4
            + 2 * self.string_size()
            + self.coded_size(&TYPE_DEF_OR_REF)
            + self.index_size(Table::Field)
            + self.index_size(Table::MethodDef);
        let sizes = [
            (Table::Module, 2 + self.string_size() + 3 * self.guid_size()),
            (Table::TypeRef, self.coded_size(&RESOLUTION_SCOPE) + 2 * self.string_size()),
            (Table::TypeDef, type_def),
            (Table::Field, 2 + self.string_size() + self.blob_size()),
            (
                Table::MethodDef,
                8 + self.string_size() + self.blob_size() + self.index_size(Table::Param),
            ),
        ];
        let mut start = 0usize;
        for (before, size) in sizes {
            let rows = self.row_count(before);
            if before as u8 == table as u8 {
                let data = self.rows.data.get(start..).unwrap_or_default();
                return Rows { data, offset: self.rows.offset + start as u64, rows, size };
            }
            start = start.saturating_add(size.saturating_mul(rows as usize));
        }
        Rows { data: &[], offset: self.rows.offset, rows: 0, size: 0 }
    }

    fn number(c: &mut Cursor<'_>, size: usize) -> Result<u32> {
        Ok(if size == 2 { c.u16()?.into() } else { c.u32()? })
    }

    fn index(&self, c: &mut Cursor<'_>, table: Table) -> Result<u32> {
        Self::number(c, self.index_size(table))
    }

    fn coded<const N: usize>(&self, c: &mut Cursor<'_>, coded: &Coded<N>) -> Result<u32> {
        Self::number(c, self.coded_size(coded))
    }

    /// Whether an index in a row points at `text`, which ends in NUL.
    fn is_string(&self, c: &mut Cursor<'_>, text: &[u8]) -> Result<bool> {
        let at = c.offset();
        let start = Self::number(c, self.string_size())? as usize;
        let outside = StartupHookError::malformed("a string outside of its heap", at);
        Ok(self.strings.data.get(start..).ok_or(outside)?.starts_with(text))
    }

    /// Whether a row of `MethodDef` is `static void Initialize()`.
    fn is_entry_point(&self, mut c: Cursor<'a>) -> Result<bool> {
        c.skip(6)?; // address, implementation flags
        let flags = c.u16()?;
        let named = self.is_string(&mut c, b"Initialize\0")?;
        let at = c.offset();
        let start = Self::number(&mut c, self.blob_size())? as usize;
        let outside = StartupHookError::malformed("a signature outside of its heap", at);
        let signature = self.blobs.data.get(start..).ok_or(outside)?;
        // Three bytes long: the default calling convention, no parameters, void (II.23.2.1).
        Ok(named && flags & 0x10 != 0 && signature.starts_with(&[3, 0, 0, 1]))
    }
}

/// A PE/COFF image.
struct Image<'a> {
    file: &'a [u8],
    sections: Cursor<'a>,
    cli: u32,
}

impl<'a> Image<'a> {
    fn read(file: &'a [u8]) -> Result<Self> {
        let mut c = Cursor::new(file);
        if c.bytes(2).ok() != Some(b"MZ") {
            return Err(StartupHookError::malformed("no MZ signature", 0));
        }
        c.skip(0x3a)?;
        let start = c.u32()?;
        let mut c = Cursor::new(file);
        c.skip(start as usize)?;
        if c.array()? != *b"PE\0\0" {
            return Err(StartupHookError::malformed("no PE signature", start.into()));
        }
        c.skip(2)?; // machine
        let sections = usize::from(c.u16()?);
        c.skip(12)?;
        let optional_size = usize::from(c.u16()?);
        c.skip(2)?;
        let at = c.offset();
        let mut optional = c.sub(optional_size)?;
        // The data directories follow the fields of PE32 or PE32+.
        match optional.u16()? {
            0x10b => optional.skip(90)?,
            0x20b => optional.skip(106)?,
            _ => return Err(StartupHookError::malformed("an unknown optional header", at)),
        }
        const CLI_HEADER: u32 = 14;
        let directories = optional.u32()?;
        let none = StartupHookError::malformed("no CLI header", optional.offset());
        if directories <= CLI_HEADER {
            return Err(none);
        }
        optional.skip(8 * CLI_HEADER as usize)?;
        let cli = optional.u32()?;
        if cli == 0 {
            return Err(none);
        }
        Ok(Self { file, sections: c.sub(40 * sections)?, cli })
    }

    /// The address and size of the metadata, from the CLI header (II.25.3.3).
    fn cli_metadata(&self) -> Result<(u32, u32)> {
        // Together they are "any CPU, 32-bit preferred".
        const REQUIRES_32_BITS: u32 = 0x2;
        const PREFERS_32_BITS: u32 = 0x2_0000;
        let header = self.slice(self.cli, 72)?;
        let mut c = Cursor::with_base(header.data, header.offset);
        c.skip(8)?;
        let metadata = (c.u32()?, c.u32()?);
        if c.u32()? & (REQUIRES_32_BITS | PREFERS_32_BITS) == REQUIRES_32_BITS {
            return Err(StartupHookError::X86Only);
        }
        Ok(metadata)
    }

    /// The bytes at a relative virtual address.
    fn slice(&self, rva: u32, size: u32) -> Result<Heap<'a>> {
        let mut sections = self.sections;
        while !sections.is_empty() {
            sections.skip(8)?; // name
            let virtual_size = sections.u32()?;
            let (address, raw_size, raw) = (sections.u32()?, sections.u32()?, sections.u32()?);
            sections.skip(16)?;
            let Some(within) = rva.checked_sub(address) else { continue };
            if within >= virtual_size.max(raw_size) {
                continue;
            }
            let offset = u64::from(raw) + u64::from(within);
            let data = usize::try_from(offset)
                .ok()
                .and_then(|start| self.file.get(start..start.checked_add(size as usize)?))
                .ok_or(StartupHookError::malformed("the file ends early", offset))?;
            return Ok(Heap { data, offset });
        }
        Err(StartupHookError::malformed("an address outside of all sections", rva.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest assembly with one class and one method; each field of interest can be changed.
    struct Assembly {
        class: &'static str,
        namespace: &'static str,
        class_flags: u32,
        method: &'static str,
        method_flags: u16,
        signature: &'static [u8],
        has_manifest: bool,
        flags: u32,
    }

    const HOOK: Assembly = Assembly {
        class: "StartupHook",
        namespace: "",
        class_flags: 0x10_0180, // abstract sealed, not public: a static class
        method: "Initialize",
        method_flags: 0x96, // public static
        signature: &[0, 0, 1],
        has_manifest: true,
        flags: 1, // IL only
    };

    /// Appends a string with its NUL to a heap and returns its index.
    fn put(heap: &mut Vec<u8>, text: &str) -> u16 {
        let index = heap.len() as u16;
        heap.extend(text.bytes().chain([0]));
        index
    }

    fn u16s(values: &[u16]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn u32s(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    impl Assembly {
        fn metadata(&self) -> Vec<u8> {
            let mut strings = vec![0];
            let name = put(&mut strings, "test");
            let (class, namespace) = match self.namespace {
                "" => (put(&mut strings, self.class), 0),
                text => (put(&mut strings, self.class), put(&mut strings, text)),
            };
            let method = put(&mut strings, self.method);
            let blobs = [&[0, self.signature.len() as u8], self.signature].concat();

            let mut valid = 1u64 << 0 | 1 << 2 | 1 << 6;
            let mut counts = vec![1, 2, 1];
            if self.has_manifest {
                valid |= 1 << 0x20;
                counts.push(1);
            }
            let tables = [
                &[0, 0, 0, 0, 2, 0, 0, 1][..],
                &valid.to_le_bytes(),
                &[0; 8],
                &u32s(&counts),
                &u16s(&[0, name, 1, 0, 0]),
                &u32s(&[0]), // the class <Module>, with no methods
                &u16s(&[name, 0, 0, 1, 1]),
                &u32s(&[self.class_flags]),
                &u16s(&[class, namespace, 0, 1, 1]),
                &u32s(&[0]),
                &u16s(&[0, self.method_flags, method, 1, 1]),
                &[0; 22], // the assembly
            ]
            .concat();

            let mut head =
                [&b"BSJB\x01\0\x01\0\0\0\0\0\x0c\0\0\0v4.0.30319\0\0"[..], &u16s(&[0, 3])];
            let mut data = Vec::new();
            let mut streams = Vec::new();
            let start = 16 + 12 + 4 + (8 + 4) + (8 + 12) + (8 + 8);
            for (name, bytes) in [
                (&b"#~\0\0"[..], &tables),
                (b"#Strings\0\0\0\0", &strings),
                (b"#Blob\0\0\0", &blobs),
            ] {
                streams.extend(u32s(&[(start + data.len()) as u32, bytes.len() as u32]));
                streams.extend(name);
                data.extend(bytes);
            }
            head.iter_mut().map(|part| part.to_vec()).chain([streams, data]).flatten().collect()
        }

        /// One section at address 0x2000 with the CLI header and the metadata.
        fn file(&self) -> Vec<u8> {
            let metadata = self.metadata();
            let size = 72 + metadata.len() as u32;
            let mut mz = b"MZ".to_vec();
            mz.resize(0x3c, 0);
            let mut optional = u16s(&[0x10b]);
            optional.resize(92, 0);
            optional.extend(u32s(&[16]));
            optional.resize(96 + 14 * 8, 0);
            optional.extend(u32s(&[0x2000, 72, 0, 0]));
            let head = [&mz[..], &u32s(&[0x40]), b"PE\0\0", &u16s(&[0x14c, 1]), &[0; 12]].concat();
            let before = [&head[..], &u16s(&[optional.len() as u16, 0]), &optional].concat();
            let start = before.len() as u32 + 40;
            let section = [
                &b".text\0\0\0"[..],
                &u32s(&[size, 0x2000, size, start, 0, 0, 0, 0]),
                &u32s(&[72, 0, 0x2000 + 72, metadata.len() as u32, self.flags]),
                &[0; 52],
            ]
            .concat();
            [before, section, metadata].concat()
        }

        fn check(&self) -> Result<()> {
            check_startup_hook(&self.file())
        }
    }

    #[test]
    fn a_startup_hook_is_recognised() {
        assert_eq!(HOOK.check(), Ok(()));
        assert_eq!(Assembly { class_flags: 1, ..HOOK }.check(), Ok(()));
        assert_eq!(Assembly { method_flags: 0x91, ..HOOK }.check(), Ok(())); // private
    }

    #[test]
    fn a_class_of_another_name_is_no_hook() {
        let class =
            |assembly: Assembly| assert_eq!(assembly.check(), Err(StartupHookError::NoClass));
        class(Assembly { class: "StartupHooks", ..HOOK });
        class(Assembly { class: "Startup", ..HOOK });
        class(Assembly { namespace: "App", ..HOOK });
        class(Assembly { class_flags: 2, ..HOOK }); // nested
    }

    #[test]
    fn a_method_of_another_shape_is_no_hook() {
        let method =
            |assembly: Assembly| assert_eq!(assembly.check(), Err(StartupHookError::NoMethod));
        method(Assembly { method: "Initialise", ..HOOK });
        method(Assembly { method_flags: 0x86, ..HOOK }); // not static
        method(Assembly { signature: &[0, 0, 8], ..HOOK }); // returns int
        method(Assembly { signature: &[0, 1, 1, 14], ..HOOK }); // takes a string
        method(Assembly { signature: &[0x10, 1, 0, 1], ..HOOK }); // generic
    }

    #[test]
    fn an_assembly_for_x86_only_is_no_hook() {
        let x86_only = Err(StartupHookError::X86Only);
        assert_eq!(Assembly { flags: 0x3, ..HOOK }.check(), x86_only);
        assert_eq!(Assembly { flags: 0x2, ..HOOK }.check(), x86_only);
        assert_eq!(Assembly { flags: 0x2_0003, ..HOOK }.check(), Ok(())); // preferred
    }

    #[test]
    fn other_files_are_not_assemblies() {
        for bytes in [&b""[..], b"MZ", b"\x7fELF", &[0; 4096]] {
            let error = check_startup_hook(bytes).unwrap_err();
            assert!(matches!(error, StartupHookError::NotAnAssembly { .. }), "{error}");
        }
        let module = Assembly { has_manifest: false, ..HOOK }.check();
        assert!(matches!(module, Err(StartupHookError::NotAnAssembly { .. })), "{module:?}");
    }

    #[test]
    fn truncated_and_changed_files_are_errors_or_hooks() {
        let file = HOOK.file();
        for len in 0..file.len() - 22 {
            assert!(check_startup_hook(&file[..len]).is_err(), "{len}");
        }
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut file = file.clone();
                file[at] ^= 1 << bit;
                let _ = check_startup_hook(&file); // no panic
            }
        }
    }
}
