//! Finds the variable `runtime/trace.tracing` of a program without symbols.
//!
//! It is in the section `.bss`. Every address there is tried as a `traceMultiplexer` that is enabled
//! and has a flight recorder. What it points to must be an enabled `FlightRecorder` with the header
//! of a trace. A process has at most one.

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::{Memory, Object, Source};
use crate::recorder::{flight_recorder, is_header};
use std::ops::Range;
use trace_common::Limits;

/// Bytes that are searched at once.
const PART: u64 = 1 << 16;

/// The alignment of the variable.
const ALIGN: usize = 8;

/// The most subscribers of the tracer: `trace.Start` and a flight recorder.
const MAX_SUBSCRIBERS: u64 = 2;

/// The address of the `traceMultiplexer` in `range`.
pub(crate) fn tracing<M: Memory + ?Sized>(
    memory: &mut M,
    layout: &Layout,
    range: Range<u64>,
    limits: Limits,
) -> Result<u64> {
    let mut source = Source::new(memory, limits.max_buffer);
    let mut found = None;
    let (mut part, mut buffer) = (Vec::new(), Vec::new());
    let mut at = range.start.checked_next_multiple_of(ALIGN as u64).unwrap_or(u64::MAX);
    let size = layout.multiplexer as u64;
    while range.end.saturating_sub(at) >= size {
        // Parts overlap: each variable is inside of one.
        let len = (range.end - at).min(PART);
        let object = source.object(at, len, &mut part)?;
        let offsets = (0..=(len - size) as usize).step_by(ALIGN);
        for offset in offsets {
            let Some(recorder) = subscribed(&object, offset, layout)? else { continue };
            // The pointer is that of another type, unless all of this can be read.
            let recorder = flight_recorder(&mut source, layout, recorder, &mut buffer);
            if !recorder.is_ok_and(|r| is_running(&r, layout).unwrap_or(false)) {
                continue;
            }
            if found.replace(at + offset as u64).is_some() {
                return Err(Error::Ambiguous);
            }
        }
        at += (len - size) / ALIGN as u64 * ALIGN as u64 + ALIGN as u64;
    }
    found.ok_or(Error::NotFound)
}

/// The flight recorder of an object, if it can be an enabled `traceMultiplexer`.
fn subscribed(object: &Object<'_>, at: usize, layout: &Layout) -> Result<Option<u64>> {
    let enabled = u32::from_le_bytes(object.bytes(at + layout.multiplexer_enabled)?);
    let subscribers = object.word(at + layout.multiplexer_subscribers)?;
    let recorder = object.word(at + layout.multiplexer_flight_recorder)?;
    let is_plausible = enabled == 1
        && (1..=MAX_SUBSCRIBERS).contains(&subscribers)
        && recorder != 0
        && recorder % ALIGN as u64 == 0;
    Ok(is_plausible.then_some(recorder))
}

fn is_running(recorder: &Object<'_>, layout: &Layout) -> Result<bool> {
    let [enabled] = recorder.bytes(layout.flight_recorder_enabled)?;
    Ok(enabled == 1 && is_header(&recorder.bytes(layout.flight_recorder_header)?))
}
