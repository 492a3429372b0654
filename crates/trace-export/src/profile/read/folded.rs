//! Lines of stacks.

use super::{Budget, Error, ReadLimits};
use crate::profile::{LabelSet, Measure, Profile, Unit};
use trace_timeline::{Frame, Tables};

/// Reads lines of stacks, outermost frame first, each with its weight: the output of
/// [`Format::Folded`](crate::profile::Format::Folded) and of `stackcollapse` tools.
///
/// The format has no unit: weights are counts.
///
/// ```
/// use trace_export::profile::{ReadLimits, read_folded};
/// # let mut tables = trace_timeline::Tables::new();
/// let profile = read_folded(b"main;parse 3\nmain 1\n", &ReadLimits::default(), &mut tables)?;
/// assert_eq!(profile.weight(), 4);
/// # Ok::<(), trace_export::profile::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Line`] for a line without a weight that fits in 64 bits, and [`Error::TooLarge`]
/// above the limits.
pub fn read_folded(
    data: &[u8],
    limits: &ReadLimits,
    tables: &mut Tables,
) -> Result<Profile, Error> {
    Budget::new("bytes", limits.bytes).take(data.len())?;
    let mut items = Budget::new("lines", limits.items);
    let mut all_frames = Budget::new("frames", limits.frames);
    let mut profile = Profile::new(Measure {
        events: "counts".into(),
        weight: "counts".into(),
        unit: Unit::Count,
        period: 0,
    });
    let mut frames = Vec::new();
    for (number, line) in (1..).zip(data.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        items.take(1)?;
        let weight = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        let value = std::str::from_utf8(weight).ok().and_then(|text| text.parse().ok());
        // A line without a stack is a sample without one.
        let path = line.len().checked_sub(weight.len() + 1).and_then(|end| line.get(..end));
        let (Some(value), Some(path)) = (value, path) else {
            return Err(Error::Line { line: number });
        };
        frames.clear();
        for name in path.rsplit(|byte| *byte == b';').filter(|_| !path.is_empty()) {
            all_frames.take(1)?;
            limits.check_depth(frames.len() + 1)?;
            frames.push(Frame { function: tables.text(name), ..Frame::default() });
        }
        let stack = tables.stack(&frames);
        profile.add(stack, LabelSet::default(), value, 0);
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Format;

    #[test]
    fn lines_are_read_and_written() {
        let mut tables = Tables::new();
        let text = b"main;a b;c 2\nmain 1\n 4\n\r\nmain;a b;c 3\n";
        let profile = read_folded(text, &ReadLimits::default(), &mut tables).unwrap();
        let mut out = Vec::new();
        profile.write(Format::Folded, "", &tables, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), " 4\nmain 1\nmain;a b;c 5\n");
    }

    #[test]
    fn malformed_lines_are_errors_with_their_number() {
        let read = |text: &[u8]| {
            let error = read_folded(text, &ReadLimits::default(), &mut Tables::new()).unwrap_err();
            error.to_string()
        };
        for text in ["a 1\nmain\n", "a 1\nmain -1\n", "a 1\n7", "a 1\nx 99999999999999999999"] {
            assert_eq!(read(text.as_bytes()), "line 2 is no stack with its weight");
        }
        let limits = ReadLimits { frames: 3, ..ReadLimits::default() };
        let error = read_folded(b"a;b 1\nc;d 1\n", &limits, &mut Tables::new()).unwrap_err();
        assert_eq!(error.to_string(), "more than 3 frames");
    }
}
