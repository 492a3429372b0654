//! Records that are not samples.

use super::sample::{Callchain, U64Slice, words};
use super::{RawRecord, Record, RecordLayout};
use crate::count::ReadValues;
use crate::error::DecodeError;
use perf_sys::*;
use trace_common::{Cursor, ReadError, Timestamp};

/// The sample id at the end of every record, with `sample_id_all`: event, time and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleId {
    /// Process.
    pub pid: Option<u32>,
    /// Thread.
    pub tid: Option<u32>,
    /// Timestamp.
    pub time: Option<Timestamp>,
    /// Id of the event.
    pub id: Option<u64>,
    /// Id of the event itself, in a group.
    pub stream_id: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
}

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mmap<'a> {
    /// Process; -1 (as `u32::MAX`) is the kernel.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Start address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file, in bytes.
    pub pgoff: u64,
    /// The file; `None` in `PERF_RECORD_MMAP`.
    pub file: Option<FileId<'a>>,
    /// `PROT_*`; 0 in `PERF_RECORD_MMAP`.
    pub prot: u32,
    /// `MAP_*`; 0 in `PERF_RECORD_MMAP`.
    pub flags: u32,
    /// Name of the file, or `[heap]`, `//anon` and such.
    pub filename: &'a [u8],
    /// Not executable.
    pub is_data: bool,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// The identity of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileId<'a> {
    /// Its inode.
    Inode {
        /// Major number of the device.
        major: u32,
        /// Minor number of the device.
        minor: u32,
        /// Inode.
        inode: u64,
        /// Generation of the inode.
        generation: u64,
    },
    /// Its build id, with `build_id`.
    ///
    /// While an event with `build_id` is open, the kernel marks the records that it writes to other
    /// events as if they had build ids, too (`perf_event_mmap_output`, Linux 5.12 to at least 6.18).
    /// These are decoded as the [`Inode`](Self::Inode) that they are. Other programs may not do that:
    /// perf(1) 6.1 aborts. A recorder that reads the build ids from the files does not disturb them.
    BuildId(&'a [u8]),
}

/// Lost records or samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Id of the event that lost records; `None` in `PERF_RECORD_LOST_SAMPLES`.
    pub id: Option<u64>,
    /// Number of lost records or samples.
    pub lost: u64,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// The name of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comm<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its name.
    pub comm: &'a [u8],
    /// `execve(2)` set it.
    pub by_exec: bool,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A fork or an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessEvent {
    /// Process.
    pub pid: u32,
    /// Its parent.
    pub ppid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent thread.
    pub ptid: u32,
    /// Timestamp.
    pub time: Timestamp,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A throttled or unthrottled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttle {
    /// Timestamp.
    pub time: Timestamp,
    /// Id of the event.
    pub id: u64,
    /// Id of the event itself, in a group.
    pub stream_id: u64,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// Counts of a task at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The counts.
    pub values: ReadValues<'a>,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// New data in the AUX area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aux {
    /// Offset of the new data, counted from the first byte ever written to the area.
    pub aux_offset: u64,
    /// Bytes.
    pub aux_size: u64,
    /// `PERF_AUX_FLAG_*`.
    pub flags: u64,
    /// Event, time and place.
    pub sample_id: SampleId,
}

impl Aux {
    /// Whether data was lost because the area was full.
    pub const fn is_truncated(&self) -> bool {
        self.flags & PERF_AUX_FLAG_TRUNCATED != 0
    }
}

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadId {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Switch {
    /// The thread leaves the CPU (`true`), or gets it.
    pub out: bool,
    /// It was preempted while runnable.
    pub preempted: bool,
    /// The other thread, for a CPU-wide event.
    pub peer: Option<SwitchPeer>,
    /// Event, time and place. The thread is in it.
    pub sample_id: SampleId,
}

/// The next or the previous thread on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchPeer {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
}

/// The namespaces of a process, in the order of `NET_NS_INDEX` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespaces<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    links: U64Slice<'a>,
    /// Event, time and place.
    pub sample_id: SampleId,
}

impl<'a> Namespaces<'a> {
    /// Each namespace.
    pub fn iter(&self) -> impl Iterator<Item = perf_ns_link_info> + 'a {
        let links = self.links;
        (0..links.len() / 2).map(move |i| perf_ns_link_info {
            dev: links.get(2 * i).unwrap_or(0),
            ino: links.get(2 * i + 1).unwrap_or(0),
        })
    }
}

