//! The units of a file by address, and the bounds of their entries.

use super::bounds::{Refused, Result, SMALL, len, spend};
use super::names::{self, Header};
use super::{Slice, abbreviations, lines};
use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebugArangesOffset, EntriesRaw, Range, Unit,
    UnitHeader, UnitType, constants,
};
use std::cell::RefCell;

/// Entries in one another. Inlined calls in large programs reach a few tens.
const MAX_DEPTH: isize = 256;
/// Functions, inlined calls and their ranges of one file: some GiB of memory.
const MAX_RANGES: u64 = 1 << 25;

/// The units of a file by address, and the work that is left.
pub(super) struct Units {
    headers: Vec<Header>,
    /// Those of the file with the parts that others share.
    shared: Vec<Header>,
    /// Sorted by their start, with the largest end up to each.
    ranges: Vec<UnitRange>,
    state: RefCell<State>,
}

struct UnitRange {
    range: Range,
    max_end: u64,
    unit: usize,
}

struct State {
    budget: Budget,
    /// By unit: whether its entries were measured, and the reason if they are refused.
    measured: Vec<Option<Result<()>>>,
}

/// The work that a file may cause.
struct Budget {
    ranges: u64,
    lines: lines::Budget,
    names: names::Budget,
}

/// Measures the headers of the units of a file that others share, and returns them.
pub(super) fn measure_shared(dwarf: &mut gimli::Dwarf<Slice>) -> Result<Vec<Header>> {
    measure_abbreviations(dwarf)?;
    let (mut headers, mut lines) = (Vec::new(), lines::Budget::new(dwarf));
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        headers.extend(lines.unit(dwarf, &header)?.map(|unit| Header::new(&unit)));
    }
    Ok(headers)
}

/// Measures the abbreviations, and keeps them: units are read several times.
fn measure_abbreviations(dwarf: &mut gimli::Dwarf<Slice>) -> Result<()> {
    abbreviations::measure(dwarf)?;
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
    Ok(())
}

impl Units {
    /// Measures the headers of all units, and those without addresses of their own. `shared` has the units of
    /// the file with shared parts.
    pub(super) fn read(dwarf: &mut gimli::Dwarf<Slice>, shared: Vec<Header>) -> Result<Self> {
        measure_abbreviations(dwarf)?;
        let lists = len(dwarf.ranges.debug_ranges()) + len(dwarf.ranges.debug_rnglists());
        let bytes = len(&dwarf.debug_info) + len(&dwarf.debug_aranges) + lists;
        let ranges = (bytes / 4 + SMALL).min(MAX_RANGES);
        let (lines, names) = (lines::Budget::new(dwarf), names::Budget::new(dwarf));
        let budget = Budget { ranges, lines, names };
        let state = RefCell::new(State { budget, measured: Vec::new() });
        let mut this = Self { headers: Vec::new(), shared, ranges: Vec::new(), state };
        // Their addresses are those of their lines, which are all read at once.
        let mut without_ranges = Vec::new();
        let aranges = aranges(dwarf)?;
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            // `addr2line` does not read them.
            if matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
                continue;
            }
            let is_partial = header.type_() == UnitType::Partial;
            let lines = &mut this.state.get_mut().budget.lines;
            let Some(unit) = lines.unit(dwarf, &header)? else { continue };
            let index = this.headers.len();
            this.headers.push(Header::new(&unit));
            this.state.get_mut().measured.push(None);
            let has_ranges = is_partial || this.add_ranges(dwarf, &unit, index, &aranges)?;
            if !has_ranges && unit.line_program.is_some() {
                without_ranges.push(index);
            }
        }
        // Entries refer to those of later units.
        for index in without_ranges {
            this.measure(dwarf, index)?;
        }
        this.ranges.sort_unstable_by_key(|range| range.range.begin);
        let mut max = 0;
        for range in &mut this.ranges {
            max = range.range.end.max(max);
            range.max_end = max;
        }
        Ok(this)
    }

    /// Adds the ranges of a unit, by the rules of `addr2line`: its list of ranges, else those of
    /// `.debug_aranges`, else the one range. `false` if it has none.
    fn add_ranges(
        &mut self,
        dwarf: &gimli::Dwarf<Slice>,
        unit: &Unit<Slice>,
        index: usize,
        aranges: &[(usize, DebugArangesOffset)],
    ) -> Result<bool> {
        let budget = &mut self.state.get_mut().budget;
        let before = self.ranges.len();
        let mut add = |range: Range| -> Result<()> {
            spend(&mut budget.ranges, 1, "the ranges of units")?;
            if range.begin < range.end {
                self.ranges.push(UnitRange { range, max_end: 0, unit: index });
            }
            Ok(())
        };
        let mut entries = unit.entries_raw(None)?;
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(false);
        };
        let (mut low, mut high, mut size, mut list) = (None, None, None, None);
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            match (attribute.name(), attribute.value()) {
                (constants::DW_AT_low_pc, AttributeValue::Addr(address)) => low = Some(address),
                (constants::DW_AT_low_pc, AttributeValue::DebugAddrIndex(n)) => {
                    low = Some(dwarf.address(unit, n)?);
                }
                (constants::DW_AT_high_pc, AttributeValue::Addr(address)) => high = Some(address),
                (constants::DW_AT_high_pc, AttributeValue::DebugAddrIndex(n)) => {
                    high = Some(dwarf.address(unit, n)?);
                }
                (constants::DW_AT_high_pc, AttributeValue::Udata(value)) => size = Some(value),
                (constants::DW_AT_ranges, value) => {
                    list = dwarf.attr_ranges_offset(unit, value)?;
                }
                _ => {}
            }
        }
        if let Some(list) = list {
            // The iterator leaves out ranges that are empty: they cost time, too.
            let mut raw = dwarf.raw_ranges(unit, list)?;
            while raw.next()?.is_some() {
                spend(&mut budget.ranges, 1, "the ranges of units")?;
            }
            let mut ranges = dwarf.ranges(unit, list)?;
            while let Some(range) = ranges.next()? {
                if range.begin < range.end {
                    self.ranges.push(UnitRange { range, max_end: 0, unit: index });
                }
            }
            return Ok(self.ranges.len() > before);
        }
        let offset = unit.header.offset().as_debug_info_offset().map(|offset| offset.0);
        let first = aranges.partition_point(|(at, _)| Some(*at) < offset);
        let own = aranges.get(first..).unwrap_or_default();
        for (_, list) in own.iter().take_while(|(at, _)| Some(*at) == offset) {
            let mut entries = dwarf.debug_aranges.header(*list)?.entries();
            while let Some(entry) = entries.next().transpose() {
                // The address of a damaged one overflows.
                if let Ok(entry) = entry {
                    add(entry.range())?;
                }
            }
        }
        if let (Some(begin), Some(end)) = (low, high) {
            add(Range { begin, end })?;
        } else if let (Some(begin), Some(size)) = (low, size) {
            add(Range { begin, end: begin.wrapping_add(size) })?;
        }
        Ok(self.ranges.len() > before)
    }

    /// Whether the units with an address may be read.
    pub(super) fn admit(&self, dwarf: &gimli::Dwarf<Slice>, address: u64) -> Result<()> {
        let after = self.ranges.partition_point(|range| range.range.begin <= address);
        let before = self.ranges.get(..after).unwrap_or_default();
        for UnitRange { range, unit, .. } in
            before.iter().rev().take_while(|range| address < range.max_end)
        {
            if address < range.end {
                self.measure(dwarf, *unit)?;
            }
        }
        Ok(())
    }

    /// Measures the entries and lines of a unit, once.
    fn measure(&self, dwarf: &gimli::Dwarf<Slice>, index: usize) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let State { budget, measured } = &mut *state;
        let (Some(header), Some(slot)) = (self.headers.get(index), measured.get_mut(index)) else {
            return Ok(());
        };
        let file = names::File { dwarf, units: &self.headers, shared: &self.shared };
        *slot.get_or_insert_with(|| budget.measure(&file, index, &header.unit))
    }
}

