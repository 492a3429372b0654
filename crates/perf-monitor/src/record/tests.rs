//! Records from bytes that are put together by name: records that real kernels here cannot produce,
//! and every field in the order of the kernel.

use super::*;
use crate::error::DecodeErrorKind;
use crate::flags::{BranchFlags, ReadFormat, SampleFlags};
use proptest::prelude::*;
use trace_common::Timestamp;

/// Puts a record together.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u64(mut self, v: u64) -> Self {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
    fn u32(mut self, v: u32) -> Self {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
    fn u16(mut self, v: u16) -> Self {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
    fn bytes(mut self, v: &[u8]) -> Self {
        self.0.extend_from_slice(v);
        self
    }
    /// A name with its NUL and padding to 8 bytes.
    fn name(mut self, v: &str) -> Self {
        self.0.extend_from_slice(v.as_bytes());
        self.0.push(0);
        while self.0.len() % 8 != 0 {
            self.0.push(0);
        }
        self
    }
    fn record(self, type_: u32, misc: u16) -> Vec<u8> {
        let size = (8 + self.0.len()) as u16;
        Bytes::default().u32(type_).u16(misc).u16(size).bytes(&self.0).0
    }
}

fn b() -> Bytes {
    Bytes::default()
}

fn attr(sample: SampleFlags) -> perf_event_attr {
    let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, 0);
    attr.sample_type = sample.bits();
    attr.set_sample_id_all(true);
    attr
}

const ID_FIELDS: SampleFlags = SampleFlags::TID
    .union(SampleFlags::TIME)
    .union(SampleFlags::ID)
    .union(SampleFlags::STREAM_ID)
    .union(SampleFlags::CPU)
    .union(SampleFlags::IDENTIFIER);

/// The sample id at the end of a record, with all its fields.
fn trailer(bytes: Bytes) -> Bytes {
    bytes.u32(10).u32(11).u64(1000).u64(77).u64(78).u32(3).u32(0).u64(77)
}

const TRAILER: SampleId = SampleId {
    pid: Some(10),
    tid: Some(11),
    time: Some(Timestamp::from_nanos(1000)),
    id: Some(77),
    stream_id: Some(78),
    cpu: Some(3),
};

fn raw(bytes: &[u8]) -> RawRecord<'_> {
    let (record, rest) = RawRecord::split_first(bytes, 0).unwrap();
    assert!(rest.is_empty());
    record
}

#[track_caller]
fn check(type_: u32, misc: u16, body: Bytes, want: impl Fn(SampleId) -> Record<'static>) {
    let with_id = trailer(body.clone()).record(type_, misc);
    let layout = RecordLayout::new(&attr(ID_FIELDS));
    assert_eq!(layout.decode(raw(&with_id)).unwrap(), want(TRAILER));
    assert_eq!(layout.time(raw(&with_id)), TRAILER.time);
    assert_eq!(layout.id(raw(&with_id)), Some(77));
    // The same without sample_id_all.
    let mut without = attr(ID_FIELDS);
    without.set_sample_id_all(false);
    let layout = RecordLayout::new(&without);
    let bytes = body.record(type_, misc);
    assert_eq!(layout.decode(raw(&bytes)).unwrap(), want(SampleId::default()));
    assert_eq!(layout.time(raw(&bytes)), None);
    // Truncated at any offset, it is an error or shorter text, never a panic.
    let layout = RecordLayout::new(&attr(ID_FIELDS));
    for cut in 8..with_id.len() {
        let mut short = with_id[..cut].to_vec();
        short[6..8].copy_from_slice(&(cut as u16).to_ne_bytes());
        let _ = layout.decode(raw(&short));
    }
}

