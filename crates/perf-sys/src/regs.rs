//! Registers of `PERF_SAMPLE_REGS_USER` and `PERF_SAMPLE_REGS_INTR`: bit numbers of
//! `sample_regs_*`, which is also the order of their values.

macro_rules! registers {
    ($(#[$doc:meta])* $module:ident: $($name:ident = $at:literal;)*) => {
        $(#[$doc])*
        pub mod $module {
            $(
                #[doc = concat!("Bit number of `", stringify!($name), "`.")]
                pub const $name: u32 = $at;
            )*
            /// Every register with its bit number.
            pub const ALL: &[(&str, u32)] = &[$((stringify!($name), $at)),*];
        }
    };
}

registers! {
    /// x86, of `asm/perf_regs.h`. The XMM registers are two words each.
    x86:
    PERF_REG_X86_AX = 0; PERF_REG_X86_BX = 1; PERF_REG_X86_CX = 2; PERF_REG_X86_DX = 3;
    PERF_REG_X86_SI = 4; PERF_REG_X86_DI = 5; PERF_REG_X86_BP = 6; PERF_REG_X86_SP = 7;
    PERF_REG_X86_IP = 8; PERF_REG_X86_FLAGS = 9; PERF_REG_X86_CS = 10; PERF_REG_X86_SS = 11;
    PERF_REG_X86_DS = 12; PERF_REG_X86_ES = 13; PERF_REG_X86_FS = 14; PERF_REG_X86_GS = 15;
    PERF_REG_X86_R8 = 16; PERF_REG_X86_R9 = 17; PERF_REG_X86_R10 = 18; PERF_REG_X86_R11 = 19;
    PERF_REG_X86_R12 = 20; PERF_REG_X86_R13 = 21; PERF_REG_X86_R14 = 22; PERF_REG_X86_R15 = 23;
    PERF_REG_X86_XMM0 = 32; PERF_REG_X86_XMM1 = 34; PERF_REG_X86_XMM2 = 36; PERF_REG_X86_XMM3 = 38;
    PERF_REG_X86_XMM4 = 40; PERF_REG_X86_XMM5 = 42; PERF_REG_X86_XMM6 = 44; PERF_REG_X86_XMM7 = 46;
    PERF_REG_X86_XMM8 = 48; PERF_REG_X86_XMM9 = 50; PERF_REG_X86_XMM10 = 52;
    PERF_REG_X86_XMM11 = 54; PERF_REG_X86_XMM12 = 56; PERF_REG_X86_XMM13 = 58;
    PERF_REG_X86_XMM14 = 60; PERF_REG_X86_XMM15 = 62;
}

registers! {
    /// arm64, of `asm/perf_regs.h`.
    arm64:
    PERF_REG_ARM64_X0 = 0; PERF_REG_ARM64_X1 = 1; PERF_REG_ARM64_X2 = 2; PERF_REG_ARM64_X3 = 3;
    PERF_REG_ARM64_X4 = 4; PERF_REG_ARM64_X5 = 5; PERF_REG_ARM64_X6 = 6; PERF_REG_ARM64_X7 = 7;
    PERF_REG_ARM64_X8 = 8; PERF_REG_ARM64_X9 = 9; PERF_REG_ARM64_X10 = 10; PERF_REG_ARM64_X11 = 11;
    PERF_REG_ARM64_X12 = 12; PERF_REG_ARM64_X13 = 13; PERF_REG_ARM64_X14 = 14;
    PERF_REG_ARM64_X15 = 15; PERF_REG_ARM64_X16 = 16; PERF_REG_ARM64_X17 = 17;
    PERF_REG_ARM64_X18 = 18; PERF_REG_ARM64_X19 = 19; PERF_REG_ARM64_X20 = 20;
    PERF_REG_ARM64_X21 = 21; PERF_REG_ARM64_X22 = 22; PERF_REG_ARM64_X23 = 23;
    PERF_REG_ARM64_X24 = 24; PERF_REG_ARM64_X25 = 25; PERF_REG_ARM64_X26 = 26;
    PERF_REG_ARM64_X27 = 27; PERF_REG_ARM64_X28 = 28; PERF_REG_ARM64_X29 = 29;
    PERF_REG_ARM64_LR = 30; PERF_REG_ARM64_SP = 31; PERF_REG_ARM64_PC = 32;
    PERF_REG_ARM64_VG = 46;
}
