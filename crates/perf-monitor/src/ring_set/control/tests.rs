//! Real events of this thread, whose calls are made to fail.

use super::*;
use crate::event::Event;
use crate::flags::SampleFlags;
use crate::generalized::Software;
use crate::ring_set::{RingSet, RingSetBuilder, SetRecord, count_losses};
use std::convert::Infallible;

fn software(event: Software) -> EventBuilder {
    let builder = Event::software(event).builder().exclude_kernel(true).exclude_hv(true);
    builder.sample(SampleFlags::READ).sample_period(1 << 40)
}

#[test]
fn a_pinned_event_off_the_pmu_leaves_the_counts_of_the_others() {
    let counts = |value| {
        let mut count = Count::default();
        (count.value, count.lost) = (value, Some(value));
        count
    };
    let mut sum = EventCounts::NONE;
    sum.add(counts_of(Ok(counts(5))).unwrap());
    assert_eq!((sum.count, sum.lost), (5, Some(5)));
    sum.add(counts_of(Err(Error::PinnedOut { event: "cycles:D".to_owned() })).unwrap());
    sum.add(counts_of(Ok(counts(2))).unwrap());
    assert_eq!((sum.count, sum.lost), (7, None));
    assert!(counts_of(Err(Error::MonitorRuns)).is_err());
}

#[test]
fn requested_pages_are_taken_as_they_are() {
    let limits = RingLimits::of_this_user();
    let dummy = software(Software::Dummy);
    let pages =
        |set: RingSetBuilder, side| set.sideband_ring(&dummy, side).options.ring_pages(&limits, 1);
    let asked = RingPages { main: 1 << 20, side: 1 << 10 };
    assert_eq!(pages(RingSet::builder().pages(1 << 20), 1 << 10), (1 << 20, asked));
    // A maximum is rounded down to a power of two.
    let (unlimited, found) = pages(RingSet::builder().max_pages(3), 1);
    assert!(unlimited <= 2 && found.main <= unlimited && found.main.is_power_of_two());
    assert_eq!(found.side, 1);
    for pages in [0, 24] {
        let error = RingSet::builder().sideband_ring(&dummy, pages).open_parts().unwrap_err();
        assert!(matches!(error, Error::RingPages(asked) if asked == pages), "{error}");
    }
}

