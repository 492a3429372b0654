//! Merging the records of several sources in time order.
//!
//! `Merge` orders positions while the records stay in the chunks that they were read into; the heap
//! moves the records themselves through a `BinaryHeap`. Both read every record at its release.
//! Throughput is in records per second.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;
use trace_common::{Merge, Timestamp};

/// Records of all sources in one round.
const RECORDS: usize = 1 << 14;

/// Rounds, each of which leaves the second half of its records for the next.
const ROUNDS: usize = 4;

/// The records of each source in each round, in order. The first word is the time.
type Rounds<const N: usize> = Vec<Vec<Vec<[u64; N]>>>;

fn rounds<const N: usize>(sources: usize) -> Rounds<N> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut now = vec![0; sources];
    let mut next = |now: &mut u64| {
        *now += random() % 2000;
        [*now; N]
    };
    let mut chunk = |now: &mut u64| (0..RECORDS / sources).map(|_| next(now)).collect();
    (0..ROUNDS).map(|_| now.iter_mut().map(&mut chunk).collect()).collect()
}

const fn time<const N: usize>(record: &[u64; N]) -> Timestamp {
    Timestamp::from_nanos(record[0] as i64)
}

/// The time until which the sources are released in a round.
fn limit<const N: usize>(round: &[Vec<[u64; N]>]) -> Timestamp {
    round.iter().map(|chunk| time(&chunk[chunk.len() / 2])).min().unwrap()
}

fn in_place<const N: usize>(rounds: &Rounds<N>) -> u64 {
    let mut merge = Merge::<(u32, u32)>::new(rounds[0].len());
    let mut sum = 0;
    let mut take = |merge: &mut Merge<(u32, u32)>, limit| {
        while let Some(item) = merge.pop(limit) {
            let (round, place) = item.value;
            sum ^= rounds[round as usize][item.source][place as usize][1];
        }
    };
    for (number, round) in rounds.iter().enumerate() {
        for (source, chunk) in round.iter().enumerate() {
            for (place, record) in chunk.iter().enumerate() {
                merge.push(source, time(record), (number as u32, place as u32));
            }
        }
        take(&mut merge, limit(round));
    }
    take(&mut merge, Timestamp::MAX);
    sum
}

fn heap<const N: usize>(rounds: &Rounds<N>) -> u64 {
    let mut queues: Vec<VecDeque<[u64; N]>> = vec![VecDeque::new(); rounds[0].len()];
    let mut sum = 0;
    let mut take = |queues: &mut [VecDeque<[u64; N]>], limit| {
        let heads = queues.iter().enumerate();
        let heads = heads.filter_map(|(n, queue)| Some(Reverse((time(queue.front()?), n))));
        let mut heads: BinaryHeap<_> = heads.collect();
        while let Some(Reverse((at, source))) = heads.pop() {
            if at > limit {
                break;
            }
            sum ^= black_box(queues[source].pop_front().unwrap())[1];
            heads.extend(queues[source].front().map(|record| Reverse((time(record), source))));
        }
    };
    for round in rounds {
        for (queue, chunk) in queues.iter_mut().zip(round) {
            queue.extend(chunk);
        }
        take(&mut queues, limit(round));
    }
    take(&mut queues, Timestamp::MAX);
    sum
}

fn compare<const N: usize>(group: &mut BenchmarkGroup<'_, WallTime>, sources: usize) {
    let rounds = rounds::<N>(sources);
    assert_eq!(in_place(&rounds), heap(&rounds));
    for (name, run) in [("in place", in_place as fn(&Rounds<N>) -> u64), ("heap", heap)] {
        let id = BenchmarkId::new(format!("{name}, {} bytes", 8 * N), sources);
        group.bench_function(id, |b| b.iter(|| black_box(run(&rounds))));
    }
}

fn merge(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge");
    group.throughput(Throughput::Elements((RECORDS * ROUNDS) as u64));
    for sources in [2, 8, 64] {
        compare::<3>(&mut group, sources);
        compare::<12>(&mut group, sources);
    }
    group.finish();
}

criterion_group!(benches, merge);
criterion_main!(benches);
