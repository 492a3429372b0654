//! The registering side of a set: opens, changes and closes its events on all targets.

use super::SetOptions;
use super::reader::Reader;
use super::table::{EndedRing, NewRing, Retiring, RingNumber, SetEvent, Shared, Slot};
use super::targets::{self, Part, Targets};
use crate::builder::EventBuilder;
use crate::count::Count;
use crate::counter::{Counter, wait_for_the_last};
use crate::diagnose;
use crate::error::{Error, Result};
use crate::record::RecordLayout;
use crate::ring::RingBuffer;
use crate::ring_size::{RingLimits, RingPages};
use crate::{Target, system};
use perf_sys::perf_event_attr;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The kernel's counts of an event of a [`RingSet`](super::RingSet), summed over all CPUs, tasks and
/// cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventCounts {
    /// How often it happened. For an event with a sample period of 1 this is the number of its
    /// samples. What a pinned event counted that is not on the PMU any more is not in it.
    pub count: u64,
    /// Samples that did not fit in the rings; `None` if this kernel does not count them (before
    /// Linux 6.0), or if a pinned event is not on the PMU any more: then only the losses of the rings
    /// are known.
    pub lost: Option<u64>,
    /// Samples that were passed on.
    pub delivered: u64,
    /// How often the kernel throttled the event because of its rate: the number of its
    /// `PERF_RECORD_THROTTLE` that were passed on.
    pub throttled: u64,
}

impl EventCounts {
    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.lost = self.lost.zip(other.lost).map(|(a, b)| a.saturating_add(b));
        self.delivered += other.delivered;
        self.throttled += other.throttled;
    }

    const NONE: Self = Self { count: 0, lost: Some(0), delivered: 0, throttled: 0 };
}

/// Which of a CPU's rings an event writes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Main,
    Sideband,
}

/// An event on all targets.
#[derive(Debug)]
struct OpenEvent {
    event: SetEvent,
    slot: Arc<Slot>,
    lane: Lane,
    builder: EventBuilder,
    /// Counters that are read with each sample.
    members: Vec<EventBuilder>,
    /// The cgroup to measure instead of the targets of the set.
    cgroup: Option<Arc<OwnedFd>>,
    filter: Option<String>,
    is_enabled: bool,
    opened: Vec<Opened>,
    /// Counts of kernel events that were closed.
    closed: EventCounts,
}

/// An event on one target.
#[derive(Debug)]
struct Opened {
    cpu: u32,
    part: Part,
    ring: RingNumber,
    counter: Counter,
    members: Vec<Counter>,
    id: u64,
}

/// CPUs that changed while a set was open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuChanges {
    /// CPUs that went offline, also those that came back since. Their events are closed, except those
    /// of threads; what they recorded is still passed on.
    pub gone: Vec<u32>,
    /// CPUs that came online, and on which all events are open.
    pub opened: Vec<u32>,
}

impl CpuChanges {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.opened.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Control {
    targets: Targets,
    options: SetOptions,
    pages: usize,
    /// Those of the main rings if this user could lock any amount of memory.
    unlimited_pages: usize,
    /// The anchors are first: the events that the rings were mapped with.
    events: Vec<OpenEvent>,
    /// CPUs with rings, and the [`system::cpu_instance`] that they were opened on. `None`: the CPU is
    /// offline, and the rings have the events of threads alone.
    cpus: BTreeMap<u32, Option<u64>>,
    /// Nothing is enabled for the time being.
    is_paused: bool,
    next_event: u64,
    next_ring: RingNumber,
    shared: Arc<Shared>,
    epoll: Arc<OwnedFd>,
    /// Counts of removed events.
    removed: EventCounts,
    removed_slots: Vec<Arc<Slot>>,
    /// Losses of closed events by ring, for rings that are still open. `None` if this kernel does not
    /// count them.
    closed_losses: BTreeMap<RingNumber, Option<u64>>,
}

impl Control {
    /// Opens the rings. Without a request for a number of pages, halves the default, and the sideband,
    /// until this user may map them.
    pub(crate) fn open(targets: Targets, options: SetOptions) -> Result<(Self, Reader)> {
        let side = options.sideband_ring.as_ref().map(|(_, pages)| *pages);
        if let Some(side) = side.filter(|pages| !pages.is_power_of_two()) {
            return Err(Error::RingPages(side));
        }
        let limits = RingLimits::of_this_user();
        let (unlimited, mut pages) = options.ring_pages(&limits, targets.online().len());
        loop {
            match Self::open_with(targets.clone(), options.clone(), pages, unlimited) {
                Err(error) if options.pages.is_none() && targets::is_short_of_memory(&error) => {
                    let Some(smaller) = pages.smaller(limits.page()) else { return Err(error) };
                    pages = smaller;
                }
                other => return other,
            }
        }
    }

