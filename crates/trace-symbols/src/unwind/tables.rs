//! Unwind tables of a file: call frame information of `.eh_frame` and `.debug_frame`.

use super::registers::Architecture;
use super::rule::Rule;
use crate::debug_file;
use crate::elf::Elf;
use crate::error::Result;
use crate::go::GoSymbols;
use crate::module::Module;
use crate::object_file::unless;
use crate::options::Options;
use crate::section;
use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    UnwindContext, UnwindOffset, UnwindSection, Vendor,
};
use std::collections::HashMap;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of one description. Those of large functions have a few thousand; a longer one is hostile.
const MAX_DESCRIPTION: usize = 1 << 20;
/// Bytes of the part that descriptions share. Compilers write a few tens; a longer one is hostile.
const MAX_SHARED: usize = 1 << 12;

/// The tables of a file.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) architecture: Architecture,
    segments: Vec<crate::elf::Segment>,
    eh_frame: Option<Section>,
    debug_frame: Option<Section>,
    go: Option<GoSymbols>,
}

/// The section that a rule is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    EhFrame,
    DebugFrame,
}

/// A section with call frame information.
#[derive(Debug)]
struct Section {
    kind: Kind,
    bytes: Vec<u8>,
    bases: BaseAddresses,
    /// Descriptions of functions by address.
    index: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    start: u64,
    end: u64,
    offset: usize,
}

impl Tables {
    /// The tables of the file of a module. `None` for a machine that is not supported.
    pub(super) fn open(module: &Module, options: &Options) -> Result<Option<Self>> {
        let elf = match module.kind {
            crate::ModuleKind::Vdso => crate::vdso::image(module, options)?,
            _ => crate::source::open(module, options)?,
        };
        let debug = debug_file::find(&elf, module.path(), module.process, options);
        Self::of(&elf, debug.as_ref())
    }

    /// The tables of a file, and of its separate debug information.
    pub(super) fn of(elf: &Elf, debug: Option<&Elf>) -> Result<Option<Self>> {
        let Some(architecture) = elf.architecture() else { return Ok(None) };
        let start = |name: &[u8]| elf.section_named(name).map_or(0, |section| section.address);
        let bases = BaseAddresses::default()
            .set_eh_frame(start(b".eh_frame"))
            .set_text(start(b".text"))
            .set_got(start(b".got"));
        let section = |elf: &Elf, name: &[u8], kind| -> Result<Option<Section>> {
            let found = elf.section_named(name).filter(|section| section.has_bytes());
            let Some(found) = found else { return Ok(None) };
            let bytes = section::bytes("unwind tables", elf, found)?;
            Ok(Some(Section::new(kind, bytes, bases.clone(), architecture)))
        };
        let debug_frame = match section(elf, b".debug_frame", Kind::DebugFrame) {
            Ok(None) => debug.map(|debug| section(debug, b".debug_frame", Kind::DebugFrame)),
            own => Some(own),
        };
        let eh_frame = section(elf, b".eh_frame", Kind::EhFrame);
        let debug_frame = debug_frame.transpose().map(Option::flatten);
        let go = GoSymbols::read(elf);
        // Each of them has all functions of many programs.
        let has_one = matches!(eh_frame, Ok(Some(_)))
            || matches!(debug_frame, Ok(Some(_)))
            || matches!(go, Ok(Some(_)));
        Ok(Some(Self {
            architecture,
            segments: elf.segments.iter().filter(|s| s.is_loaded()).copied().collect(),
            eh_frame: eh_frame.or_else(|error| unless(has_one, error))?,
            debug_frame: debug_frame.or_else(|error| unless(has_one, error))?,
            go: go.or_else(|error| unless(has_one, error))?,
        }))
    }

