//! Feature sections: where, when and how a recording was made.

use crate::build_id::BuildIdEntry;
use crate::bytes::{Section, put_string, put_strings};
use crate::error::{Error, Result};
use crate::event::{self, PlacesById, RecordedEvent, clock_of_id};
use crate::layout::Feature;
use crate::tracing::TracingData;
use std::time::{Duration, SystemTime};
use trace_common::{BuildId, ClockDomain, Cursor, Limits, Timestamp};

/// The description of a recording and its machine.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Features {
    /// Name of the machine.
    pub hostname: Option<String>,
    /// Release of its kernel.
    pub os_release: Option<String>,
    /// Version of the recorder.
    pub version: Option<String>,
    /// Architecture of the machine.
    pub arch: Option<String>,
    /// Its CPUs.
    pub cpus: Option<Cpus>,
    /// Model of the CPU.
    pub cpu_desc: Option<String>,
    /// Vendor, family, model and stepping of the CPU.
    pub cpu_id: Option<String>,
    /// Memory in KiB.
    pub total_memory_kib: Option<u64>,
    /// Command line of the recorder.
    pub command_line: Vec<String>,
    /// Cores and packages.
    pub topology: Option<CpuTopology>,
    /// Numbers and names of the PMUs.
    pub pmus: Vec<(u32, String)>,
    /// Groups of events.
    pub groups: Vec<EventGroup>,
    /// Times of the first and the last sample.
    pub sample_time: Option<(Timestamp, Timestamp)>,
    /// Resolution of the clock of the events, in nanoseconds.
    pub clock_resolution: Option<u64>,
    /// The clock of the events and the wall clock at one moment.
    pub clock: Option<ClockReference>,
    /// Build ids of mapped files.
    pub build_ids: Vec<BuildIdEntry>,
    /// Formats of tracepoints.
    pub tracing: Option<TracingData>,
    /// Sections that are present but not decoded, with their size.
    pub others: Vec<(u32, u64)>,
    /// Sections that could not be decoded.
    pub damaged: Vec<(u32, Error)>,
}

/// Numbers of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpus {
    /// CPUs that are present.
    pub available: u32,
    /// CPUs that were online.
    pub online: u32,
}

/// Cores and packages of the CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuTopology {
    /// The lists of CPUs in one package.
    pub packages: Vec<String>,
    /// The lists of CPUs in one core.
    pub cores: Vec<String>,
    /// Core and package of each CPU.
    pub cpus: Vec<(u32, u32)>,
}

/// A group of events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventGroup {
    /// Its name, `{anon_group}` without one.
    pub name: String,
    /// Index of its leader in the recording's events.
    pub leader: u32,
    /// Number of members, with the leader.
    pub members: u32,
}

impl EventGroup {
    /// A group without a name.
    pub fn new(leader: u32, members: u32) -> Self {
        Self { name: "{anon_group}".to_owned(), leader, members }
    }
}

/// Readings of the wall clock and of the clock of the events, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockReference {
    /// The `clockid_t` of the events.
    pub clock_id: u32,
    /// The time of the wall clock.
    pub realtime: Timestamp,
    /// The time of the clock of the events.
    pub clock: Timestamp,
}

impl ClockReference {
    /// The clock of the events. `None` if it is none of [`ClockDomain`].
    pub const fn clock_domain(&self) -> Option<ClockDomain> {
        clock_of_id(self.clock_id as i32)
    }

    /// Nanoseconds from the clock of the events to the wall clock, clamped at the ends of `i64`.
    pub const fn offset_nanos(&self) -> i64 {
        self.realtime.nanos_since(self.clock)
    }

    /// The wall-clock time of a record with this time. `None` before 1970.
    pub fn realtime_at(&self, at: Timestamp) -> Option<SystemTime> {
        let offset = i128::from(at.nanos()) - i128::from(self.clock.nanos());
        let nanos = u64::try_from(i128::from(self.realtime.nanos()) + offset).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))
    }
}

/// The version of [`ClockReference`]'s section.
const CLOCK_DATA_VERSION: u32 = 1;

