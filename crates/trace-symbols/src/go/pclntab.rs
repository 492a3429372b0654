//! The table of functions and lines: `runtime.pclntab`.
//!
//! The format is that of `debug/gosym` and `runtime/symtab.go` in four versions: Go 1.2, 1.16, 1.18 and
//! 1.20. Calls that were inlined are read from Go 1.18 on.

use crate::elf::Elf;
use crate::error::Result;
use crate::frame::MAX_TEXT;
use std::cell::Cell;

/// The version of the format: the first release of Go that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    Go2,
    Go16,
    Go18,
    Go20,
}

/// `FUNCDATA_InlTree`.
const INLINE_TREE: u64 = 3;
/// `PCDATA_InlTreeIndex`.
const INLINE_INDEX: u64 = 2;

/// Bytes of a table of values that are read for one value. A function of many megabytes of code needs less.
const MAX_VALUE: usize = 1 << 22;
/// Bytes that are read for all values at one address: there are three for each inlined call.
const MAX_VALUES: usize = 1 << 24;

/// A table.
#[derive(Debug)]
pub(crate) struct PcLnTab {
    data: Vec<u8>,
    pub(super) version: Version,
    quantum: u64,
    pub(super) pointer: u64,
    pub(super) functions: u64,
    /// Offsets of the parts.
    pub(super) names: u64,
    units: u64,
    files: u64,
    values: u64,
    records: u64,
    /// The address of the code, from Go 1.18 on.
    text: u64,
    /// The data of functions, from `go:func.*` on.
    function_data: Vec<u8>,
}

impl PcLnTab {
    /// Reads the header. `None` if it is none.
    pub(super) fn parse(data: Vec<u8>) -> Option<Self> {
        let header = Self::header(&data)?;
        Some(Self { data, ..header })
    }

    /// The table at the start of `data`, without its bytes.
    fn header(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk::<4>()?;
        let version = match u32::from_le_bytes(*magic) {
            0xffff_fffb => Version::Go2,
            0xffff_fffa => Version::Go16,
            0xffff_fff0 => Version::Go18,
            0xffff_fff1 => Version::Go20,
            _ => return None,
        };
        let &[0, 0, quantum @ (1 | 2 | 4), pointer @ (4 | 8), ..] = rest else { return None };
        let mut this = Self {
            version,
            quantum: quantum.into(),
            pointer: pointer.into(),
            functions: 0,
            names: 0,
            units: 0,
            files: 0,
            values: 0,
            records: 0,
            text: 0,
            function_data: Vec::new(),
            data: Vec::new(),
        };
        let word = |n: u64| word_at(data, 8 + n * this.pointer, this.pointer);
        let functions = word(0)?;
        let first = match version {
            Version::Go2 => None,
            Version::Go16 => Some(2),
            Version::Go18 | Version::Go20 => Some(3),
        };
        let parts = match first {
            Some(n) => [word(n)?, word(n + 1)?, word(n + 2)?, word(n + 3)?, word(n + 4)?],
            None => [0, 0, 0, 0, 0],
        };
        this.functions = functions;
        [this.names, this.units, this.files, this.values, this.records] = parts;
        let end = this.table().checked_add(this.table_size()?)?;
        if version == Version::Go2 {
            // The table of files is behind that of functions.
            this.files = u32_at(data, end)?.into();
        }
        (functions > 0 && end <= data.len() as u64).then_some(this)
    }

