//! Splits a trace into batches, which can be damaged and reassembled. Only the framing is decoded.

use task_support::Result;

/// A trace of any version, split into pieces.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    /// The 16 bytes at the start.
    pub(crate) header: Vec<u8>,
    pub(crate) batches: Vec<Batch>,
}

/// A batch, or the data between batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Go ≥ 1.22: events of a thread, a table or data of an experiment.
    Sized {
        /// The byte before the header of an experimental batch.
        experiment: Option<u8>,
        generation: u64,
        thread: u64,
        time: u64,
        data: Vec<u8>,
    },
    /// Go ≥ 1.26: the byte that ends a generation.
    EndOfGeneration,
    /// Go ≤ 1.21: the events of a proc up to the next batch.
    Proc { proc: u64, time: u64, data: Vec<u8> },
    /// Go ≤ 1.21: the data before the first batch.
    Leading(Vec<u8>),
}

const EVENT_BATCH: u8 = 1;
const EXPERIMENTAL_BATCH: u8 = 49;
const END_OF_GENERATION: u8 = 52;

impl Pieces {
    /// Splits an undamaged trace.
    pub(crate) fn of(trace: &[u8]) -> Result<Pieces> {
        let header = trace.get(..16).ok_or("a trace has a header")?.to_vec();
        let mut rest = &trace[16..];
        let mut batches = Vec::new();
        if minor(&header) < 22 {
            split_v1(rest, &mut batches)?;
        } else {
            while !rest.is_empty() {
                batches.push(sized(&mut rest)?);
            }
        }
        Ok(Pieces { header, batches })
    }

    /// Reassembles the trace. Integers have their shortest encoding, unlike those of the runtime.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header.clone();
        for batch in &self.batches {
            match batch {
                Batch::Sized { experiment, generation, thread, time, data } => {
                    match experiment {
                        Some(experiment) => out.extend([EXPERIMENTAL_BATCH, *experiment]),
                        None => out.push(EVENT_BATCH),
                    }
                    for value in [*generation, *thread, *time, data.len() as u64] {
                        put_uvarint(&mut out, value);
                    }
                    out.extend_from_slice(data);
                }
                Batch::EndOfGeneration => out.push(END_OF_GENERATION),
                Batch::Proc { proc, time, data } => {
                    out.push(V1_BATCH | 1 << 6);
                    put_uvarint(&mut out, *proc);
                    put_uvarint(&mut out, *time);
                    out.extend_from_slice(data);
                }
                Batch::Leading(data) => out.extend_from_slice(data),
            }
        }
        out
    }
}

/// Whether a trace of the format with explicit ends of generations ends without such a mark.
///
/// The reference accepts it as complete if it contains no events of that generation yet.
pub(crate) fn ends_within_generation(trace: &[u8]) -> bool {
    minor(trace) >= 26
        && Pieces::of(trace).is_ok_and(|p| p.batches.last() != Some(&Batch::EndOfGeneration))
}

/// Number of generations missing between others, in a trace whose generations are in order.
pub(crate) fn missing_generations(trace: &[u8]) -> Option<u64> {
    let mut numbers = Pieces::of(trace).ok()?.batches.into_iter().filter_map(|b| match b {
        Batch::Sized { generation, .. } => Some(generation),
        _ => None,
    });
    let mut last = numbers.next()?;
    let mut missing = 0;
    for number in numbers.filter(|&n| n != 0) {
        missing += number.checked_sub(last)?.saturating_sub(1);
        last = number;
    }
    Some(missing)
}

/// The N of the header's 1.N.
pub(crate) fn minor(trace: &[u8]) -> u32 {
    let digits = trace.strip_prefix(b"go 1.").unwrap_or_default();
    digits.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + u32::from(b - b'0'))
}

fn sized(rest: &mut &[u8]) -> Result<Batch> {
    let experiment = match byte(rest)? {
        END_OF_GENERATION => return Ok(Batch::EndOfGeneration),
        EVENT_BATCH => None,
        EXPERIMENTAL_BATCH => Some(byte(rest)?),
        other => return Err(format!("no batch starts with {other}").into()),
    };
    let (generation, thread, time) = (uvarint(rest)?, uvarint(rest)?, uvarint(rest)?);
    let size = usize::try_from(uvarint(rest)?)?;
    let data = take(rest, size)?.to_vec();
    Ok(Batch::Sized { experiment, generation, thread, time, data })
}

const V1_BATCH: u8 = 1;
const V1_STRING: u8 = 37;
const V1_USER_LOG: u8 = 48;

/// An event of Go 1.11 to 1.21 is a byte with its type and, in the upper two bits, the number of
/// arguments after the first; from four arguments on, their size in bytes comes first.
fn split_v1(all: &[u8], batches: &mut Vec<Batch>) -> Result {
    let mut rest = all;
    let mut start = all;
    let mut current = Batch::Leading(Vec::new());
    loop {
        let before = rest;
        let head = if rest.is_empty() { V1_BATCH } else { byte(&mut rest)? };
        if head & 0x3f == V1_BATCH {
            let data = start[..start.len() - before.len()].to_vec();
            batches.push(match current {
                Batch::Proc { proc, time, .. } => Batch::Proc { proc, time, data },
                _ => Batch::Leading(data),
            });
            if before.is_empty() {
                return Ok(());
            }
            let (proc, time) = (uvarint(&mut rest)?, uvarint(&mut rest)?);
            current = Batch::Proc { proc, time, data: Vec::new() };
            start = rest;
            continue;
        }
        match (head & 0x3f, head >> 6) {
            (V1_STRING, _) => {
                uvarint(&mut rest)?;
                let size = usize::try_from(uvarint(&mut rest)?)?;
                take(&mut rest, size)?;
            }
            (kind, more) => {
                if more < 3 {
                    for _ in 0..=more {
                        uvarint(&mut rest)?;
                    }
                } else {
                    let size = usize::try_from(uvarint(&mut rest)?)?;
                    take(&mut rest, size)?;
                }
                if kind == V1_USER_LOG {
                    let size = usize::try_from(uvarint(&mut rest)?)?;
                    take(&mut rest, size)?;
                }
            }
        }
    }
}

fn byte(rest: &mut &[u8]) -> Result<u8> {
    Ok(take(rest, 1)?[0])
}

fn take<'a>(rest: &mut &'a [u8], size: usize) -> Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(size).ok_or("the trace ends within a batch")?;
    *rest = left;
    Ok(taken)
}

fn uvarint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = byte(rest)?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number of more than ten bytes".into())
}

fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_together_again() {
        let mut trace = b"go 1.26 trace\0\0\0".to_vec();
        trace.extend([1, 1, 2, 0x80, 0x01, 3, 9, 9, 9, 49, 1, 1, 0, 0, 0, 52]);
        let pieces = Pieces::of(&trace).unwrap();
        assert_eq!(pieces.batches.len(), 3);
        assert_eq!(pieces.batches[2], Batch::EndOfGeneration);
        assert_eq!(pieces.bytes(), trace);
    }

    #[test]
    fn an_old_trace_too() {
        let mut trace = b"go 1.21 trace\0\0\0".to_vec();
        // First a frequency, then a batch with an event of one argument and an event with a size,
        // and a string outside of a batch's events.
        trace.extend([2, 7, 0x41, 3, 100, 4, 1, 0xc5, 2, 1, 1, 37 | 0x40, 1, 2, b'h', b'i']);
        trace.extend([0x41, 4, 100]);
        let pieces = Pieces::of(&trace).unwrap();
        assert_eq!(pieces.batches.len(), 3);
        assert_eq!(pieces.bytes(), trace);
    }
}
