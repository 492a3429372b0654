//! The system call, the ioctls and the two instructions that read hardware counters in user space.
#![allow(unsafe_code, reason = "system calls and inline assembly")]

use crate::{PERF_ATTR_SIZE_VER0, perf_event_attr, perf_siginfo};
use core::ffi::{CStr, c_int, c_long, c_ulong};
use core::mem::{MaybeUninit, size_of};
use core::time::Duration;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use zerocopy::IntoBytes;

/// `_IOC` of the kernel: some architectures have other positions for direction and size.
mod ioc {
    use core::ffi::c_ulong;

    #[cfg(any(
        target_arch = "mips",
        target_arch = "mips32r6",
        target_arch = "mips64",
        target_arch = "mips64r6",
        target_arch = "powerpc",
        target_arch = "powerpc64",
        target_arch = "sparc",
        target_arch = "sparc64"
    ))]
    mod bits {
        pub(super) const SIZE: u32 = 13;
        pub(super) const NONE: u64 = 1;
        pub(super) const READ: u64 = 2;
        pub(super) const WRITE: u64 = 4;
    }
    #[cfg(not(any(
        target_arch = "mips",
        target_arch = "mips32r6",
        target_arch = "mips64",
        target_arch = "mips64r6",
        target_arch = "powerpc",
        target_arch = "powerpc64",
        target_arch = "sparc",
        target_arch = "sparc64"
    )))]
    mod bits {
        pub(super) const SIZE: u32 = 14;
        pub(super) const NONE: u64 = 0;
        pub(super) const READ: u64 = 2;
        pub(super) const WRITE: u64 = 1;
    }

    const fn number(direction: u64, number: u64, size: usize) -> c_ulong {
        (direction << (16 + bits::SIZE) | (size as u64) << 16 | (b'$' as u64) << 8 | number)
            as c_ulong
    }
    pub(super) const fn io(n: u64) -> c_ulong {
        number(bits::NONE, n, 0)
    }
    pub(super) const fn iow<T>(n: u64) -> c_ulong {
        number(bits::WRITE, n, size_of::<T>())
    }
    pub(super) const fn ior<T>(n: u64) -> c_ulong {
        number(bits::READ, n, size_of::<T>())
    }
    pub(super) const fn iowr<T>(n: u64) -> c_ulong {
        number(bits::READ | bits::WRITE, n, size_of::<T>())
    }
}

/// Enables an event, or its group with `PERF_IOC_FLAG_GROUP`.
pub const PERF_EVENT_IOC_ENABLE: c_ulong = ioc::io(0);
/// Disables an event, or its group with `PERF_IOC_FLAG_GROUP`.
pub const PERF_EVENT_IOC_DISABLE: c_ulong = ioc::io(1);
/// Enables an event for a number of overflows.
pub const PERF_EVENT_IOC_REFRESH: c_ulong = ioc::io(2);
/// Sets the count to zero. The times are not reset.
pub const PERF_EVENT_IOC_RESET: c_ulong = ioc::io(3);
/// Changes the period, or the frequency.
pub const PERF_EVENT_IOC_PERIOD: c_ulong = ioc::iow::<u64>(4);
/// Sends the records of an event to the ring of another one.
pub const PERF_EVENT_IOC_SET_OUTPUT: c_ulong = ioc::io(5);
/// Sets the filter of a tracepoint, or the address filter of a tracing PMU.
pub const PERF_EVENT_IOC_SET_FILTER: c_ulong = ioc::iow::<*const u8>(6);
/// Returns the id that `PERF_SAMPLE_ID` and `PERF_FORMAT_ID` contain.
pub const PERF_EVENT_IOC_ID: c_ulong = ioc::ior::<*mut u64>(7);
/// Attaches a BPF program.
pub const PERF_EVENT_IOC_SET_BPF: c_ulong = ioc::iow::<u32>(8);
/// Stops and restarts writing to the ring.
pub const PERF_EVENT_IOC_PAUSE_OUTPUT: c_ulong = ioc::iow::<u32>(9);
/// Lists the BPF programs of a tracepoint.
pub const PERF_EVENT_IOC_QUERY_BPF: c_ulong = ioc::iowr::<*mut u32>(10);
/// Changes the attributes of a breakpoint.
pub const PERF_EVENT_IOC_MODIFY_ATTRIBUTES: c_ulong = ioc::iow::<*const perf_event_attr>(11);

/// The task and CPU to measure: the `pid` and `cpu` arguments of `perf_event_open(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Thread id; 0 is the calling thread, -1 is every thread (`cpu` must then be given). With
    /// `PERF_FLAG_PID_CGROUP`, the file descriptor of a cgroup directory.
    pub pid: i32,
    /// CPU number; -1 is any.
    pub cpu: i32,
}