#[test]
fn every_type_of_record_is_decoded() {
    let file = FileId::Inode { major: 8, minor: 1, inode: 99, generation: 5 };
    check(1, 0, b().u32(1).u32(2).u64(3).u64(4).u64(5).name("/bin/x"), |sample_id| {
        Record::Mmap(Mmap {
            pid: 1,
            tid: 2,
            addr: 3,
            len: 4,
            pgoff: 5,
            file: None,
            prot: 0,
            flags: 0,
            filename: b"/bin/x",
            is_data: false,
            sample_id,
        })
    });
    check(2, 0, b().u64(77).u64(9), |sample_id| {
        Record::Lost(Loss { id: Some(77), lost: 9, sample_id })
    });
    check(3, 1 << 13, b().u32(1).u32(2).name("new name"), |sample_id| {
        Record::Comm(Comm { pid: 1, tid: 2, comm: b"new name", by_exec: true, sample_id })
    });
    let task = |sample_id| ProcessEvent {
        pid: 1,
        ppid: 2,
        tid: 3,
        ptid: 4,
        time: Timestamp::from_nanos(5),
        sample_id,
    };
    check(4, 0, b().u32(1).u32(2).u32(3).u32(4).u64(5), |s| Record::Exit(task(s)));
    check(7, 0, b().u32(1).u32(2).u32(3).u32(4).u64(5), |s| Record::Fork(task(s)));
    let throttle =
        |sample_id| Throttle { time: Timestamp::from_nanos(5), id: 6, stream_id: 7, sample_id };
    check(5, 0, b().u64(5).u64(6).u64(7), |s| Record::Throttle(throttle(s)));
    check(6, 0, b().u64(5).u64(6).u64(7), |s| Record::Unthrottle(throttle(s)));
    let mapped = |file, is_data, sample_id| {
        Record::Mmap(Mmap {
            pid: 1,
            tid: 2,
            addr: 3,
            len: 4,
            pgoff: 5,
            file: Some(file),
            prot: 6,
            flags: 7,
            filename: b"f",
            is_data,
            sample_id,
        })
    };
    check(
        10,
        1 << 13,
        b().u32(1).u32(2).u64(3).u64(4).u64(5).u32(8).u32(1).u64(99).u64(5).u32(6).u32(7).name("f"),
        |sample_id| mapped(file, true, sample_id),
    );
    check(
        10,
        PERF_RECORD_MISC_MMAP_BUILD_ID,
        b().u32(1).u32(2).u64(3).u64(4).u64(5).u32(20).bytes(&[0xab; 20]).u32(6).u32(7).name("f"),
        |sample_id| mapped(FileId::BuildId(&[0xab; 20]), false, sample_id),
    );
    // Marked falsely: a device, an inode, a generation.
    for major in [253, 8] {
        let body = b().u32(1).u32(2).u64(3).u64(4).u64(5);
        let body = body.u32(major).u32(9).u64(10).u64(11).u32(6).u32(7).name("f");
        check(10, PERF_RECORD_MISC_MMAP_BUILD_ID, body, |sample_id| {
            let file = FileId::Inode { major, minor: 9, inode: 10, generation: 11 };
            mapped(file, false, sample_id)
        });
    }
    // Not marked: the device is a number that could be the size of a build id.
    let body = b().u32(1).u32(2).u64(3).u64(4).u64(5);
    let body = body.u32(20).u32(9).u64(10).u64(11).u32(6).u32(7).name("f");
    check(10, 0, body, |sample_id| {
        let file = FileId::Inode { major: 20, minor: 9, inode: 10, generation: 11 };
        mapped(file, false, sample_id)
    });
    check(11, 0, b().u64(1).u64(2).u64(PERF_AUX_FLAG_TRUNCATED), |sample_id| {
        let aux = Aux { aux_offset: 1, aux_size: 2, flags: 1, sample_id };
        assert!(aux.is_truncated());
        Record::Aux(aux)
    });
    check(12, 0, b().u32(1).u32(2), |sample_id| {
        Record::ItraceStart(ThreadId { pid: 1, tid: 2, sample_id })
    });
    check(13, 0, b().u64(42), |sample_id| {
        Record::LostSamples(Loss { id: None, lost: 42, sample_id })
    });
    check(14, PERF_RECORD_MISC_SWITCH_OUT, b(), |sample_id| {
        Record::Switch(Switch { out: true, preempted: false, peer: None, sample_id })
    });
    check(15, 3 << 13, b().u32(1).u32(2), |sample_id| {
        let peer = Some(SwitchPeer { pid: 1, tid: 2 });
        Record::Switch(Switch { out: true, preempted: true, peer, sample_id })
    });
    check(17, 0, b().u64(1).u32(2).u16(1).u16(1).name("bpf_prog_x"), |sample_id| {
        Record::Ksymbol(Ksymbol {
            addr: 1,
            len: 2,
            ksym_type: 1,
            unregister: true,
            name: b"bpf_prog_x",
            sample_id,
        })
    });
    check(18, 0, b().u16(1).u16(0).u32(5).bytes(b"12345678"), |sample_id| {
        Record::BpfEvent(BpfEvent { type_: 1, flags: 0, id: 5, tag: *b"12345678", sample_id })
    });
    check(19, 0, b().u64(5).name("/a/b"), |sample_id| {
        Record::Cgroup(Cgroup { id: 5, path: b"/a/b", sample_id })
    });
    check(20, 0, b().u64(5).u16(1).u16(3).bytes(&[1, 2, 3, 4]), |sample_id| {
        Record::TextPoke(TextPoke { addr: 5, old: &[1], new: &[2, 3, 4], sample_id })
    });
    check(21, 0, b().u64(5), |sample_id| Record::AuxOutputHwId { hw_id: 5, sample_id });
}

