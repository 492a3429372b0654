//! Comparison of two texts of the same trace.

use std::fmt;

/// The first difference between two texts of events, formatted for a person.
#[derive(Debug)]
pub(crate) struct Difference {
    event: usize,
    ours: String,
    theirs: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = |text: &str| text.replace('\n', "\n        | ");
        write!(
            f,
            "first different at event {}\n  ours:   {}\n  theirs: {}",
            self.event,
            indent(&self.ours),
            indent(&self.theirs)
        )
    }
}

/// Compares the texts byte for byte.
pub(crate) fn difference(ours: &[u8], theirs: &[u8]) -> Option<Difference> {
    if ours == theirs {
        return None;
    }
    let (mut left, mut right) = (Events(ours), Events(theirs));
    let mut event = 0;
    loop {
        event += 1;
        let (ours, theirs) = (left.next(), right.next());
        if ours != theirs {
            let show = |side: Option<&[u8]>| match side {
                None => "(no more events)".to_owned(),
                Some(text) => String::from_utf8_lossy(&text[..text.len().min(3000)]).into_owned(),
            };
            return Some(Difference { event, ours: show(ours), theirs: show(theirs) });
        }
        ours?;
    }
}

/// Counts the events in a text.
pub(crate) fn count(text: &[u8]) -> usize {
    Events(text).count()
}

/// Splits a text into events. An event starts at a line that is neither empty nor indented nor the
/// title of a stack, in both kinds of text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Events<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Events<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let mut end = 0;
        loop {
            end += self.0[end..]
                .iter()
                .position(|&b| b == b'\n')
                .map_or(self.0.len() - end, |n| n + 1);
            let rest = &self.0[end..];
            let inside = rest.first().is_some_and(|b| matches!(b, b'\t' | b'\n'))
                || rest.starts_with(b"Stack=\n")
                || rest.starts_with(b"TransitionStack=\n");
            if !inside {
                let (event, rest) = self.0.split_at(end);
                self.0 = rest;
                return Some(event);
            }
        }
    }
}

/// Normalizes a text: sorts events that follow each other within a nanosecond each, and keeps their
/// times.
///
/// For traces of Go ≤ 1.21 the reference iterates over maps, so the order of events of one clock
/// tick differs in every run, each one nanosecond after the previous one. All of its runs have this
/// normalized text in common.
pub(crate) fn unordered_within_ticks(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut chain: Vec<(i64, Vec<u8>)> = Vec::new();
    for event in Events(text) {
        let (time, rest) = without_time(event);
        if chain.last().is_some_and(|&(last, _)| time != last.wrapping_add(1)) {
            write_chain(&mut chain, &mut out);
        }
        chain.push((time, rest));
    }
    write_chain(&mut chain, &mut out);
    out
}

fn write_chain(chain: &mut Vec<(i64, Vec<u8>)>, out: &mut Vec<u8>) {
    if let Some((first, _)) = chain.first() {
        out.extend_from_slice(format!("{first}\n").as_bytes());
    }
    chain.sort_by(|a, b| a.1.cmp(&b.1));
    for (_, text) in chain.drain(..) {
        out.extend_from_slice(&text);
    }
}

/// The time of an event, and its text without the time.
fn without_time(event: &[u8]) -> (i64, Vec<u8>) {
    const MARK: &[u8] = b" Time=";
    let Some(at) = event.windows(MARK.len()).position(|w| w == MARK) else {
        return (0, event.to_vec());
    };
    let value = &event[at + MARK.len()..];
    let end = value.iter().position(|b| !matches!(b, b'-' | b'0'..=b'9')).unwrap_or(value.len());
    let time = std::str::from_utf8(&value[..end]).ok().and_then(|t| t.parse().ok()).unwrap_or(0);
    (time, [&event[..at], &value[end..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] =
        b"M=1 P=2 G=3 A Time=10 X\nStack=\n\tf @ 0x1\n\t\tfile:1\n\nM=1 P=2 G=3 B Time=11\n";

    #[test]
    fn events_keep_their_stacks() {
        let events: Vec<_> = Events(TWO).collect();
        assert_eq!(events.len(), 2);
        assert!(events[0].ends_with(b"file:1\n\n"));
        assert_eq!(events.concat(), TWO);
    }

    #[test]
    fn the_first_different_event_is_named() {
        assert!(difference(TWO, TWO).is_none());
        let shorter = difference(&TWO[..TWO.len() - 22], TWO).unwrap();
        assert_eq!(shorter.event, 2);
        assert_eq!(shorter.ours, "(no more events)");
    }

    #[test]
    fn only_neighbouring_nanoseconds_may_change_places() {
        let swapped =
            b"M=1 P=2 G=3 B Time=10\nM=1 P=2 G=3 A Time=11 X\nStack=\n\tf @ 0x1\n\t\tfile:1\n\n";
        assert_eq!(unordered_within_ticks(TWO), unordered_within_ticks(swapped));
        let later = String::from_utf8(TWO.to_vec()).unwrap().replace("Time=11", "Time=12");
        assert_ne!(unordered_within_ticks(later.as_bytes()), unordered_within_ticks(swapped));
    }
}