impl Target {
    /// The calling thread, on any CPU.
    pub const THIS_THREAD: Self = Self { pid: 0, cpu: -1 };
}

fn last_errno() -> Errno {
    // SAFETY: the function has no preconditions.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for as long as the thread lives.
    let errno = unsafe { *location };
    Errno::from_raw_os_error(errno)
}

fn open_raw(
    attr: *const perf_event_attr,
    target: Target,
    group_fd: Option<BorrowedFd<'_>>,
    flags: u64,
) -> Result<OwnedFd, Errno> {
    let group = group_fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: the kernel reads `attr.size` bytes at `attr`, which every caller provides, and writes
    // only `size`, on E2BIG; callers pass a private copy.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr,
            c_long::from(target.pid),
            c_long::from(target.cpu),
            c_long::from(group),
            flags as c_ulong,
        )
    };
    match i32::try_from(result) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel returned this new descriptor, and nothing else owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => Err(last_errno()),
    }
}

/// `perf_event_open(2)`.
///
/// `flags` are `PERF_FLAG_*`; `PERF_FLAG_FD_CLOEXEC` is not implied. `attr.size` may be less than
/// the size of the structure and is clamped to it.
///
/// A kprobe or uprobe by name takes addresses of strings in the attribute: use
/// [`perf_event_open_path`].
///
/// # Errors
///
/// The error number of the system call.
pub fn perf_event_open(
    attr: &perf_event_attr,
    target: Target,
    group_fd: Option<BorrowedFd<'_>>,
    flags: u64,
) -> Result<OwnedFd, Errno> {
    let mut copy = limited(attr);
    open_raw(&raw mut copy, target, group_fd, flags)
}

/// A copy, which the kernel may change: it writes `size`. It reads no more than there is: of size 0, the
/// first version.
fn limited(attr: &perf_event_attr) -> perf_event_attr {
    let size = attr.size.min(size_of::<perf_event_attr>() as u32);
    perf_event_attr { size, ..*attr }
}

/// `perf_event_open(2)` of a kprobe or uprobe: `kprobe_func` or `uprobe_path` is set to `path`.
///
/// # Errors
///
/// The error number of the system call.
pub fn perf_event_open_path(
    attr: &perf_event_attr,
    path: &CStr,
    target: Target,
    group_fd: Option<BorrowedFd<'_>>,
    flags: u64,
) -> Result<OwnedFd, Errno> {
    let mut copy = *attr;
    copy.config1 = path.as_ptr() as u64;
    perf_event_open(&copy, target, group_fd, flags)
}

/// The size of `struct perf_event_attr` that the running kernel supports, which it reports when it
/// gets a bigger one: one of `PERF_ATTR_SIZE_*`, or more for a kernel newer than this crate.
///
/// # Errors
///
/// `EACCES`, `EPERM` or `ENOSYS` if no events may be opened at all.
pub fn attr_size_of_kernel() -> Result<u32, Errno> {
    const BIG: usize = 512;
    let attr = perf_event_attr {
        size: BIG as u32,
        ..perf_event_attr::new(crate::PERF_TYPE_SOFTWARE, crate::PERF_COUNT_SW_DUMMY)
    };
    let mut big = [0u64; BIG / 8];
    big.as_mut_bytes()[..size_of::<perf_event_attr>()].copy_from_slice(attr.as_bytes());
    big[BIG / 8 - 1] = 1; // not zero, beyond the fields of every kernel
    let pointer = big.as_mut_ptr().cast::<perf_event_attr>();
    match open_raw(pointer, Target::THIS_THREAD, None, crate::PERF_FLAG_FD_CLOEXEC) {
        Err(Errno::TOOBIG) => {
            // SAFETY: `pointer` points into `big`, aligned for u64 and long enough.
            let size = unsafe { (*pointer).size };
            Ok(size.max(PERF_ATTR_SIZE_VER0))
        }
        Err(errno) => Err(errno),
        Ok(_) => Ok(BIG as u32),
    }
}

fn ioctl(fd: impl AsFd, request: c_ulong, argument: c_ulong) -> Result<i32, Errno> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: callers pass the argument that `request` expects: a number, or a pointer to memory of
    // the size that it reads or writes. The kernel reserves '$' with 0x00-0x0f for perf events
    // (Documentation/userspace-api/ioctl/ioctl-number.rst): other files return ENOTTY. A driver that
    // gives these numbers another meaning breaks that rule, and the precondition in the documentation
    // of the crate excludes its files.
    let result = unsafe { libc::ioctl(fd, request as _, argument) };
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// [`PERF_EVENT_IOC_ENABLE`]; `flags` are 0 or `PERF_IOC_FLAG_GROUP`.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_enable(fd: impl AsFd, flags: u32) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_ENABLE, c_ulong::from(flags)).map(drop)
}

