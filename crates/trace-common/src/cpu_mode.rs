/// The mode of a CPU when a sample was taken, as `PERF_RECORD_MISC_CPUMODE_MASK` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuMode {
    /// Unknown.
    #[default]
    Unknown,
    /// In the kernel.
    Kernel,
    /// In user space.
    User,
    /// In the hypervisor.
    Hypervisor,
    /// In the kernel of a virtual machine.
    GuestKernel,
    /// In the user space of a virtual machine.
    GuestUser,
}
