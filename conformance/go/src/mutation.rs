//! Ways to damage a trace.

use super::batches::{Batch, Pieces, minor};
use std::collections::BTreeMap;
use task_support::Result;
use testkit::random::Random;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mutation {
    /// Truncates the trace at any byte.
    Cut,
    /// Truncates the trace at a batch.
    CutBatch,
    /// Truncates the trace within the header of a batch.
    CutHeader,
    /// Overwrites one to four bytes.
    Flip,
    /// Flips one bit of the first bytes of a batch.
    FlipHead,
    /// Removes some bytes.
    Remove,
    /// Inserts some bytes.
    Insert,
    /// Removes a batch.
    Drop,
    /// Duplicates a batch.
    Duplicate,
    /// Swaps two batches.
    Swap,
    /// Removes the last bytes of a batch and adjusts its size.
    Shorten,
    /// Shifts each thread's or proc's clock by a few ticks, up to a million.
    Skew,
    /// Renumbers the generations.
    Renumber,
    /// Changes the version in the header.
    Version,
    /// Repeats the whole trace.
    Repeat,
    /// Gives a CPU sample a stack that is in no table.
    SampleStack,
    /// Changes the data of an experiment to an unknown experiment.
    Experiment,
    /// Gives a proc a status that does not fit in a byte.
    ProcStatus,
}

pub(crate) const ALL: [Mutation; 18] = [
    Mutation::Cut,
    Mutation::CutBatch,
    Mutation::CutHeader,
    Mutation::Flip,
    Mutation::FlipHead,
    Mutation::Remove,
    Mutation::Insert,
    Mutation::Drop,
    Mutation::Duplicate,
    Mutation::Swap,
    Mutation::Shorten,
    Mutation::Skew,
    Mutation::Renumber,
    Mutation::Version,
    Mutation::Repeat,
    Mutation::SampleStack,
    Mutation::Experiment,
    Mutation::ProcStatus,
];

impl Mutation {
    /// Returns a damaged copy of `trace`, whose batches are `pieces`. `None` if this damage cannot
    /// be applied to it.
    pub(crate) fn of(
        self,
        trace: &[u8],
        pieces: &Pieces,
        random: &mut Random,
    ) -> Result<Option<Vec<u8>>> {
        if pieces.batches.is_empty() {
            return Err("a trace without batches".into());
        }
        let any = random.below(pieces.batches.len());
        let mut pieces = pieces.clone();
        let bytes = match self {
            Mutation::Cut
            | Mutation::Flip
            | Mutation::Remove
            | Mutation::Insert
            | Mutation::Version
            | Mutation::Repeat => self.of_bytes(trace, random),
            Mutation::CutBatch => {
                pieces.batches.truncate(any);
                pieces.bytes()
            }
            Mutation::CutHeader => {
                let mut bytes = pieces.bytes();
                pieces.batches.truncate(any);
                bytes.truncate(pieces.bytes().len() + 1 + random.below(6));
                bytes
            }
            Mutation::FlipHead => {
                let mut bytes = pieces.bytes();
                pieces.batches.truncate(any);
                let at = (pieces.bytes().len() + random.below(16)).min(bytes.len() - 1);
                bytes[at] ^= 1 << random.below(8);
                bytes
            }
            _ => match self.of_batches(&mut pieces, any, random) {
                Some(()) => pieces.bytes(),
                None => return Ok(None),
            },
        };
        Ok(Some(bytes))
    }