    /// The bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let sections = [&self.eh_frame, &self.debug_frame].into_iter().flatten();
        let sizes = sections.map(|s| (s.bytes.len() + size_of_val(&*s.index)) as u64);
        sizes.sum::<u64>() + self.go.as_ref().map_or(0, GoSymbols::bytes)
    }

    /// The rule for the caller's registers at a position of the file.
    pub(super) fn rule(&self, position: u64, context: &mut UnwindContext<usize>) -> Option<Rule> {
        let address = crate::elf::address_of(&self.segments, position)?;
        // The descriptions that Go's linker writes are less exact than its own table.
        if let Some(frame) = self.go.as_ref().and_then(|go| go.stack_frame(address)) {
            return Some(Rule::Go(frame));
        }
        let sections = [&self.eh_frame, &self.debug_frame].into_iter().flatten();
        sections.into_iter().find_map(|section| {
            let offset = section.find(address)?;
            section.rule(offset, address, self.architecture, context)
        })
    }

    /// Calls `with` with the section that a rule is from.
    pub(super) fn expression(
        &self,
        kind: Kind,
        expression: gimli::UnwindExpression<usize>,
    ) -> Option<gimli::Expression<Slice<'_>>> {
        let section = match kind {
            Kind::EhFrame => self.eh_frame.as_ref()?,
            Kind::DebugFrame => self.debug_frame.as_ref()?,
        };
        let end = expression.offset.checked_add(expression.length)?;
        let bytes = section.bytes.get(expression.offset..end)?;
        Some(gimli::Expression(EndianSlice::new(bytes, LittleEndian)))
    }
}

impl Section {
    fn new(kind: Kind, bytes: Vec<u8>, bases: BaseAddresses, architecture: Architecture) -> Self {
        let mut this = Self { kind, bytes, bases, index: Vec::new() };
        this.index = match kind {
            Kind::EhFrame => index(&this.eh_frame(architecture), &this.bases),
            Kind::DebugFrame => index(&this.debug_frame(architecture), &this.bases),
        };
        this
    }

    fn eh_frame(&self, architecture: Architecture) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(vendor(architecture));
        section
    }

    fn debug_frame(&self, architecture: Architecture) -> DebugFrame<Slice<'_>> {
        let mut section = DebugFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(vendor(architecture));
        section
    }

    /// The description with an address.
    fn find(&self, address: u64) -> Option<usize> {
        let after = self.index.partition_point(|entry| entry.start <= address);
        let entry = self.index.get(after.checked_sub(1)?)?;
        (address < entry.end).then_some(entry.offset)
    }

    fn rule(
        &self,
        offset: usize,
        address: u64,
        architecture: Architecture,
        context: &mut UnwindContext<usize>,
    ) -> Option<Rule> {
        match self.kind {
            Kind::EhFrame => {
                let section = self.eh_frame(architecture);
                let found = description(&section, &self.bases, offset)?;
                rule(self.kind, &found, &section, &self.bases, address, context)
            }
            Kind::DebugFrame => {
                let section = self.debug_frame(architecture);
                let found = description(&section, &self.bases, offset)?;
                rule(self.kind, &found, &section, &self.bases, address, context)
            }
        }
    }
}

const fn vendor(architecture: Architecture) -> Vendor {
    match architecture {
        Architecture::X86_64 => Vendor::Default,
        Architecture::Aarch64 => Vendor::AArch64,
    }
}

/// All descriptions of a section by address. Damaged ones are left out.
fn index<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses) -> Vec<Entry> {
    let mut found = Vec::new();
    // Each is parsed once, not for each description.
    let mut shared: HashMap<usize, _> = HashMap::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let parsed = partial.parse(|section, bases, offset: S::Offset| {
            let parse = || section.cie_from_offset(bases, offset);
            shared.entry(UnwindOffset::into(offset)).or_insert_with(parse).clone()
        });
        let Ok(fde) = parsed else { continue };
        if fde.cie().entry_len() > MAX_SHARED {
            continue;
        }
        let (start, offset) = (fde.initial_address(), fde.offset());
        // The linker leaves the descriptions of functions that it removed, at address 0.
        if let Some(end) = start.checked_add(fde.len()).filter(|_| start != 0) {
            found.push(Entry { start, end, offset });
        }
    }
    found.sort_unstable();
    found
}

fn description<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    offset: usize,
) -> Option<FrameDescriptionEntry<Slice<'a>>> {
    let found = section.fde_from_offset(bases, offset.into(), S::cie_from_offset).ok()?;
    let size = found.entry_len().checked_add(found.cie().entry_len())?;
    (size <= MAX_DESCRIPTION).then_some(found)
}

fn rule<'a, S: UnwindSection<Slice<'a>>>(
    kind: Kind,
    found: &FrameDescriptionEntry<Slice<'a>>,
    section: &S,
    bases: &BaseAddresses,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Rule> {
    let row = found.unwind_info_for_address(section, bases, context, address).ok()?;
    Some(Rule::new(kind, found, row))
}
