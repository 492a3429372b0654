//! Traces that several threads read: the results are those of one thread, up to the first damage.

use crate::go_trace;
use gotrace::analysis::{
    GcCycles, GcReport, Profile, ProfileKind, ProfileScope, Scheduling, SchedulingOptions,
    SchedulingReport,
};
use gotrace::parallel::{Parallel, Split};
use std::io::Cursor;
use std::num::NonZeroUsize;

/// The reports, and the sums of the profile.
type Results = (SchedulingReport, GcReport, Vec<(u64, u128)>);

fn results(trace: &[u8], threads: usize) -> Option<Results> {
    let threads = NonZeroUsize::new(threads).unwrap();
    let scheduling = Scheduling::new(SchedulingOptions::default());
    let profile = Profile::new(ProfileKind::Scheduler, ProfileScope::all());
    let mut analysis = ((scheduling, GcCycles::new(10)), profile);
    let parallel = Parallel::new(threads).limits(go_trace::limits());
    let mut reader = parallel.read(|| Ok(Cursor::new(trace)), &mut analysis).ok()?;
    while let Ok(Some(event)) = reader.next_event() {
        analysis.push(event);
    }
    let ((scheduling, collections), mut profile) = analysis;
    profile.finish();
    let mut sums: Vec<_> =
        profile.stacks().map(|(delay, _)| (delay.count, delay.time.as_nanos())).collect();
    sums.sort_unstable();
    Some((scheduling.finish(), collections.finish(), sums))
}

pub fn target(data: &[u8]) {
    let Some(trace) = go_trace::trace_of(data, &["22", "23", "25", "26"]) else { return };
    match (results(&trace, 3), results(&trace, 1)) {
        (Some(several), Some(one)) => {
            // The reports are too long to print.
            assert!(several.0 == one.0, "the scheduling");
            assert!(several.1 == one.1, "the GCs");
            assert_eq!(several.2, one.2, "the profile");
        }
        (several, one) => assert_eq!(several.is_some(), one.is_some()),
    }
}