impl Features {
    /// The sections to write, by number, without build ids and tracing data.
    pub(crate) fn sections(&self, events: &[RecordedEvent]) -> Vec<(Feature, Vec<u8>)> {
        let mut all = Vec::new();
        let mut add = |feature, put: &mut dyn FnMut(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            put(&mut bytes);
            all.push((feature, bytes));
        };
        let strings = [
            (Feature::Hostname, &self.hostname),
            (Feature::OsRelease, &self.os_release),
            (Feature::Version, &self.version),
            (Feature::Arch, &self.arch),
            (Feature::CpuDesc, &self.cpu_desc),
            (Feature::CpuId, &self.cpu_id),
        ];
        for (feature, text) in strings {
            if let Some(text) = text {
                add(feature, &mut |out| put_string(out, text));
            }
        }
        if let Some(cpus) = self.cpus {
            add(Feature::NrCpus, &mut |out| {
                out.extend(cpus.available.to_le_bytes());
                out.extend(cpus.online.to_le_bytes());
            });
        }
        if let Some(kib) = self.total_memory_kib {
            add(Feature::TotalMem, &mut |out| out.extend(kib.to_le_bytes()));
        }
        if !self.command_line.is_empty() {
            add(Feature::CmdLine, &mut |out| put_strings(out, self.command_line.iter()));
        }
        add(Feature::EventDesc, &mut |out| put_events(out, events));
        if let (Some(topology), Some(_)) = (&self.topology, self.cpus) {
            add(Feature::CpuTopology, &mut |out| {
                put_strings(out, topology.packages.iter());
                put_strings(out, topology.cores.iter());
                for (core, package) in &topology.cpus {
                    out.extend(core.to_le_bytes());
                    out.extend(package.to_le_bytes());
                }
            });
        }
        if !self.pmus.is_empty() {
            add(Feature::PmuMappings, &mut |out| {
                out.extend((self.pmus.len() as u32).to_le_bytes());
                for (number, name) in &self.pmus {
                    out.extend(number.to_le_bytes());
                    put_string(out, name);
                }
            });
        }
        if !self.groups.is_empty() {
            add(Feature::GroupDesc, &mut |out| {
                out.extend((self.groups.len() as u32).to_le_bytes());
                for group in &self.groups {
                    put_string(out, &group.name);
                    out.extend(group.leader.to_le_bytes());
                    out.extend(group.members.to_le_bytes());
                }
            });
        }
        if let Some((first, last)) = self.sample_time {
            add(Feature::SampleTime, &mut |out| {
                out.extend(first.nanos().to_le_bytes());
                out.extend(last.nanos().to_le_bytes());
            });
        }
        if let Some(resolution) = self.clock_resolution {
            add(Feature::ClockId, &mut |out| out.extend(resolution.to_le_bytes()));
        }
        if let Some(clock) = self.clock {
            add(Feature::ClockData, &mut |out| {
                out.extend(CLOCK_DATA_VERSION.to_le_bytes());
                out.extend(clock.clock_id.to_le_bytes());
                out.extend(clock.realtime.nanos().to_le_bytes());
                out.extend(clock.clock.nanos().to_le_bytes());
            });
        }
        all.sort_by_key(|(feature, _)| *feature);
        all
    }

    /// Decodes a section. A damaged one is kept in [`damaged`](Self::damaged): the records can be
    /// read without it.
    pub(crate) fn read(
        &mut self,
        number: u32,
        bytes: &[u8],
        offset: u64,
        limits: Limits,
        events: &mut [RecordedEvent],
        places: &PlacesById,
    ) {
        let section =
            Section { what: "a feature section", cursor: Cursor::with_base(bytes, offset), limits };
        if let Err(error) = self.decode(number, section, events, places) {
            self.damaged.push((number, error));
        }
    }

    fn decode(
        &mut self,
        number: u32,
        mut s: Section<'_>,
        events: &mut [RecordedEvent],
        places: &PlacesById,
    ) -> Result<()> {
        let Some(feature) = Feature::from_number(number) else {
            self.others.push((number, s.cursor.remaining() as u64));
            return Ok(());
        };
        match feature {
            Feature::Hostname => self.hostname = Some(s.string()?),
            Feature::OsRelease => self.os_release = Some(s.string()?),
            Feature::Version => self.version = Some(s.string()?),
            Feature::Arch => self.arch = Some(s.string()?),
            Feature::CpuDesc => self.cpu_desc = Some(s.string()?),
            Feature::CpuId => self.cpu_id = Some(s.string()?),
            Feature::NrCpus => {
                self.cpus = Some(Cpus { available: s.u32()?, online: s.u32()? });
            }
            Feature::TotalMem => self.total_memory_kib = Some(s.u64()?),
            Feature::CmdLine => self.command_line = strings(&mut s)?,
            Feature::EventDesc => read_names(&mut s, events, places)?,
            Feature::CpuTopology => {
                let mut topology = CpuTopology {
                    packages: strings(&mut s)?,
                    cores: strings(&mut s)?,
                    cpus: Vec::new(),
                };
                // Older recorders wrote no numbers; newer ones add dies.
                for _ in 0..self.cpus.map_or(0, |cpus| cpus.available) {
                    if s.cursor.remaining() < 8 {
                        break;
                    }
                    topology.cpus.push((s.u32()?, s.u32()?));
                }
                self.topology = Some(topology);
            }
            Feature::PmuMappings => {
                // In pipe mode there can be several such sections.
                self.pmus.clear();
                for _ in 0..s.short_count(8)? {
                    self.pmus.push((s.u32()?, s.string()?));
                }
            }
            Feature::GroupDesc => {
                self.groups.clear();
                for _ in 0..s.short_count(12)? {
                    let name = s.string()?;
                    self.groups.push(EventGroup { name, leader: s.u32()?, members: s.u32()? });
                }
            }
            Feature::SampleTime => {
                let mut time = || Ok::<_, Error>(Timestamp::from_nanos(s.u64()? as i64));
                self.sample_time = Some((time()?, time()?));
            }
            Feature::ClockId => self.clock_resolution = Some(s.u64()?),
            Feature::ClockData => {
                let at = s.cursor.offset();
                if s.u32()? != CLOCK_DATA_VERSION {
                    return Err(s.malformed(at, "an unknown version of the clock data"));
                }
                self.clock = Some(ClockReference {
                    clock_id: s.u32()?,
                    realtime: Timestamp::from_nanos(s.u64()? as i64),
                    clock: Timestamp::from_nanos(s.u64()? as i64),
                });
            }
            Feature::BuildId => {
                while !s.cursor.is_empty() {
                    self.build_ids.extend(BuildIdEntry::parse_next(&mut s)?);
                }
            }
            Feature::TracingData => {
                let (bytes, offset) = (s.cursor.rest(), s.cursor.offset());
                self.tracing = Some(TracingData::parse(bytes, offset, s.limits)?);
            }
            _ => self.others.push((number, s.cursor.remaining() as u64)),
        }
        Ok(())
    }