/// A kernel symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ksymbol<'a> {
    /// Start address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `PERF_RECORD_KSYMBOL_TYPE_*`.
    pub ksym_type: u16,
    /// It was unregistered (`true`), or registered.
    pub unregister: bool,
    /// Its name.
    pub name: &'a [u8],
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A BPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BpfEvent {
    /// `PERF_BPF_EVENT_*`.
    pub type_: u16,
    /// Reserved by the kernel.
    pub flags: u16,
    /// Its id.
    pub id: u32,
    /// Its tag.
    pub tag: [u8; 8],
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cgroup<'a> {
    /// The id in samples.
    pub id: u64,
    /// Its path from the root of the hierarchy.
    pub path: &'a [u8],
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// A change of kernel text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextPoke<'a> {
    /// Address.
    pub addr: u64,
    /// The bytes before.
    pub old: &'a [u8],
    /// The bytes after.
    pub new: &'a [u8],
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// The user callchain of earlier samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallchainDeferred<'a> {
    /// The [`Callchain::deferred_cookie`] of those samples.
    pub cookie: u64,
    /// The user part.
    pub callchain: Callchain<'a>,
    /// Event, time and place.
    pub sample_id: SampleId,
}

/// Text up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

pub(super) fn decode<'a>(
    layout: &RecordLayout,
    raw: RawRecord<'a>,
) -> Result<Record<'a>, DecodeError> {
    if !(PERF_RECORD_MMAP..PERF_RECORD_MAX).contains(&raw.type_()) {
        return Ok(Record::Unknown(raw));
    }
    let (body, sample_id) = layout.split_trailer(raw)?;
    let cursor = Cursor::with_base(body, raw.offset() + 8);
    fields(layout, raw, cursor, sample_id).map_err(|e| DecodeError::read(name(raw.type_()), e))
}

/// The build id in the field `file` of a `perf_record_mmap2` that is marked to have one. `None` if the
/// field is an inode.
///
/// The mark can be false: see [`FileId::BuildId`]. A build id is its size, 3 zeros, its bytes, and
/// zeros up to the end. An inode starts with the major number of its device and ends with its
/// generation: it is mistaken for a build id of this size only if its upper part is zero.
fn build_id(file: &[u8]) -> Option<&[u8]> {
    let ([size, 0, 0, 0], rest) = file.split_first_chunk()? else { return None };
    let (id, padding) = rest.split_at_checked((*size).into())?;
    (!id.is_empty() && padding.iter().all(|byte| *byte == 0)).then_some(id)
}