#[test]
fn records_with_lists_are_decoded() {
    let layout = RecordLayout::new(&attr(ID_FIELDS));
    let bytes = trailer(b().u32(1).u32(2).u64(2).u64(3).u64(4).u64(5).u64(6)).record(16, 0);
    let Record::Namespaces(namespaces) = layout.decode(raw(&bytes)).unwrap() else { panic!() };
    let links: Vec<_> = namespaces.iter().map(|l| (l.dev, l.ino)).collect();
    assert_eq!(links, [(3, 4), (5, 6)]);
    assert_eq!(namespaces.sample_id, TRAILER);

    let bytes = trailer(b().u64(0xc00c1e).u64(2).u64(PERF_CONTEXT_USER).u64(0x1234)).record(22, 0);
    let Record::CallchainDeferred(deferred) = layout.decode(raw(&bytes)).unwrap() else { panic!() };
    assert_eq!(deferred.cookie, 0xc00c1e);
    let frames: Vec<_> = deferred.callchain.frames().collect();
    assert_eq!(frames, [Frame { context: CallchainContext::User, ip: 0x1234 }]);

    let mut with_counts = attr(ID_FIELDS);
    with_counts.read_format = (ReadFormat::GROUP | ReadFormat::ID | ReadFormat::LOST).bits();
    let layout = RecordLayout::new(&with_counts);
    let bytes = trailer(b().u32(1).u32(2).u64(1).u64(100).u64(7).u64(3)).record(8, 0);
    let Record::Read(read) = layout.decode(raw(&bytes)).unwrap() else { panic!() };
    let counts: Vec<_> = read.values.iter().map(|c| (c.value, c.id, c.lost)).collect();
    assert_eq!((read.pid, counts), (1, vec![(100, Some(7), Some(3))]));

    for (type_, body) in [(16, b().u32(1).u32(2).u64(u64::MAX)), (22, b().u64(1).u64(1 << 60))] {
        let bytes = trailer(body).record(type_, 0);
        let error = layout.decode(raw(&bytes)).unwrap_err();
        assert_eq!(error.offset, 24, "{error}");
    }
}

/// The layouts of perf-sys match the decoder, which is verified with `perf`.
#[test]
fn records_put_together_of_their_layouts_decode() {
    use zerocopy::IntoBytes;
    let id = perf_sample_id {
        pid: 10,
        tid: 11,
        time: 1000,
        id: 77,
        stream_id: 78,
        cpu: 3,
        res: 0,
        identifier: 77,
    };
    let layout = RecordLayout::new(&attr(ID_FIELDS));
    let shown = |type_: u32, fixed: &[u8], rest: &[u8]| {
        let bytes = b().bytes(fixed).bytes(rest).bytes(id.as_bytes()).record(type_, 0);
        let record = layout.decode(raw(&bytes)).unwrap();
        assert_eq!(record.sample_id(), Some(TRAILER), "{type_}");
        format!("{record:?}")
    };
    let has = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let zeros = [0; 24];
    let mmap = perf_record_mmap { pid: 1, tid: 2, addr: 3, len: 4, pgoff: 5 };
    let places = ["pid: 1", "tid: 2", "addr: 3", "len: 4", "pgoff: 5"];
    has(shown(1, mmap.as_bytes(), &zeros[..8]), &places);
    let mmap2 = perf_record_mmap2 {
        pid: 1,
        tid: 2,
        addr: 3,
        len: 4,
        pgoff: 5,
        file: [0; 24],
        prot: 6,
        flags: 7,
    };
    let text = shown(10, mmap2.as_bytes(), &zeros[..8]);
    has(text.clone(), &places);
    has(text, &["prot: 6", "flags: 7"]);
    has(shown(2, perf_record_lost { id: 1, lost: 2 }.as_bytes(), &[]), &["id: Some(1)", "lost: 2"]);
    has(shown(3, perf_record_comm { pid: 1, tid: 2 }.as_bytes(), &zeros[..8]), &places[..2]);
    let fork = perf_record_fork { pid: 1, ppid: 3, tid: 2, ptid: 4, time: 5 };
    for type_ in [4, 7] {
        has(shown(type_, fork.as_bytes(), &[]), &["pid: 1, ppid: 3, tid: 2, ptid: 4"]);
    }
    let throttle = perf_record_throttle { time: 1, id: 2, stream_id: 3 };
    for type_ in [5, 6] {
        has(shown(type_, throttle.as_bytes(), &[]), &["id: 2, stream_id: 3"]);
    }
    has(shown(8, perf_record_read { pid: 1, tid: 2 }.as_bytes(), &zeros[..8]), &places[..2]);
    let aux = perf_record_aux { aux_offset: 1, aux_size: 2, flags: 3 };
    has(shown(11, aux.as_bytes(), &[]), &["aux_offset: 1, aux_size: 2, flags: 3"]);
    let start = perf_record_itrace_start { pid: 1, tid: 2 };
    has(shown(12, start.as_bytes(), &[]), &places[..2]);
    has(shown(13, perf_record_lost_samples { lost: 7 }.as_bytes(), &[]), &["lost: 7"]);
    let switch = perf_record_switch { next_prev_pid: 1, next_prev_tid: 2 };
    has(shown(15, switch.as_bytes(), &[]), &places[..2]);
    let namespaces = perf_record_namespaces { pid: 1, tid: 2, nr_namespaces: 1 };
    let link = perf_ns_link_info { dev: 3, ino: 4 };
    has(shown(16, namespaces.as_bytes(), link.as_bytes()), &places[..2]);
    let ksymbol = perf_record_ksymbol { addr: 3, len: 4, ksym_type: 1, flags: 1 };
    let text = shown(17, ksymbol.as_bytes(), &zeros[..8]);
    has(text, &["addr: 3, len: 4, ksym_type: 1, unregister: true"]);
    let bpf = perf_record_bpf_event { type_: 1, flags: 2, id: 3, tag: [4; 8] };
    has(shown(18, bpf.as_bytes(), &[]), &["type_: 1, flags: 2, id: 3, tag: [4, 4"]);
    has(shown(19, perf_record_cgroup { id: 5 }.as_bytes(), &zeros[..8]), &["id: 5"]);
    let poke = perf_record_text_poke { addr: [9, 0], old_len: 1, new_len: 3 };
    has(shown(20, poke.as_bytes(), &zeros[..4]), &["addr: 9, old: [0], new: [0, 0, 0]"]);
    has(shown(21, perf_record_aux_output_hw_id { hw_id: 5 }.as_bytes(), &[]), &["hw_id: 5"]);
    let deferred = perf_record_callchain_deferred { cookie: 6, nr: 2 };
    has(shown(22, deferred.as_bytes(), &zeros[..16]), &["cookie: 6"]);
}

