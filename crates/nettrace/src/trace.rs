use trace_common::{Cursor, Limits, Timestamp};

use crate::filetime::days_from_civil;
use crate::tables::memory_of;
use crate::{Error, Result};

const NANOS: i64 = 1_000_000_000;

/// The stream's `Trace` object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// Format version: 3 (NetPerf), 4 (NetTrace of .NET Core 3.0 and later, also with the
    /// metadata tags that are called version 5), or 6.
    pub version: u32,
    /// UTC time of the sync point, in nanoseconds since the Unix epoch with a resolution of 1 ms.
    pub sync_time_utc: Timestamp,
    /// Ticks of the event clock at the sync point. On Linux: `CLOCK_MONOTONIC` nanoseconds at
    /// the start of the session.
    pub sync_time_qpc: i64,
    /// Ticks of the event clock per second.
    pub qpc_frequency: i64,
    /// Bytes of a pointer: 4 or 8.
    pub pointer_size: u32,
    /// Process id, in the process's own namespace; 0 if the stream (version 6) has none, or no number:
    /// see `properties`.
    pub pid: u32,
    /// Number of logical processors; 0 as for `pid`.
    pub processors: u32,
    /// Nanoseconds between two CPU samples, as written; 0 as for `pid`. The value 1000000 is a
    /// constant of the runtime, not the actual rate.
    pub expected_cpu_sampling_rate: u32,
    /// Key/value pairs of version 6.
    pub properties: Vec<(String, String)>,
}

impl Trace {
    /// Converts `ticks` of the event clock to [`ClockDomain::Monotonic`](crate::ClockDomain::Monotonic) if the stream was recorded
    /// on Linux (where the event clock is `CLOCK_MONOTONIC`), otherwise to a clock local to the
    /// machine.
    #[inline]
    pub fn timestamp(&self, ticks: i64) -> Timestamp {
        if self.qpc_frequency == NANOS {
            return Timestamp::from_nanos(ticks);
        }
        self.scaled(ticks)
    }

