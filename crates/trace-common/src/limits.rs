/// What a decoder may hold in memory on the word of its input.
///
/// A length that is read from input is compared with what is left of the input *and* with the
/// limit that applies before anything is allocated. Exceeding a limit is an error of the
/// decoder at hand, never a silent truncation.
///
/// ```
/// let strict = trace_common::Limits { max_buffer: 1 << 20, ..Default::default() };
/// assert!(strict.max_buffer < trace_common::Limits::default().max_buffer);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of input a streaming reader may buffer at once: one Go generation, one NetTrace
    /// object, one perf record.
    pub max_buffer: usize,
    /// Bytes of one string.
    pub max_string: usize,
    /// Entries of one table: strings, stacks, metadata, live goroutines.
    pub max_entries: usize,
    /// Levels of nested types or objects.
    pub max_depth: usize,
    /// Steps of work for each byte of input, where an input can make the work grow faster than
    /// itself. Go traces: finding the order of events among many threads whose clocks disagree.
    pub max_work_per_byte: u32,
}

impl Default for Limits {
    /// Generous for the traces of real programs, small enough for any machine: 256 MiB of
    /// buffered input, 64 MiB strings, 64 Mi entries, 64 levels, 128 steps per byte.
    ///
    /// One generation of a Go trace is a second of the program, a few megabytes; a compressed
    /// input of a megabyte can contain one of a gigabyte.
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