#[test]
fn unknown_types_stay_undecoded() {
    let layout = RecordLayout::new(&attr(ID_FIELDS));
    for type_ in [0, 23, 63, 64, u32::MAX] {
        let bytes = b().u64(1).record(type_, 7);
        let record = layout.decode(raw(&bytes)).unwrap();
        assert_eq!(record, Record::Unknown(raw(&bytes)));
        assert_eq!(record.sample_id(), None);
    }
}

/// A sample with every field that can be combined, and its values.
/// An error of a record that is too short has the name of its type.
#[test]
fn short_records_are_named_in_errors() {
    macro_rules! types {
        ($($type:ident)*) => { [$(($type, stringify!($type))),*] };
    }
    let layout = RecordLayout::new(&attr(SampleFlags::empty()));
    for (type_, name) in types![
        PERF_RECORD_MMAP PERF_RECORD_LOST PERF_RECORD_COMM PERF_RECORD_EXIT PERF_RECORD_THROTTLE
        PERF_RECORD_UNTHROTTLE PERF_RECORD_FORK PERF_RECORD_READ PERF_RECORD_MMAP2 PERF_RECORD_AUX
        PERF_RECORD_ITRACE_START PERF_RECORD_LOST_SAMPLES PERF_RECORD_SWITCH_CPU_WIDE
        PERF_RECORD_NAMESPACES PERF_RECORD_KSYMBOL PERF_RECORD_BPF_EVENT PERF_RECORD_CGROUP
        PERF_RECORD_TEXT_POKE PERF_RECORD_AUX_OUTPUT_HW_ID PERF_RECORD_CALLCHAIN_DEFERRED
    ] {
        let record = b().record(type_, 0);
        let error = layout.decode(raw(&record)).unwrap_err().to_string();
        assert!(error.split(' ').any(|word| word.trim_end_matches(':') == name), "{error}");
    }
}

fn full_sample() -> (perf_event_attr, Vec<u8>) {
    let mut attr = attr(SampleFlags::all() - SampleFlags::WEIGHT);
    attr.sample_type =
        SampleFlags::from_bits_truncate((1 << 25) - 1).difference(SampleFlags::WEIGHT).bits();
    attr.read_format = (ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::LOST).bits();
    attr.branch_sample_type =
        (BranchFlags::ANY | BranchFlags::HW_INDEX | BranchFlags::COUNTERS).bits();
    attr.sample_regs_user = 0b1010_0001;
    attr.sample_regs_intr = 1 << 63 | 1;
    let body = b()
        .u64(77) // identifier
        .u64(0x4000) // ip
        .u32(10)
        .u32(11) // tid
        .u64(1000) // time
        .u64(0xadd5) // addr
        .u64(77)
        .u64(78) // id, stream id
        .u32(3)
        .u32(0) // cpu
        .u64(5) // period
        .u64(123)
        .u64(50)
        .u64(2) // read: value, enabled, lost
        .u64(4)
        .u64(PERF_CONTEXT_KERNEL)
        .u64(1)
        .u64(PERF_CONTEXT_USER)
        .u64(2) // callchain
        .u32(12)
        .bytes(b"raw data 12b") // raw
        .u64(1)
        .u64(9)
        .u64(0x10)
        .u64(0x20)
        .u64(1 << 20 | 7 << 4 | 1)
        .u64(0xcc) // branches
        .u64(2)
        .u64(100)
        .u64(105)
        .u64(107) // user registers
        .u64(8)
        .bytes(b"stack\0\0\0")
        .u64(5) // user stack
        .u64(1 | 2 << 32 | 3 << 48) // weights
        .u64(2 | 1 << 5) // data source
        .u64(PERF_TXN_SYNC) // transaction
        .u64(1)
        .u64(200)
        .u64(263) // registers at the interrupt
        .u64(0x9000) // physical address
        .u64(0xc6) // cgroup
        .u64(4096)
        .u64(1 << 21) // page sizes
        .u64(3)
        .bytes(b"aux"); // aux
    (attr, body.record(9, PERF_RECORD_MISC_EXACT_IP | PERF_RECORD_MISC_USER))
}