    /// The build id of a file, if the recording has it.
    pub fn build_id(&self, file: &str) -> Option<BuildId> {
        self.build_ids.iter().find(|entry| entry.file == file).map(|entry| entry.build_id)
    }
}

fn strings(s: &mut Section<'_>) -> Result<Vec<String>> {
    (0..s.short_count(4)?).map(|_| s.string()).collect()
}

/// Appends the events with their names.
fn put_events(out: &mut Vec<u8>, events: &[RecordedEvent]) {
    let size = event::common_size(events.iter().map(|event| &event.attr));
    out.extend((events.len() as u32).to_le_bytes());
    out.extend(size.to_le_bytes());
    for event in events {
        out.extend(event::to_bytes(&event.attr, size));
        out.extend((event.ids.len() as u32).to_le_bytes());
        put_string(out, &event.name);
        event.ids.iter().for_each(|id| out.extend(id.to_le_bytes()));
    }
}

/// Reads the names of events that are known from elsewhere: the same id, otherwise the same place.
fn read_names(
    s: &mut Section<'_>,
    events: &mut [RecordedEvent],
    places: &PlacesById,
) -> Result<()> {
    let count = s.count(8)?;
    let size = u64::from(s.u32()?);
    for place in 0..count {
        s.bytes(size)?;
        let ids = s.u32()?;
        let name = s.string()?;
        let ids = s.bytes(u64::from(ids) * 8)?;
        let first = ids.first_chunk().map(|id| u64::from_le_bytes(*id));
        let same = first.and_then(|id| places.get(&id)).copied();
        if let Some(event) = events.get_mut(same.unwrap_or(place)) {
            event.name = name;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_sys::perf_event_attr;
    use proptest::prelude::*;

    fn events() -> Vec<RecordedEvent> {
        let attr = perf_event_attr::new(1, 0);
        let event = |name: &str, ids: &[u64]| RecordedEvent {
            name: name.to_owned(),
            attr: perf_event_attr { size: 64, ..attr },
            ids: ids.to_vec(),
        };
        vec![event("cpu-clock:u", &[1, 2]), event("b", &[3])]
    }

    fn decoded(sections: &[(Feature, Vec<u8>)], events: &mut [RecordedEvent]) -> Features {
        let mut features = Features::default();
        let places = places(events);
        for (feature, bytes) in sections {
            features.read(feature.number(), bytes, 0, Limits::default(), events, &places);
        }
        features
    }

    fn places(events: &[RecordedEvent]) -> PlacesById {
        let ids = events.iter().enumerate();
        ids.flat_map(|(place, event)| event.ids.iter().map(move |id| (*id, place))).collect()
    }

    fn of_a_machine() -> Features {
        let text = |text: &str| Some(text.to_owned());
        Features {
            hostname: text("host"),
            os_release: text("6.12.1"),
            arch: text("x86_64"),
            cpus: Some(Cpus { available: 2, online: 1 }),
            cpu_desc: text("a model"),
            cpu_id: text("GenuineIntel,6,85,7"),
            total_memory_kib: Some(1 << 20),
            command_line: vec!["perf".to_owned(), "record".to_owned()],
            topology: Some(CpuTopology {
                packages: vec!["0-1".to_owned()],
                cores: vec!["0".to_owned(), "1".to_owned()],
                cpus: vec![(0, 0), (1, u32::MAX)],
            }),
            pmus: vec![(1, "software".to_owned()), (2, "tracepoint".to_owned())],
            ..Features::default()
        }
    }

    fn reference(clock_id: u32, realtime: i64, clock: i64) -> ClockReference {
        let [realtime, clock] = [realtime, clock].map(Timestamp::from_nanos);
        ClockReference { clock_id, realtime, clock }
    }

    #[test]
    fn records_have_a_time_on_the_wall_clock() {
        let clock = reference(1, 1_000, 600);
        assert_eq!(
            (clock.clock_domain(), clock.offset_nanos()),
            (Some(ClockDomain::Monotonic), 400)
        );
        assert_eq!(reference(2, 0, 0).clock_domain(), None);
        let nanos = |at| {
            let at = clock.realtime_at(Timestamp::from_nanos(at))?;
            Some(at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos())
        };
        assert_eq!([nanos(600), nanos(0), nanos(700)], [Some(1_000), Some(400), Some(1_100)]);
        assert_eq!([nanos(-401), nanos(i64::MIN)], [None, None]);
    }

    #[test]
    fn sections_round_trip() {
        let mut ours = of_a_machine();
        ours.version = Some("1".into());
        ours.groups = vec![EventGroup::new(0, 2)];
        ours.sample_time = Some((Timestamp::from_nanos(1), Timestamp::from_nanos(2)));
        ours.clock_resolution = Some(1);
        ours.clock = Some(reference(1, 9, 7));
        let mut renamed = events();
        renamed.iter_mut().for_each(|event| event.name = String::new());
        let theirs = decoded(&ours.sections(&events()), &mut renamed);
        assert_eq!(renamed, events());
        assert!(theirs.damaged.is_empty() && theirs.others.is_empty(), "{theirs:?}");
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn names_are_found_by_id_and_then_by_place() {
        // A look at the ids of all events for each name would take minutes.
        const COUNT: u64 = 1 << 16;
        let event =
            |name: String, id: u64| RecordedEvent { name, ids: vec![id], ..events()[0].clone() };
        let all: Vec<_> = (0..COUNT).map(|n| event(n.to_string(), n)).collect();
        let mut bytes = Vec::new();
        put_events(&mut bytes, &all);
        let read = |events: &mut [RecordedEvent]| {
            assert!(decoded(&[(Feature::EventDesc, bytes.clone())], events).damaged.is_empty());
        };
        let mut reversed: Vec<_> = (0..COUNT).rev().map(|n| event(String::new(), n)).collect();
        read(&mut reversed);
        assert!(reversed.iter().rev().eq(&all));
        // The section has no id of these.
        let mut others: Vec<_> = (0..COUNT).map(|n| event(String::new(), COUNT + n)).collect();
        read(&mut others);
        assert!(others.iter().zip(&all).all(|(ours, theirs)| ours.name == theirs.name));
    }

    #[test]
    fn damaged_sections_are_kept_apart() {
        let mut sections = of_a_machine().sections(&events());
        let place = sections.iter().position(|(f, _)| *f == Feature::CmdLine).unwrap();
        sections[place].1 = u32::MAX.to_le_bytes().to_vec();
        let theirs = decoded(&sections, &mut events());
        assert_eq!(theirs.damaged.len(), 1);
        assert_eq!(theirs.damaged[0].0, Feature::CmdLine.number());
        assert!(theirs.hostname.is_some());
    }

    /// An empty text has 24 bytes in memory, and 4 in a section.
    #[test]
    fn lists_of_the_machine_are_short() {
        let lists = [
            (Feature::CmdLine, 4),
            (Feature::CpuTopology, 4),
            (Feature::PmuMappings, 8),
            (Feature::GroupDesc, 12),
        ];
        for (feature, size) in lists {
            let list = |count: u32| {
                let mut bytes = count.to_le_bytes().to_vec();
                bytes.resize(4 + count as usize * size + 4, 0);
                decoded(&[(feature, bytes)], &mut events()).damaged
            };
            assert!(list(1 << 16).is_empty(), "{feature:?}");
            let damaged = list((1 << 16) + 1);
            assert!(matches!(damaged[..], [(_, Error::Limit { .. })]), "{feature:?}: {damaged:?}");
        }
    }

    #[test]
    fn a_section_that_is_repeated_replaces_the_one_before() {
        let mut features = of_a_machine();
        features.groups = vec![EventGroup::new(0, 2)];
        let once = features.sections(&events());
        let theirs = decoded(&[&once[..], &once].concat(), &mut events());
        assert_eq!(format!("{features:?}"), format!("{theirs:?}"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(number in 0u32..40, bytes: Vec<u8>) {
            let mut features = Features::default();
            let mut events = events();
            let places = places(&events);
            features.read(number, &bytes, 0, Limits::default(), &mut events, &places);
        }
    }
}
