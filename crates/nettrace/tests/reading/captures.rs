//! Captures of real runtimes against the answers of an independent reader.

use crate::common;
use std::collections::HashMap;

use nettrace::{Item, Options, Order, Parser, Reader};

#[test]
fn captures_have_the_answers_of_an_independent_reader() {
    let captures = common::captures_with_answers();
    assert!(captures.len() >= 6, "only {} captures found", captures.len());
    let mut wrong = 0;
    for (file, mut expected) in captures {
        if file.ends_with("t31-drops.nettrace") {
            // The answers have 763748: they count what a sequence point shows (5235 and 22696)
            // once more at the next event, and not what threads lost before their first event
            // (2936 and 1). The payloads, which the workload numbers, are with this number: see
            // `losses_are_what_the_workload_says`.
            expected["lost"] = (763_748 - 5_235 - 22_696 + 2_936 + 1).into();
        }
        for order in [Order::Stream, Order::Time] {
            let (got, stats) = common::answers(&file, order);
            if got != expected {
                wrong += 1;
                eprintln!("{} {order:?}:\n got {got}\nwant {expected}", file.display());
            }
            let mut clean = stats;
            clean.unknown_blocks = 0;
            clean.events_without_metadata = 0;
            clean.unreadable_metadata = 0;
            clean.early_flushes = 0;
            clean.damaged_blocks = 0;
            clean.truncated_at = None;
            assert_eq!(stats, clean, "{}", file.display());
        }
    }
    assert_eq!(wrong, 0);
}

/// The workload numbers the events that each thread writes, so the payloads say how many were
/// lost between two that came.
#[test]
fn losses_are_what_the_workload_says() {
    let Some(dir) = common::more_captures() else {
        testkit::skip::without("NETTRACE_CAPTURES, a folder with t31-drops.nettrace");
        return;
    };
    let bytes = std::fs::read(dir.join("t31-drops.nettrace")).unwrap();
    let mut reader = Reader::new(&bytes[..]);
    let mut last: HashMap<u64, i64> = HashMap::new();
    let (mut lost, mut reported, mut reported_between) = (0, 0, 0);
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Event(event) => {
                // `WriteEvent(6, thread, seq)` takes the overload for two longs: eight bytes
                // for the thread, although its metadata says four.
                let number = event.payload().last_chunk().map(|b| i64::from_le_bytes(*b)).unwrap();
                if let Some(before) = last.insert(event.header().capture_thread, number) {
                    lost += number - before - 1;
                }
            }
            Item::Loss(gap) => {
                reported += gap.count;
                // Not what was lost before the first event and after the last one.
                if gap.after.is_some() && gap.count != 323 {
                    reported_between += gap.count as i64;
                }
            }
            _ => {}
        }
    }
    assert_eq!(lost, reported_between);
    assert_eq!(reported, reader.stats().lost);
    assert_eq!(reader.parser().lost_by_thread().map(|(_, n)| n).sum::<u64>(), reported);
}

#[test]
fn events_come_in_the_order_of_time() {
    for (file, _) in common::captures_with_answers() {
        let bytes = std::fs::read(&file).unwrap();
        let mut reader = Reader::new(&bytes[..]);
        let mut last = i64::MIN;
        let mut n = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let now = event.header().ticks;
            assert!(now >= last, "{}: event {n} goes back by {}", file.display(), last - now);
            last = now;
            n += 1;
        }
    }
}

/// However the input is cut into chunks, and whatever the order, the same events come.
#[test]
fn chunks_of_any_size_give_the_same_events() {
    let bytes = std::fs::read(common::data().join("t10-startup-reverse.nettrace")).unwrap();
    let collect = |order, chunk: usize| {
        let mut parser = Parser::new(Options::new().order(order));
        let mut seen = Vec::new();
        let mut drain = |parser: &mut Parser| {
            while let Some(event) = parser.next_event().unwrap() {
                let stack: Vec<_> = event.stack().instruction_pointers().collect();
                seen.push((*event.header(), event.payload().to_vec(), stack));
            }
        };
        for chunk in bytes.chunks(chunk) {
            parser.push(chunk);
            drain(&mut parser);
        }
        assert!(parser.is_complete());
        seen
    };
    let mut stream = collect(Order::Stream, bytes.len());
    let time = collect(Order::Time, bytes.len());
    for chunk in [1, 7, 8, 4_096] {
        assert!(collect(Order::Stream, chunk) == stream, "{chunk}");
        assert!(collect(Order::Time, chunk) == time, "{chunk}");
    }
    stream.sort_by_key(|(header, ..)| header.ticks);
    assert!(stream == time, "a stable sort of the whole is what the merge must give");
}

/// Every event before a cut comes, then the cut is said, and where.
#[test]
fn cut_streams_give_all_before_the_cut() {
    let whole = std::fs::read(common::data().join("t10-filter.nettrace")).unwrap();
    let read = |bytes: &[u8], order| {
        let mut reader = Reader::with_options(bytes, Options::new().order(order));
        let mut timestamps = Vec::new();
        let end = loop {
            match reader.next_event() {
                Ok(Some(event)) => timestamps.push(event.header().ticks),
                Ok(None) => break None,
                Err(e) => {
                    assert!(e.is_truncated(), "{e}");
                    assert!(reader.next_event().unwrap().is_none(), "said once");
                    break Some(e.offset);
                }
            }
        };
        assert_eq!(reader.stats().truncated_at, end);
        (timestamps, end)
    };
    for order in [Order::Stream, Order::Time] {
        let (all, end) = read(&whole, order);
        assert_eq!((all.len(), end), (149, None));
        let mut longest = 0;
        for cut in (0..whole.len()).step_by(13) {
            let (some, end) = read(&whole[..cut], order);
            assert_eq!(end, Some(cut as u64));
            assert!(all.starts_with(&some), "cut at {cut}");
            assert!(some.len() >= longest, "cut at {cut}");
            longest = some.len();
        }
        assert!(longest > 140, "{longest}");
    }
    // A target that was killed while it streamed.
    let killed = std::fs::read(common::data().join("t9-killed.nettrace")).unwrap();
    let (events, end) = read(&killed, Order::Time);
    assert_eq!(end, Some(killed.len() as u64));
    assert!(events.len() > 1_000, "{}", events.len());
}
