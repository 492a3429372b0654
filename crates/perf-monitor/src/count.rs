//! Counts of `read(2)`, `PERF_SAMPLE_READ` and `PERF_RECORD_READ`.

use crate::error::DecodeError;
use crate::flags::ReadFormat;
use trace_common::{Cursor, ReadError};

/// The count of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The count, not scaled.
    pub value: u64,
    /// Nanoseconds that the event was enabled, with `ReadFormat::TOTAL_TIME_ENABLED`.
    pub time_enabled: Option<u64>,
    /// Nanoseconds that it was on the PMU, with `ReadFormat::TOTAL_TIME_RUNNING`. It is less than
    /// `time_enabled` when more events were enabled than the PMU has counters, and when a task was on cores
    /// of another PMU.
    pub time_running: Option<u64>,
    /// Id of the event, with `ReadFormat::ID`.
    pub id: Option<u64>,
    /// Samples that did not fit in the ring, with `ReadFormat::LOST`.
    pub lost: Option<u64>,
}

/// A count, extrapolated to the time that the event was enabled.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scaled {
    /// The count: exact if [`is_estimate`](Self::is_estimate) is false.
    pub value: u64,
    /// Fraction of the enabled time that the event was on the PMU, 0 to 1.
    pub coverage: f64,
    /// Whether the value was extrapolated.
    pub is_estimate: bool,
}

impl Count {
    /// The count, extrapolated to the time that the event was enabled if it was not always on the
    /// PMU.
    ///
    /// `None` if the event was never on the PMU, so that no estimate is possible. Without both
    /// times in the read format the count is not scaled.
    ///
    /// On machines with several kinds of cores, the result for an event of a task is what it would be if
    /// all cores were like those of the PMU of the event.
    pub fn scaled(&self) -> Option<Scaled> {
        let (Some(enabled), Some(running)) = (self.time_enabled, self.time_running) else {
            return Some(Scaled { value: self.value, coverage: 1.0, is_estimate: false });
        };
        if running >= enabled && (enabled > 0 || self.value > 0) {
            return Some(Scaled { value: self.value, coverage: 1.0, is_estimate: false });
        }
        if running == 0 {
            return None;
        }
        let value = u128::from(self.value) * u128::from(enabled) / u128::from(running);
        Some(Scaled {
            value: u64::try_from(value).unwrap_or(u64::MAX),
            coverage: running as f64 / enabled as f64,
            is_estimate: true,
        })
    }

    /// The difference to `earlier`, a reading of the same event. The value of a
    /// [snapshot](crate::EventUnit::is_snapshot) is no sum: the later one is its value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |a: Option<u64>, b: Option<u64>| Some(a?.wrapping_sub(b?));
        Self {
            value: self.value.wrapping_sub(earlier.value),
            time_enabled: less(self.time_enabled, earlier.time_enabled),
            time_running: less(self.time_running, earlier.time_running),
            id: self.id,
            lost: less(self.lost, earlier.lost),
        }
    }
}

/// The counts of a group: its leader first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCounts {
    /// One for each event, each with the times of the group.
    pub counts: Vec<Count>,
}

impl GroupCounts {
    /// The count of the event with this id.
    pub fn by_id(&self, id: u64) -> Option<&Count> {
        self.counts.iter().find(|c| c.id == Some(id))
    }
}

/// Counts in the layout of a read format, borrowed from a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadValues<'a> {
    format: ReadFormat,
    bytes: &'a [u8],
}