/// A set with a group of two events. `None` without `perf_event_open(2)`.
fn with_group() -> Option<(Control, SetEvent)> {
    let set: RingSetBuilder = RingSet::builder().thread(0).pages(1);
    let (mut control, _) = match set.open_parts() {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let leader = software(Software::TaskClock).in_group();
    let member = Event::software(Software::PageFaults).builder().exclude_kernel(true);
    let (event, _) = control.add(&leader, vec![member], None, None).unwrap();
    Some((control, event))
}

/// Takes the members of the group on the first CPU: its counts have no room for them then.
fn take_members(control: &mut Control, event: SetEvent) -> Vec<Counter> {
    let index = control.index(event).unwrap();
    std::mem::take(&mut control.events[index].opened[0].members)
}

#[test]
fn an_event_that_cannot_be_read_is_removed() {
    let Some((mut control, event)) = with_group() else { return };
    let ids = control.ids(event).unwrap();
    let place = control.find(event).unwrap().slot.place;
    let _members = take_members(&mut control, event);
    let error = control.remove(event).unwrap_err();
    assert!(matches!(error, Error::Control { operation: "read", .. }), "{error}");
    assert!(matches!(control.find(event), Err(Error::UnknownSetEvent)));
    // The reader forgets its ids and its place, and its samples are counted until then.
    assert_eq!(control.removed_slots.len(), 1);
    let published = control.shared.lock();
    let [retiring] = published.retiring.as_slice() else { panic!("{published:?}") };
    assert_eq!((&retiring.ids, retiring.removed), (&ids, Some((event, place))));
}

#[test]
fn losses_of_rings_whose_cpu_went_offline_stay_counted() {
    let (mut control, mut reader) = match RingSet::builder().pages(1).open_parts() {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let faults = Event::software(Software::PageFaults).builder().sample_period(1).disabled(false);
    let (event, _) = control.add(&faults, Vec::new(), None, None).unwrap();
    // Much more than a ring has room for.
    for _ in 0..4 {
        let mut memory = memmap2::MmapMut::map_anon(1 << 20).unwrap();
        memory.iter_mut().step_by(rustix::param::page_size()).for_each(|byte| *byte = 1);
    }
    control.set_all_enabled(false).unwrap();
    let cpus: Vec<u32> = control.cpus().collect();
    control.replace_cpus(cpus, vec![]).unwrap();
    let mut read = |record: SetRecord<'_>| -> Result<(), Infallible> {
        assert_eq!(record.event, event);
        Ok(())
    };
    let Ok(_) = reader.round(&mut read);
    let Ok(_) = reader.drain(&mut read);
    assert_eq!(reader.rings().count(), 0);
    assert!(control.closed_losses.is_empty(), "{:?}", control.closed_losses);
    count_losses(&control, &mut reader).unwrap();
    let (rings, counts) = (reader.stats().rings, control.counts(event).unwrap());
    assert_eq!(counts.delivered, rings.samples);
    match counts.lost {
        Some(lost) => {
            assert!(lost > 0, "{counts:?}");
            assert_eq!((rings.lost, rings.lost_at_end.is_some()), (lost, true), "{rings:?}");
        }
        None => assert_eq!(rings.lost_at_end, None),
    }
}

#[test]
fn a_cpu_that_comes_online_after_the_threads_ended_is_no_error() {
    // It waits for its input.
    let mut child = std::process::Command::new("cat");
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let parts = RingSet::builder().thread(child.id()).cpus([]).pages(1).open_parts();
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut control, _) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    // All were offline until now.
    let changes = control.replace_cpus(vec![], system::online_cpus()).unwrap();
    assert!(changes.is_empty(), "{changes:?}");
    assert_eq!(control.cpus().count(), 0);
    assert_eq!(control.shared.lock().ended_rings.len(), control.next_ring as usize);
}