#[test]
fn every_field_of_a_sample_is_decoded() {
    let (attr, bytes) = full_sample();
    let layout = RecordLayout::new(&attr);
    let record = raw(&bytes);
    let Record::Sample(s) = layout.decode(record).unwrap() else { panic!() };
    assert_eq!(s.sample_id(), TRAILER);
    assert_eq!(
        (s.identifier, s.ip, s.addr, s.period),
        (Some(77), Some(0x4000), Some(0xadd5), Some(5))
    );
    let count = s.read.unwrap().iter().next().unwrap();
    assert_eq!((count.value, count.time_enabled, count.lost), (123, Some(50), Some(2)));
    let chain = s.callchain.unwrap();
    let frames: Vec<_> = chain.frames().map(|f| (f.context, f.ip)).collect();
    assert_eq!(frames, [(CallchainContext::Kernel, 1), (CallchainContext::User, 2)]);
    assert_eq!(chain.deferred_cookie(), None);
    assert_eq!(s.raw, Some(&b"raw data 12b"[..]));
    let branches = s.branch_stack.unwrap();
    assert_eq!(branches.hw_idx, Some(9));
    let branch = branches.iter().next().unwrap();
    assert_eq!((branch.from, branch.to, branch.mispred(), branch.predicted()), (0x10, 0x20, 1, 0));
    assert_eq!((branch.cycles(), branch.type_(), branches.len()), (7, 1, 1));
    let counters = branches.counters.unwrap();
    assert_eq!((counters.get(0), counters.len(), counters.is_empty()), (Some(0xcc), 1, false));
    let regs = s.regs_user.unwrap();
    assert_eq!(
        (regs.get(0), regs.get(5), regs.get(7), regs.get(1)),
        (Some(100), Some(105), Some(107), None)
    );
    let stack = s.stack_user.unwrap();
    assert_eq!((stack.copied(), stack.data.len()), (&b"stack"[..], 8));
    assert_eq!(s.user_stack(), Some((regs, stack)));
    assert_eq!(Sample { stack_user: None, ..s }.user_stack(), None);
    let weight = s.weight.unwrap();
    assert_eq!((weight.var1_dw(), weight.var2_w(), weight.var3_w()), (1, 2, 3));
    assert_eq!((s.data_src.unwrap().mem_op(), s.data_src.unwrap().mem_lvl()), (2, 1));
    assert_eq!(s.transaction, Some(PERF_TXN_SYNC));
    let regs = s.regs_intr.unwrap();
    assert_eq!((regs.get(0), regs.get(63), regs.get(64)), (Some(200), Some(263), None));
    assert_eq!((s.phys_addr, s.cgroup), (Some(0x9000), Some(0xc6)));
    assert_eq!((s.data_page_size, s.code_page_size), (Some(4096), Some(1 << 21)));
    assert_eq!(s.aux, Some(&b"aux"[..]));
    assert!(s.is_exact());
    assert_eq!(record.cpu_mode(), CpuMode::User);

    // Found without decoding.
    assert_eq!(layout.time(record), TRAILER.time);
    assert_eq!(
        (layout.id(record), layout.cpu(record), layout.pid_tid(record)),
        (Some(77), Some(3), Some((10, 11)))
    );
    assert_eq!(layout.raw_data(record), None, "fields of variable size are before it");
}

#[test]
fn the_raw_data_is_found_behind_a_call_chain() {
    let layout = RecordLayout::new(&attr(SampleFlags::CALLCHAIN | SampleFlags::RAW));
    for frames in [0, 1, 5_u64] {
        let chain = (0..frames).fold(b().u64(frames), Bytes::u64);
        let bytes = chain.u32(4).bytes(b"data").record(9, 0);
        assert_eq!(layout.raw_data(raw(&bytes)), Some(&b"data"[..]), "{frames}");
    }
    for frames in [2, 1 << 61, u64::MAX - 1, u64::MAX] {
        let bytes = b().u64(frames).u32(4).bytes(b"data").record(9, 0);
        assert_eq!(layout.raw_data(raw(&bytes)), None, "the chain is longer than the record");
    }
}

