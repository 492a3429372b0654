//! Analyses of damaged traces: they process the events before the damage, and, with recovery, those
//! after it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use crate::common;
use gotrace::analysis::{
    Allocations, AllocationsReport, GcCycles, GcReport, Profile, ProfileKind, ProfileScope,
    Scheduling, SchedulingOptions, SchedulingReport, Summarizer, Summary, Utilization,
    UtilizationOptions,
};
use gotrace::{Event, Index, Reader};
use proptest::prelude::*;
use proptest::sample::{Index as At, select};

/// All analyses.
struct Analyses {
    summarizer: Summarizer,
    profiles: Vec<Profile>,
    utilization: Utilization,
    scheduling: Scheduling,
    collections: GcCycles,
    allocations: Allocations,
    events: u64,
}

impl Analyses {
    fn new() -> Self {
        Self {
            summarizer: Summarizer::new(),
            profiles: ProfileKind::ALL.map(|k| Profile::new(k, ProfileScope::all())).into(),
            utilization: Utilization::new(UtilizationOptions::default()),
            scheduling: Scheduling::new(SchedulingOptions::default()),
            collections: GcCycles::new(10),
            allocations: Allocations::new(),
            events: 0,
        }
    }

    fn event(&mut self, event: Event<'_>) {
        self.events += 1;
        self.summarizer.event(event);
        self.profiles.iter_mut().for_each(|profile| profile.event(event));
        self.utilization.event(event);
        self.scheduling.event(event);
        self.collections.event(event);
        self.allocations.event(event);
    }

    /// Reads a trace, and after damage the rest if `recover`; returns whether it is damaged.
    fn read(&mut self, trace: &[u8], recover: bool) -> bool {
        let mut reader = Reader::new(trace).unwrap();
        let mut is_damaged = false;
        loop {
            match reader.next_event() {
                Ok(Some(event)) => self.event(event),
                Ok(None) => return is_damaged,
                Err(_) => {
                    is_damaged = true;
                    if !recover || !matches!(reader.recover(), Ok(Some(_))) {
                        return true;
                    }
                }
            }
        }
    }

    /// Reads this number of events.
    fn read_first(&mut self, trace: &[u8], events: u64) {
        let mut reader = Reader::new(trace).unwrap();
        while self.events < events {
            self.event(reader.next_event().unwrap().unwrap());
        }
    }

    fn finish(self) -> (Summary, SchedulingReport, GcReport, AllocationsReport, Vec<(u64, u128)>) {
        let profiles = self.profiles.into_iter().map(|mut profile| {
            profile.finish();
            let delays = profile.stacks().map(|(delay, _)| (delay.count, delay.time.as_nanos()));
            delays.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        });
        let profiles = profiles.collect();
        let _ = self.utilization.finish().of(std::time::Duration::from_micros(10));
        (
            self.summarizer.finish(),
            self.scheduling.finish(),
            self.collections.finish(),
            self.allocations.finish(),
            profiles,
        )
    }
}

/// The number of events of these generations, without the sync event at their end.
fn count(generations: &[u8]) -> u64 {
    let mut events = 0_u64;
    if !generations.is_empty() {
        common::events_of(generations, |_| events += 1);
    }
    events.saturating_sub(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_trace_is_analysed_up_to_the_cut(name in select(&common::V2[..]), at: At) {
        let trace = common::recorded(name);
        let cut = &trace[..16 + at.index(trace.len() - 16)];
        Analyses::new().read(cut, false);
        // Of the last generation some batches are missing. Those before it have the same events as
        // in the whole trace, and give the same answers.
        let index = Index::read(cut).unwrap();
        // Up to Go 1.25 nothing ends a generation: cut after any batch, it looks complete.
        prop_assume!(index.damage().is_some());
        let complete = index.generations().last().map_or(0, |last| last.offset + last.len);
        let events = count(&trace[..complete as usize]);
        let (mut analyses, mut same) = (Analyses::new(), Analyses::new());
        analyses.read_first(cut, events);
        same.read_first(&trace, events);
        prop_assert_eq!(analyses.events, same.events);
        let (a, b) = (analyses.finish(), same.finish());
        prop_assert_eq!(a.1.latency, b.1.latency);
        prop_assert_eq!(a.4, b.4);
        prop_assert_eq!(a.2.assists, b.2.assists);
    }

    #[test]
    fn a_damaged_trace_is_analysed_to_the_end(
        name in select(&common::V2[..]),
        flips in common::flips(),
    ) {
        let mut trace = common::recorded(name);
        common::flip(&mut trace, &flips);
        let mut analyses = Analyses::new();
        analyses.read(&trace, true);
        let (summary, scheduling, collections, allocations, _) = analyses.finish();
        let of_causes: u64 = scheduling.by_cause.iter().map(|(_, h)| h.count()).sum();
        prop_assert_eq!(of_causes, scheduling.latency.count());
        prop_assert!(collections.longest.len() <= 10);
        prop_assert!(allocations.snapshots.len() <= 65);
        for task in summary.tasks {
            prop_assert!(task.own.is_none() || task.end.is_some());
        }
    }
}
