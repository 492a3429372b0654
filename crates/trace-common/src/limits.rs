/// Limits on the memory and work of a decoder whose input is untrusted.
///
/// Before anything is allocated, a length read from the input is compared with the remaining input
/// *and* with the applicable limit. Exceeding a limit is an error of the decoder, never a silent
/// truncation.
///
/// ```
/// let strict = trace_common::Limits { max_buffer: 1 << 20, ..Default::default() };
/// assert!(strict.max_buffer < trace_common::Limits::default().max_buffer);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of input bytes that a streaming reader buffers at once: one Go generation,
    /// one NetTrace object, one perf record.
    pub max_buffer: usize,
    /// Maximum number of bytes of one string.
    pub max_string: usize,
    /// Maximum number of entries of one table: strings, stacks, metadata, live goroutines.
    pub max_entries: usize,
    /// Maximum depth of nested types or objects.
    pub max_depth: usize,
    /// Maximum number of steps per byte of input, for work that can grow faster than the input. Go
    /// traces: ordering the events of many threads whose clocks disagree.
    pub max_work_per_byte: u32,
}

impl Default for Limits {
    /// Large enough for the traces of real programs, small enough for any machine: 256 MiB of
    /// buffered input, 64 MiB strings, 64 Mi entries, 64 levels, 128 steps per byte.
    ///
    /// One generation of a Go trace covers a second of execution and has a few megabytes; a
    /// compressed input of a megabyte can expand to a generation of a gigabyte.
    fn default() -> Self {
        Self {
            max_buffer: 1 << 28,
            max_string: 1 << 26,
            max_entries: 1 << 26,
            max_depth: 64,
            max_work_per_byte: 128,
        }
    }
}
