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
}

impl Default for Limits {
    /// Generous for every trace a real program makes, small enough for any machine: 1 GiB of
    /// buffered input, 64 MiB strings, 64 Mi entries, 64 levels.
    fn default() -> Self {
        Self { max_buffer: 1 << 30, max_string: 1 << 26, max_entries: 1 << 26, max_depth: 64 }
    }
}