#[test]
fn an_error_of_a_cpu_leaves_the_others_and_is_retried() {
    let (mut control, _) = match RingSet::builder().thread(0).cpus([]).pages(1).open_parts() {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let enabled = software(Software::TaskClock).disabled(false);
    let (event, _) = control.add(&enabled, Vec::new(), None, None).unwrap();
    // No machine has this one.
    let missing = u32::from(u16::MAX);
    let changes = control.replace_cpus(vec![], vec![missing, 0]).unwrap();
    assert_eq!((changes.gone, changes.opened), (vec![], vec![0]));
    let error = control.replace_cpus(vec![], vec![missing]).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert_eq!(control.cpus().collect::<Vec<_>>(), [0]);
    // An error after the events were opened: this one takes no filter.
    control.close_cpu(0, &[Part::Cpu, Part::Threads]);
    let index = control.index(event).unwrap();
    control.events[index].filter = Some("x".to_owned());
    let error = control.replace_cpus(vec![], vec![0]).unwrap_err();
    assert!(matches!(error, Error::Filter { .. }), "{error}");
    assert_eq!((control.cpus().count(), control.ids(event).unwrap().len()), (0, 0));
    control.events[index].filter = None;
    let mut cpu_0 = rustix::thread::CpuSet::new();
    cpu_0.set(0);
    rustix::thread::sched_setaffinity(None, &cpu_0).unwrap();
    assert_eq!(control.replace_cpus(vec![], vec![0]).unwrap().opened, [0]);
    (0..1_000_000u32).for_each(|i| _ = std::hint::black_box(i));
    assert!(control.counts(event).unwrap().count > 0);
}

#[test]
fn ids_of_a_cpu_that_fails_or_goes_offline_are_forgotten() {
    let parts = RingSet::builder().thread(0).cpus([]).pages(1).open_parts();
    let (mut control, mut reader) = match parts {
        Ok(parts) => parts,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let (event, _) = control.add(&software(Software::TaskClock), Vec::new(), None, None).unwrap();
    let index = control.index(event).unwrap();
    let mut ids = |control: &Control| {
        reader.settle();
        control.shared.count_of_ids()
    };
    // It takes no filter.
    control.events[index].filter = Some("x".to_owned());
    for _ in 0..3 {
        let error = control.replace_cpus(vec![], vec![0]).unwrap_err();
        assert!(matches!(error, Error::Filter { .. }), "{error}");
        assert_eq!(ids(&control), 0);
    }
    control.events[index].filter = None;
    // No ring has this size.
    let pages = std::mem::replace(&mut control.pages, 3);
    let error = control.replace_cpus(vec![], vec![0]).unwrap_err();
    assert!(matches!(error, Error::RingPages(3)), "{error}");
    assert_eq!(ids(&control), 0);
    control.pages = pages;
    assert_eq!(control.replace_cpus(vec![], vec![0]).unwrap().opened, [0]);
    assert_eq!(ids(&control), 2, "of the ring and the event");
    control.close_cpu(0, &[Part::Cpu, Part::Threads]);
    assert_eq!(ids(&control), 0);
}

#[test]
fn events_of_threads_stay_open_while_their_cpu_is_offline() {
    let Some((mut control, event)) = with_group() else { return };
    let ids = control.ids(event).unwrap();
    let cpus: Vec<u32> = control.cpus().collect();
    let changes = control.replace_cpus(cpus.clone(), vec![]).unwrap();
    assert_eq!((&changes.gone, &changes.opened), (&cpus, &vec![]));
    // One is added meanwhile.
    let (added, _) = control.add(&software(Software::TaskClock), Vec::new(), None, None).unwrap();
    assert_eq!(control.ids(added).unwrap().len(), cpus.len());
    let changes = control.replace_cpus(vec![], cpus.clone()).unwrap();
    assert_eq!((&changes.gone, &changes.opened), (&vec![], &cpus));
    assert_eq!(control.ids(event).unwrap(), ids);
    assert_eq!(control.ids(added).unwrap().len(), cpus.len());
    assert_eq!(control.cpus().collect::<Vec<_>>(), cpus);
    assert!(control.shared.lock().ended_rings.is_empty());
    // Nothing changed on this machine.
    assert_eq!(control.gone_cpus(), [0; 0]);
    assert!(control.check_cpus().unwrap().is_empty());
    // As if one had been offline and had come back since.
    control.cpus.insert(cpus[0], Some(u64::MAX));
    assert_eq!(control.gone_cpus(), cpus[..1]);
    let changes = control.check_cpus().unwrap();
    assert_eq!((&changes.gone[..], &changes.opened[..]), (&cpus[..1], &cpus[..1]));
    assert_eq!(control.gone_cpus(), [0; 0]);
}

#[test]
fn an_event_of_some_cpus_is_opened_there_alone() {
    let opened = |wanted: Option<Vec<u32>>, cpus: Vec<u32>| {
        let set = RingSet::builder().thread(0).pages(1);
        let set = match wanted {
            Some(wanted) => set.cpus(wanted),
            None => set,
        };
        let (mut control, _) = match set.open_parts() {
            Ok(parts) => parts,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let mut event = Event::software(Software::TaskClock);
        event.cpus = Some(cpus);
        let builder = event.builder().exclude_kernel(true).exclude_hv(true);
        let (event, _) = control.add(&builder, Vec::new(), None, None).unwrap();
        assert_eq!(control.cpus().count(), control.events[0].opened.len());
        Some(control.find(event).unwrap().opened.iter().map(|o| o.cpu).collect::<Vec<u32>>())
    };
    let online = system::online_cpus();
    let first = online[0];
    let Some(there) = opened(None, vec![first]) else { return };
    assert_eq!(there, [first]);
    let absent = online[online.len() - 1] + 1;
    assert_eq!(opened(None, vec![absent]).unwrap(), []);
    // As asked, whatever the kernel says.
    assert_eq!(opened(Some(vec![first]), vec![absent]).unwrap(), [first]);
}
