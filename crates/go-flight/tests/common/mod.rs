//! A small ELF file of a Go program.

/// The address of the only segment.
const BASE: u64 = 0x40_0000;

/// The offset of the program header.
const PROGRAM_HEADER: u64 = 64;

/// The parts of the file that tests change.
pub(crate) struct Elf {
    pub(crate) machine: u16,
    pub(crate) version: String,
    /// The value of the symbol `runtime/trace.tracing`; without it, there is another symbol.
    pub(crate) tracing: Option<u64>,
    pub(crate) other: &'static str,
    pub(crate) is_stripped: bool,
    /// The address and the size of `.bss`.
    pub(crate) bss: (u64, u64),
}

impl Default for Elf {
    fn default() -> Self {
        Self {
            machine: 62, // EM_X86_64
            version: "go1.26.6".to_owned(),
            tracing: Some(0x50_0000),
            other: "runtime.main",
            is_stripped: false,
            bss: (0x50_0000, 0x1000),
        }
    }
}

impl Elf {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut sections = Sections::default();
        let mut info = b"\xff Go buildinf:\x08\x02".to_vec();
        info.resize(32, 0);
        info.push(self.version.len() as u8);
        info.extend_from_slice(self.version.as_bytes());
        sections.add(".go.buildinfo", 1, 0, &info);
        if !self.is_stripped {
            let name = if self.tracing.is_some() { "runtime/trace.tracing" } else { self.other };
            let name = format!("\0x{name}\0");
            // A null symbol, and the variable. Its name is the end of another one.
            let mut symbols = vec![0; 24];
            symbols.extend(2u32.to_le_bytes());
            symbols.extend([0x11, 0, 1, 0]);
            symbols.extend(self.tracing.unwrap_or(1).to_le_bytes());
            symbols.extend(56u64.to_le_bytes());
            sections.add(".strtab", 3, 0, name.as_bytes());
            sections.add(".symtab", 2, 2, &symbols);
        }
        sections.add_bss(self.bss);
        sections.file(self.machine)
    }
}

#[derive(Default)]
struct Sections {
    content: Vec<u8>,
    names: Vec<u8>,
    headers: Vec<u8>,
}

/// The contents of sections begin behind the headers.
const CONTENT: u64 = 64 + 56;

impl Sections {
    fn header(&mut self, name: &str, type_: u32, link: u32, address: u64, offset: u64, size: u64) {
        let at = self.names.len() as u32 + 1;
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        self.headers.extend(at.to_le_bytes());
        self.headers.extend(type_.to_le_bytes());
        let entry = if type_ == 2 { 24 } else { 0 };
        for word in [0, address, offset, size] {
            self.headers.extend(word.to_le_bytes());
        }
        self.headers.extend(link.to_le_bytes());
        self.headers.extend(0u32.to_le_bytes());
        for word in [8u64, entry] {
            self.headers.extend(word.to_le_bytes());
        }
    }

    fn add(&mut self, name: &str, type_: u32, link: u32, content: &[u8]) {
        let offset = CONTENT + self.content.len() as u64;
        self.header(name, type_, link, 0, offset, content.len() as u64);
        self.content.extend_from_slice(content);
        self.content.resize(self.content.len().next_multiple_of(8), 0);
    }

    fn add_bss(&mut self, (address, size): (u64, u64)) {
        self.header(".bss", 8, 0, address, CONTENT, size);
    }

    fn file(mut self, machine: u16) -> Vec<u8> {
        let names_len = (self.names.len() + 1 + ".shstrtab\0".len()) as u64;
        let names_at = CONTENT + self.content.len() as u64;
        self.header(".shstrtab", 3, 0, 0, names_at, names_len);
        self.content.push(0);
        self.content.extend_from_slice(&self.names);
        self.content.resize(self.content.len().next_multiple_of(8), 0);
        let sections_at = CONTENT + self.content.len() as u64;
        let count = (self.headers.len() / 64 + 1) as u16;
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
        file.extend(machine.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        for word in [BASE, PROGRAM_HEADER, sections_at] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0u32.to_le_bytes());
        for half in [64, 56, 1, 64, count, count - 1] {
            file.extend(half.to_le_bytes());
        }
        // PT_LOAD, readable and executable.
        file.extend(1u32.to_le_bytes());
        file.extend(5u32.to_le_bytes());
        for word in [0, BASE, BASE, sections_at, sections_at, 0x1000] {
            file.extend(word.to_le_bytes());
        }
        file.extend_from_slice(&self.content);
        file.extend([0; 64]);
        file.extend_from_slice(&self.headers);
        file
    }
}
