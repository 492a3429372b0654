//! The reading loop of a monitor.

use super::external::{ExternalHandler, Externals};
use super::registration::Handler;
use super::sample::{MonitorSample, RecordView, SampleView};
use super::{EventId, Inbox, Inner};
use crate::error::{Error, Result};
use crate::realtime::RealtimeThread;
use crate::ring_set::{Reader, SetEvent, SetRecord, Visitor, Waker, count_losses};
use crate::system;
use perf_sys::PERF_RECORD_SAMPLE;
use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use trace_common::Timestamp;

/// Interval between looks for CPUs that came online.
const CPU_CHECK: Duration = Duration::from_secs(1);

/// Makes values of records that are not samples.
pub(super) type RecordDecoder<T> = Box<dyn FnMut(&RecordView<'_>) -> Option<T> + Send>;

/// Where batches go.
pub(super) trait Sink<T> {
    /// Takes a batch, and leaves the samples in it that it does not take. Returns whether to stop.
    fn deliver(&mut self, batch: &mut Vec<MonitorSample<T>>) -> ControlFlow<()>;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RunnerOptions {
    pub(super) poll_interval: Duration,
    pub(super) batch: usize,
    pub(super) realtime: Option<u8>,
}

/// What the reader alone uses.
pub(super) struct Runner<T> {
    reader: Reader,
    waker: Waker,
    options: RunnerOptions,
    desk: Desk<T>,
    /// CPUs that were online when they were last looked at, with their instances.
    cpus: Vec<(u32, u64)>,
    /// Why the events could not be opened on a CPU, at the last look.
    failed_cpu: Option<Error>,
}

/// Decoders of events that are forgotten.
pub(super) type Forgotten<T> = (Vec<Handler<T>>, Vec<ExternalHandler<T>>);

/// Makes samples of what the set passes on.
struct Desk<T> {
    /// By place of the event in the set.
    handlers: Vec<Option<Handler<T>>>,
    externals: Externals<T>,
    records: Option<RecordDecoder<T>>,
    batch: Vec<MonitorSample<T>>,
    /// Samples of a batch.
    size: usize,
}

impl<T> Runner<T> {
    pub(super) fn new(
        reader: Reader,
        waker: Waker,
        options: RunnerOptions,
        records: Option<RecordDecoder<T>>,
    ) -> Self {
        let desk = Desk {
            handlers: Vec::new(),
            externals: Externals::default(),
            records,
            batch: Vec::new(),
            size: options.batch.max(1),
        };
        Self { reader, waker, options, desk, cpus: Vec::new(), failed_cpu: None }
    }

    /// Reads until the monitor is stopped or the sink has enough. Then reads the rest.
    pub(super) fn run(&mut self, inner: &Inner<T>, sink: &mut dyn Sink<T>) -> Result<()> {
        let realtime = self.options.realtime.map(RealtimeThread::begin).transpose();
        let result = match &realtime {
            Ok(_) => self.until_stopped(inner, sink),
            Err(_) => Ok(()),
        };
        let paused = inner.registry().control.pause();
        let Self { reader, desk, .. } = self;
        drop(desk.externals.take(&inner.inbox.externals, reader));
        let mut delivery = Delivery { desk, inner, sink, is_over: false };
        let Ok(_) = reader.drain(&mut delivery);
        delivery.flush();
        let counted = count_losses(&inner.registry().control, reader);
        drop(self.settle(inner));
        let cpus = self.failed_cpu.take().map_or(Ok(()), Err);
        realtime.and(result).and(paused).and(counted).and(cpus)
    }

    fn until_stopped(&mut self, inner: &Inner<T>, sink: &mut dyn Sink<T>) -> Result<()> {
        // The first look is also for CPUs that came before, or failed in an earlier run.
        (self.cpus, self.failed_cpu) = (Vec::new(), None);
        let mut next_check = Instant::now() + CPU_CHECK;
        while !inner.runs.is_stopping() {
            let Self { reader, desk, .. } = self;
            drop(desk.externals.take(&inner.inbox.externals, reader));
            let mut delivery = Delivery { desk, inner, sink, is_over: false };
            let Ok(_) = reader.round(&mut delivery);
            delivery.flush();
            if delivery.is_over {
                break;
            }
            drop(self.publish(inner));
            if Instant::now() >= next_check {
                next_check = Instant::now() + CPU_CHECK;
                self.check_cpus(inner);
            }
            // When all threads of the set have exited the monitor continues: events can be
            // registered, and external ones come.
            self.waker.wait(Some(self.options.poll_interval), |_| false)?;
        }
        Ok(())
    }

    /// Forgets removed events, while nothing is read. Returns their decoders, which are to be dropped
    /// without a lock: they can use the monitor.
    pub(super) fn settle(&mut self, inner: &Inner<T>) -> Forgotten<T> {
        let Self { reader, desk, .. } = self;
        let externals = desk.externals.take(&inner.inbox.externals, reader);
        reader.settle();
        (self.publish(inner), externals)
    }

    /// Publishes the statistics. Returns the decoders of events that are forgotten.
    fn publish(&mut self, inner: &Inner<T>) -> Vec<Handler<T>> {
        let Self { reader, desk, .. } = self;
        let handlers = desk.forget_all(&inner.inbox, reader.take_forgotten());
        inner.publish(reader.stats());
        handlers
    }

    fn check_cpus(&mut self, inner: &Inner<T>) {
        let online = online_instances();
        if online == self.cpus {
            // A CPU that failed is offline again.
            self.failed_cpu = None;
            return;
        }
        match inner.registry().control.check_cpus() {
            // After changes, the next look returns an error of another CPU.
            Ok(changes) if !changes.is_empty() => {}
            Ok(_) => (self.cpus, self.failed_cpu) = (online, None),
            // The other CPUs are still read, and the next look tries this one again.
            Err(error) => self.failed_cpu = Some(error),
        }
    }
}

/// The CPUs that are online, and a number that changes when they were offline.
fn online_instances() -> Vec<(u32, u64)> {
    let cpus = system::online_cpus().into_iter();
    cpus.map(|cpu| (cpu, system::cpu_instance(cpu))).collect()
}

impl<T> Desk<T> {
    /// Takes out the decoders of these events, except those whose place another event has by now.
    fn forget_all(
        &mut self,
        inbox: &Inbox<T>,
        events: impl ExactSizeIterator<Item = (SetEvent, u32)>,
    ) -> Vec<Handler<T>> {
        if events.len() == 0 {
            return Vec::new();
        }
        // Those of events without a sample are still there.
        let mut handlers = self.take_handlers(inbox);
        handlers.extend(events.filter_map(|(event, place)| {
            let handler = self.handlers.get_mut(place as usize)?;
            handler.take_if(|handler| handler.set_event == event)
        }));
        handlers
    }

    /// The handler of an event. Decoders arrive before their event is enabled.
    #[inline]
    fn handler(&mut self, inner: &Inner<T>, record: &SetRecord<'_>) -> Option<&mut Handler<T>> {
        let place = record.place as usize;
        let is_of =
            |h: &Option<Handler<T>>| h.as_ref().is_some_and(|h| h.set_event == record.event);
        if !self.handlers.get(place).is_some_and(is_of) {
            drop(self.take_handlers(&inner.inbox));
            if !self.handlers.get(place).is_some_and(is_of) {
                return None;
            }
        }
        self.handlers.get_mut(place)?.as_mut()
    }

    /// Puts the decoders that arrived into their places. Returns those of forgotten events that had them.
    #[cold]
    fn take_handlers(&mut self, inbox: &Inbox<T>) -> Vec<Handler<T>> {
        let mut replaced = Vec::new();
        for (place, handler) in inbox.take_handlers() {
            let place = place as usize;
            if place >= self.handlers.len() {
                self.handlers.resize_with(place + 1, || None);
            }
            if let Some(entry) = self.handlers.get_mut(place) {
                replaced.extend(entry.replace(handler));
            }
        }
        replaced
    }

    #[inline]
    fn record(&mut self, inner: &Inner<T>, record: SetRecord<'_>) {
        let SetRecord { time, late, cpu, .. } = record;
        let is_sample = record.raw.type_() == PERF_RECORD_SAMPLE;
        let handler = self.handler(inner, &record);
        let event = handler.as_ref().map(|h| h.event);
        let value = match handler {
            Some(handler) if is_sample => {
                let Some(decoder) = &mut handler.decoder else {
                    handler.tally.dropped.add(1);
                    return;
                };
                let view = SampleView {
                    event: handler.event,
                    record: &record,
                    format: handler.format.as_ref(),
                };
                match decoder(&view) {
                    Ok(Some(value)) => Ok(value),
                    Ok(None) => {
                        handler.tally.dropped.add(1);
                        return;
                    }
                    Err(error) => {
                        handler.tally.errors.add(1);
                        Err(error)
                    }
                }
            }
            _ => {
                let Some(records) = &mut self.records else { return };
                match records(&RecordView { event, record: &record }) {
                    Some(value) => Ok(value),
                    None => return,
                }
            }
        };
        let (cpu, is_counted) = (Some(cpu), is_sample);
        self.batch.push(MonitorSample { event, time, cpu, late, value, is_counted });
    }

    /// Counts and drops the samples that the sink did not take.
    #[cold]
    fn count_overflow(&mut self) {
        let mut counts = HashMap::<EventId, u64>::new();
        let counted = self.batch.drain(..).filter(|sample| sample.is_counted);
        for event in counted.filter_map(|sample| sample.event) {
            *counts.entry(event).or_default() += 1;
        }
        for handler in self.handlers.iter().flatten() {
            handler.tally.overflow.add(counts.remove(&handler.event).unwrap_or(0));
        }
        for (event, count) in counts {
            self.externals.count_overflow(event, count);
        }
    }

    fn external(&mut self, inner: &Inner<T>, token: u64, time: Timestamp, late: bool) {
        let decoded = self.externals.decode(&inner.inbox.externals, token, late);
        if let Some((event, value)) = decoded {
            let (event, cpu, is_counted) = (Some(event), None, true);
            self.batch.push(MonitorSample { event, time, cpu, late, value, is_counted });
        }
    }
}

/// One round.
struct Delivery<'a, T> {
    desk: &'a mut Desk<T>,
    inner: &'a Inner<T>,
    sink: &'a mut dyn Sink<T>,
    /// The sink has enough.
    is_over: bool,
}

impl<T> Delivery<'_, T> {
    fn flush(&mut self) {
        let batch = &mut self.desk.batch;
        if !batch.is_empty() {
            self.is_over |= self.sink.deliver(batch).is_break();
            if !batch.is_empty() {
                self.desk.count_overflow();
            }
        }
    }

    #[inline]
    fn flush_if_full(&mut self) {
        if self.desk.batch.len() >= self.desk.size {
            self.flush();
        }
    }
}