    fn open_with(
        targets: Targets,
        mut options: SetOptions,
        RingPages { main: pages, side }: RingPages,
        unlimited_pages: usize,
    ) -> Result<(Self, Reader)> {
        if let Some((_, pages)) = &mut options.sideband_ring {
            *pages = side;
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::System { call: "epoll_create1", errno })?;
        let shared = Arc::new(Shared::default());
        let reader = Reader::new(Arc::clone(&shared), options.clock, options.slack);
        let mut this = Self {
            targets,
            options,
            pages,
            unlimited_pages,
            events: Vec::new(),
            cpus: BTreeMap::new(),
            is_paused: false,
            next_event: 0,
            next_ring: 0,
            shared,
            epoll: Arc::new(epoll),
            removed: EventCounts::NONE,
            removed_slots: Vec::new(),
            closed_losses: BTreeMap::new(),
        };
        let anchor = this.options.anchor(this.targets.has_threads(), pages);
        this.new_event(&anchor, Vec::new(), None, Lane::Main)?;
        if let Some((sideband, pages)) = this.options.sideband_ring.clone() {
            this.new_event(&sideband.with_watermark_in(pages), Vec::new(), None, Lane::Sideband)?;
        }
        let mut offline = None;
        for cpu in this.targets.online() {
            match this.open_cpu(cpu) {
                Ok(()) => {}
                Err(error) if targets::is_offline(&error) => offline = Some(error),
                Err(error) => return Err(error),
            }
        }
        match offline {
            Some(error) if this.cpus.is_empty() => Err(error),
            _ => Ok((this, reader)),
        }
    }

    pub(crate) const fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) const fn unlimited_pages(&self) -> usize {
        self.unlimited_pages
    }

    /// Those of the rings of the sideband, if it has some.
    pub(crate) fn sideband_pages(&self) -> Option<usize> {
        self.options.sideband_ring.as_ref().map(|(_, pages)| *pages)
    }

