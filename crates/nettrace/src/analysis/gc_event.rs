use super::decode::{Decoded, Payload, RuntimeEventError, decode};
use super::{GcKind, GcReason, HeapStats, SuspendReason};
use crate::Event;

/// An event about a GC or a suspension, decoded: keyword `GC` (0x1), level 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GcEvent {
    /// `GCStart`: a GC starts.
    Start {
        /// Number of the GC since the process started.
        number: u32,
        /// Oldest generation that is collected.
        generation: u32,
        /// Reason.
        reason: GcReason,
        /// Blocking, background or foreground.
        kind: GcKind,
    },
    /// `GCEnd`: a GC has ended.
    End {
        /// Number of the GC.
        number: u32,
    },
    /// `GCHeapStats`: the heap after the GC that ended last.
    HeapStats {
        /// The sizes.
        heap: HeapStats,
        /// Number of sizes in [`HeapStats::generation_sizes`] that the runtime reports: 4 before
        /// .NET 5, which had no pinned object heap.
        generations: usize,
    },
    /// `GCSuspendEEBegin`: the thread begins to suspend the managed threads.
    SuspendBegin {
        /// Reason.
        reason: SuspendReason,
    },
    /// `GCSuspendEEEnd`: all managed threads are suspended.
    SuspendEnd,
    /// `GCRestartEEEnd`: all managed threads have resumed.
    RestartEnd,
}

impl GcEvent {
    /// Decodes an event; `None` if it is not one of these.
    ///
    /// # Errors
    ///
    /// [`RuntimeEventError`] if the payload lacks a field of its version, or does not match its
    /// metadata.
    pub fn decode(event: &Event<'_>) -> Result<Option<Self>, RuntimeEventError> {
        decode(event, Self::read)
    }

    fn read(payload: Payload<'_, '_>) -> Decoded<Option<Self>> {
        Ok(Some(match payload.id() {
            1 => Self::Start {
                number: payload.u32("Count")?,
                generation: payload.u32("Depth")?,
                reason: GcReason::from_code(payload.u32("Reason")?),
                kind: GcKind::from_code(payload.u32("Type")?),
            },
            2 => Self::End { number: payload.u32("Count")? },
            3 => Self::RestartEnd,
            4 => heap_stats(payload)?,
            8 => Self::SuspendEnd,
            9 => {
                let reason = SuspendReason::from_code(payload.u32("Reason")?);
                Self::SuspendBegin { reason }
            }
            _ => return Ok(None),
        }))
    }
}

/// The fields with the size of each generation and with its promoted bytes.
const GENERATIONS: [(&str, &str); 5] = [
    ("GenerationSize0", "TotalPromotedSize0"),
    ("GenerationSize1", "TotalPromotedSize1"),
    ("GenerationSize2", "TotalPromotedSize2"),
    ("GenerationSize3", "TotalPromotedSize3"),
    PINNED,
];

/// Since .NET 5.
const PINNED: (&str, &str) = ("GenerationSize4", "TotalPromotedSize4");

fn heap_stats(payload: Payload<'_, '_>) -> Decoded<GcEvent> {
    let mut heap = HeapStats {
        finalization_promoted_size: payload.u64("FinalizationPromotedSize")?,
        finalization_promoted_count: payload.u64("FinalizationPromotedCount")?,
        pinned_objects: payload.u32("PinnedObjectCount")?,
        handles: payload.u32("GCHandleCount")?,
        ..HeapStats::default()
    };
    let has_pinned = payload.added(PINNED.0, Payload::u64)?.is_some();
    let generations = GENERATIONS.len() - usize::from(!has_pinned);
    let sizes = heap.generation_sizes.iter_mut().zip(&mut heap.promoted);
    for ((size, promoted), names) in sizes.zip(GENERATIONS).take(generations) {
        (*size, *promoted) = (payload.u64(names.0)?, payload.u64(names.1)?);
    }
    Ok(GcEvent::HeapStats { heap, generations })
}
