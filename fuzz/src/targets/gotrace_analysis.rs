//! The analyses of any trace, damaged or not: they end, and their sums agree.

use crate::go_trace;
use gotrace::analysis::{
    Allocations, CriticalPaths, GcCycles, Profile, ProfileKind, ProfileScope, RequestFilter,
    Requests, Scheduling, SchedulingOptions, Summarizer, Utilization, UtilizationOptions,
};
use std::time::Duration;

pub fn target(data: &[u8]) {
    let mut scheduling = Scheduling::new(SchedulingOptions::default());
    let mut collections = GcCycles::new(10);
    let mut allocations = Allocations::new();
    let mut summarizer = Summarizer::new();
    let mut utilization = Utilization::new(UtilizationOptions::default());
    let mut profiles = ProfileKind::ALL.map(|kind| Profile::new(kind, ProfileScope::all()));
    let mut requests = Requests::new(RequestFilter::All, 10);
    let versions = ["21", "22", "23", "25", "26"];
    go_trace::read_all_with(
        data,
        &versions,
        |_| true,
        |event| {
            scheduling.push(event);
            collections.push(event);
            allocations.push(event);
            summarizer.push(event);
            utilization.push(event);
            requests.push(event);
            profiles.iter_mut().for_each(|profile| profile.push(event));
        },
    );
    let report = scheduling.finish();
    let of_causes: u64 = report.by_cause.iter().map(|(_, latency)| latency.count()).sum();
    assert_eq!(of_causes, report.latency.count());
    assert!(report.processors.len() <= 512);
    assert!(collections.finish().longest.len() <= 10);
    assert!(allocations.finish().snapshots.len() <= 65);
    let _ = summarizer.finish();
    let _ = utilization.finish().of(Duration::from_millis(1));
    for mut profile in profiles {
        profile.finish();
        assert!(profile.stacks().all(|(delay, _)| delay.count > 0));
    }
    let mut paths = CriticalPaths::new(requests.finish());
    go_trace::read_all_with(data, &versions, |_| true, |event| paths.push(event));
    for path in paths.finish() {
        let sum: Duration = path.pieces.iter().map(|piece| piece.duration()).sum();
        assert_eq!(sum, path.request.duration());
    }
}
