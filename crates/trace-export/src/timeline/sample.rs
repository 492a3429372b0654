//! Samples of profilers.

use super::names::Root;
use super::{Context, Drawing};
use crate::cpu::CpuState;
use crate::model::{Category, CpuMode, DebugAnnotation, Sample, Sink, TrackEvent, Value};
use crate::pids;
use std::io;
use trace_timeline::{Entity, EntityId, EntityKind, Kernel, SampleKind, Sampled};

/// Nanoseconds before a managed sample in which a thread counts as on CPU, where only
/// [`CpuIntervals`](crate::CpuIntervals) are known and not when the sampler stopped it.
const SAMPLE_WINDOW: i64 = 1_000_000;

impl Drawing {
    pub(super) fn sample(
        &mut self,
        sample: &Sampled,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        self.flush(cx)?;
        let kind = tables.entities.kind(sample.entity);
        let thread = sample.thread.or_else(|| match kind {
            Some(EntityKind::Goroutine) => self.executing_thread(sample.entity),
            Some(EntityKind::Thread | EntityKind::GoThread | EntityKind::DotnetThread) => {
                Some(sample.entity)
            }
            _ => None,
        });
        let thread = thread.and_then(|id| {
            let entity = tables.entities.get(id)?;
            Some((id, entity, pids::of(entity)?))
        });
        let is_of_thread = sample.kind != SampleKind::Allocation;
        let thread = thread.filter(|_| is_of_thread);
        match thread {
            Some((id, ..)) if sample.kind == SampleKind::OffCpu => self.wait_sample(sample, id, cx),
            Some((id, thread, tid)) => self.thread_sample(sample, (id, thread, tid), cx),
            None => self.other_sample(sample, cx),
        }
    }

    fn thread_sample(
        &mut self,
        sample: &Sampled,
        (id, thread, tid): (EntityId, &Entity, u32),
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        let mut drawn = Sample::new(self.pid(thread.parent, tables), tid);
        self.thread_track(id, cx)?;
        let cpu = match sample.kernel {
            Kernel::OnCpu { cpu } => {
                let cpu = tables.entities.get(cpu).map(|cpu| cpu.number);
                Some(cpu.and_then(|cpu| u32::try_from(cpu).ok()))
            }
            _ => None,
        };
        let mut root = Root::None;
        drawn.cpu = cpu.flatten();
        if tables.sampled_event(sample.event).has_others {
            root = Root::Event(sample.event);
        }
        if sample.kind == SampleKind::Managed {
            let state = match sample.kernel {
                Kernel::Unknown | Kernel::Absent => self.cpu_state(sample, tid),
                _ if cpu.is_some() => Some((true, drawn.cpu)),
                _ => Some((false, None)),
            };
            root = match state {
                Some((true, cpu)) => {
                    (drawn.cpu, drawn.mode) = (cpu, CpuMode::User);
                    self.stats.samples_on_cpu += 1;
                    Root::OnCpu
                }
                Some((false, _)) => {
                    self.stats.samples_off_cpu += 1;
                    Root::OffCpu
                }
                None => Root::Unknown,
            };
        }
        drawn.stack = self.names.stack_from(root, sample.stack, cx);
        if sample.kind == SampleKind::GoCpu {
            drawn.mode = CpuMode::User;
        }
        self.stats.samples += 1;
        cx.sink.sample(cx.at, &drawn)
    }

    /// A wait as a slice with the stack where the thread left the CPU.
    fn wait_sample(
        &mut self,
        sample: &Sampled,
        thread: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        self.stats.samples += 1;
        let name = self.names.wait(sample.stack, cx);
        let stack = self.names.stack(sample.stack, cx);
        let entry = TrackEvent::new(name).stack(stack).category(Category::Sched);
        let nanos = i64::try_from(sample.weight).unwrap_or(i64::MAX);
        self.wait(thread, sample.time.saturating_add_nanos(-nanos), &entry, cx)
    }

    /// Whether a thread had a CPU before it was sampled, and which one, by the given intervals.
    fn cpu_state(&self, sample: &Sampled, tid: u32) -> Option<(bool, Option<u32>)> {
        let intervals = self.options.cpus.as_ref()?;
        let (from, to) = match sample.stop_requested {
            Some(at) => (at, at),
            None => (sample.time.saturating_add_nanos(-SAMPLE_WINDOW), sample.time),
        };
        match intervals.state_within(tid, from, to) {
            CpuState::OnCpu(cpu) => Some((true, Some(cpu))),
            CpuState::OffCpu => Some((false, None)),
            CpuState::Unknown => None,
        }
    }

    /// A sample as an instant.
    fn other_sample(
        &mut self,
        sample: &Sampled,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let (name, weight) = match sample.kind {
            SampleKind::Allocation => ("allocation sample", "bytes"),
            _ => {
                self.stats.samples_without_thread += 1;
                ("CPU sample", "weight")
            }
        };
        let name = self.names.fixed(name, cx.sink);
        let stack = self.names.stack(sample.stack, cx);
        let mut args = self.arguments(cx);
        if sample.kind == SampleKind::Allocation || sample.weight != 1 {
            let weight = self.names.fixed(weight, cx.sink);
            args.push(DebugAnnotation::new(weight, Value::Uint(sample.weight)));
        }
        let entry = TrackEvent::new(name).stack(stack).category(Category::Sample).args(&args);
        match self.track_of(sample.entity, &mut cx.at(sample.time))? {
            Some(track) => cx.sink.instant(cx.at, track, &entry),
            None => {
                self.stats.instants_without_lane += 1;
                Ok(())
            }
        }
    }
}
