//! The timeline model as a Perfetto trace, beside a naive writer: events per second and bytes per
//! event, without compression.
//!
//! Context switches are those of `timeline`, through the correlator; with their wake-ups. Track events
//! are those of a Go trace: states of goroutines, the goroutines on Ps and threads, regions, arrows. The
//! naive writer builds each packet of the same trace as a tree of owned fields with an absolute time
//! and texts, as programs do that fill a generated protobuf structure, and encodes it.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

mod cpu_time;
mod input;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use input::{go, scheduler};
use std::io;
use trace_export::timeline::TimelineSource;
use trace_export::{ClockDomain, PerfettoSink, PerfettoStats, Sink, Timestamp};
use trace_timeline::{Event, EventKind, State, Tables, TextId};

/// Writes the events through the correlator.
fn through_the_model(events: &[Event], tables: &Tables) -> PerfettoStats {
    let mut sink = PerfettoSink::new(io::sink(), ClockDomain::Monotonic);
    let zero = Timestamp::default();
    let clocks = [(ClockDomain::Monotonic, zero), (ClockDomain::Boottime, zero)];
    sink.clock_snapshot(&clocks).unwrap();
    let mut source = TimelineSource::new(Default::default());
    for event in events {
        source.push(event, tables, &mut sink).unwrap();
    }
    source.finish(tables, &mut sink).unwrap();
    sink.finish().unwrap();
    sink.stats()
}

/// A field of a message.
enum Field {
    Varint(u32, u64),
    Text(u32, String),
    Message(u32, Vec<Field>),
}

impl Field {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Varint(number, value) => {
                varint(u64::from(number << 3), out);
                varint(*value, out);
            }
            Self::Text(number, text) => {
                varint(u64::from(number << 3 | 2), out);
                varint(text.len() as u64, out);
                out.extend_from_slice(text.as_bytes());
            }
            Self::Message(number, fields) => {
                let mut message = Vec::new();
                fields.iter().for_each(|field| field.encode(&mut message));
                varint(u64::from(number << 3 | 2), out);
                varint(message.len() as u64, out);
                out.extend_from_slice(&message);
            }
        }
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes context switches and wake-ups, or states of goroutines; the number of events and bytes.
fn naive(events: &[Event], tables: &Tables) -> (u64, u64) {
    let (mut out, mut count, mut bytes) = (Vec::new(), 0, 0);
    let text = |id: TextId| tables.str(id).into_owned();
    let name = |id| tables.entities.get(id).map_or(String::new(), |e| text(e.name));
    let number = |id| tables.entities.get(id).map_or(0, |e| e.number as u64);
    for event in events {
        let at = event.time.nanos() as u64;
        let ftrace = |cpu, field| {
            let event = Field::Message(2, vec![Field::Varint(1, at), field]);
            vec![Field::Message(1, vec![Field::Varint(1, cpu), event])]
        };
        let slice = |ty, track, name: Option<String>| {
            let mut fields = vec![Field::Varint(9, ty), Field::Varint(11, track)];
            fields.extend(name.map(|name| Field::Text(23, name)));
            vec![Field::Varint(8, at), Field::Varint(10, 1), Field::Message(11, fields)]
        };
        let mut write = |fields: Vec<Field>| {
            Field::Message(1, fields).encode(&mut out);
            count += 1;
        };
        match event.kind {
            EventKind::Switch { cpu, prev, next, prio, .. } => {
                let of =
                    |task: Option<_>| (task.map_or(String::new(), name), task.map_or(0, number));
                let ((prev, prev_tid), (next, next_tid)) = (of(prev), of(next));
                let switch = vec![
                    Field::Text(1, prev),
                    Field::Varint(2, prev_tid),
                    Field::Varint(3, 120),
                    Field::Varint(4, 1),
                    Field::Text(5, next),
                    Field::Varint(6, next_tid),
                    Field::Varint(7, prio as u64),
                ];
                write(ftrace(number(cpu), Field::Message(4, switch)));
            }
            EventKind::Flow { to, on: Some(on), .. } => {
                let waking = vec![
                    Field::Text(1, name(to)),
                    Field::Varint(2, number(to)),
                    Field::Varint(3, 120),
                    Field::Varint(5, number(on)),
                ];
                write(ftrace(number(on), Field::Message(20, waking)));
            }
            EventKind::State { entity, state, reason, .. } => {
                let name = match state {
                    State::Waiting => format!("Waiting ({})", text(reason)),
                    state => format!("{state:?}"),
                };
                write(slice(2, number(entity), None));
                write(slice(1, number(entity), Some(name)));
            }
            _ => {}
        }
        if out.len() >= 256 << 10 {
            bytes += out.len() as u64;
            out.clear();
        }
    }
    (count, bytes + out.len() as u64)
}

fn perfetto(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("perfetto");
    let mut tables = Tables::new();
    let switches = scheduler(8, &mut tables);
    let mut go_tables = Tables::new();
    let go = go(&mut go_tables);
    for (name, events, tables) in
        [("context switches and wake-ups", &switches, &tables), ("track events", &go, &go_tables)]
    {
        let stats = through_the_model(events, tables);
        let packets = 2 * stats.slices + stats.instants + stats.counters + stats.samples;
        let count = if stats.sched > 0 { stats.sched } else { packets };
        let (naive_count, naive_bytes) = naive(events, tables);
        println!(
            "{name}: {count} of {} model events, {:.1} bytes each; naive {naive_count}, {:.1} bytes",
            events.len(),
            stats.bytes as f64 / count as f64,
            naive_bytes as f64 / naive_count as f64
        );
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |b| b.iter(|| through_the_model(events, tables)));
        group.throughput(Throughput::Elements(naive_count));
        group.bench_function(format!("{name}, naive"), |b| b.iter(|| naive(events, tables)));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime::new());
    targets = perfetto
}
criterion_main!(benches);
