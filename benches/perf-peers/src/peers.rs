//! Other crates.

use crate::flood::Flood;
use crate::readers::{TIMEOUT, thread_cpu_nanos};
use crate::{Error, Outcome, PAGES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

const WATERMARK: usize = PAGES * 4096 / 4;

const LOST: u32 = 2;
const SAMPLE: u32 = 9;

fn event_id() -> Result<u64, Error> {
    let event = perf_monitor::Event::tracepoint("raw_syscalls", "sys_enter")?;
    Ok(event.as_tracepoint().ok_or("a tracepoint without an id")?)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|b| b.first_chunk());
    word.map_or(0, |b| u64::from_ne_bytes(*b))
}

pub(crate) fn perf_event2(flood: &mut Flood, parse: bool) -> Result<Outcome, Error> {
    use perf_event::{Builder, Record, SampleFlag, data, events::Tracepoint};
    let before = thread_cpu_nanos();
    let mut sampler = Builder::new(Tracepoint::with_id(event_id()?))
        .sample(
            SampleFlag::IDENTIFIER
                | SampleFlag::TID
                | SampleFlag::TIME
                | SampleFlag::CPU
                | SampleFlag::RAW,
        )
        .sample_period(1)
        .observe_pid(flood.pid() as i32)
        .any_cpu()
        .include_kernel()
        .include_hv()
        .wakeup_watermark(WATERMARK)
        .enabled(true)
        .build()?
        .sampled(PAGES * 4096)?;
    sampler.enable()?;
    flood.go()?;
    let mut outcome = Outcome::default();
    let look = |record: Record<'_>, outcome: &mut Outcome| -> Result<(), Error> {
        match record.ty() {
            SAMPLE => {
                outcome.read += 1;
                if !parse {
                    for part in record.data() {
                        outcome.sum ^= part.first().map_or(0, |b| u64::from(*b));
                    }
                } else if let data::Record::Sample(sample) = record.parse_record()? {
                    let call = sample.raw().map_or(0, |raw| word(raw, 8));
                    outcome.sum ^= sample.time().unwrap_or(0) ^ call;
                }
            }
            LOST => outcome.lost += word(&record.to_contiguous(), 8),
            _ => {}
        }
        Ok(())
    };
    let mut done = false;
    loop {
        let mut got = false;
        while let Some(record) = sampler.next_record() {
            got = true;
            look(record, &mut outcome)?;
        }
        if !got {
            if done {
                break;
            }
            if let Some(record) = sampler.next_blocking(Some(TIMEOUT)) {
                look(record, &mut outcome)?;
            }
            done = flood.is_done()?;
        }
    }
    outcome.cpu_nanos = thread_cpu_nanos() - before;
    Ok(outcome)
}

pub(crate) fn perf_event_open(flood: &mut Flood, parse: bool) -> Result<Outcome, Error> {
    use perf_event_open::config::{
        Cpu, Opts, Proc, RecordIdFormat, SampleFormat, SampleOn, WakeUp, WakeUpOn,
    };
    use perf_event_open::{count::Counter, event::tp::Tracepoint, sample::record::Record};
    let before = thread_cpu_nanos();
    let options = Opts {
        sample_on: SampleOn::Count(1),
        sample_format: SampleFormat { raw: true, ..Default::default() },
        wake_up: WakeUp { on: WakeUpOn::Bytes(WATERMARK as u32), ..Default::default() },
        record_id_format: RecordIdFormat {
            task: true,
            time: true,
            cpu: true,
            id: true,
            ..Default::default()
        },
        ..Default::default()
    };
    let tracepoint = Tracepoint { id: event_id()? };
    let counter = Counter::new(tracepoint, (Proc(flood.pid()), Cpu::ALL), &options)?;
    let sampler = counter.sampler(PAGES.trailing_zeros() as u8)?;
    let mut records =
        sampler.iter().ok_or("perf-event-open has no iterator over the ring")?.into_cow();
    counter.enable()?;
    flood.go()?;
    let mut outcome = Outcome::default();
    let mut done = false;
    loop {
        let mut got = false;
        while let Some(record) = records.lending_next() {
            got = true;
            let bytes = record.as_raw().as_bytes();
            match word(bytes, 0) as u32 {
                SAMPLE if !parse => {
                    outcome.read += 1;
                    outcome.sum ^= word(bytes, 8);
                }
                SAMPLE => {
                    outcome.read += 1;
                    if let (_, Record::Sample(sample)) = record.parse() {
                        outcome.sum ^= sample.raw.as_ref().map_or(0, |raw| word(raw, 8));
                    }
                }
                LOST => outcome.lost += word(bytes, 16),
                _ => {}
            }
        }
        if !got {
            if done {
                break;
            }
            poll(
                &mut [PollFd::new(counter.file(), PollFlags::IN)],
                Some(&Timespec::try_from(TIMEOUT)?),
            )?;
            done = flood.is_done()?;
        }
    }
    outcome.cpu_nanos = thread_cpu_nanos() - before;
    Ok(outcome)
}

/// It hands every record to a function, and sleeps when none is there.
pub(crate) fn one_collect(flood: &mut Flood) -> Result<Outcome, Error> {
    use one_collect::perf_event::{RingBufBuilder, RingBufSessionBuilder};
    let before = thread_cpu_nanos();
    let tracefs = one_collect::tracefs::TraceFS::open()?;
    let mut event = tracefs.find_event("raw_syscalls", "sys_enter")?;
    let mut session = RingBufSessionBuilder::new()
        .with_page_count(PAGES)
        .with_target_pid(flood.pid() as i32)
        .with_tracepoint_events(RingBufBuilder::for_tracepoint())
        .build()?;
    let (samples, lost) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let call = event.format().get_field_ref_unchecked("id");
    let seen = samples.clone();
    event.add_callback(move |data| {
        seen.set(seen.get() + 1);
        black_box(data.format().get_u64(call, data.event_data())?);
        Ok(())
    });
    session.add_event(event)?;
    let gone = lost.clone();
    let lost_event = session.lost_event();
    let field = lost_event.format().get_field_ref_unchecked("lost");
    lost_event.add_callback(move |data| {
        gone.set(gone.get() + data.format().get_u64(field, data.event_data())?);
        Ok(())
    });
    session.set_read_timeout(Duration::from_millis(1));
    session.enable()?;
    flood.go()?;
    // It asks after every hundred records whether to stop: a clock is read faster than a pipe.
    let last_look = Cell::new(Instant::now());
    let end = Cell::new(None::<Instant>);
    let failure = RefCell::new(None);
    session.parse_until(|| {
        if let Some(end) = end.get() {
            return end.elapsed() > Duration::from_millis(300);
        }
        if last_look.get().elapsed() > TIMEOUT {
            last_look.set(Instant::now());
            match flood.is_done() {
                Ok(true) => end.set(Some(Instant::now())),
                Ok(false) => {}
                Err(error) => {
                    *failure.borrow_mut() = Some(error);
                    return true;
                }
            }
        }
        false
    })?;
    let cpu_nanos = thread_cpu_nanos() - before;
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(Outcome { read: samples.get(), lost: lost.get(), cpu_nanos, sum: 0 }),
    }
}