/// [`PERF_EVENT_IOC_DISABLE`]; `flags` are 0 or `PERF_IOC_FLAG_GROUP`.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_disable(fd: impl AsFd, flags: u32) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_DISABLE, c_ulong::from(flags)).map(drop)
}

/// [`PERF_EVENT_IOC_REFRESH`]; the effect of 0 `overflows` is undefined.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_refresh(fd: impl AsFd, overflows: u32) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_REFRESH, c_ulong::from(overflows)).map(drop)
}

/// [`PERF_EVENT_IOC_RESET`]; `flags` are 0 or `PERF_IOC_FLAG_GROUP`.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_reset(fd: impl AsFd, flags: u32) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_RESET, c_ulong::from(flags)).map(drop)
}

/// [`PERF_EVENT_IOC_PERIOD`].
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_period(fd: impl AsFd, period: u64) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_PERIOD, &raw const period as c_ulong).map(drop)
}

/// [`PERF_EVENT_IOC_SET_OUTPUT`]; `None` removes the redirection.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_set_output(fd: impl AsFd, output: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let output = output.map_or(-1, |fd| fd.as_raw_fd());
    ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, output as c_ulong).map(drop)
}

/// [`PERF_EVENT_IOC_SET_FILTER`].
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_set_filter(fd: impl AsFd, filter: &CStr) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_SET_FILTER, filter.as_ptr() as c_ulong).map(drop)
}

/// [`PERF_EVENT_IOC_ID`].
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_id(fd: impl AsFd) -> Result<u64, Errno> {
    let mut id = 0u64;
    ioctl(fd, PERF_EVENT_IOC_ID, &raw mut id as c_ulong)?;
    Ok(id)
}

/// [`PERF_EVENT_IOC_SET_BPF`].
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_set_bpf(fd: impl AsFd, program: BorrowedFd<'_>) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd() as c_ulong).map(drop)
}

/// [`PERF_EVENT_IOC_PAUSE_OUTPUT`].
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_pause_output(fd: impl AsFd, pause: bool) -> Result<(), Errno> {
    ioctl(fd, PERF_EVENT_IOC_PAUSE_OUTPUT, c_ulong::from(pause)).map(drop)
}

/// [`PERF_EVENT_IOC_QUERY_BPF`]: fills `ids` and returns the number of programs.
///
/// # Errors
///
/// The error number of the system call: `ENOSPC` if there are more programs than `ids` can hold, or
/// more than 64.
pub fn ioctl_query_bpf(fd: impl AsFd, ids: &mut [u32]) -> Result<usize, Errno> {
    // struct perf_event_query_bpf: ids_len, prog_cnt, ids[].
    let mut query = [0u32; 2 + 64];
    let room = ids.len().min(64);
    query[0] = room as u32;
    ioctl(fd, PERF_EVENT_IOC_QUERY_BPF, query.as_mut_ptr() as c_ulong)?;
    let count = query[1] as usize;
    for (id, found) in ids.iter_mut().zip(&query[2..]).take(count.min(room)) {
        *id = *found;
    }
    Ok(count)
}

/// [`PERF_EVENT_IOC_MODIFY_ATTRIBUTES`]: breakpoints only.
///
/// # Errors
///
/// The error number of the system call.
pub fn ioctl_modify_attributes(fd: impl AsFd, attr: &perf_event_attr) -> Result<(), Errno> {
    let mut copy = limited(attr);
    ioctl(fd, PERF_EVENT_IOC_MODIFY_ATTRIBUTES, &raw mut copy as c_ulong).map(drop)
}

/// A set that contains only `SIGTRAP`.
fn sigtrap_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind the pointer.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: an initialised set and a signal that exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGTRAP) };
    set
}

fn sigtrap_mask(how: c_int) -> Result<bool, Errno> {
    let set = sigtrap_set();
    let mut before = sigtrap_set();
    // SAFETY: both sets are initialised and local; blocking a signal is memory-safe.
    let errno = unsafe { libc::pthread_sigmask(how, &raw const set, &raw mut before) };
    if errno != 0 {
        return Err(Errno::from_raw_os_error(errno));
    }
    // SAFETY: an initialised set and a signal that exists.
    Ok(unsafe { libc::sigismember(&raw const before, libc::SIGTRAP) } == 1)
}