fn fields<'a>(
    layout: &RecordLayout,
    raw: RawRecord<'a>,
    mut c: Cursor<'a>,
    sample_id: SampleId,
) -> Result<Record<'a>, ReadError> {
    let misc = raw.misc();
    let time = |nanos: u64| Timestamp::from_nanos(nanos as i64);
    Ok(match raw.type_() {
        PERF_RECORD_MMAP | PERF_RECORD_MMAP2 => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            let (addr, len, pgoff) = (c.u64()?, c.u64()?, c.u64()?);
            let (mut file, mut prot, mut flags) = (None, 0, 0);
            if raw.type_() == PERF_RECORD_MMAP2 {
                let mut id = c.sub(24)?;
                let marked = misc & PERF_RECORD_MISC_MMAP_BUILD_ID != 0;
                file = Some(match build_id(id.rest()).filter(|_| marked) {
                    Some(bytes) => FileId::BuildId(bytes),
                    None => FileId::Inode {
                        major: id.u32()?,
                        minor: id.u32()?,
                        inode: id.u64()?,
                        generation: id.u64()?,
                    },
                });
                (prot, flags) = (c.u32()?, c.u32()?);
            }
            let filename = text(c.rest());
            let is_data = misc & PERF_RECORD_MISC_MMAP_DATA != 0;
            Record::Mmap(Mmap {
                pid,
                tid,
                addr,
                len,
                pgoff,
                file,
                prot,
                flags,
                filename,
                is_data,
                sample_id,
            })
        }
        PERF_RECORD_LOST => Record::Lost(Loss { id: Some(c.u64()?), lost: c.u64()?, sample_id }),
        PERF_RECORD_COMM => Record::Comm(Comm {
            pid: c.u32()?,
            tid: c.u32()?,
            comm: text(c.rest()),
            by_exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0,
            sample_id,
        }),
        PERF_RECORD_EXIT | PERF_RECORD_FORK => {
            let (pid, ppid, tid, ptid) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
            let event = ProcessEvent { pid, ppid, tid, ptid, time: time(c.u64()?), sample_id };
            if raw.type_() == PERF_RECORD_EXIT { Record::Exit(event) } else { Record::Fork(event) }
        }
        PERF_RECORD_THROTTLE | PERF_RECORD_UNTHROTTLE => {
            let event =
                Throttle { time: time(c.u64()?), id: c.u64()?, stream_id: c.u64()?, sample_id };
            if raw.type_() == PERF_RECORD_THROTTLE {
                Record::Throttle(event)
            } else {
                Record::Unthrottle(event)
            }
        }
        PERF_RECORD_READ => {
            let (pid, tid) = (c.u32()?, c.u32()?);
            Record::Read(Read {
                pid,
                tid,
                values: ReadValues::take(&mut c, layout.read_format)?,
                sample_id,
            })
        }
        PERF_RECORD_AUX => Record::Aux(Aux {
            aux_offset: c.u64()?,
            aux_size: c.u64()?,
            flags: c.u64()?,
            sample_id,
        }),
        PERF_RECORD_ITRACE_START => {
            Record::ItraceStart(ThreadId { pid: c.u32()?, tid: c.u32()?, sample_id })
        }
        PERF_RECORD_LOST_SAMPLES => {
            Record::LostSamples(Loss { id: None, lost: c.u64()?, sample_id })
        }
        PERF_RECORD_SWITCH | PERF_RECORD_SWITCH_CPU_WIDE => {
            let peer = if raw.type_() == PERF_RECORD_SWITCH_CPU_WIDE {
                Some(SwitchPeer { pid: c.u32()?, tid: c.u32()? })
            } else {
                None
            };
            Record::Switch(Switch {
                out: misc & PERF_RECORD_MISC_SWITCH_OUT != 0,
                preempted: misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0,
                peer,
                sample_id,
            })
        }
        PERF_RECORD_NAMESPACES => {
            let (pid, tid, count) = (c.u32()?, c.u32()?, c.u64()?);
            let len = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(16);
            Record::Namespaces(Namespaces {
                pid,
                tid,
                links: U64Slice::new(c.bytes(len)?),
                sample_id,
            })
        }
        PERF_RECORD_KSYMBOL => {
            let (addr, len, ksym_type, flags) = (c.u64()?, c.u32()?, c.u16()?, c.u16()?);
            Record::Ksymbol(Ksymbol {
                addr,
                len,
                ksym_type,
                unregister: flags & PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER != 0,
                name: text(c.rest()),
                sample_id,
            })
        }
        PERF_RECORD_BPF_EVENT => Record::BpfEvent(BpfEvent {
            type_: c.u16()?,
            flags: c.u16()?,
            id: c.u32()?,
            tag: c.array()?,
            sample_id,
        }),
        PERF_RECORD_CGROUP => {
            Record::Cgroup(Cgroup { id: c.u64()?, path: text(c.rest()), sample_id })
        }
        PERF_RECORD_TEXT_POKE => {
            let (addr, old, new) = (c.u64()?, c.u16()?, c.u16()?);
            Record::TextPoke(TextPoke {
                addr,
                old: c.bytes(usize::from(old))?,
                new: c.bytes(usize::from(new))?,
                sample_id,
            })
        }
        PERF_RECORD_AUX_OUTPUT_HW_ID => Record::AuxOutputHwId { hw_id: c.u64()?, sample_id },
        PERF_RECORD_CALLCHAIN_DEFERRED => Record::CallchainDeferred(CallchainDeferred {
            cookie: c.u64()?,
            callchain: Callchain(words(&mut c)?),
            sample_id,
        }),
        _ => Record::Unknown(raw),
    })
}

const fn name(type_: u32) -> &'static str {
    match type_ {
        PERF_RECORD_MMAP => "PERF_RECORD_MMAP",
        PERF_RECORD_LOST => "PERF_RECORD_LOST",
        PERF_RECORD_COMM => "PERF_RECORD_COMM",
        PERF_RECORD_EXIT => "PERF_RECORD_EXIT",
        PERF_RECORD_THROTTLE => "PERF_RECORD_THROTTLE",
        PERF_RECORD_UNTHROTTLE => "PERF_RECORD_UNTHROTTLE",
        PERF_RECORD_FORK => "PERF_RECORD_FORK",
        PERF_RECORD_READ => "PERF_RECORD_READ",
        PERF_RECORD_MMAP2 => "PERF_RECORD_MMAP2",
        PERF_RECORD_AUX => "PERF_RECORD_AUX",
        PERF_RECORD_ITRACE_START => "PERF_RECORD_ITRACE_START",
        PERF_RECORD_LOST_SAMPLES => "PERF_RECORD_LOST_SAMPLES",
        PERF_RECORD_SWITCH => "PERF_RECORD_SWITCH",
        PERF_RECORD_SWITCH_CPU_WIDE => "PERF_RECORD_SWITCH_CPU_WIDE",
        PERF_RECORD_NAMESPACES => "PERF_RECORD_NAMESPACES",
        PERF_RECORD_KSYMBOL => "PERF_RECORD_KSYMBOL",
        PERF_RECORD_BPF_EVENT => "PERF_RECORD_BPF_EVENT",
        PERF_RECORD_CGROUP => "PERF_RECORD_CGROUP",
        PERF_RECORD_TEXT_POKE => "PERF_RECORD_TEXT_POKE",
        PERF_RECORD_AUX_OUTPUT_HW_ID => "PERF_RECORD_AUX_OUTPUT_HW_ID",
        PERF_RECORD_CALLCHAIN_DEFERRED => "PERF_RECORD_CALLCHAIN_DEFERRED",
        _ => "a record",
    }
}
