//! Ranges of the runtime: garbage collection, sweeping, mark assists, stop-the-world.

use super::{GoSource, Layout};
use crate::lanes::Key;
use crate::model::{DebugAnnotation, Sink, Track, TrackEvent, Value};
use gotrace::{Event, EventKind, RangeName, ResourceId};
use std::io;

impl GoSource {
    pub(super) fn range(
        &mut self,
        event: Event<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(range) = event.range() else { return Ok(()) };
        let at = event.time();
        let fixed = self.fixed;
        let ends = event.kind() == EventKind::RangeEnd;
        let stack = self.names.stack(event.stack(), event.generation(), sink);
        let (key, name, track, nest) = match (range.name, range.scope) {
            (RangeName::GcMark, _) => (Key::Mark, fixed.mark, layout.gc, &mut self.gc),
            (RangeName::StopTheWorld(_), scope) => {
                let track = Track::custom(b"Stop the world").child_of(layout.gc);
                let track = self.group_track(|layout| &mut layout.stw, &track, sink)?;
                let key = Key::StopTheWorld(scope.goroutine().map_or(-1, |id| id.0));
                let name = if ends {
                    fixed.mark // not used
                } else {
                    sink.text(range.name.to_string().as_bytes())
                };
                (key, name, track, &mut self.stw)
            }
            (RangeName::GcSweep, ResourceId::Proc(id)) if id.is_some() => {
                let proc = self.proc_mut(id, layout, sink)?;
                let track = match proc.sweep_track {
                    Some(track) => track,
                    None => {
                        let track = Track::custom(b"Sweep").child_of(proc.track);
                        *proc.sweep_track.insert(sink.track(&track)?)
                    }
                };
                (Key::Sweep, fixed.sweep, track, &mut proc.sweep)
            }
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => {
                let Some((track, nest)) = self.inner(id, at, sink)? else { return Ok(()) };
                (Key::MarkAssist, fixed.assist, track, nest)
            }
            _ => return Ok(()),
        };
        if ends {
            let mut args = [DebugAnnotation::new(fixed.bytes_swept, Value::Uint(0)); 2];
            let mut known = 0;
            if let (Key::Sweep, Some(attributes)) = (key, event.range_attributes()) {
                let names = [fixed.bytes_swept, fixed.bytes_reclaimed];
                for ((arg, name), attribute) in args.iter_mut().zip(names).zip(attributes) {
                    let value = attribute.value.as_u64().unwrap_or_default();
                    *arg = DebugAnnotation::new(name, Value::Uint(value));
                    known += 1;
                }
            }
            nest.end(key, at, track, &args[..known], sink)?;
            return Ok(());
        }
        if nest.is_open(key) {
            return Ok(()); // repeated at the start of a generation
        }
        let id = match range.scope {
            ResourceId::Goroutine(id) => id.0 as u64,
            _ => 0,
        };
        let args = [DebugAnnotation::new(fixed.goroutine, Value::Uint(id))];
        let known = usize::from(matches!(key, Key::StopTheWorld(_)));
        let entry = TrackEvent::new(name).stack(stack).args(&args[..known]);
        nest.begin(key, name, at, track, &entry, sink)
    }
}