/// Blocks `SIGTRAP` in the calling thread. Returns whether it was blocked before.
///
/// An event with `sigtrap` then leaves its signal pending for [`sigtrap_wait`] instead of ending
/// the process or calling a handler, from Linux 5.18 (and stable releases of 5.15); before, the
/// kernel ends a process that blocks it.
///
/// # Errors
///
/// The error number of the system call.
pub fn sigtrap_block() -> Result<bool, Errno> {
    sigtrap_mask(libc::SIG_BLOCK)
}

/// Unblocks `SIGTRAP` in the calling thread, which delivers a pending one. Returns whether it was
/// blocked before.
///
/// # Errors
///
/// The error number of the system call.
pub fn sigtrap_unblock() -> Result<bool, Errno> {
    sigtrap_mask(libc::SIG_UNBLOCK)
}

/// Takes a `SIGTRAP` that is pending for the calling thread, which must have it
/// [blocked](sigtrap_block); waits up to `timeout` for one. `None` if none came.
///
/// Signals do not queue: overflows while one is pending send no other.
///
/// # Errors
///
/// The error number of the system call.
pub fn sigtrap_wait(timeout: Duration) -> Result<Option<perf_siginfo>, Errno> {
    const { assert!(size_of::<perf_siginfo>() <= size_of::<libc::siginfo_t>()) };
    let set = sigtrap_set();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos() as _,
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the set and the time are initialised, and `info` has room for the kernel's data.
    let signal =
        unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), &raw const timeout) };
    if signal < 0 {
        return match last_errno() {
            Errno::AGAIN | Errno::INTR => Ok(None),
            errno => Err(errno),
        };
    }
    // SAFETY: `info` is zeroed or written in all its bytes, is bigger (above) and aligned to words
    // as `perf_siginfo` is, of which any bytes are a value.
    Ok(Some(unsafe { info.as_ptr().cast::<perf_siginfo>().read() }))
}

/// Reads hardware counter `index` (`perf_event_mmap_page::index` minus 1) with a user-space
/// instruction; `None` on architectures without one that this crate supports.
///
/// # Safety
///
/// The kernel must permit it now (`cap_user_rdpmc`) and the event must be on that counter;
/// otherwise the instruction traps.
#[inline]
pub unsafe fn rdpmc(index: u32) -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        let (low, high): (u32, u32);
        // SAFETY: the caller guarantees that the counter can be read; the instruction changes nothing else.
        unsafe {
            core::arch::asm!(
                "rdpmc", in("ecx") index, out("eax") low, out("edx") high,
                options(nostack, preserves_flags)
            );
        }
        Some(u64::from(high) << 32 | u64::from(low))
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! counters {
            ($($n:literal $reg:literal)*) => {
                match index {
                    $($n => {
                        let value: u64;
                        // SAFETY: the caller guarantees that the counter can be read; reading has no effect.
                        unsafe {
                            core::arch::asm!(
                                concat!("mrs {}, ", $reg), out(reg) value,
                                options(nostack, preserves_flags)
                            );
                        }
                        Some(value)
                    })*
                    _ => None,
                }
            };
        }
        counters! {
            0 "pmevcntr0_el0" 1 "pmevcntr1_el0" 2 "pmevcntr2_el0" 3 "pmevcntr3_el0"
            4 "pmevcntr4_el0" 5 "pmevcntr5_el0" 6 "pmevcntr6_el0" 7 "pmevcntr7_el0"
            8 "pmevcntr8_el0" 9 "pmevcntr9_el0" 10 "pmevcntr10_el0" 11 "pmevcntr11_el0"
            12 "pmevcntr12_el0" 13 "pmevcntr13_el0" 14 "pmevcntr14_el0" 15 "pmevcntr15_el0"
            16 "pmevcntr16_el0" 17 "pmevcntr17_el0" 18 "pmevcntr18_el0" 19 "pmevcntr19_el0"
            20 "pmevcntr20_el0" 21 "pmevcntr21_el0" 22 "pmevcntr22_el0" 23 "pmevcntr23_el0"
            24 "pmevcntr24_el0" 25 "pmevcntr25_el0" 26 "pmevcntr26_el0" 27 "pmevcntr27_el0"
            28 "pmevcntr28_el0" 29 "pmevcntr29_el0" 30 "pmevcntr30_el0" 31 "pmccntr_el0"
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = index;
        None
    }
}

