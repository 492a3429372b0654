//! Captures of real runtimes against the answers of an independent reader.

mod common;

use nettrace::Order;

#[test]
fn captures_have_the_answers_of_an_independent_reader() {
    let captures = common::captures_with_answers();
    assert!(captures.len() >= 6, "only {} captures found", captures.len());
    let mut wrong = 0;
    for (file, expected) in captures {
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