impl Budget {
    fn measure(
        &mut self,
        file: &names::File<'_>,
        index: usize,
        header: &UnitHeader<Slice>,
    ) -> Result<()> {
        let unit = file.dwarf.unit(header.clone())?;
        self.lines.measure(file.dwarf, &unit)?;
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            if entries.next_depth() > MAX_DEPTH {
                return Err(Refused::Excessive("the nested entries"));
            }
            self.measure_entry(file, index, &unit, &mut entries)?;
        }
        Ok(())
    }

    fn measure_entry(
        &mut self,
        file: &names::File<'_>,
        index: usize,
        unit: &Unit<Slice>,
        entries: &mut EntriesRaw<'_, '_, Slice>,
    ) -> Result<()> {
        const WHAT: &str = "the ranges of functions";
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(());
        };
        let tag = abbreviation.tag();
        if tag != constants::DW_TAG_subprogram && tag != constants::DW_TAG_inlined_subroutine {
            return Ok(entries.skip_attributes(abbreviation.attributes())?);
        }
        // `addr2line` keeps each inlined call, also one without an address, but only functions that have one.
        let is_inlined = tag == constants::DW_TAG_inlined_subroutine;
        if is_inlined {
            spend(&mut self.ranges, 1, WHAT)?;
        }
        let has_address = abbreviation
            .attributes()
            .iter()
            .any(|spec| matches!(spec.name(), constants::DW_AT_low_pc | constants::DW_AT_ranges));
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            if is_inlined || has_address {
                self.names.measure(file, index, &attribute)?;
            }
            if attribute.name() == constants::DW_AT_low_pc && !is_inlined {
                spend(&mut self.ranges, 1, WHAT)?;
            }
            if attribute.name() != constants::DW_AT_ranges {
                continue;
            }
            let list = file.dwarf.attr_ranges_offset(unit, attribute.value());
            let Some(list) = list? else { continue };
            let mut ranges = file.dwarf.raw_ranges(unit, list)?;
            while ranges.next()?.is_some() {
                spend(&mut self.ranges, 1, WHAT)?;
            }
        }
        Ok(())
    }
}

/// The lists of `.debug_aranges`, by the offset of their unit.
fn aranges(dwarf: &gimli::Dwarf<Slice>) -> Result<Vec<(usize, DebugArangesOffset)>> {
    let mut found = Vec::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        found.push((header.debug_info_offset().0, header.offset()));
    }
    found.sort_by_key(|(offset, _)| *offset);
    Ok(found)
}