/// The clock that `time_mult`, `time_shift` and `time_offset` of the control page convert: the
/// time-stamp counter of x86-64, the virtual counter of arm64; `None` on other architectures.
#[inline]
pub fn read_hardware_clock() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: user space may read the counter on Linux unless the process disabled it
        // (PR_SET_TSC), in which case it gets a signal.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(target_arch = "aarch64")]
    {
        let value: u64;
        // SAFETY: Linux lets user space read the virtual counter; reading has no effect.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack, preserves_flags));
        }
        Some(value)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        None
    }
}

/// The scheduling policy of a thread: the first two arguments of `sched_setscheduler(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedPolicy {
    policy: c_int,
    priority: c_int,
}

impl SchedPolicy {
    /// `SCHED_FIFO` with this priority, 1 to 99. Children do not inherit it
    /// (`SCHED_RESET_ON_FORK`).
    pub const fn fifo(priority: u8) -> Self {
        Self { policy: libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority: priority as c_int }
    }

    /// The same policy, which children do not inherit (`SCHED_RESET_ON_FORK`). Only threads with
    /// `CAP_SYS_NICE` can clear this flag again.
    #[must_use]
    pub const fn reset_on_fork(self) -> Self {
        Self { policy: self.policy | libc::SCHED_RESET_ON_FORK, ..self }
    }
}

/// The kernel's `struct sched_param`. That of musl has more fields.
#[repr(C)]
struct SchedParam {
    priority: c_int,
}

/// Sets the scheduling policy of the calling thread: `sched_setscheduler(2)`.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_NICE` and a sufficient `RLIMIT_RTPRIO`, `EINVAL` for other priorities.
pub fn sched_setscheduler(policy: SchedPolicy) -> Result<(), Errno> {
    let param = SchedParam { priority: policy.priority };
    // SAFETY: the thread 0 is the calling one, and the kernel reads `param`, which is initialised
    // and lives until the call returns. The call is made directly because musl's function fails.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy.policy, &raw const param) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The scheduling policy of the calling thread: `sched_getscheduler(2)` and `sched_getparam(2)`.
///
/// # Errors
///
/// None of the kernel's applies to the calling thread.
pub fn sched_getscheduler() -> Result<SchedPolicy, Errno> {
    // SAFETY: the thread 0 is the calling one; the call has no other arguments.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let mut param = SchedParam { priority: 0 };
    // SAFETY: the kernel writes `param`, which lives until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut param) };
    if policy < 0 || result < 0 {
        return Err(last_errno());
    }
    Ok(SchedPolicy { policy: policy as c_int, priority: param.priority })
}

/// `struct sched_attr`, of its first size (`SCHED_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Requests a time slice for the calling thread: `sched_setattr(2)` with `sched_runtime`. Policy and
/// niceness stay as they are.
///
/// From Linux 6.12, a thread of `SCHED_OTHER` with a short slice gets the CPU earlier when it wakes,
/// and runs for a shorter time; its share of the CPU does not change. Earlier kernels ignore it. The
/// kernel rounds to 0.1 to 100 ms. No privilege is needed.
///
/// # Errors
///
/// `EPERM` in containers that forbid the call.
pub fn sched_set_slice(slice: Duration) -> Result<(), Errno> {
    const SIZE: u32 = size_of::<SchedAttr>() as u32;
    const { assert!(SIZE == 48) };
    let mut attr = SchedAttr::default();
    // SAFETY: the thread 0 is the calling one; the kernel writes at most `SIZE` bytes to `attr`, of
    // which every value is valid.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, SIZE, 0) };
    if result < 0 {
        return Err(last_errno());
    }
    attr.runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: as above; the kernel reads `attr`, which is initialised and has its size in it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Waits until no CPU runs a section of the kernel with disabled preemption that it runs now:
/// `membarrier(2)` with `MEMBARRIER_CMD_GLOBAL`, which is `synchronize_rcu()` in the kernel. It takes
/// some milliseconds.
///
/// A tracepoint that is being hit when its event is disabled still writes its sample. After this
/// call it has done so.
///
/// # Errors
///
/// `ENOSYS` without `CONFIG_MEMBARRIER`, `EINVAL` with `nohz_full` CPUs.
pub fn membarrier_global() -> Result<(), Errno> {
    // SAFETY: the call has no pointers, and only waits.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reads_no_more_than_the_attribute() {
        let all = size_of::<perf_event_attr>() as u32;
        for (size, expected) in [(0, 0), (PERF_ATTR_SIZE_VER0, 64), (all, all), (4096, all)] {
            let attr = perf_event_attr { size, ..perf_event_attr::default() };
            assert_eq!(limited(&attr), perf_event_attr { size: expected, ..attr });
        }
    }
}
