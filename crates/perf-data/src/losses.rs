//! What was lost when a recording was made.

use perf_monitor::{Loss, RawRecord, Record};

/// The losses of a recording. The kernel reports one loss twice: in a `PERF_RECORD_LOST` when a record fits
/// again, and in the count of the event (`PERF_FORMAT_LOST`, Linux 6.0) that the recorder writes at the end.
/// No `PERF_RECORD_LOST` follows the losses at the end, so that the counts can be more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The sum of all `PERF_RECORD_LOST`.
    reported: u64,
    /// The counts of the events: `PERF_RECORD_LOST_SAMPLES` without a time.
    counted: u64,
    /// Samples that the hardware lost: `PERF_RECORD_LOST_SAMPLES` of the kernel.
    by_hardware: u64,
}

/// `PERF_RECORD_MISC_LOST_SAMPLES_BPF` of perf: these samples were left out by a filter.
const BY_FILTER: u16 = 1 << 15;

impl Losses {
    /// Takes a record of the recording. Others than those of losses change nothing.
    pub fn push(&mut self, raw: RawRecord<'_>, record: &Record<'_>) {
        let has_time = |lost: &Loss| lost.sample_id.time.is_some_and(|time| time.nanos() != 0);
        let (sum, lost) = match record {
            Record::Lost(lost) => (&mut self.reported, lost),
            Record::LostSamples(_) if raw.misc() & BY_FILTER != 0 => return,
            Record::LostSamples(lost) if has_time(lost) => (&mut self.by_hardware, lost),
            Record::LostSamples(lost) => (&mut self.counted, lost),
            _ => return,
        };
        *sum = sum.saturating_add(lost.lost);
    }

    /// Number of records that are in the counts of the events only. It is known when all records were added.
    pub const fn unreported(&self) -> u64 {
        self.counted.saturating_sub(self.reported)
    }

    /// Number of samples and records that the kernel or the hardware lost.
    pub const fn total(&self) -> u64 {
        // Recorders and kernels before Linux 6.0 write no counts.
        let all = self.reported.saturating_add(self.unreported());
        all.saturating_add(self.by_hardware)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_sys::*;

    /// Adds a record with this body, and with this time.
    fn add(losses: &mut Losses, type_: u32, misc: u16, body: &[u64], time: u64) {
        let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY);
        attr.sample_type = PERF_SAMPLE_TIME;
        attr.set_sample_id_all(true);
        let layout = perf_monitor::RecordLayout::new(&attr);
        let size = 16 + 8 * body.len() as u64;
        let header = u64::from(type_) | u64::from(misc) << 32 | size << 48;
        let words = [&[header], body, &[time]].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        losses.push(raw, &layout.decode(raw).unwrap());
    }

    #[test]
    fn a_loss_that_is_reported_twice_counts_once() {
        let mut losses = Losses::default();
        add(&mut losses, PERF_RECORD_LOST, 0, &[1, 500], 90);
        assert_eq!((losses.unreported(), losses.total()), (0, 500));
        add(&mut losses, PERF_RECORD_LOST_SAMPLES, 0, &[200], 0);
        assert_eq!((losses.unreported(), losses.total()), (0, 500));
        add(&mut losses, PERF_RECORD_LOST_SAMPLES, 0, &[330], 0);
        assert_eq!((losses.unreported(), losses.total()), (30, 530));
    }

    #[test]
    fn samples_that_the_hardware_lost_are_no_count_of_an_event() {
        let mut losses = Losses::default();
        add(&mut losses, PERF_RECORD_LOST_SAMPLES, 0, &[7], 90);
        assert_eq!((losses.unreported(), losses.total()), (0, 7));
    }

    #[test]
    fn samples_that_a_filter_left_out_are_not_lost() {
        let mut losses = Losses::default();
        add(&mut losses, PERF_RECORD_LOST_SAMPLES, BY_FILTER, &[7], 0);
        assert_eq!((losses.unreported(), losses.total()), (0, 0));
    }
}