    /// The bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.data.len() + self.function_data.len()) as u64
    }

    /// Whether addresses are relative to the start of the code, which the table does not have.
    pub(super) fn is_relative(&self) -> bool {
        self.version >= Version::Go18
    }

    /// Sets the start of the code and the data of functions.
    pub(super) fn relocate(&mut self, text: u64, function_data: Vec<u8>) {
        self.text = text;
        self.function_data = function_data;
    }

    /// The position of the table of functions.
    fn table(&self) -> u64 {
        if self.version == Version::Go2 { 8 + self.pointer } else { self.records }
    }

    /// Bytes of a field of the table.
    fn field(&self) -> u64 {
        if self.is_relative() { 4 } else { self.pointer }
    }

    fn table_size(&self) -> Option<u64> {
        self.functions.checked_mul(2)?.checked_add(1)?.checked_mul(self.field())
    }

    fn u32(&self, at: u64) -> Option<u32> {
        u32_at(&self.data, at)
    }

    fn word(&self, at: u64) -> Option<u64> {
        word_at(&self.data, at, self.pointer)
    }

    /// The n-th field of the table of functions: address, position of the record, address, …
    fn entry(&self, n: u64) -> Option<u64> {
        let at = self.table().checked_add(n.checked_mul(self.field())?)?;
        if self.is_relative() { self.u32(at).map(u64::from) } else { self.word(at) }
    }

    /// The address of the first function, as the table has it.
    pub(super) fn first(&self) -> Option<u64> {
        self.entry(0)
    }

    /// The function with the code at an address.
    pub(super) fn function(&self, address: u64) -> Option<Function<'_>> {
        let target = address.checked_sub(self.text)?;
        let (mut low, mut high) = (0, self.functions);
        if target < self.entry(0)? || target >= self.entry(high * 2)? {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(middle * 2)? <= target { low = middle } else { high = middle }
        }
        let entry = self.entry(low * 2)?.checked_add(self.text)?;
        let record = self.entry(low * 2 + 1)?;
        let base = if self.version == Version::Go2 { 0 } else { self.records };
        let record = base.checked_add(record)?;
        let function = Function { table: self, entry, record, left: Cell::new(MAX_VALUES) };
        (!function.name().is_empty()).then_some(function)
    }

    /// The text at a position, up to [`MAX_TEXT`] bytes.
    fn text(&self, at: u64) -> &[u8] {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let text = self.data.get(at..).unwrap_or_default();
        let text = text.get(..MAX_TEXT).unwrap_or(text);
        text.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// The bytes from a table of values on. `None` if there is none.
    fn values_at(&self, table: u32) -> Option<&[u8]> {
        if table == 0 {
            return None;
        }
        self.data.get(usize::try_from(self.values.checked_add(table.into())?).ok()?..)
    }

    /// The value at an address in a table of values of the function that starts at `entry`. `None` if it has
    /// none there.
    fn value(&self, table: &mut &[u8], entry: u64, address: u64) -> Option<i32> {
        let (mut value, mut pc, mut is_first) = (-1i32, entry, true);
        loop {
            let delta = varint(table)?;
            if delta == 0 && !is_first {
                return None;
            }
            is_first = false;
            let signed = (delta >> 1) as i32 ^ -((delta & 1) as i32);
            value = value.wrapping_add(signed);
            pc = pc.wrapping_add(u64::from(varint(table)?).wrapping_mul(self.quantum));
            if address < pc {
                return Some(value);
            }
        }
    }
}

fn bytes_at<const N: usize>(data: &[u8], at: u64) -> Option<[u8; N]> {
    let at = usize::try_from(at).ok()?;
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(data: &[u8], at: u64) -> Option<u32> {
    Some(u32::from_le_bytes(bytes_at(data, at)?))
}

fn word_at(data: &[u8], at: u64, pointer: u64) -> Option<u64> {
    match pointer {
        4 => u32_at(data, at).map(u64::from),
        _ => Some(u64::from_le_bytes(bytes_at(data, at)?)),
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A function: `runtime._func`.
#[derive(Debug)]
pub(super) struct Function<'a> {
    table: &'a PcLnTab,
    pub(super) entry: u64,
    /// The position of its record.
    record: u64,
    /// Bytes of tables of values that may still be read. Those of a crafted file have any length, and the calls
    /// in one another read them again and again.
    left: Cell<usize>,
}

/// A call that was inlined: `runtime.inlinedCall`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inlined<'a> {
    pub(super) name: &'a [u8],
    /// An instruction with the position of the call.
    pub(super) parent: u64,
}

impl<'a> Function<'a> {
    /// The n-th field: 0 is the address.
    fn field(&self, n: u64) -> Option<u32> {
        let first = self.table.field();
        self.table.u32(self.record.checked_add(first + (n.checked_sub(1)?) * 4)?)
    }

    /// The value at an address in a table of values. `None` if it has none there, or too far behind.
    fn value(&self, table: u32, pc: u64) -> Option<i32> {
        let (values, left) = (self.table.values_at(table)?, self.left.get());
        let values = values.get(..left.min(MAX_VALUE)).unwrap_or(values);
        let mut rest = values;
        let found = self.table.value(&mut rest, self.entry, pc);
        self.left.set(left.saturating_sub(values.len() - rest.len()));
        found
    }

    pub(super) fn name(&self) -> &'a [u8] {
        let table = self.table;
        self.field(1).map_or(&[], |name| table.text(table.names.saturating_add(name.into())))
    }

    /// The file and the line at an address.
    pub(super) fn line(&self, pc: u64) -> Option<(&'a [u8], u32)> {
        let table = self.table;
        let file = self.value(self.field(5)?, pc)?;
        let line = self.value(self.field(6)?, pc)?;
        let file = u64::try_from(file).ok()?;
        let file = if table.version == Version::Go2 {
            u64::from(table.u32(table.files.checked_add(file * 4)?)?)
        } else {
            let unit = u64::from(self.field(8)?);
            let file = table.u32(table.units.checked_add((unit + file) * 4)?)?;
            if file == u32::MAX {
                return None;
            }
            table.files.checked_add(file.into())?
        };
        let file = table.text(file);
        (!file.is_empty()).then_some((file, u32::try_from(line).ok()?))
    }

    /// The bytes behind the fields: `funcID`, `flag`, padding and `nfuncdata`.
    fn bytes_behind(&self) -> Option<(u64, [u8; 4])> {
        let fields = match self.table.version {
            Version::Go18 => 9,
            Version::Go20 => 10,
            _ => return None,
        };
        let end = self.record.checked_add(fields * 4)?;
        Some((end.checked_add(4)?, bytes_at(&self.table.data, end)?))
    }

    /// The frame on the stack at an address.
    #[cfg(feature = "unwind")]
    pub(super) fn stack_frame(&self, pc: u64) -> Option<super::GoFrame> {
        const TOP_FRAME: u8 = 1;
        const SP_WRITE: u8 = 2;
        let (_, [_, flag, ..]) = self.bytes_behind()?;
        let size = match self.field(4)? {
            // A function without a table of values has no frame.
            0 => 0,
            table => self.value(table, pc)?,
        };
        Some(super::GoFrame {
            size: u64::try_from(size).ok()?,
            is_outermost: flag & TOP_FRAME != 0,
            switches_stack: flag & SP_WRITE != 0,
        })
    }

    /// The innermost inlined call at an address.
    pub(super) fn inlined(&self, pc: u64) -> Option<Inlined<'a>> {
        let table = self.table;
        let values = u64::from(self.field(7)?);
        let (arrays, [_, _, _, data]) = self.bytes_behind()?;
        if values <= INLINE_INDEX || u64::from(data) <= INLINE_TREE {
            return None;
        }
        let index = table.u32(arrays.checked_add(INLINE_INDEX * 4)?)?;
        let index = usize::try_from(self.value(index, pc)?).ok()?;
        let tree = table.u32(arrays.checked_add((values + INLINE_TREE) * 4)?)?;
        if tree == u32::MAX {
            return None;
        }
        let (size, name_at) = if table.version == Version::Go18 { (20, 12) } else { (16, 4) };
        let at = (tree as usize).checked_add(index.checked_mul(size)?)?;
        let call = table.function_data.get(at..at.checked_add(size)?)?;
        let field = |at: usize| Some(u32::from_le_bytes(*call.get(at..)?.first_chunk()?));
        let (name, parent) = (field(name_at)?, field(name_at + 4)?);
        let name = table.text(table.names.saturating_add(name.into()));
        Some(Inlined { name, parent: self.entry.wrapping_add(parent.into()) })
    }
}