    /// Applies damage that does not depend on batches.
    fn of_bytes(self, trace: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = trace.to_vec();
        match self {
            Mutation::Cut => bytes.truncate(random.below(trace.len())),
            Mutation::Flip => {
                for _ in 0..=random.below(4) {
                    let at = random.below(bytes.len());
                    bytes[at] = match random.below(3) {
                        0 => random.next() as u8,
                        1 => bytes[at] ^ 1 << random.below(8),
                        _ => bytes[at].wrapping_add(1),
                    };
                }
            }
            Mutation::Remove => {
                let at = random.below(bytes.len());
                let end = (at + 1 + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            Mutation::Insert => {
                let at = 16 + random.below(bytes.len() - 16);
                let more: Vec<u8> = (0..=random.below(20)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, more);
            }
            Mutation::Version => {
                let others: Vec<u32> = [11, 19, 21, 22, 23, 25, 26, 27]
                    .into_iter()
                    .filter(|&v| v != minor(trace))
                    .collect();
                let other = others[random.below(others.len())];
                bytes[..16].copy_from_slice(format!("go 1.{other} trace\0\0\0").as_bytes());
            }
            _ => {
                let from = if random.below(2) == 0 { 0 } else { 16 };
                bytes.extend_from_slice(&trace[from..]);
            }
        }
        bytes
    }

    /// Applies damage to the batch `any`, or to several. `None` if there is no suitable batch.
    fn of_batches(self, pieces: &mut Pieces, any: usize, random: &mut Random) -> Option<()> {
        let count = pieces.batches.len();
        match self {
            Mutation::Drop => {
                for _ in 0..=random.below(2) {
                    if pieces.batches.len() > 1 {
                        pieces.batches.remove(random.below(pieces.batches.len()));
                    }
                }
            }
            Mutation::Duplicate => {
                let again = pieces.batches[any].clone();
                pieces.batches.insert(random.below(count + 1), again);
            }
            Mutation::Swap => {
                let other = match random.below(2) {
                    0 => (any + 1) % count,
                    _ => random.below(count),
                };
                pieces.batches.swap(any, other);
            }
            Mutation::Shorten => {
                if let Batch::Sized { data, .. } | Batch::Proc { data, .. } =
                    &mut pieces.batches[any]
                {
                    data.truncate(data.len().saturating_sub(1 + random.below(12)));
                }
            }
            Mutation::Skew => skew(pieces, random),
            Mutation::Renumber => {
                let (from, by) = (random.below(count), [1, 2, 5, u64::MAX][random.below(4)]);
                for batch in &mut pieces.batches[from..] {
                    if let Batch::Sized { generation, .. } = batch {
                        *generation = generation.wrapping_add(by);
                    }
                }
            }
            Mutation::SampleStack => {
                let samples = pieces.batches.iter_mut().filter_map(cpu_samples).last()?;
                // The stack is the last integer of a sample.
                let end = samples.iter().rposition(|b| *b < 0x80).unwrap_or(0);
                samples.splice(end.., [0xff, 0xff, 0xff, 0xff, 0x0f]);
            }
            Mutation::Experiment => {
                let experiments = pieces.batches.iter_mut().filter_map(|b| match b {
                    Batch::Sized { experiment, .. } => experiment.as_mut(),
                    _ => None,
                });
                *experiments.last()? = 2 + random.below(254) as u8;
            }
            _ => {
                let (data, at) = pieces.batches.iter_mut().filter_map(proc_status).last()?;
                data.splice(
                    at..=at,
                    [0x80 | random.below(0x80) as u8, 2 + random.below(0x7e) as u8],
                );
            }
        }
        Some(())
    }
}

/// Shifts the clock of each thread or proc by the same number of ticks in all its batches.
fn skew(pieces: &mut Pieces, random: &mut Random) {
    let reach = [3, 30, 300, 3000, 30_000, 1_000_000][random.below(6)];
    let mut offsets = BTreeMap::new();
    for batch in &mut pieces.batches {
        let (Batch::Sized { thread: id, time, .. } | Batch::Proc { proc: id, time, .. }) = batch
        else {
            continue;
        };
        let offset =
            offsets.entry(*id).or_insert_with(|| random.below(2 * reach + 1) as i64 - reach as i64);
        *time = time.saturating_add_signed(*offset);
    }
}

/// Returns the data of a batch if it is a table of CPU samples.
fn cpu_samples(batch: &mut Batch) -> Option<&mut Vec<u8>> {
    match batch {
        Batch::Sized { experiment: None, data, .. } if data.first() == Some(&6) => Some(data),
        _ => None,
    }
}

/// Returns the data of a batch that begins with the status of a proc, and the offset of the status.
fn proc_status(batch: &mut Batch) -> Option<(&mut Vec<u8>, usize)> {
    match batch {
        Batch::Sized { experiment: None, data, .. } if data.first() == Some(&13) => {
            // After the time and the proc.
            let mut ends = (1..data.len()).filter(|&at| data[at] < 0x80);
            let at = ends.nth(1)? + 1;
            (at < data.len()).then_some((data, at))
        }
        _ => None,
    }
}