impl<T> Visitor<Infallible> for Delivery<'_, T> {
    #[inline]
    fn record(&mut self, record: SetRecord<'_>) -> Result<(), Infallible> {
        self.desk.record(self.inner, record);
        self.flush_if_full();
        Ok(())
    }

    fn external(&mut self, token: u64, time: Timestamp, late: bool) -> Result<(), Infallible> {
        self.desk.external(self.inner, token, time, late);
        self.flush_if_full();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock;
    use super::*;
    use std::sync::Arc;

    fn handler(event: u64) -> Handler<()> {
        let (event, set_event) = (EventId(event), SetEvent(event));
        Handler { event, set_event, format: None, decoder: None, tally: Arc::default() }
    }

    fn desk(handlers: Vec<Option<Handler<()>>>) -> Desk<()> {
        let externals = Externals::default();
        Desk { handlers, externals, records: None, batch: Vec::new(), size: 1 }
    }

    /// Forgets events by their numbers and places. Returns the numbers of the decoders.
    fn forget(desk: &mut Desk<()>, inbox: &Inbox<()>, events: &[(u64, u32)]) -> Vec<u64> {
        let events = events.iter().map(|(event, place)| (SetEvent(*event), *place));
        desk.forget_all(inbox, events).iter().map(|handler| handler.event.0).collect()
    }

    fn left(desk: &Desk<()>) -> Vec<Option<u64>> {
        desk.handlers.iter().map(|h| h.as_ref().map(|h| h.event.0)).collect()
    }

    #[test]
    fn a_place_that_is_used_again_keeps_its_decoder() {
        let mut desk = desk(vec![Some(handler(1)), Some(handler(3))]);
        // Event 2 had the second place before, and the third was never seen.
        let forgotten = forget(&mut desk, &Inbox::default(), &[(2, 1), (1, 0), (4, 2)]);
        assert_eq!((forgotten, left(&desk)), (vec![1], vec![None, Some(3)]));
    }

    #[test]
    fn records_that_do_not_fit_are_no_samples() {
        let mut desk = desk(vec![Some(handler(1))]);
        for is_counted in [true, false, true] {
            let (event, time) = (Some(EventId(1)), Timestamp::MAX);
            let (cpu, late, value) = (Some(0), false, Ok(()));
            desk.batch.push(MonitorSample { event, time, cpu, late, value, is_counted });
        }
        desk.count_overflow();
        assert!(desk.batch.is_empty());
        assert_eq!(desk.handlers[0].as_ref().unwrap().tally.overflow.get(), 2);
    }

    #[test]
    fn decoders_of_events_without_a_sample_are_forgotten() {
        let (mut desk, inbox) = (desk(vec![Some(handler(1))]), Inbox::default());
        for (place, event) in [(2, 2), (1, 3)] {
            lock(&inbox.handlers).push((place, handler(event)));
        }
        // Nothing is looked at as long as no event is forgotten.
        assert_eq!(forget(&mut desk, &inbox, &[]), []);
        assert_eq!(lock(&inbox.handlers).len(), 2);
        assert_eq!(forget(&mut desk, &inbox, &[(2, 2)]), [2]);
        assert_eq!(left(&desk), [Some(1), Some(3), None]);
        // Event 4 got the place of event 1 before that was taken note of.
        lock(&inbox.handlers).push((0, handler(4)));
        assert_eq!(forget(&mut desk, &inbox, &[(1, 0)]), [1]);
        assert_eq!(left(&desk), [Some(4), Some(3), None]);
    }
}