#[test]
fn every_mode_of_the_cpu_has_its_name() {
    for (misc, mode) in [
        (PERF_RECORD_MISC_CPUMODE_UNKNOWN, CpuMode::Unknown),
        (PERF_RECORD_MISC_KERNEL, CpuMode::Kernel),
        (PERF_RECORD_MISC_USER, CpuMode::User),
        (PERF_RECORD_MISC_HYPERVISOR, CpuMode::Hypervisor),
        (PERF_RECORD_MISC_GUEST_KERNEL, CpuMode::GuestKernel),
        (PERF_RECORD_MISC_GUEST_USER, CpuMode::GuestUser),
        (PERF_RECORD_MISC_CPUMODE_MASK, CpuMode::Unknown),
    ] {
        // Other bits do not matter.
        let layout = RecordLayout::new(&attr(SampleFlags::empty()));
        for (other, is_exact) in [(0, false), (PERF_RECORD_MISC_EXACT_IP, true)] {
            let record = b().record(PERF_RECORD_SAMPLE, misc | other);
            assert_eq!(raw(&record).cpu_mode(), mode);
            let Record::Sample(sample) = layout.decode(raw(&record)).unwrap() else { panic!() };
            assert_eq!(sample.is_exact(), is_exact);
        }
    }
}

#[test]
fn the_place_of_a_cut_in_a_sample_is_reported() {
    let (attr, bytes) = full_sample();
    let layout = RecordLayout::new(&attr);
    for cut in 8..bytes.len() {
        let mut short = bytes[..cut].to_vec();
        short[6..8].copy_from_slice(&(cut as u16).to_ne_bytes());
        let (record, _) = RawRecord::split_first(&short, 0).unwrap();
        let error = layout.decode(record).unwrap_err();
        assert!(error.offset <= cut as u64, "{error}");
    }
}

#[test]
fn each_field_alone_has_the_same_place_in_plan_and_sample() {
    for bits in 0..1u64 << 9 {
        // The nine fields of fixed size, in every combination, then raw data.
        let order = [
            SampleFlags::IDENTIFIER,
            SampleFlags::IP,
            SampleFlags::TID,
            SampleFlags::TIME,
            SampleFlags::ADDR,
            SampleFlags::ID,
            SampleFlags::STREAM_ID,
            SampleFlags::CPU,
            SampleFlags::PERIOD,
        ];
        let mut flags = SampleFlags::RAW;
        let mut body = b();
        for (i, flag) in order.iter().enumerate() {
            if bits >> i & 1 != 0 {
                flags |= *flag;
                body = body.u64(100 + i as u64);
            }
        }
        let bytes = body.u32(4).bytes(b"data").record(9, 0);
        let layout = RecordLayout::new(&attr(flags));
        let Record::Sample(s) = layout.decode(raw(&bytes)).unwrap() else { panic!() };
        assert_eq!(layout.raw_data(raw(&bytes)), Some(&b"data"[..]));
        assert_eq!(layout.time(raw(&bytes)), s.time);
        assert_eq!(layout.id(raw(&bytes)), s.identifier.or(s.id));
        assert_eq!(layout.cpu(raw(&bytes)), s.cpu);
        assert_eq!(layout.pid_tid(raw(&bytes)).map(|t| t.0), s.pid);
        let expect = |i: u64| (bits >> i & 1 != 0).then_some(100 + i);
        assert_eq!((s.identifier, s.ip, s.addr), (expect(0), expect(1), expect(4)));
        assert_eq!((s.id, s.stream_id, s.period), (expect(5), expect(6), expect(8)));
    }
}

#[test]
fn an_empty_branch_stack_has_an_index_if_the_length_says_so() {
    let mut attr = attr(SampleFlags::BRANCH_STACK | SampleFlags::CGROUP);
    attr.branch_sample_type = BranchFlags::HW_INDEX.bits();
    let layout = RecordLayout::new(&attr);
    let none = b().u64(0).u64(5).record(9, 0);
    let Record::Sample(s) = layout.decode(raw(&none)).unwrap() else { panic!() };
    assert_eq!((s.branch_stack.unwrap().hw_idx, s.cgroup), (None, Some(5)));
    let empty = b().u64(0).u64(u64::MAX).u64(5).record(9, 0);
    let Record::Sample(s) = layout.decode(raw(&empty)).unwrap() else { panic!() };
    assert_eq!((s.branch_stack.unwrap().hw_idx, s.cgroup), (Some(u64::MAX), Some(5)));
    // A stack with a branch has one, whatever follows: the last word is a field of a newer kernel.
    let newer = b().u64(1).u64(9).u64(0x10).u64(0x20).u64(0).u64(5).u64(6).record(9, 0);
    let Record::Sample(s) = layout.decode(raw(&newer)).unwrap() else { panic!() };
    assert_eq!((s.branch_stack.unwrap().hw_idx, s.cgroup), (Some(9), Some(5)));
    // Without the flag there is no index: the third word is a field of a newer kernel.
    attr.branch_sample_type = 0;
    let layout = RecordLayout::new(&attr);
    let newer = b().u64(0).u64(5).u64(6).record(9, 0);
    let Record::Sample(s) = layout.decode(raw(&newer)).unwrap() else { panic!() };
    assert_eq!((s.branch_stack.unwrap().hw_idx, s.cgroup), (None, Some(5)));
}