    pub(crate) fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.cpus.keys().copied()
    }

    pub(crate) fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// The event that all rings of the set, or of its sideband, were mapped with.
    pub(crate) fn anchor(&self, lane: Lane) -> Option<SetEvent> {
        self.events.iter().find(|e| e.lane == lane).map(|e| e.event)
    }

    /// Whether all threads have exited whose event was reported as hung up.
    pub(crate) fn have_all_ended(&self, hung_up: &BTreeSet<u64>) -> bool {
        self.anchors().flat_map(|e| &e.opened).all(|o| hung_up.contains(&o.id))
    }

    fn is_anchor(&self, event: SetEvent) -> bool {
        self.anchors().any(|anchor| anchor.event == event)
    }

    fn anchors(&self) -> impl Iterator<Item = &OpenEvent> {
        self.events.iter().take(1 + usize::from(self.options.sideband_ring.is_some()))
    }

    fn new_event(
        &mut self,
        builder: &EventBuilder,
        members: Vec<EventBuilder>,
        cgroup: Option<Arc<OwnedFd>>,
        lane: Lane,
    ) -> Result<usize> {
        let clock = self.options.clock;
        // Members of a group need the clock of its leader, and start with it.
        let members: Vec<_> = members.into_iter().map(|m| m.clock(clock).disabled(false)).collect();
        let is_enabled = !builder.attr().disabled();
        let builder = builder.for_set(clock).disabled(true);
        let event = SetEvent(self.next_event);
        self.next_event += 1;
        let slot = self.shared.add_event(event, RecordLayout::new(builder.attr()));
        self.events.push(OpenEvent {
            event,
            slot,
            lane,
            builder,
            members,
            cgroup,
            filter: None,
            is_enabled,
            opened: Vec::new(),
            closed: EventCounts::NONE,
        });
        Ok(self.events.len() - 1)
    }

    /// Opens an event on all CPUs.
    pub(crate) fn add(
        &mut self,
        builder: &EventBuilder,
        members: Vec<EventBuilder>,
        cgroup: Option<Arc<OwnedFd>>,
        filter: Option<String>,
    ) -> Result<(SetEvent, u32)> {
        self.targets.list_threads()?;
        let index = self.new_event(builder, members, cgroup, Lane::Main)?;
        let cpus: Vec<u32> = self.cpus().collect();
        let result = cpus.into_iter().try_for_each(|cpu| self.open_on_known_cpu(index, cpu));
        let result = result.and_then(|()| match filter {
            Some(filter) => self.filter_at(index, filter),
            None => Ok(()),
        });
        let is_paused = self.is_paused;
        let result = result.and_then(|()| match self.events.get(index) {
            Some(event) if event.is_enabled && !is_paused => event.enable(),
            _ => Ok(()),
        });
        let Some(added) = self.events.get(index) else { return Err(Error::UnknownSetEvent) };
        let (event, place) = (added.event, added.slot.place);
        match result {
            Ok(()) => Ok((event, place)),
            Err(error) => {
                // The first error is the reason; closing what was opened cannot add to it.
                let _ = self.remove(event);
                Err(error)
            }
        }
    }

    /// The events that are not open on a CPU that is online.
    fn missing_on(&self, cpu: u32) -> &'static [Part] {
        match self.cpus.contains_key(&cpu) {
            true => &[Part::Cpu],
            false => &[Part::Cpu, Part::Threads],
        }
    }

    /// Opens the rings of a CPU, unless they are there, and all events on it that are
    /// [missing](Self::missing_on).
    fn open_cpu(&mut self, cpu: u32) -> Result<()> {
        let parts = self.missing_on(cpu);
        // If it goes offline meanwhile, this is out of date, and not the events.
        let instance = system::cpu_instance(cpu);
        let mut indices = 0..self.events.len();
        let result = indices.try_for_each(|index| {
            parts.iter().try_for_each(|part| self.open_event(index, cpu, *part))
        });
        match result {
            Ok(()) => {
                self.cpus.insert(cpu, Some(instance));
                Ok(())
            }
            Err(error) => {
                self.close_cpu(cpu, parts);
                Err(error)
            }
        }
    }

    /// Opens an event on a CPU that has rings. While the CPU is offline, only on the threads: then
    /// [`check_cpus`](Self::check_cpus) opens the rest.
    fn open_on_known_cpu(&mut self, index: usize, cpu: u32) -> Result<()> {
        if self.cpus.get(&cpu).is_some_and(Option::is_some) {
            match self.open_event(index, cpu, Part::Cpu) {
                Err(error) if targets::is_offline(&error) => {}
                other => other?,
            }
        }
        self.open_event(index, cpu, Part::Threads)
    }

    /// Whether an event is opened on this CPU: its PMU can be that of some cores. The anchors map the
    /// rings of all CPUs. If the set wants none of the CPUs of the event, the kernel says why that fails.
    fn is_wanted_on(&self, event: &OpenEvent, cpu: u32) -> bool {
        let Some(cpus) = event.builder.event().cpus() else { return true };
        let is_elsewhere = |wanted: &Vec<u32>| !wanted.iter().any(|wanted| cpus.contains(wanted));
        cpus.contains(&cpu)
            || self.is_anchor(event.event)
            || self.targets.cpus.as_ref().is_some_and(is_elsewhere)
    }

    /// Opens an event on the targets of one CPU, unless it is [not wanted](Self::is_wanted_on) there. It
    /// stays disabled.
    fn open_event(&mut self, index: usize, cpu: u32, part: Part) -> Result<()> {
        let Some(event) = self.events.get(index) else { return Ok(()) };
        if !self.is_wanted_on(event, cpu) {
            return Ok(());
        }
        let open = |target: Target<'_>| {
            let counter = event.builder.open_in(target, None, self.options.flags)?;
            let members = event.open_members(&counter, target)?;
            Ok((counter, members))
        };
        let opened = match (&event.cgroup, part) {
            (Some(dir), Part::Cpu) => vec![open(Target::Cgroup { dir: dir.as_fd(), cpu })?],
            (Some(_), Part::Threads) => Vec::new(),
            (None, _) => self.targets.open(cpu, part, event.builder.event().name(), open)?,
        };
        let (lane, slot) = (event.lane, Arc::clone(&event.slot));
        let is_anchor = self.is_anchor(event.event);
        for (counter, members) in opened {
            let id = counter.id()?;
            self.shared.add_id(&slot, id);
            let ring = match self.ring_of(cpu, lane) {
                Some((output, ring)) => counter.set_output(Some(output)).map(|()| ring),
                None => self.map_ring(&counter, cpu, lane),
            };
            let ring = ring.inspect_err(|_| self.retire(vec![id]))?;
            let watched = if is_anchor { self.watch(&counter, id) } else { Ok(()) };
            // From here on, it is closed with the others.
            if let Some(event) = self.events.get_mut(index) {
                event.opened.push(Opened { cpu, part, ring, counter, members, id });
            }
            watched?;
        }
        Ok(())
    }

    /// Reports wake-ups of the ring of an event, and the end of its thread.
    fn watch(&self, counter: &Counter, id: u64) -> Result<()> {
        // Edge-triggered: an ended thread is reported once, and not in each round.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&*self.epoll, counter, epoll::EventData::new_u64(id), flags)
            .map_err(|errno| Error::System { call: "epoll_ctl", errno })
    }

    /// The reader forgets these ids of the kernel when no record of them is left in the rings.
    fn retire(&self, ids: Vec<u64>) {
        self.shared.publish(|published| {
            published.retiring.push(Retiring { ids, removed: None });
        });
    }

    /// A descriptor that writes into the ring of a CPU: that of the event which it was mapped with, or
    /// of a thread if that was closed.
    fn ring_of(&self, cpu: u32, lane: Lane) -> Option<(BorrowedFd<'_>, RingNumber)> {
        let anchor = self.events.iter().find(|e| e.lane == lane)?;
        let owner = anchor.opened.iter().find(|o| o.cpu == cpu)?;
        Some((owner.counter.as_fd(), owner.ring))
    }

    fn on_cpu(&self, cpu: u32) -> impl Iterator<Item = &Opened> {
        self.events.iter().flat_map(|event| &event.opened).filter(move |opened| opened.cpu == cpu)
    }

    fn map_ring(&mut self, counter: &Counter, cpu: u32, lane: Lane) -> Result<RingNumber> {
        let pages = match (lane, &self.options.sideband_ring) {
            (Lane::Sideband, Some((_, pages))) => *pages,
            _ => self.pages,
        };
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        counter.check_direction(false)?;
        let buffer = RingBuffer::map(counter, pages).map_err(|errno| Error::Map {
            pages,
            errno,
            reason: diagnose::map(counter.attr(), counter.follows_thread(), errno),
        })?;
        let number = self.next_ring;
        self.next_ring += 1;
        self.shared.publish(|published| {
            published.new_rings.push(NewRing { number, cpu, lane, buffer });
        });
        Ok(number)
    }

    fn find(&self, event: SetEvent) -> Result<&OpenEvent> {
        self.events.iter().find(|e| e.event == event).ok_or(Error::UnknownSetEvent)
    }

    /// The attribute that an event was opened with.
    pub(crate) fn attr(&self, event: SetEvent) -> Result<perf_event_attr> {
        let event = self.find(event)?;
        let opened = event.opened.first().map(|opened| opened.counter.attr());
        Ok(*opened.unwrap_or(event.builder.attr()))
    }

    /// The ids of an event in its records.
    pub(crate) fn ids(&self, event: SetEvent) -> Result<Vec<u64>> {
        Ok(self.find(event)?.opened.iter().map(|opened| opened.id).collect())
    }

    /// The attributes of the members of a group and their ids in its samples.
    pub(crate) fn members(&self, event: SetEvent) -> Result<Vec<(perf_event_attr, Vec<u64>)>> {
        let event = self.find(event)?;
        let member = |(index, builder): (usize, &EventBuilder)| {
            let opened = || event.opened.iter().filter_map(|opened| opened.members.get(index));
            let attr = opened().next().map_or(builder.attr(), Counter::attr);
            Ok((*attr, opened().map(Counter::id).collect::<Result<_>>()?))
        };
        event.members.iter().enumerate().map(member).collect()
    }

    fn index(&self, event: SetEvent) -> Result<usize> {
        self.events.iter().position(|e| e.event == event).ok_or(Error::UnknownSetEvent)
    }

    /// Removes an event. Its records in the rings are still passed on.
    pub(crate) fn remove(&mut self, event: SetEvent) -> Result<EventCounts> {
        let index = self.index(event)?;
        if self.is_anchor(event) {
            return Err(Error::UnknownSetEvent);
        }
        let mut removed = self.events.remove(index);
        let disabled = removed.disable();
        wait_for_the_last();
        let opened = std::mem::take(&mut removed.opened);
        let (ids, closed, read) = self.close(opened);
        removed.closed.add(closed);
        let counts = removed.counts()?; // nothing is open any more, so that nothing is read
        self.removed.add(EventCounts { delivered: 0, throttled: 0, ..counts });
        // Slots that the reader forgot are counted to the end.
        let Self { removed: sum, removed_slots, .. } = self;
        removed_slots.retain(|slot| {
            let is_forgotten = Arc::strong_count(slot) == 1;
            if is_forgotten {
                sum.delivered += slot.delivered();
                sum.throttled += slot.throttled();
            }
            !is_forgotten
        });
        removed_slots.push(Arc::clone(&removed.slot));
        self.shared.publish(|published| {
            let removed = Some((removed.event, removed.slot.place));
            published.retiring.push(Retiring { ids, removed });
        });
        disabled.and(read).map(|()| counts)
    }

    /// Closes events of the kernel that are disabled. Returns their ids and counts, without those that
    /// cannot be read, and the first error of reading.
    fn close(&mut self, opened: Vec<Opened>) -> (Vec<u64>, EventCounts, Result<()>) {
        let ids = opened.iter().map(|opened| opened.id).collect();
        let (mut sum, mut result) = (EventCounts::NONE, Ok(()));
        for opened in opened {
            match opened.counts() {
                Ok(counts) => {
                    sum.add(counts);
                    add_loss(&mut self.closed_losses, opened.ring, counts.lost);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        (ids, sum, result)
    }

    pub(crate) fn set_enabled(&mut self, event: SetEvent, on: bool) -> Result<()> {
        let index = self.index(event)?;
        self.set_enabled_at(index, on)
    }

    pub(crate) fn set_all_enabled(&mut self, on: bool) -> Result<()> {
        (0..self.events.len()).try_for_each(|index| self.set_enabled_at(index, on))?;
        if !on {
            wait_for_the_last();
        }
        Ok(())
    }

    fn set_enabled_at(&mut self, index: usize, on: bool) -> Result<()> {
        let Some(event) = self.events.get_mut(index) else { return Ok(()) };
        event.is_enabled = on;
        match on {
            _ if self.is_paused => Ok(()),
            true => event.enable(),
            false => event.disable(),
        }
    }

    /// Disables what is enabled, until [`resume`](Self::resume).
    pub(crate) fn pause(&mut self) -> Result<()> {
        if self.is_paused {
            return Ok(());
        }
        self.is_paused = true;
        self.events.iter().filter(|e| e.is_enabled).try_for_each(OpenEvent::disable)?;
        wait_for_the_last();
        Ok(())
    }

    /// Enables what was enabled.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.is_paused = false;
        self.events.iter().filter(|e| e.is_enabled).try_for_each(OpenEvent::enable)
    }

    pub(crate) fn set_filter(&mut self, event: SetEvent, filter: &str) -> Result<()> {
        let index = self.index(event)?;
        self.filter_at(index, filter.to_owned())
    }

    fn filter_at(&mut self, index: usize, filter: String) -> Result<()> {
        let Some(event) = self.events.get(index) else { return Ok(()) };
        if event.filter.is_some() {
            // The kernel does not change a filter: `EEXIST`.
            return self.replace_with_filter(index, filter);
        }
        for opened in &event.opened {
            opened.counter.set_filter(&filter)?;
        }
        if let Some(event) = self.events.get_mut(index) {
            event.filter = Some(filter);
        }
        Ok(())
    }

    /// Opens an event again with another filter. It misses what happens between the end of the old
    /// and the start of the new one, so that nothing is recorded twice.
    fn replace_with_filter(&mut self, index: usize, filter: String) -> Result<()> {
        self.targets.list_threads()?;
        let Some(event) = self.events.get_mut(index) else { return Ok(()) };
        let old = std::mem::take(&mut event.opened);
        let cpus: BTreeSet<u32> = old.iter().map(|opened| opened.cpu).collect();
        let opened = cpus.into_iter().try_for_each(|cpu| self.open_on_known_cpu(index, cpu));
        let Some(event) = self.events.get_mut(index) else { return Ok(()) };
        let ready = opened
            .and_then(|()| event.opened.iter().try_for_each(|o| o.counter.set_filter(&filter)));
        if let Err(error) = ready {
            let new = std::mem::replace(&mut event.opened, old);
            let ids = new.iter().map(|opened| opened.id).collect();
            drop(new);
            self.retire(ids);
            return Err(error);
        }
        event.filter = Some(filter);
        let disabled = disable(&old);
        wait_for_the_last();
        let enabled = match event.is_enabled && !self.is_paused {
            true => event.enable(),
            false => Ok(()),
        };
        let (ids, closed, read) = self.close(old);
        if let Some(event) = self.events.get_mut(index) {
            event.closed.add(closed);
        }
        self.retire(ids);
        disabled.and(enabled).and(read)
    }

    /// Counts of an event so far.
    pub(crate) fn counts(&self, event: SetEvent) -> Result<EventCounts> {
        self.find(event)?.counts()
    }

    /// Counts of all removed events.
    pub(crate) fn removed_counts(&self) -> EventCounts {
        let mut counts = self.removed;
        for slot in &self.removed_slots {
            counts.delivered += slot.delivered();
            counts.throttled += slot.throttled();
        }
        counts
    }

    /// The kernel's count of the losses of each open ring; `None` if it does not count them.
    pub(crate) fn losses(&self) -> Result<BTreeMap<RingNumber, Option<u64>>> {
        let mut losses = self.closed_losses.clone();
        for opened in self.events.iter().flat_map(|e| &e.opened) {
            add_loss(&mut losses, opened.ring, opened.counts()?.lost);
        }
        Ok(losses)
    }

    /// The CPUs that are online, each with its [`system::cpu_instance`].
    fn online(&self) -> BTreeMap<u32, u64> {
        let online = self.targets.online();
        online.into_iter().map(|cpu| (cpu, system::cpu_instance(cpu))).collect()
    }

    /// The CPUs that went offline since their events were opened, if these are online now.
    fn gone(&self, online: &BTreeMap<u32, u64>) -> Vec<u32> {
        let is_gone = |(cpu, instance): (&u32, &Option<u64>)| {
            let is_gone = instance.is_some_and(|instance| online.get(cpu) != Some(&instance));
            is_gone.then_some(*cpu)
        };
        self.cpus.iter().filter_map(is_gone).collect()
    }

    pub(crate) fn gone_cpus(&self) -> Vec<u32> {
        self.gone(&self.online())
    }

    /// Opens the events on CPUs that came online, and closes those of CPUs that went offline, also of
    /// those that are back already: the kernel never revives them. Events of threads stay.
    pub(crate) fn check_cpus(&mut self) -> Result<CpuChanges> {
        let online = self.online();
        let gone = self.gone(&online);
        let came = online.iter().filter(|(cpu, instance)| {
            self.cpus.get(cpu).is_none_or(|known| *known != Some(**instance))
        });
        let came = came.map(|(cpu, _)| *cpu).collect();
        self.replace_cpus(gone, came)
    }

    /// A CPU with an error is left as it was, so that the next call tries again: the error is returned
    /// if nothing else changed, in that call at the latest.
    fn replace_cpus(&mut self, gone: Vec<u32>, came: Vec<u32>) -> Result<CpuChanges> {
        for cpu in &gone {
            self.close_cpu(*cpu, &[Part::Cpu]);
        }
        let (mut opened, mut first) = (Vec::new(), Ok(()));
        for cpu in came {
            match self.start_cpu(cpu) {
                Ok(()) => opened.push(cpu),
                Err(error) if targets::is_offline(&error) => {}
                // Without a thread left there is nothing to measure there.
                Err(error) if targets::is_of_ended_thread(&error) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        let changes = CpuChanges { gone, opened };
        match first {
            Err(error) if changes.is_empty() => Err(error),
            _ => Ok(changes),
        }
    }

    /// Opens the events on a CPU that came online, with their filters, and enables them; or none.
    fn start_cpu(&mut self, cpu: u32) -> Result<()> {
        let parts = self.missing_on(cpu);
        self.open_cpu(cpu)?;
        let is_new = |o: &&Opened| o.cpu == cpu && parts.contains(&o.part);
        let of_cpu = |e: &OpenEvent| -> Result<()> {
            for opened in e.opened.iter().filter(is_new) {
                if let Some(filter) = &e.filter {
                    opened.counter.set_filter(filter)?;
                }
                if e.is_enabled && !self.is_paused {
                    opened.counter.enable_group()?;
                }
            }
            Ok(())
        };
        let result = self.events.iter().try_for_each(of_cpu);
        if result.is_err() {
            let opened = self.events.iter().flat_map(|e| &e.opened).filter(is_new);
            // The first error is the reason.
            opened.for_each(|opened| _ = opened.counter.disable_group());
            wait_for_the_last();
            self.close_cpu(cpu, parts);
        }
        result
    }

    /// Closes events of a CPU, and leaves their ids and the rings that nothing writes into any more to the
    /// reader. The counts of events that cannot be read any more are those of their samples, which are
    /// still passed on.
    fn close_cpu(&mut self, cpu: u32, parts: &[Part]) {
        let (mut rings, mut ids) = (BTreeSet::new(), Vec::new());
        for event in &mut self.events {
            let (gone, rest) = std::mem::take(&mut event.opened)
                .into_iter()
                .partition(|o| o.cpu == cpu && parts.contains(&o.part));
            event.opened = rest;
            let gone: Vec<Opened> = gone;
            for opened in gone {
                let counts = opened.counts().unwrap_or(EventCounts::NONE);
                event.closed.add(counts);
                add_loss(&mut self.closed_losses, opened.ring, counts.lost);
                rings.insert(opened.ring);
                ids.push(opened.id);
            }
        }
        let left: BTreeSet<RingNumber> = self.on_cpu(cpu).map(|opened| opened.ring).collect();
        if left.is_empty() {
            self.cpus.remove(&cpu);
        } else {
            self.cpus.insert(cpu, None);
        }
        let ended = rings.difference(&left).map(|number| EndedRing {
            number: *number,
            lost: self.closed_losses.remove(number).flatten(),
        });
        let ended: Vec<EndedRing> = ended.collect();
        self.shared.publish(|published| published.ended_rings.extend(ended));
        self.retire(ids);
    }
}

/// Adds losses to those of a ring. One that is unknown makes the sum unknown.
fn add_loss(losses: &mut BTreeMap<RingNumber, Option<u64>>, ring: RingNumber, lost: Option<u64>) {
    let sum = losses.entry(ring).or_insert(Some(0));
    *sum = sum.zip(lost).map(|(a, b)| a.saturating_add(b));
}

/// Disables all events, also after one that cannot be: the first error is returned.
fn disable(opened: &[Opened]) -> Result<()> {
    opened.iter().map(|opened| opened.counter.disable_group()).fold(Ok(()), Result::and)
}

impl OpenEvent {
    fn open_members(&self, leader: &Counter, target: Target<'_>) -> Result<Vec<Counter>> {
        self.members.iter().map(|m| m.open_in(target, Some(leader.as_fd()), 0)).collect()
    }

    fn enable(&self) -> Result<()> {
        self.opened.iter().try_for_each(|o| o.counter.enable_group())
    }

    fn disable(&self) -> Result<()> {
        disable(&self.opened)
    }

    fn counts(&self) -> Result<EventCounts> {
        let (delivered, throttled) = (self.slot.delivered(), self.slot.throttled());
        let mut counts = EventCounts { delivered, throttled, ..self.closed };
        for opened in &self.opened {
            counts.add(opened.counts()?);
        }
        Ok(counts)
    }
}

impl Opened {
    fn counts(&self) -> Result<EventCounts> {
        counts_of(match self.members.len() {
            0 => self.counter.read(),
            members => self.counter.read_first_of(1 + members),
        })
    }
}

/// A pinned event that is not on the PMU has no counts, and those of the others are still wanted.
fn counts_of(read: Result<Count>) -> Result<EventCounts> {
    match read {
        Ok(read) => {
            Ok(EventCounts { count: read.value, lost: read.lost, ..EventCounts::default() })
        }
        Err(Error::PinnedOut { .. }) => Ok(EventCounts::default()),
        Err(error) => Err(error),
    }
}
