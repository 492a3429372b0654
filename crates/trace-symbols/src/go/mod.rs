//! Functions of Go programs: from the tables that the runtime itself uses, which stripped programs have
//! too.

mod module_data;
mod pclntab;

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Room, Texts};
use module_data::ModuleData;
use pclntab::PcLnTab;

/// The functions of a Go program.
#[derive(Debug)]
pub(crate) struct GoSymbols {
    table: PcLnTab,
}

/// The frame of a function on the stack, at one instruction.
#[cfg(feature = "unwind")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoFrame {
    /// Bytes since the function was entered.
    pub(crate) size: u64,
    /// Whether it has no caller (`TOPFRAME`).
    pub(crate) is_outermost: bool,
    /// Whether the function sets the stack pointer (`SPWRITE`): its caller may have another stack.
    pub(crate) switches_stack: bool,
}

/// Frames at one address. A program has a few tens at most.
const MAX_INLINED: usize = 1 << 10;

impl GoSymbols {
    /// Reads the tables of a file. `None` if it is not a Go program.
    pub(crate) fn read(elf: &Elf) -> Result<Option<Self>> {
        let sections = [&b".gopclntab"[..], b".data.rel.ro.gopclntab"];
        let section = sections.into_iter().find_map(|name| elf.section_named(name));
        let (address, data) = match section {
            Some(section) => (section.address, elf.bytes("the table of functions", section)?),
            // Reading all of a file takes long: only of one without section headers, or of a Go
            // program whose sections have other names.
            None if elf.sections.is_empty() || elf.section_named(b".go.buildinfo").is_some() => {
                match pclntab::search(elf)? {
                    Some(found) => found,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let Some(mut table) = PcLnTab::parse(data) else { return Ok(None) };
        if table.is_relative() {
            let module = ModuleData::find(elf, address, &table)?;
            let module = module.ok_or(Unresolved::Malformed {
                what: "the module data of a Go program",
                offset: address,
            })?;
            table.relocate(module.text, module.functions);
        }
        Ok(Some(Self { table }))
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// The frame on the stack of the function at an address. `None` if it is not one of Go, or of a
    /// version before Go 1.18.
    #[cfg(feature = "unwind")]
    pub(crate) fn stack_frame(&self, address: u64) -> Option<GoFrame> {
        self.table.function(address)?.stack_frame(address)
    }

    /// Appends the functions at an address. `false` if they are not those of Go.
    pub(crate) fn find(&self, address: u64, texts: &mut Texts, out: &mut Vec<Frame>) -> bool {
        let Some(function) = self.table.function(address) else { return false };
        let (mut pc, mut room) = (address, Room::default());
        let mut push = |name: &[u8], offset: Option<u64>, pc: u64| {
            let name = String::from_utf8_lossy(name);
            let mut frame = go_frame(room.cut(&name), offset, texts);
            if let Some((file, line)) = function.line(pc) {
                let file = String::from_utf8_lossy(file);
                frame.file = Some(texts.get(room.cut(&file)));
                frame.line = line;
            }
            frame.is_inlined = offset.is_none();
            out.push(frame);
        };
        // Calls of a damaged table can be each other's parents.
        for _ in 0..MAX_INLINED {
            let Some(inlined) = function.inlined(pc) else { break };
            push(inlined.name, None, pc);
            pc = inlined.parent;
        }
        push(function.name(), Some(address - function.entry), pc);
        true
    }
}

/// A frame with the name that the runtime prints: without the types of an instantiation.
fn go_frame(name: &str, offset: Option<u64>, texts: &mut Texts) -> Frame {
    let mut frame = texts.frame(name, offset);
    frame.function = match (name.find('['), name.rfind(']')) {
        (Some(start), Some(end)) if start < end => {
            let before = name.get(..start).unwrap_or_default();
            let after = name.get(end + 1..).unwrap_or_default();
            texts.get(&format!("{before}[...]{after}"))
        }
        _ => frame.symbol.clone(),
    };
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_an_instantiation_are_left_out() {
        let mut texts = Texts::new(true);
        let mut name = |name: &str| go_frame(name, None, &mut texts).function.to_string();
        assert_eq!(name("main.Map[go.shape.int,go.shape.[]uint8].func1"), "main.Map[...].func1");
        assert_eq!(name("main.(*T).F"), "main.(*T).F");
        assert_eq!(name("main.]["), "main.][");
    }

    /// A function with this number of inlined calls in one another, each with another long name.
    fn nested(calls: u32) -> GoSymbols {
        const END: u32 = 0x1000;
        const HEADER: usize = 72;
        let names = [b'x'; 1 << 17];
        // By address: the first call is at 0, its caller at 1, and so on; the rest is that of the function.
        let mut values = vec![0_u8];
        values.extend([2, 1].repeat(calls as usize));
        let delta = 2 * calls - 1;
        values.extend([delta as u8 | 0x80, (delta >> 7) as u8]);
        values.extend([END as u8 | 0x80, (END >> 7) as u8, 0]);
        // The address and the position of the function, and the end of the code.
        let mut functions: Vec<u32> = vec![0, 12, END];
        // The function: name, …, the number of tables of values, …; it has four kinds of data.
        functions.extend([0, 0, 0, 0, 0, 0, 0, 3, 0, 0, u32::from_be_bytes([4, 0, 0, 0])]);
        // The third table of values is that of the calls, the fourth kind of data are the calls.
        functions.extend([0, 0, 1, 0, 0, 0, 0]);
        let names_at = HEADER as u64;
        let values_at = names_at + names.len() as u64;
        let functions_at = values_at + values.len() as u64;
        let mut data = vec![0xf1_u8, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        let words = [1, 0, 0, names_at, 0, 0, values_at, functions_at];
        data.extend(words.map(u64::to_le_bytes).concat());
        assert_eq!(data.len(), HEADER);
        data.extend([&names[..], &values].concat());
        functions.iter().for_each(|word| data.extend(word.to_le_bytes()));
        let calls = (0..calls).flat_map(|n| [0, 1 + n, 1 + n, 0]);
        let mut table = PcLnTab::parse(data).unwrap();
        table.relocate(0, calls.flat_map(u32::to_le_bytes).collect());
        GoSymbols { table }
    }

    #[test]
    fn names_at_an_address_have_a_limit() {
        let mut frames = Vec::new();
        assert!(nested(900).find(0, &mut Texts::new(true), &mut frames));
        assert_eq!(frames.len(), 901);
        assert!(frames.iter().all(|frame| !frame.symbol.is_empty()));
        assert!(frames.iter().map(|frame| frame.symbol.len()).sum::<usize>() < 2 << 20);
    }
}