/// Two events whose samples and trailers differ in layout and length.
fn two_events() -> Decoder {
    let first = attr(SampleFlags::IDENTIFIER | SampleFlags::TIME);
    let second =
        attr(SampleFlags::IDENTIFIER | SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME);
    let mut decoder = Decoder::new(&first);
    decoder.add(1, &first).unwrap();
    decoder.add(2, &second).unwrap();
    decoder
}

#[test]
fn a_shared_ring_is_decoded_by_id() {
    let decoder = two_events();
    let a = b().u64(1).u64(500).record(9, 0);
    let c = b().u64(2).u64(0x99).u32(10).u32(11).u64(600).record(9, 0);
    assert_eq!(decoder.time(raw(&a)), Some(Timestamp::from_nanos(500)));
    assert_eq!(decoder.time(raw(&c)), Some(Timestamp::from_nanos(600)));
    let Record::Sample(s) = decoder.decode(raw(&c)).unwrap() else { panic!() };
    assert_eq!((s.ip, s.tid), (Some(0x99), Some(11)));
}

#[test]
fn two_trailers_in_one_ring_are_distinguished_by_id() {
    let decoder = two_events();
    let of_first = b().u32(1).u32(2).name("a").u64(700).u64(1).record(3, 0);
    let of_second = b().u32(1).u32(2).name("a").u32(10).u32(11).u64(800).u64(2).record(3, 0);
    let id = |bytes: &[u8]| {
        let Record::Comm(comm) = decoder.decode(raw(bytes)).unwrap() else { panic!() };
        assert_eq!((comm.pid, comm.comm), (1, &b"a"[..]));
        assert_eq!(decoder.time(raw(bytes)), comm.sample_id.time);
        (comm.sample_id.id, comm.sample_id.tid, comm.sample_id.time.map(Timestamp::nanos))
    };
    assert_eq!(id(&of_first), (Some(1), None, Some(700)));
    assert_eq!(id(&of_second), (Some(2), Some(11), Some(800)));
    let lost = b().u64(2).u64(4).u32(10).u32(11).u64(900).u64(2).record(2, 0);
    let Record::Lost(l) = decoder.decode(raw(&lost)).unwrap() else { panic!() };
    assert_eq!((l.lost, l.sample_id.time), (4, Some(Timestamp::from_nanos(900))));
}

#[test]
fn equal_layouts_are_shared_and_others_are_found_at_once() {
    // A comparison with all layouts for each of these would take minutes.
    const COUNT: u64 = 1 << 16;
    let of = |regs| perf_event_attr {
        sample_regs_user: regs,
        ..attr(SampleFlags::IDENTIFIER | SampleFlags::TIME)
    };
    let mut decoder = Decoder::new(&of(0));
    for regs in 0..COUNT {
        decoder.add(regs + 1, &of(regs)).unwrap();
        decoder.add(COUNT + regs + 1, &of(regs)).unwrap();
    }
    for regs in (0..COUNT).step_by(1000) {
        let samples = [regs + 1, COUNT + regs + 1].map(|id| b().u64(id).u64(500).record(9, 0));
        let [first, second] = samples.each_ref().map(|s| decoder.layout(raw(s)).unwrap());
        assert_eq!(*first, RecordLayout::new(&of(regs)));
        assert!(std::ptr::eq(first, second));
    }
}

