//! The Linux `perf_event` ABI: every name is the kernel's name.
//!
//! ```
//! use perf_sys::*;
//! use rustix::fd::AsFd;
//!
//! // Count the page faults of this thread, in user space only.
//! let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS);
//! attr.set_exclude_kernel(true);
//! attr.set_exclude_hv(true);
//! match perf_event_open(&attr, Target::THIS_THREAD, None, PERF_FLAG_FD_CLOEXEC) {
//!     Ok(fd) => {
//!         let touched = vec![1u8; 1 << 20];
//!         let mut count = [0; 8];
//!         rustix::io::read(fd.as_fd(), &mut count)?;
//!         assert!(u64::from_ne_bytes(count) > 0, "touched {} bytes", touched.len());
//!     }
//!     Err(errno) => eprintln!("this user may not count page faults: {errno}"),
//! }
//! # Ok::<(), Errno>(())
//! ```
//!
//! - [`perf_event_attr`] to its newest size (144 bytes), [`perf_event_mmap_page`],
//!   [`perf_event_header`], the fixed parts of every record, [`perf_sample_id`],
//!   [`perf_branch_entry`], [`perf_mem_data_src`], [`perf_sample_weight`];
//! - every `PERF_*` constant of the header of Linux 7.3;
//! - [`perf_event_open`] and the ioctls of `PERF_EVENT_IOC_*`, with owned and borrowed file
//!   descriptors;
//! - [`perf_siginfo`], and a way to take the signals of `sigtrap` without a handler
//!   ([`sigtrap_wait`]);
//! - the registers of `PERF_SAMPLE_REGS_*` for x86 and arm64 ([`regs`]).
//!
//! `kernel.perf_event_paranoid` decides which events a user without `CAP_PERFMON` may open: see
//! `perf_event_open(2)`. Items that are newer than Linux 4.0 name their release.
//!
//! It has no policy: the `perf-monitor` crate finds the size of `perf_event_attr` and the bits that a
//! kernel accepts, and reads rings.
//!
//! A unit test compiles a C program with the kernel's own header and compares every size, offset,
//! bit field, constant and ioctl number with the ones here.
//!
//! The crate is `no_std`. On other systems than Linux it has the structures and constants, not the
//! system calls.
//!
//! # File descriptors
//!
//! The first argument of the `ioctl_*` functions must be a descriptor of [`perf_event_open`]. The kernel
//! reserves their request numbers for perf events, so that its other files return `ENOTTY`. A device whose
//! driver does not keep to that can do anything with the request and its argument, also write to memory.
#![no_std]
#![warn(clippy::missing_errors_doc)]
#![deny(unsafe_code)]
#![allow(
    non_camel_case_types,
    reason = "the kernel's names are kept, so that they can be found in its documentation"
)]
#![allow(
    missing_debug_implementations,
    reason = "the derives of zerocopy make helper types; every public type here has Debug"
)]

#[cfg(test)]
extern crate std;

mod attr;
mod constants;
mod mmap_page;
mod records;
pub mod regs;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod uapi_test;

pub use attr::perf_event_attr;
pub use constants::*;
pub use mmap_page::{capabilities, perf_event_mmap_page};
pub use records::{
    perf_branch_entry, perf_event_header, perf_mem_data_src, perf_ns_link_info, perf_record_aux,
    perf_record_aux_output_hw_id, perf_record_bpf_event, perf_record_callchain_deferred,
    perf_record_cgroup, perf_record_comm, perf_record_fork, perf_record_itrace_start,
    perf_record_ksymbol, perf_record_lost, perf_record_lost_samples, perf_record_mmap,
    perf_record_mmap2, perf_record_namespaces, perf_record_read, perf_record_switch,
    perf_record_text_poke, perf_record_throttle, perf_sample_id, perf_sample_weight, perf_siginfo,
};
#[cfg(target_os = "linux")]
pub use rustix::io::Errno;
#[cfg(target_os = "linux")]
pub use sys::{
    PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_ID,
    PERF_EVENT_IOC_MODIFY_ATTRIBUTES, PERF_EVENT_IOC_PAUSE_OUTPUT, PERF_EVENT_IOC_PERIOD,
    PERF_EVENT_IOC_QUERY_BPF, PERF_EVENT_IOC_REFRESH, PERF_EVENT_IOC_RESET, PERF_EVENT_IOC_SET_BPF,
    PERF_EVENT_IOC_SET_FILTER, PERF_EVENT_IOC_SET_OUTPUT, SchedPolicy, Target, attr_size_of_kernel,
    ioctl_disable, ioctl_enable, ioctl_id, ioctl_modify_attributes, ioctl_pause_output,
    ioctl_period, ioctl_query_bpf, ioctl_refresh, ioctl_reset, ioctl_set_bpf, ioctl_set_filter,
    ioctl_set_output, membarrier_global, perf_event_open, perf_event_open_path, rdpmc,
    read_hardware_clock, sched_getscheduler, sched_set_slice, sched_setscheduler, sigtrap_block,
    sigtrap_unblock, sigtrap_wait,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
