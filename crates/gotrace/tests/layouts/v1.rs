//! Format v1: small traces assembled here, whole and damaged.
#![allow(clippy::expect_used, reason = "helpers of tests may panic")]

use gotrace::analysis::{Clip, Scheduling, SchedulingOptions};
use gotrace::{ErrorKind, Reader, TextFormatter, Timestamp};
use proptest::prelude::*;
use trace_common::append_uvarint;

/// Types of v1 events, as Go's runtime numbers them.
mod ty {
    pub(super) const BATCH: u8 = 1;
    pub(super) const FREQUENCY: u8 = 2;
    pub(super) const STACK: u8 = 3;
    pub(super) const GOMAXPROCS: u8 = 4;
    pub(super) const PROC_START: u8 = 5;
    pub(super) const GO_CREATE: u8 = 13;
    pub(super) const GO_START: u8 = 14;
    pub(super) const GO_BLOCK: u8 = 20;
    pub(super) const GO_UNBLOCK: u8 = 21;
    pub(super) const GO_SYSCALL: u8 = 28;
    pub(super) const GO_SYSCALL_EXIT: u8 = 29;
    pub(super) const GO_SYSCALL_BLOCK: u8 = 30;
    pub(super) const GO_WAITING: u8 = 31;
    pub(super) const GO_IN_SYSCALL: u8 = 32;
    pub(super) const HEAP_ALLOC: u8 = 33;
    pub(super) const FUTILE_WAKEUP: u8 = 36;
    pub(super) const STRING: u8 = 37;
    pub(super) const GO_START_LABEL: u8 = 41;
    pub(super) const USER_TASK_CREATE: u8 = 45;
    pub(super) const USER_LOG: u8 = 48;
    pub(super) const CPU_SAMPLE: u8 = 49;
}

/// Assembles a trace.
#[derive(Clone)]
struct Trace(Vec<u8>);

impl Trace {
    fn new(version: u32) -> Self {
        Self(format!("go 1.{version} trace\0\0\0").into_bytes())
    }

    fn uvarint(mut self, value: u64) -> Self {
        append_uvarint(value, &mut self.0);
        self
    }

