//! The samples of a timeline as profiles.

use super::{GivenLabels, Label, Labels, Measure, Profile, Unit};
use crate::sampled::SampledEvents;
use std::collections::BTreeMap;
use std::time::Duration;
use trace_common::ClockDomain;
use trace_timeline::{Event, EventKind, SampleKind, SampledEventId, Tables, TextId, Timestamp};

/// Collects the samples of a timeline: a [`Profile`] for each kind and event.
///
/// ```
/// use trace_export::profile::Samples;
/// # fn f(events: &[trace_timeline::Event], tables: &trace_timeline::Tables) {
/// let mut samples = Samples::new();
/// for event in events {
///     samples.push(event, tables);
/// }
/// for (name, profile) in samples.into_profiles(tables) {
///     println!("{name}: {} {}", profile.count(), profile.measure().events);
/// }
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Samples {
    profiles: BTreeMap<(SampleKind, SampledEventId), Spanned>,
    events: SampledEvents,
    /// The labels of samples on and off the CPU, if they are one profile.
    states: Option<[GivenLabels; 2]>,
    keeps_order: bool,
    /// Nanoseconds of the wall clock when the clock of the timeline shows 0.
    wall_clock: Option<i64>,
}

#[derive(Debug)]
struct Spanned {
    profile: Profile,
    first: Timestamp,
    last: Timestamp,
}

impl Samples {
    /// A collection without samples.
    pub fn new() -> Self {
        Self::default()
    }

    /// A collection with one profile, `wall`, of the samples on the CPU whose weight is a time, and of
    /// those off the CPU. They have a label `state`: `on-cpu` or `off-cpu`. Other samples are left out.
    pub fn wall_clock(tables: &mut Tables) -> Self {
        let state = tables.text(b"state");
        let states = ["on-cpu", "off-cpu"].map(|value| {
            let label = (state, Label::Text(tables.text(value.as_bytes())));
            Box::from([label])
        });
        Self { states: Some(states), ..Self::default() }
    }

    /// Keeps the order of the samples: see [`Profile::keep_order`].
    pub const fn keep_order(&mut self) {
        self.keeps_order = true;
    }

    /// Adds an event, if it is a sample. The first reading of the wall clock gives the time of the
    /// profiles. Samples have the labels `process`, `pid`, `cgroup`, `container`,
    /// `thread`, `comm` and `goroutine`, as far as they are known. Methods of .NET traces have their module: see
    /// [`Profile::show_modules`].
    pub fn push(&mut self, event: &Event, tables: &Tables) {
        self.push_with(event, &[], tables);
    }

    /// Adds an event, if it is a sample, with more labels. They follow the others, also those of the same name.
    pub fn push_with(&mut self, event: &Event, labels: &[(TextId, Label)], tables: &Tables) {
        if let EventKind::Clock { time, domain: ClockDomain::Realtime, reading } = event.kind {
            self.wall_clock.get_or_insert(reading.nanos_since(time));
        }
        let EventKind::Sample { entity, kind, stack, weight, thread, event: of, .. } = event.kind
        else {
            return;
        };
        let of = self.events.first(of, tables);
        let (key, others) = match &self.states {
            None => ((kind, of), Box::default()),
            Some(_) if unit(kind, of, tables) != Unit::Nanoseconds => return,
            Some([on, off]) => {
                let state = if kind == SampleKind::OffCpu { off } else { on };
                (WALL, state.clone())
            }
        };
        let (is_wall, keeps_order) = (self.states.is_some(), self.keeps_order);
        // The time of a sample is before it.
        let start = match unit(kind, of, tables) {
            Unit::Nanoseconds => event.time - Duration::from_nanos(weight),
            _ => event.time,
        };
        let Spanned { profile, first, last } = self.profiles.entry(key).or_insert_with(|| {
            let mut profile = Profile::new(match is_wall {
                true => Measure {
                    events: "samples".into(),
                    weight: WALL_NAME.into(),
                    unit: Unit::Nanoseconds,
                    period: 0,
                },
                false => measure(kind, of, tables),
            });
            if keeps_order {
                profile.keep_order();
            }
            if !is_wall && is_of_dotnet(kind, of) {
                profile.show_modules();
            }
            Spanned { profile, first: start, last: event.time }
        });
        (*first, *last) = (start.min(*first), event.time.max(*last));
        let others = match labels {
            [] => others,
            labels => others.iter().chain(labels).copied().collect(),
        };
        // The entity can be the thread.
        let entities = [Some(entity), thread.filter(|thread| *thread != entity)];
        let labels = Labels { entities, others };
        let labels = profile.label_set(labels);
        // A sample of a recorder that counts them can stand for several.
        let count = if profile.measure().unit == Unit::Count { weight } else { 1 };
        profile.add(stack, labels, count, weight);
    }

