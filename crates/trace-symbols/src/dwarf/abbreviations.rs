//! Abbreviations: the kinds of entries, with their attributes.

use super::Slice;
use super::bounds::{Refused, Result, SMALL, len, spend};
use gimli::{DebugAbbrevOffset, EndianSlice, LittleEndian, Reader, Section, constants};

/// Attributes of one kind of entry. Compilers write at most a few tens.
const MAX_ATTRIBUTES: u64 = 256;

/// Bounds the tables of abbreviations: those of units can overlap.
pub(super) fn measure(dwarf: &gimli::Dwarf<Slice>) -> Result<()> {
    let mut offsets = Vec::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        offsets.push(header.debug_abbrev_offset());
    }
    offsets.sort_unstable_by_key(|offset| offset.0);
    offsets.dedup();
    let mut left = 2 * len(&dwarf.debug_abbrev) + SMALL;
    offsets.into_iter().try_for_each(|offset| measure_table(dwarf, offset, &mut left))
}

fn measure_table(
    dwarf: &gimli::Dwarf<Slice>,
    offset: DebugAbbrevOffset,
    left: &mut u64,
) -> Result<()> {
    let mut table = dwarf.debug_abbrev.reader().clone();
    if table.skip(offset.0).is_err() {
        return Ok(());
    }
    loop {
        let (before, mut attributes) = (table.len(), 0);
        let tag = read(&mut table, |_, _| attributes += 1);
        if attributes > MAX_ATTRIBUTES {
            return Err(Refused::Excessive("the attributes of an abbreviation"));
        }
        spend(left, (before - table.len()) as u64, "the abbreviations")?;
        // A damaged table is an error when its unit is read.
        if !matches!(tag, Ok(Some(_))) {
            return Ok(());
        }
    }
}

/// Leaves out the line tables of partial units without code, which dwz(1) makes of what units share.
///
/// Such a unit refers to the lines of one of the others, for the files of its declarations. Nothing of them
/// is in a frame. `addr2line` would keep the header of the table for each partial unit, and before DWARF 5
/// take the addresses of the lines for those of the partial unit, which has no functions.
pub(super) fn leave_out_lines(abbreviations: &mut [u8]) {
    const PARTIAL_UNIT: u64 = constants::DW_TAG_partial_unit.0 as u64;
    const STMT_LIST: u64 = constants::DW_AT_stmt_list.0 as u64;
    const LOW_PC: u64 = constants::DW_AT_low_pc.0 as u64;
    const RANGES: u64 = constants::DW_AT_ranges.0 as u64;
    /// No attribute has this number.
    const RESERVED: u8 = 0x04;

    let size = abbreviations.len();
    let mut found = Vec::new();
    let mut rest = EndianSlice::new(&*abbreviations, LittleEndian);
    while !rest.is_empty() {
        let (mut lines, mut has_code) = (None, false);
        let tag = read(&mut rest, |name, left| match name {
            STMT_LIST => lines = Some(left),
            LOW_PC | RANGES => has_code = true,
            _ => {}
        });
        match tag {
            Ok(Some(PARTIAL_UNIT)) if !has_code => found.extend(lines.map(|left| size - left)),
            Ok(_) => {}
            // What is behind a damaged one stays as it is.
            Err(_) => break,
        }
    }
    for at in found {
        if let Some(name) = abbreviations.get_mut(at) {
            *name = RESERVED;
        }
    }
}

/// Reads an abbreviation, and returns its tag. `None` at the end of a table. `attribute` gets the name of each
/// attribute, and the number of bytes from there on.
fn read<R: Reader<Offset = usize>>(
    table: &mut R,
    mut attribute: impl FnMut(u64, usize),
) -> gimli::Result<Option<u64>> {
    if table.read_uleb128()? == 0 {
        return Ok(None);
    }
    let tag = table.read_uleb128()?;
    table.skip(1)?;
    loop {
        let left = table.len();
        let (name, form) = (table.read_uleb128()?, table.read_uleb128()?);
        if (name, form) == (0, 0) {
            return Ok(Some(tag));
        }
        if form == u64::from(constants::DW_FORM_implicit_const.0) {
            table.skip_leb128()?;
        }
        attribute(name, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_partial_units_without_code_lose_their_lines() {
        const LINES: [u8; 2] = [0x10, 0x17];
        const DIRECTORY: [u8; 2] = [0x1b, 0x0e];
        const LOW_PC: [u8; 2] = [0x11, 0x01];
        // The number, the tag, and that there are children.
        let kind = |tag: u8, attributes: &[[u8; 2]]| {
            [&[1, tag, 1][..], &attributes.concat(), &[0, 0]].concat()
        };
        let (unit, partial) = (0x11, 0x3c);
        let kept = [
            kind(unit, &[DIRECTORY, LINES]),
            kind(partial, &[DIRECTORY]),
            kind(partial, &[LINES, LOW_PC]),
        ];
        // Two tables, the second of which is damaged.
        let all = |lines| {
            let found = [kind(partial, &[DIRECTORY, lines]), vec![0], kind(partial, &[lines])];
            [kept.concat(), found.concat(), vec![1, partial, 1, 0x80]].concat()
        };
        let mut abbreviations = all(LINES);
        leave_out_lines(&mut abbreviations);
        assert_eq!(abbreviations, all([0x04, 0x17]));
    }
}