/// Searches a table and its address in the loaded parts of a file.
pub(super) fn search(elf: &Elf) -> Result<Option<(u64, Vec<u8>)>> {
    for part in elf.loaded_parts("a segment", |_| true) {
        let (address, bytes) = part?;
        // The address of the table is a multiple of 32; that of the segment need not be.
        let first = address.wrapping_neg() % 32;
        let places = (first..bytes.len() as u64).step_by(32);
        let mut found = places.filter_map(|at| {
            let table = bytes.get(at as usize..)?;
            PcLnTab::header(table)?;
            Some((address.wrapping_add(at), table.to_vec()))
        });
        if let Some(found) = found.next() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table with nothing but a table of values, at 1: it has this number of steps that lead to no other
    /// address, and the last one.
    fn with_steps(steps: usize) -> PcLnTab {
        PcLnTab {
            data: [&[0][..], &[2, 0].repeat(steps), &[2, 100]].concat(),
            version: Version::Go20,
            quantum: 1,
            pointer: 8,
            functions: 0,
            names: 0,
            units: 0,
            files: 0,
            values: 0,
            records: 0,
            text: 0,
            function_data: Vec::new(),
        }
    }

    #[test]
    fn values_at_an_address_have_a_limit() {
        fn function(table: &PcLnTab) -> Function<'_> {
            Function { table, entry: 0, record: 0, left: Cell::new(MAX_VALUES) }
        }
        let table = with_steps(100_000);
        assert_eq!(function(&table).value(1, 50), Some(100_000));
        assert_eq!(function(&with_steps(MAX_VALUE / 2)).value(1, 50), None);
        // All values of an address together.
        let function = function(&table);
        let found = (0..100).filter(|_| function.value(1, 50).is_some()).count();
        assert_eq!(found, MAX_VALUES / 200_002);
    }

    proptest! {
        #[test]
        fn any_table_is_no_panic(
            magic in prop_oneof![Just(0xfbu8), Just(0xfa), Just(0xf0), Just(0xf1)],
            pointer in prop_oneof![Just(4u8), Just(8)],
            words in proptest::collection::vec(0u64..200, 10),
            rest: Vec<u8>,
            addresses in proptest::collection::vec(0u64..500, 8),
        ) {
            let mut data = vec![magic, 0xff, 0xff, 0xff, 0, 0, 1, pointer];
            for word in words {
                data.extend(&word.to_le_bytes()[..pointer.into()]);
            }
            data.extend(&rest);
            if let Some(mut table) = PcLnTab::parse(data) {
                table.relocate(0, rest);
                for address in addresses {
                    if let Some(function) = table.function(address) {
                        let _ = (function.name(), function.line(address), function.inlined(address));
                    }
                }
            }
        }
    }
}
