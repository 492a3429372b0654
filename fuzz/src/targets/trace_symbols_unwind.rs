//! Unwind tables: any ELF file, with any registers and stack.

use trace_symbols::{AddressSpaces, Architecture, Location, Module, Registers, Unwinder};

pub fn target(data: &[u8]) {
    let architecture =
        if data.len() % 2 == 0 { Architecture::X86_64 } else { Architecture::Aarch64 };
    let mut spaces = AddressSpaces::default();
    let id = spaces.add_module(Module::file("/library", None));
    let module = spaces.module(id).unwrap();
    let mut unwinder = Unwinder::default();
    let known = unwinder.add_image(id, data.to_vec());
    // The last bytes are the stack, too.
    let stack = data.get(data.len().saturating_sub(256)..).unwrap_or_default();
    for address in (0..0x400).step_by(13).chain((0..60).step_by(3).map(|bit| 1 << bit)) {
        let word = |bit: u32| {
            let at = bit as usize * 8 % 200;
            let bytes = stack.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        let instruction = if architecture == Architecture::X86_64 { 8 } else { 32 };
        let get = |bit| if bit == instruction { Some(address) } else { word(bit) };
        let Some(registers) = Registers::of_sample(architecture, get) else { return };
        let locate =
            |address| (address < 1 << 40).then_some((Location { module: id, address }, module));
        let mut out = Vec::new();
        let end = unwinder.unwind(&registers, stack, locate, &mut out);
        assert_eq!(out.first(), Some(&address));
        assert!(out.len() <= 1024 && (known.is_ok() || !end.is_complete()));
    }
}