impl<'a> ReadValues<'a> {
    /// Reads the bytes of one value of `format` from the cursor.
    pub(crate) fn take(cursor: &mut Cursor<'a>, format: ReadFormat) -> Result<Self, ReadError> {
        let times = words(format, ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
        let each = 1 + words(format, ReadFormat::ID | ReadFormat::LOST);
        let len = if format.contains(ReadFormat::GROUP) {
            let nr = cursor.clone().u64()?;
            // The cursor rejects counts that do not fit in the record. The product cannot overflow,
            // as the number is clamped to more than any record can hold.
            (1 + times + usize::try_from(nr).unwrap_or(usize::MAX).min(1 << 16) * each) * 8
        } else {
            (each + times) * 8
        };
        Ok(Self { format, bytes: cursor.bytes(len)? })
    }

    fn word(&self, index: usize) -> u64 {
        let at = index * 8;
        self.bytes
            .get(at..at + 8)
            .and_then(|b| b.first_chunk())
            .map_or(0, |b| u64::from_ne_bytes(*b))
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        if self.format.contains(ReadFormat::GROUP) { self.word(0) as usize } else { 1 }
    }

    /// Whether there are no events. A group always has its leader.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts: of one event, or of all in the group.
    pub fn iter(&self) -> impl Iterator<Item = Count> + 'a {
        let this = *self;
        let has = move |flag| this.format.contains(flag);
        let group = has(ReadFormat::GROUP);
        let enabled = has(ReadFormat::TOTAL_TIME_ENABLED).then(|| this.word(1));
        let running = has(ReadFormat::TOTAL_TIME_RUNNING)
            .then(|| this.word(1 + usize::from(enabled.is_some())));
        let times =
            words(this.format, ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
        let each = 1 + words(this.format, ReadFormat::ID | ReadFormat::LOST);
        (0..this.len()).map(move |i| {
            // group: nr times… {value id lost}…; single event: value times… id lost
            let (value, mut next) = if group {
                (1 + times + i * each, 1 + times + i * each + 1)
            } else {
                (0, 1 + times)
            };
            let mut optional = |flag| {
                has(flag).then(|| {
                    next += 1;
                    this.word(next - 1)
                })
            };
            Count {
                value: this.word(value),
                time_enabled: enabled,
                time_running: running,
                id: optional(ReadFormat::ID),
                lost: optional(ReadFormat::LOST),
            }
        })
    }
}

const fn words(format: ReadFormat, which: ReadFormat) -> usize {
    (format.bits() & which.bits()).count_ones() as usize
}

/// Bytes that `read(2)` needs for `events` events.
pub(crate) const fn read_size(format: ReadFormat, events: usize) -> usize {
    let times = words(format, ReadFormat::TOTAL_TIME_ENABLED.union(ReadFormat::TOTAL_TIME_RUNNING));
    let each = 1 + words(format, ReadFormat::ID.union(ReadFormat::LOST));
    if format.contains(ReadFormat::GROUP) {
        (1 + times + events * each) * 8
    } else {
        (times + each) * 8
    }
}

/// Decodes the result of `read(2)`.
pub(crate) fn decode(bytes: &[u8], format: ReadFormat) -> Result<ReadValues<'_>, DecodeError> {
    ReadValues::take(&mut Cursor::new(bytes), format)
        .map_err(|e| DecodeError::read("the values of a counter", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn every_combination_of_bits_has_its_place() {
        for bits in 0..32u64 {
            let format = ReadFormat::from_bits_retain(bits);
            let has = |f| format.contains(f);
            let group = has(ReadFormat::GROUP);
            let mut words = Vec::new();
            let events = if group { 2 } else { 1 };
            if group {
                words.push(2);
            } else {
                words.push(100);
            }
            if has(ReadFormat::TOTAL_TIME_ENABLED) {
                words.push(50);
            }
            if has(ReadFormat::TOTAL_TIME_RUNNING) {
                words.push(25);
            }
            for i in 0..events {
                if group {
                    words.push(100 + i);
                }
                if has(ReadFormat::ID) {
                    words.push(7 + i);
                }
                if has(ReadFormat::LOST) {
                    words.push(3 + i);
                }
            }
            let bytes = bytes(&words);
            assert_eq!(read_size(format, events as usize), bytes.len());
            let counts: Vec<Count> = decode(&bytes, format).unwrap().iter().collect();
            assert_eq!(counts.len(), events as usize);
            for (i, count) in counts.iter().enumerate() {
                let i = i as u64;
                assert_eq!(count.value, 100 + i, "{format:?}");
                assert_eq!(count.time_enabled, has(ReadFormat::TOTAL_TIME_ENABLED).then_some(50));
                assert_eq!(count.time_running, has(ReadFormat::TOTAL_TIME_RUNNING).then_some(25));
                assert_eq!(count.id, has(ReadFormat::ID).then_some(7 + i));
                assert_eq!(count.lost, has(ReadFormat::LOST).then_some(3 + i));
            }
            let short = decode(&bytes[..bytes.len() - 1], format).unwrap_err();
            assert!(short.offset == 0, "{short}");
        }
    }

    #[test]
    fn a_group_of_absurd_size_is_refused() {
        for nr in [u64::MAX, 1 << 40, 4] {
            assert!(decode(&bytes(&[nr, 1, 2]), ReadFormat::GROUP).is_err());
        }
    }

    #[test]
    fn scaled_counts_are_marked_as_estimates() {
        let count = |value, enabled, running| Count {
            value,
            time_enabled: Some(enabled),
            time_running: Some(running),
            ..Count::default()
        };
        let exact = count(10, 5, 5).scaled().unwrap();
        assert_eq!((exact.value, exact.is_estimate), (10, false));
        let half = count(10, 8, 4).scaled().unwrap();
        assert_eq!((half.value, half.coverage, half.is_estimate), (20, 0.5, true));
        assert_eq!(count(0, 8, 0).scaled(), None, "it never counted");
        assert_eq!(count(0, 0, 0).scaled(), None);
        let huge = count(u64::MAX, u64::MAX, 1).scaled().unwrap();
        assert_eq!(huge.value, u64::MAX, "clamped, not wrapped");
        assert_eq!(Count { value: 3, ..Count::default() }.scaled().unwrap().value, 3);
    }
}