    /// Converts ticks that are no nanoseconds.
    fn scaled(&self, ticks: i64) -> Timestamp {
        let frequency = self.qpc_frequency.max(1);
        // A tick of Windows is 100 ns: that needs no division of 128 bits.
        if NANOS % frequency == 0 {
            return Timestamp::from_nanos(ticks.saturating_mul(NANOS / frequency));
        }
        let nanos = i128::from(ticks) * i128::from(NANOS) / i128::from(frequency);
        Timestamp::from_nanos(nanos.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Time of the sync point: see [`sync_time_utc`](Self::sync_time_utc).
    #[inline]
    pub fn sync_time(&self) -> Timestamp {
        self.timestamp(self.sync_time_qpc)
    }

    /// Converts a time of the event clock to nanoseconds since the Unix epoch.
    ///
    /// The accuracy is that of [`Trace::sync_time_utc`], 1 ms. The stream does not record steps of
    /// the wall clock after the start of the session.
    pub fn utc(&self, time: Timestamp) -> Timestamp {
        self.sync_time_utc.saturating_add_nanos(time.nanos_since(self.sync_time()))
    }

    fn parse_start(c: &mut Cursor<'_>, version: u32) -> Result<Self> {
        let at = c.offset();
        let sync_time_utc = system_time(c)?;
        let sync_time_qpc = c.i64()?;
        let freq_at = c.offset();
        let qpc_frequency = c.i64()?;
        if qpc_frequency <= 0 {
            return Err(Error::invalid(freq_at, "tick frequency", qpc_frequency));
        }
        let size_at = c.offset();
        let pointer_size = c.u32()?;
        if pointer_size != 4 && pointer_size != 8 {
            return Err(Error::invalid(size_at, "pointer size", pointer_size.into()));
        }
        let Some(sync_time_utc) = sync_time_utc else {
            return Err(Error::invalid(at, "sync time", 0));
        };
        Ok(Self {
            version,
            sync_time_utc,
            sync_time_qpc,
            qpc_frequency,
            pointer_size,
            pid: 0,
            processors: 0,
            expected_cpu_sampling_rate: 0,
            properties: Vec::new(),
        })
    }

    /// The 48 bytes of versions 3 to 5.
    pub(crate) fn parse(c: &mut Cursor<'_>, version: u32) -> Result<Self> {
        let mut trace = Self::parse_start(c, version)?;
        trace.pid = c.u32()?;
        trace.processors = c.u32()?;
        trace.expected_cpu_sampling_rate = c.u32()?;
        Ok(trace)
    }

    /// The trace block of version 6.
    pub(crate) fn parse_v6(c: &mut Cursor<'_>, version: u32, limits: &Limits) -> Result<Self> {
        let mut trace = Self::parse_start(c, version)?;
        let mut memory = 0_usize;
        for _ in 0..c.u32()? {
            let at = c.offset();
            let property =
                (crate::strings::utf8(c)?.into_owned(), crate::strings::utf8(c)?.into_owned());
            // A list that grows has up to twice as many places.
            let size = memory_of(std::slice::from_ref(&property)) + size_of_val(&property);
            memory = memory.saturating_add(size);
            if memory > limits.max_buffer {
                let what = "size of trace properties";
                return Err(Error::limit(at, what, memory as u64, limits.max_buffer));
            }
            let (key, value) = &property;
            match key.as_str() {
                "ProcessId" => trace.pid = value.parse().unwrap_or(0),
                "HardwareThreadCount" => trace.processors = value.parse().unwrap_or(0),
                "ExpectedCPUSamplingRate" => {
                    trace.expected_cpu_sampling_rate = value.parse().unwrap_or(0);
                }
                _ => {}
            }
            trace.properties.push(property);
        }
        Ok(trace)
    }
}

/// Converts a Windows SYSTEMTIME to nanoseconds since the Unix epoch; `None` if it is not a date.
fn system_time(c: &mut Cursor<'_>) -> Result<Option<Timestamp>> {
    let mut parts = [0i64; 8];
    for part in &mut parts {
        *part = c.u16()?.into();
    }
    let [year, month, _day_of_week, day, hour, minute, second, milli] = parts;
    let valid = (1601..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61
        && milli < 1000;
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Ok((valid).then(|| {
        Timestamp::from_nanos(
            seconds.saturating_mul(1_000_000_000).saturating_add(milli * 1_000_000),
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A clock that had 1000 ticks at its sync point.
    fn with_frequency(frequency: i64) -> Trace {
        let mut bytes = Vec::new();
        for v in [2026u16, 11, 6, 21, 4, 30, 15, 250] {
            bytes.extend(v.to_le_bytes());
        }
        bytes.extend(1_000i64.to_le_bytes());
        bytes.extend(frequency.to_le_bytes());
        for v in [8u32, 42, 2, 1_000_000] {
            bytes.extend(v.to_le_bytes());
        }
        Trace::parse(&mut Cursor::new(&bytes), 4).unwrap()
    }

    proptest! {
        /// Whole nanoseconds per tick need no division. Without them, times are those of the exact quotient, too.
        #[test]
        fn times_are_exact(
            ticks in prop_oneof![any::<i64>(), -2_000..2_000_i64, Just(i64::MIN), Just(i64::MAX)],
        ) {
            for frequency in [1, 3, 10_000_000, NANOS, 3 * NANOS] {
                let exact = i128::from(ticks) * i128::from(NANOS) / i128::from(frequency);
                let exact = exact.clamp(i64::MIN.into(), i64::MAX.into());
                let time = with_frequency(frequency).timestamp(ticks);
                prop_assert_eq!(i128::from(time.nanos()), exact, "{}", frequency);
            }
        }
    }

    #[test]
    fn ticks_of_windows_become_nanoseconds() {
        let trace = with_frequency(10_000_000);
        assert_eq!(trace.timestamp(3).nanos(), 300);
        assert_eq!(trace.sync_time().nanos(), 100_000);
        assert_eq!(trace.timestamp(i64::MAX).nanos(), i64::MAX);
        assert_eq!(trace.utc(trace.timestamp(1_010)).nanos() - trace.sync_time_utc.nanos(), 1_000);
        assert_eq!(trace.sync_time_utc.nanos(), 1_795_235_415_250_000_000);
    }
}