    /// The profiles with their names, those with most samples first: the name of the event, as
    /// `cycles`, or `go-cpu`, `managed` or `allocations`. They cover the time from the begin of the first
    /// sample, if samples are times, to the last one: see [`Profile::set_span`].
    pub fn into_profiles(self, tables: &Tables) -> Vec<(String, Profile)> {
        let (is_wall, wall_clock) = (self.states.is_some(), self.wall_clock);
        let named = |((kind, event), Spanned { mut profile, first, last })| {
            let start = wall_clock.map_or(0, |offset| first.nanos().saturating_add(offset));
            let duration = last.nanos_since(first).unsigned_abs();
            profile.set_span(u64::try_from(start).unwrap_or(0), duration);
            let name = if is_wall { WALL_NAME.to_owned() } else { name(kind, event, tables) };
            (name, profile)
        };
        let mut profiles: Vec<(String, Profile)> = self.profiles.into_iter().map(named).collect();
        profiles.sort_by_key(|(_, profile)| std::cmp::Reverse(profile.count()));
        profiles
    }
}

/// The key of the profile of samples on and off the CPU.
const WALL: (SampleKind, SampledEventId) = (SampleKind::Cpu, SampledEventId::NONE);
const WALL_NAME: &str = "wall";

fn name(kind: SampleKind, event: SampledEventId, tables: &Tables) -> String {
    let event = tables.str(tables.sampled_event(event).name);
    match kind {
        _ if !event.is_empty() => event.into_owned(),
        SampleKind::GoCpu => "go-cpu".to_owned(),
        SampleKind::Managed => "managed".to_owned(),
        SampleKind::Allocation => "allocations".to_owned(),
        SampleKind::OffCpu => "off-cpu".to_owned(),
        _ => "cpu".to_owned(),
    }
}

pub(super) fn unit(kind: SampleKind, event: SampledEventId, tables: &Tables) -> Unit {
    match kind {
        SampleKind::Allocation => Unit::Bytes,
        SampleKind::OffCpu => Unit::Nanoseconds,
        _ if event == SampledEventId::NONE => Unit::Count,
        _ if tables.get(tables.sampled_event(event).unit) == b"ns" => Unit::Nanoseconds,
        _ => Unit::Occurrences,
    }
}

/// Whether samples are those of .NET traces. Events of the kernel have a name.
fn is_of_dotnet(kind: SampleKind, event: SampledEventId) -> bool {
    match kind {
        SampleKind::Managed | SampleKind::Allocation => true,
        SampleKind::Cpu => event == SampledEventId::NONE,
        _ => false,
    }
}

fn measure(kind: SampleKind, event: SampledEventId, tables: &Tables) -> Measure {
    let weight = match kind {
        SampleKind::Allocation => "alloc_space".to_owned(),
        _ => name(kind, event, tables),
    };
    let unit = unit(kind, event, tables);
    Measure { events: "samples".into(), weight: weight.into(), unit, period: 0 }
}
