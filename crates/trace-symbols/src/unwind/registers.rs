//! Registers of a thread.

/// The architecture of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// AMD64, System V ABI.
    X86_64,
    /// 64-bit Arm, AAPCS64.
    Aarch64,
}

/// Numbers of registers in DWARF.
pub(super) mod x86_64 {
    pub(in crate::unwind) const RBP: u16 = 6;
    pub(in crate::unwind) const RSP: u16 = 7;
    /// The column of the return address; in expressions the current instruction.
    pub(in crate::unwind) const RIP: u16 = 16;
    /// `rbx`, `rbp`, `rsp`, `r12` to `r15`.
    pub(super) const PRESERVED: u64 = 0b1111_0000_1100_1000;
    /// The bits of perf events (`PERF_REG_X86_*`), by number in DWARF.
    pub(super) const PERF: [u32; 17] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8];
}

pub(super) mod aarch64 {
    pub(in crate::unwind) const FP: u16 = 29;
    pub(in crate::unwind) const LR: u16 = 30;
    pub(in crate::unwind) const SP: u16 = 31;
    /// `x19` to `x29`, `sp`.
    pub(super) const PRESERVED: u64 = 0x3ff8_0000 | 1 << SP;
    /// The bit of perf events (`PERF_REG_ARM64_PC`). The others have the numbers of DWARF.
    pub(super) const PC: u32 = 32;
}

impl Architecture {
    /// That of this machine. `None` if it is not supported.
    pub const fn of_this_machine() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else {
            None
        }
    }

    /// The registers that unwinding needs, as in `sample_regs_user` of `perf_event_open(2)`.
    pub const fn sample_regs_user(self) -> u64 {
        match self {
            // The kernel refuses a mask with segment registers that 64-bit programs do not have.
            Self::X86_64 => 0xff_01ff,
            Self::Aarch64 => 0x1_ffff_ffff,
        }
    }

    pub(super) const fn stack_pointer(self) -> u16 {
        match self {
            Self::X86_64 => x86_64::RSP,
            Self::Aarch64 => aarch64::SP,
        }
    }

    pub(super) const fn frame_pointer(self) -> u16 {
        match self {
            Self::X86_64 => x86_64::RBP,
            Self::Aarch64 => aarch64::FP,
        }
    }
}

/// The registers of a thread at an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    architecture: Architecture,
    /// By number in DWARF.
    values: [u64; 32],
    /// A bit for each value that is known.
    known: u64,
    /// The instruction.
    pub(super) ip: u64,
    /// The part of the stack that the function and its callers have starts here or above.
    pub(super) floor: u64,
}

impl Registers {
    /// The registers of a sample of perf events. `get` returns the register with a number of
    /// `PERF_REG_X86_*` or `PERF_REG_ARM64_*`, the bit of `sample_regs_user`.
    ///
    /// `None` without instruction and stack pointer: the sample is not of user space, or it has other
    /// registers.
    pub fn of_sample(architecture: Architecture, get: impl Fn(u32) -> Option<u64>) -> Option<Self> {
        let (ip, bits) = match architecture {
            Architecture::X86_64 => (get(8)?, &x86_64::PERF[..16]),
            Architecture::Aarch64 => (get(aarch64::PC)?, &[][..]),
        };
        let mut this = Self { architecture, values: [0; 32], known: 0, ip, floor: 0 };
        for number in 0..32u16 {
            let bit = match architecture {
                Architecture::X86_64 => bits.get(usize::from(number)).copied(),
                Architecture::Aarch64 => Some(number.into()),
            };
            this.set(number, bit.and_then(&get));
        }
        this.floor = this.stack_pointer()?;
        Some(this)
    }

    /// The architecture.
    pub const fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The address of the instruction.
    pub const fn instruction_pointer(&self) -> u64 {
        self.ip
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> Option<u64> {
        self.get(self.architecture.stack_pointer())
    }

    /// The register with a number in DWARF.
    pub(super) fn get(&self, number: u16) -> Option<u64> {
        if self.architecture == Architecture::X86_64 && number == x86_64::RIP {
            return Some(self.ip);
        }
        let value = self.values.get(usize::from(number))?;
        (self.known >> number & 1 == 1).then_some(*value)
    }

    pub(super) fn set(&mut self, number: u16, value: Option<u64>) {
        let Some(slot) = self.values.get_mut(usize::from(number)) else { return };
        self.known &= !(1 << number);
        if let Some(value) = value {
            *slot = value;
            self.known |= 1 << number;
        }
    }

    /// Forgets all registers.
    pub(super) fn forget(&mut self) {
        self.known = 0;
    }

    /// Forgets the registers that a function need not preserve for its caller.
    pub(super) fn keep_preserved(&mut self) {
        self.known &= match self.architecture {
            Architecture::X86_64 => x86_64::PRESERVED,
            Architecture::Aarch64 => aarch64::PRESERVED,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_samples_have_the_numbers_of_dwarf() {
        let mask = Architecture::X86_64.sample_regs_user();
        let get = |bit: u32| (mask >> bit & 1 == 1).then_some(u64::from(bit) + 100);
        let registers = Registers::of_sample(Architecture::X86_64, get).unwrap();
        let found: Vec<_> = (0..18).map(|number| registers.get(number)).collect();
        // perf: ax bx cx dx si di bp sp ip, r8 from 16 on; DWARF: ax dx cx bx si di bp sp.
        let expected = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8].map(|n| n + 100);
        assert_eq!(found[..17], expected.map(Some));
        assert_eq!(found[17], None);
        assert_eq!(registers.instruction_pointer(), 108);
        let mut registers = registers;
        registers.keep_preserved();
        assert_eq!(registers.get(3), Some(101), "rbx");
        assert_eq!(registers.get(10), None, "r10");
        assert_eq!(registers.stack_pointer(), Some(107));

        let mask = Architecture::Aarch64.sample_regs_user();
        let get = |bit: u32| (mask >> bit & 1 == 1).then_some(u64::from(bit) + 100);
        let mut registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        assert_eq!(registers.instruction_pointer(), 132);
        assert_eq!(registers.stack_pointer(), Some(131));
        registers.keep_preserved();
        let kept: Vec<u16> = (0..64).filter(|number| registers.get(*number).is_some()).collect();
        assert_eq!(kept, (19..30).chain([31]).collect::<Vec<_>>());
        assert_eq!(Registers::of_sample(Architecture::X86_64, |_| None), None);
    }
}