    fn event(mut self, ty: u8, args: &[u64]) -> Self {
        if args.len() < 4 {
            self.0.push(ty | (args.len() as u8 - 1) << 6);
            return args.iter().fold(self, |trace, &arg| trace.uvarint(arg));
        }
        let bytes = args.iter().fold(Self(Vec::new()), |bytes, &arg| bytes.uvarint(arg)).0;
        self.0.push(ty | 3 << 6);
        self = self.uvarint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn batch(self, proc: u64, ticks: u64) -> Self {
        self.event(ty::BATCH, &[proc, ticks])
    }

    fn string(mut self, id: u64, string: &[u8]) -> Self {
        self.0.push(ty::STRING);
        self.uvarint(id).bytes(string)
    }

    /// A length and that many bytes.
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.uvarint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// The end of a trace: a tick is two nanoseconds, stack 1 and its strings.
    fn end(self) -> Self {
        self.batch(u64::MAX, 0)
            .event(ty::FREQUENCY, &[500_000_000])
            .string(1, b"main.main")
            .string(2, b"main.go")
            .event(ty::STACK, &[1, 1, 0x40, 1, 2, 7])
    }

    fn text(&self) -> String {
        let (text, error) = read(&self.0);
        assert!(error.is_none(), "{error:?} after\n{text}");
        text
    }

    /// What came before the error, and the error.
    fn error(&self) -> (String, gotrace::Error) {
        let (text, error) = read(&self.0);
        (text, error.expect("the trace is wrong"))
    }
}

/// The text of all events, and the error after them.
fn read(trace: &[u8]) -> (String, Option<gotrace::Error>) {
    let mut text = Vec::new();
    let error = read_to(trace, &mut text).err();
    (String::from_utf8_lossy(&text).into_owned(), error)
}

fn read_to(trace: &[u8], text: &mut Vec<u8>) -> Result<(), gotrace::Error> {
    let mut reader = Reader::new(trace)?;
    let mut formatter = TextFormatter::new();
    let mut last = i64::MIN;
    while let Some(event) = reader.next_event()? {
        assert!(event.time().nanos() > last, "times rise");
        last = event.time().nanos();
        formatter.append(event, text);
        if text.last() != Some(&b'\n') {
            text.push(b'\n');
        }
    }
    Ok(())
}

/// Goroutines 1 (running), 2 (waiting), 4 and 3 (nothing said of them) exist when the trace
/// begins at tick 100 on P 0.
fn started() -> Trace {
    Trace::new(21)
        .batch(0, 100)
        .event(ty::GO_CREATE, &[0, 1, 1, 0])
        .event(ty::GO_CREATE, &[0, 2, 1, 0])
        .event(ty::GO_WAITING, &[0, 2])
        .event(ty::GO_CREATE, &[0, 4, 1, 0])
        .event(ty::GO_CREATE, &[0, 3, 1, 0])
        .event(ty::PROC_START, &[0, 77])
        .event(ty::GO_START, &[0, 1, 1])
        .event(ty::GOMAXPROCS, &[1, 8, 0])
}

const STARTED: &str = "\
M=-1 P=-1 G=-1 Sync Time=-1 N=1
M=-1 P=0 G=2 StateTransition Time=0 GoID=2 Undetermined->Waiting Reason=\"\"
M=77 P=0 G=-1 StateTransition Time=1 ProcID=0 Undetermined->Running Reason=\"\"
M=77 P=0 G=1 StateTransition Time=2 GoID=1 Undetermined->Running Reason=\"\"
M=-1 P=-1 G=-1 StateTransition Time=3 GoID=3 Undetermined->Runnable Reason=\"\"
M=-1 P=-1 G=-1 StateTransition Time=4 GoID=4 Undetermined->Runnable Reason=\"\"
";

#[test]
fn goroutines_that_were_there_before_have_a_status() {
    let expected = format!("{STARTED}M=-1 P=-1 G=-1 Sync Time=5 N=2\n");
    assert_eq!(started().end().text(), expected);
}

/// The P of the event is that of the goroutine that started tracing.
#[test]
fn system_calls_from_before_the_trace_have_no_p() {
    let trace = Trace::new(21)
        .batch(0, 100)
        .event(ty::GO_CREATE, &[0, 1, 1, 0])
        .event(ty::GO_CREATE, &[0, 2, 1, 0])
        .event(ty::GO_IN_SYSCALL, &[0, 2])
        .event(ty::PROC_START, &[0, 77])
        .event(ty::GO_START, &[0, 1, 1])
        .event(ty::GOMAXPROCS, &[1, 8, 0])
        .event(ty::HEAP_ALLOC, &[100, 4096])
        // One that began in the trace, with the P.
        .event(ty::GO_SYSCALL, &[100, 1])
        .event(ty::GO_SYSCALL_BLOCK, &[1])
        .event(ty::HEAP_ALLOC, &[100, 4096])
        .end();
    assert!(trace.text().contains("P=0 G=2 StateTransition Time=0 GoID=2 Undetermined->Syscall"));
    let of = |from: i64| {
        let at = Timestamp::from_nanos;
        let mut clip = Clip::new(at(from), Timestamp::MAX);
        let mut scheduling = Scheduling::new(SchedulingOptions::default());
        let mut reader = Reader::new(&trace.0[..]).expect("a header");
        let mut last = at(0);
        while let Some(event) = reader.next_event().expect("a valid trace") {
            last = event.time();
            match from {
                i64::MIN => scheduling.push(event),
                _ => clip.push(event, &mut |event| scheduling.push(event)),
            }
        }
        let report = scheduling.finish();
        let nanos = report.processors.iter().map(|of| of.syscall * of.length.as_nanos() as f64);
        (nanos.sum::<f64>().round() as i64, last.nanos())
    };
    let (syscall, last) = of(i64::MIN);
    assert!(syscall > 190 && syscall < last - 300, "{syscall} of {last} ns");
    assert_eq!(of(50).0, syscall);
    // Within the call of goroutine 1.
    assert_eq!(of(last - 100), (100, last));
}

#[test]
fn a_trace_without_events_has_one_sync_event() {
    assert_eq!(Trace::new(11).end().text(), "M=-1 P=-1 G=-1 Sync Time=0 N=1\n");
}

#[test]
fn system_calls_are_pairs_and_end_where_they_say() {
    let text = started()
        .event(ty::GO_SYSCALL, &[10, 1])
        .event(ty::GO_SYSCALL, &[10, 9])
        .event(ty::GO_SYSCALL_BLOCK, &[10])
        // Written at tick 181, it happened at tick 141: before the heap grew.
        .event(ty::HEAP_ALLOC, &[20, 4096])
        .event(ty::GO_SYSCALL_EXIT, &[30, 1, 2, 141])
        .end()
        .text();
    let text = text.strip_prefix(STARTED).unwrap();
    let stack = "\tmain.main @ 0x40\n\t\tmain.go:7\n";
    let expected = format!(
        "\
M=77 P=0 G=1 StateTransition Time=22 GoID=1 Running->Syscall Reason=\"\"
TransitionStack=
{stack}
Stack=
{stack}M=77 P=0 G=1 StateTransition Time=23 GoID=1 Syscall->Running Reason=\"\"
M=77 P=0 G=1 StateTransition Time=42 GoID=1 Running->Syscall Reason=\"\"
M=-1 P=1000003 G=1 StateTransition Time=82 GoID=1 Syscall->Runnable Reason=\"\"
M=77 P=0 G=-1 Metric Time=102 Name=\"/memory/classes/heap/objects:bytes\" \
         Value=Value{{Uint64(4096)}}
M=-1 P=-1 G=-1 Sync Time=103 N=2
"
    );
    assert_eq!(text, expected);
}

/// P 1 waits for what P 0 does at the same time, though its batch comes first.
#[test]
fn a_start_waits_for_the_unblock() {
    let text = Trace::new(19)
        .batch(1, 120)
        .event(ty::PROC_START, &[0, 78])
        .event(ty::GO_START, &[0, 2, 3])
        .0;
    let trace =
        Trace([text, started().event(ty::GO_UNBLOCK, &[19, 2, 2, 0]).0[16..].to_vec()].concat());
    let text = trace.clone().end().text();
    let after = text.strip_prefix(STARTED).unwrap();
    assert_eq!(
        after,
        "M=78 P=1 G=-1 StateTransition Time=40 ProcID=1 Undetermined->Running Reason=\"\"
M=77 P=0 G=1 StateTransition Time=41 GoID=2 Waiting->Runnable Reason=\"\"
M=78 P=1 G=2 StateTransition Time=42 GoID=2 Runnable->Running Reason=\"\"
M=-1 P=-1 G=-1 Sync Time=43 N=2
"
    );

    // Nobody unblocks: there is no order.
    let stuck = started().batch(1, 120).event(ty::GO_START, &[0, 2, 3]);
    let (text, error) = stuck.end().error();
    assert!(matches!(error.kind(), ErrorKind::BrokenOrder), "{error}");
    assert_eq!(text, "", "a trace that is wrong has no events");
}

#[test]
fn samples_are_sorted_and_may_be_of_nobody() {
    let text = started()
        .event(ty::CPU_SAMPLE, &[0, 130, u64::MAX, 0, 1])
        .event(ty::CPU_SAMPLE, &[0, 120, 0, 1, 1])
        .end()
        .text();
    let samples: Vec<&str> = text.lines().filter(|l| l.contains("StackSample")).collect();
    assert_eq!(samples, ["M=-1 P=0 G=1 StackSample Time=40", "M=-1 P=-1 G=-1 StackSample Time=60"]);

    let old = Trace::new(11).batch(0, 1).event(ty::CPU_SAMPLE, &[0, 1, 0, 1, 1]).end();
    assert!(matches!(old.error().1.kind(), ErrorKind::InvalidEvent(ty::CPU_SAMPLE)));
}

#[test]
fn logs_have_their_message_in_place() {
    let text = started()
        .event(ty::USER_TASK_CREATE, &[0, 1, 0, 1, 0])
        .event(ty::USER_LOG, &[0, 1, 2, 0])
        .bytes(b"a message")
        .end()
        .text();
    assert!(text.contains("ID=1 Parent=18446744073709551615 Type=\"main.main\""), "{text}");
    assert!(text.contains("Task=1 Category=\"main.go\" Message=\"a message\""), "{text}");
}

/// Go's reader gives such events out and panics when they are looked at.
#[test]
fn ids_missing_from_the_tables_are_refused() {
    let (text, error) = started().event(ty::USER_LOG, &[0, 1, 99, 0]).bytes(b"m").end().error();
    assert_eq!(text, STARTED);
    assert_eq!(error.to_string(), "unknown string 99 (at byte 57, M 77, in UserLog)");

    // The label is an event of its own, after the start.
    let labelled = started().event(ty::GO_BLOCK, &[1, 1]).event(ty::GO_START_LABEL, &[1, 3, 1, 99]);
    let (text, error) = labelled.end().error();
    assert!(text.contains("GoID=3 Runnable->Running"), "{text}");
    assert_eq!(error.to_string(), "unknown string 99 (at byte 60, M 77, in GoLabel)");

    // Of a stack that lacks a string, only the events that use it.
    let broken = started().event(ty::GO_SYSCALL, &[5, 2]).end();
    let (text, error) = broken.event(ty::STACK, &[2, 1, 0x50, 1, 88, 7]).error();
    assert_eq!(text, STARTED);
    assert!(matches!(error.kind(), ErrorKind::UnknownId { what: "string", id: 88 }), "{error}");
}

#[test]
fn errors_say_what_and_where() {
    let end = |trace: Trace| trace.end().error().1.to_string();
    assert_eq!(
        Trace::new(21).event(ty::PROC_START, &[0, 1]).error().1.to_string(),
        "ProcStart outside of any batch (at byte 16)"
    );
    assert_eq!(
        started().error().1.to_string(),
        "the generation has no frequency event (at byte 57)"
    );
    assert_eq!(
        end(started().event(ty::GO_BLOCK, &[1, 1, 1])),
        "GoBlock has 3 arguments instead of 2 (at byte 57)"
    );
    assert_eq!(
        end(started().event(ty::GO_SYSCALL_EXIT, &[1, 2, 2, 50])),
        "GoSysExit: goroutine 2 is not in the state that the event says or needs (at byte 57)"
    );
    assert_eq!(
        end(started().event(ty::GO_CREATE, &[1, 3, 1, 0])),
        "no thread can advance: the order of events is broken (at byte 57)"
    );
    assert_eq!(
        end(started().event(ty::PROC_START, &[1, 3])),
        "ProcStart: proc 0 is not in the state that the event says or needs (at byte 57)"
    );
    assert_eq!(end(started().string(1, b"x")), "string 1 is defined twice (at byte 79)");
    assert_eq!(
        end(started().string(1, b"")),
        "string 1 has no identifier or is empty (at byte 57)"
    );
    let (text, error) = started().event(ty::FUTILE_WAKEUP, &[1]).end().error();
    assert_eq!(error.to_string(), "unexpected v1 event FutileWakeup (at byte 57)");
    assert_eq!(text, STARTED);
    let mut cut = started().end().0;
    cut.truncate(cut.len() - 2);
    assert!(read(&cut).1.unwrap().to_string().starts_with("arguments: unexpected end of data"));
}

/// What may take time that grows with the square of the size: none of it does.
#[test]
fn no_square_time() {
    const N: u64 = 100_000;
    // System calls of goroutines without a later event that shows whether they block.
    let mut calls = Trace::new(21).batch(0, 0);
    for go in 1..=N {
        calls = calls
            .event(ty::GO_CREATE, &[1, go, 1, 0])
            .event(ty::GO_START, &[1, go, 1])
            .event(ty::GO_SYSCALL, &[1, 0])
            .event(ty::GO_SYSCALL_BLOCK, &[1]);
        if go > 1 {
            calls = calls.event(ty::HEAP_ALLOC, &[1, go]);
        }
    }
    assert_eq!(calls.end().text().lines().filter(|l| l.contains("Metric")).count() as u64, N - 1);

    // As many Ps as may be wait for one goroutine, while another P continues.
    let mut waiting = Trace::new(21);
    for proc in 1..60_000 {
        waiting = waiting.batch(proc, 1).event(ty::GO_START, &[0, 1, 1 << 40]);
    }
    waiting = waiting.batch(0, 0).event(ty::GO_CREATE, &[0, 1, 1, 0]);
    waiting = waiting.event(ty::GO_START, &[0, 1, 1]);
    for seq in 1..=N {
        waiting = waiting
            .event(ty::GO_BLOCK, &[1, 0])
            .event(ty::HEAP_ALLOC, &[1, seq])
            .batch(100_000, 4 * seq + 2)
            .batch(0, 4 * seq);
    }
    assert!(matches!(waiting.end().error().1.kind(), ErrorKind::BrokenOrder));
}

proptest! {
    #[test]
    fn any_bytes_give_an_error_or_events(version in 0usize..3, bytes: Vec<u8>) {
        let header = Trace::new([11, 19, 21][version]);
        read(&[header.0, bytes].concat());
    }

    #[test]
    fn damage_gives_an_error_or_events(
        edits in prop::collection::vec((16usize..400, any::<u8>()), 1..8),
        cut in 100usize..400,
    ) {
        let whole = started()
            .event(ty::USER_LOG, &[0, 1, 2, 0])
            .bytes(b"message")
            .event(ty::GO_SYSCALL, &[10, 1])
            .event(ty::GO_SYSCALL_BLOCK, &[10])
            .event(ty::GO_SYSCALL_EXIT, &[30, 1, 2, 141])
            .batch(1, 150)
            .event(ty::PROC_START, &[0, 78])
            .event(ty::GO_START, &[0, 3, 1])
            .event(ty::GO_UNBLOCK, &[19, 2, 2, 0])
            .event(ty::CPU_SAMPLE, &[0, 130, 1, 3, 1])
            .end();
        whole.text();
        let mut bytes = whole.0;
        for (at, byte) in edits {
            if let Some(b) = bytes.get_mut(at) {
                *b = byte;
            }
        }
        bytes.truncate(cut);
        read(&bytes);
    }
}