#[test]
fn records_of_unknown_events_are_refused() {
    let decoder = two_events();
    for bytes in [
        b().u64(3).u64(500).record(9, 0),
        b().u64(0).u64(500).record(9, 0), // no sample has the id 0
        b().u32(1).u32(2).name("a").u64(700).u64(3).record(3, 0),
    ] {
        let record = raw(&bytes);
        assert_eq!((decoder.layout(record), decoder.time(record)), (None, None));
        let error = decoder.decode(record).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::UnknownId(0 | 3)), "{error}");
    }
    let unknown = RawRecord::split_first(&b().u64(3).record(9, 0), 100)
        .map(|(r, _)| decoder.decode(r).unwrap_err().to_string());
    assert_eq!(unknown.unwrap(), "the id of a record: no known event has the id 3 at byte 100");
    let short = [b().record(9, 0), b().record(3, 0)];
    for bytes in &short {
        let error = decoder.decode(raw(bytes)).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::Read(_)), "{error}");
    }
    // Records that perf writes into its files have no id, or 0.
    let of_perf = b().u64(3).record(68, 0);
    assert_eq!(decoder.decode(raw(&of_perf)).unwrap(), Record::Unknown(raw(&of_perf)));
    let of_perf = b().u32(1).u32(2).name("a").u64(0).u64(0).record(3, 0);
    assert!(matches!(decoder.decode(raw(&of_perf)), Ok(Record::Comm(_))));
}

#[test]
fn events_need_their_ids_at_the_same_place() {
    let with = |fields| attr(SampleFlags::TIME | fields);
    let refused = |first: &perf_event_attr, second: &perf_event_attr| {
        let mut decoder = Decoder::new(first);
        decoder.add(1, first).is_err() || decoder.add(2, second).is_err()
    };
    let none = SampleFlags::empty();
    assert!(refused(&with(SampleFlags::IDENTIFIER), &with(none)));
    assert!(refused(&with(none), &with(SampleFlags::IDENTIFIER)));
    assert!(refused(&with(none), &with(SampleFlags::TID)), "none has an id");
    assert!(!refused(&with(none), &with(none)), "they need none in the same layout");
    // IDs without IDENTIFIER, as older recordings have them.
    assert!(refused(&with(SampleFlags::ID), &with(SampleFlags::ID | SampleFlags::TID)));
    assert!(!refused(&with(SampleFlags::ID), &with(SampleFlags::ID | SampleFlags::RAW)));
    let mut decoder = Decoder::new(&with(SampleFlags::ID));
    decoder.add(5, &with(SampleFlags::ID)).unwrap();
    decoder.add(6, &with(SampleFlags::ID | SampleFlags::RAW)).unwrap();
    let sample = b().u64(500).u64(6).u32(4).bytes(b"1234").record(9, 0);
    let Record::Sample(s) = decoder.decode(raw(&sample)).unwrap() else { panic!() };
    assert_eq!((s.id, s.raw), (Some(6), Some(&b"1234"[..])));
    let lost = b().u64(5).u64(4).u64(700).u64(5).record(2, 0);
    assert!(matches!(decoder.decode(raw(&lost)), Ok(Record::Lost(_))));
    // Without sample_id_all only samples have ids.
    let without = |fields| {
        let mut attr = attr(SampleFlags::IDENTIFIER | fields);
        attr.set_sample_id_all(false);
        attr
    };
    assert!(refused(&with(SampleFlags::IDENTIFIER), &without(none)));
    let mut decoder = Decoder::new(&without(none));
    decoder.add(1, &without(none)).unwrap();
    decoder.add(2, &without(SampleFlags::TID)).unwrap();
    let comm = b().u32(1).u32(2).name("a").record(3, 0);
    assert!(matches!(decoder.decode(raw(&comm)), Ok(Record::Comm(_))));
}

proptest! {
    #[test]
    fn no_bytes_panic(
        type_ in 0u32..26, misc: u16, mut body: Vec<u8>, sample_type: u64, read_format in 0u64..32,
        branches: u64, regs: u64, sample_id_all: bool,
    ) {
        body.truncate(60_000);
        let mut attr = attr(SampleFlags::from_bits_retain(sample_type));
        attr.read_format = read_format;
        attr.branch_sample_type = branches;
        attr.sample_regs_user = regs;
        attr.sample_regs_intr = !regs;
        attr.set_sample_id_all(sample_id_all);
        let layout = RecordLayout::new(&attr);
        let mut decoder = Decoder::new(&attr);
        let _ = decoder.add(1, &attr);
        let bytes = Bytes(body).record(type_, misc);
        let record = raw(&bytes);
        let _ = (layout.time(record), layout.id(record), layout.raw_data(record), layout.pid_tid(record));
        if let Ok(Record::Sample(s)) = decoder.decode(record) {
            let _ = s.callchain.map(|c| c.frames().count());
            let _ = s.branch_stack.map(|b| b.iter().count());
            let _ = s.read.map(|r| r.iter().count());
        }
        let _ = layout.decode(record).map(|r| r.sample_id());
    }

    #[test]
    fn bytes_split_into_records_or_not_at_all(bytes: Vec<u8>) {
        let mut rest = &bytes[..];
        let mut offset = 0;
        while let Some((record, after)) = RawRecord::split_first(rest, offset) {
            prop_assert!(record.bytes().len() >= 8);
            offset += record.bytes().len() as u64;
            rest = after;
        }
        prop_assert_eq!(offset as usize + rest.len(), bytes.len());
    }
}
