//! The report as JSON.

use super::View;
use crate::answers::json::histogram;
use crate::sources::model::name;
use serde_json::{Value, json};
use trace_timeline::answers::{CpuTimes, Group};
use trace_timeline::{
    Attribute, EntityId, EntityKind, Pause, Requester, RequesterTimes, Timestamp, text,
};

impl View<'_> {
    pub(super) fn json(&self) -> Value {
        let report = self.report;
        let [sampled_on, sampled_off, unknown] = report.samples(|process| self.is_shown(process));
        json!({
            "start": report.start.map(Timestamp::nanos),
            "end": report.end.map(Timestamp::nanos),
            "machine": self.machine(),
            "processes": self.processes(),
            "threads": self.thread_rows(),
            "goroutines": self.group_rows(),
            "single_goroutines": self.goroutine_rows(),
            "waits": self.waits(),
            "off_cpu": self.off_cpu(),
            "longest_delays": self.delay_rows(),
            "preempters": self.preempters(),
            "wakers": self.wakers(),
            "gcs": self.gcs(),
            "pauses": self.pauses(),
            "longest_pauses": self.longest_pauses(),
            "throttled": self.throttled_rows(),
            "samples": { "on_cpu": sampled_on, "off_cpu": sampled_off, "unknown": unknown },
            "losses": self.losses(),
            "notes": self.notes().collect::<Vec<_>>(),
        })
    }

    fn number(&self, id: EntityId) -> Option<i64> {
        self.tables.entities.get(id).map(|entity| entity.number)
    }

    fn attribute(&self, id: EntityId, attribute: Attribute) -> Option<String> {
        let text = self.tables.entities.attribute(id, attribute)?;
        Some(self.tables.str(text).into_owned())
    }

    fn process_json(&self, id: Option<EntityId>) -> Value {
        let entity = id.and_then(|id| self.tables.entities.get(id));
        json!({
            "pid": entity.map(|entity| entity.number).filter(|pid| *pid >= 0),
            "name": entity.map(|entity| self.tables.str(entity.name)),
        })
    }

    fn machine(&self) -> Option<Value> {
        let mut entities = self.tables.entities.iter();
        let (id, machine) = entities.find(|(_, entity)| entity.kind == EntityKind::Machine)?;
        Some(json!({
            "name": self.tables.str(machine.name),
            "kernel": self.attribute(id, Attribute::KernelRelease),
            "architecture": self.attribute(id, Attribute::Architecture),
        }))
    }

    fn processes(&self) -> Vec<Value> {
        let processes = self.tables.entities.iter();
        let shown =
            processes.filter(|(id, e)| e.kind == EntityKind::Process && self.is_shown(Some(*id)));
        let row = |(id, process): (EntityId, &trace_timeline::Entity)| {
            json!({
                "pid": Some(process.number).filter(|pid| *pid >= 0),
                "name": self.tables.str(process.name),
                "parent": process.parent.and_then(|parent| self.number(parent)),
                "start": process.start.map(Timestamp::nanos),
                "end": process.end.map(Timestamp::nanos),
                "runtime": self.attribute(id, Attribute::Runtime),
                "command_line": self.attribute(id, Attribute::CommandLine),
                "executable": self.attribute(id, Attribute::Executable),
                "build_id": self.attribute(id, Attribute::BuildId),
                "cgroup": self.attribute(id, Attribute::Cgroup),
                "container": self.attribute(id, Attribute::Container),
            })
        };
        shown.map(row).collect()
    }

    fn thread_rows(&self) -> Vec<Value> {
        let row = |(thread, times, latency)| {
            let entity = self.tables.entities.get(thread);
            json!({
                "tid": self.number(thread),
                "name": entity.map(|entity| self.tables.str(entity.name)),
                "process": self.process_json(self.process_of(thread)),
                "times": cpu_times(times),
                "latency": histogram(latency),
            })
        };
        self.threads().into_iter().map(row).collect()
    }

    fn group_rows(&self) -> Vec<Value> {
        let row = |(process, entry, group): (_, _, &Group)| {
            let of = json!({
                "entry": self.tables.str(entry),
                "process": self.process_json(process),
                "count": group.count,
            });
            with(of, group_json(group))
        };
        self.groups().into_iter().map(row).collect()
    }

    fn goroutine_rows(&self) -> Vec<Value> {
        let row = |(goroutine, times): &(EntityId, &Group)| {
            let goroutine = *goroutine;
            let entity = self.tables.entities.get(goroutine);
            let of = json!({
                "goroutine": self.number(goroutine),
                "entry": entity.map(|entity| self.tables.str(entity.name)),
                "process": self.process_json(self.process_of(goroutine)),
            });
            with(of, group_json(times))
        };
        self.goroutines.iter().map(row).collect()
    }

    fn waits(&self) -> Vec<Value> {
        let shown = self.report.waits.iter().filter(|((p, _), _)| self.is_shown(*p));
        shown
            .map(|((process, reason), waits)| {
                json!({
                    "process": self.process_json(*process),
                    "reason": self.tables.str(*reason),
                    "durations": histogram(&waits.durations),
                })
            })
            .collect()
    }

    fn off_cpu(&self) -> Vec<Value> {
        let shown = self.report.off_cpu.iter().filter(|((p, _), _)| self.is_shown(*p));
        shown
            .map(|((process, reason), times)| {
                let (what, text) = text::off_cpu(*reason, self.tables);
                json!({
                    "process": self.process_json(*process),
                    "what": what,
                    "text": text,
                    "nanos": times.nanos,
                    "count": times.count,
                    "longest": times.longest,
                })
            })
            .collect()
    }

    fn delay_rows(&self) -> Vec<Value> {
        self.delays()
            .map(|delay| {
                json!({
                    "who": self.with_process(delay.subject),
                    "number": self.number(delay.subject),
                    "process": self.process_json(self.process_of(delay.subject)),
                    "end": delay.end.nanos(),
                    "nanos": delay.nanos,
                    "occupant": self.occupant(delay.occupant),
                })
            })
            .collect()
    }

    fn preempters(&self) -> Vec<Value> {
        let entities = &self.tables.entities;
        let shown = self.report.preempters.iter().filter(|((p, _), _)| self.is_shown(*p));
        shown
            .map(|((process, occupant), preempted)| {
                let thread = occupant.thread();
                let of = thread.and_then(|thread| entities.process_of(thread));
                json!({
                    "process": self.process_json(*process),
                    "occupant": self.occupant(*occupant),
                    "tid": thread.and_then(|thread| self.number(thread)),
                    "pid": of.and_then(|process| self.number(process)),
                    "preempted": preempted.preempted,
                    "woken": preempted.woken,
                    "count": preempted.count,
                })
            })
            .collect()
    }

    fn wakers(&self) -> Vec<Value> {
        let shown = self.report.wakers.iter().filter(|((p, _), _)| self.is_shown(*p));
        shown
            .map(|((process, waker), count)| {
                json!({
                    "process": self.process_json(*process),
                    "waker": self.waker(*waker),
                    "count": count,
                })
            })
            .collect()
    }

    fn gcs(&self) -> Vec<Value> {
        let shown = self.report.gcs.iter().filter(|((p, _), _)| self.is_shown(*p));
        shown
            .map(|((process, name), durations)| {
                json!({
                    "process": self.process_json(*process),
                    "name": self.tables.str(*name),
                    "durations": histogram(durations),
                })
            })
            .collect()
    }

    fn pauses(&self) -> Vec<Value> {
        let shown = self.report.pauses.iter().filter(|((p, _), _)| self.is_shown(Some(*p)));
        shown
            .map(|((process, reason), durations)| {
                json!({
                    "process": self.process_json(Some(*process)),
                    "reason": self.tables.str(*reason),
                    "durations": histogram(durations),
                })
            })
            .collect()
    }

    fn longest_pauses(&self) -> Vec<Value> {
        let pauses = self.report.longest_pauses(|process| self.is_shown(process));
        pauses.into_iter().map(|pause| self.pause(pause)).collect()
    }

    fn pause(&self, pause: &Pause) -> Value {
        let stops = pause.stops.iter().map(|stop| {
            json!({
                "who": name(self.tables, stop.entity),
                "holder": stop.holder.map(|holder| name(self.tables, holder)),
                "tid": stop.thread.and_then(|thread| self.number(thread)),
                "took": stop.time.nanos_since(pause.start),
                "on_cpu": stop.on_cpu,
                "runnable": stop.runnable,
                "is_retaken": stop.is_retaken,
            })
        });
        json!({
            "process": self.process_json(Some(pause.process)),
            "reason": self.tables.str(pause.reason),
            "start": pause.start.nanos(),
            "stopped": pause.stopped.map(Timestamp::nanos),
            "end": pause.end.nanos(),
            "by": pause.by.map(|by| name(self.tables, by)),
            "requester": pause.requester.as_ref().map(|requester| self.requester(requester)),
            "stops": stops.collect::<Vec<_>>(),
        })
    }

    fn requester(&self, requester: &Requester) -> Value {
        let times =
            |times: RequesterTimes| json!({ "on_cpu": times.on_cpu, "runnable": times.runnable });
        let entities = &self.tables.entities;
        let occupants = requester.occupants.iter().map(|(occupant, nanos)| {
            let thread = occupant.thread();
            let of = thread.and_then(|thread| entities.process_of(thread));
            json!({
                "occupant": self.occupant(*occupant),
                "tid": thread.and_then(|thread| self.number(thread)),
                "pid": of.and_then(|process| self.number(process)),
                "nanos": nanos,
            })
        });
        json!({
            "tid": self.number(requester.thread),
            "until_stopped": times(requester.stopping),
            "after": times(requester.stopped),
            "occupants": occupants.collect::<Vec<_>>(),
        })
    }

    fn throttled_rows(&self) -> Vec<Value> {
        self.throttled()
            .map(|(process, throttled)| {
                json!({
                    "process": self.process_json(Some(process)),
                    "nanos": throttled.nanos,
                    "periods": throttled.periods,
                })
            })
            .collect()
    }

    fn losses(&self) -> Vec<Value> {
        let losses = self.report.losses(|process| self.is_shown(process)).into_iter();
        losses
            .map(|(kind, losses)| {
                json!({
                    "what": text::loss(kind),
                    "count": losses.count,
                    "records": losses.records,
                    "bytes": losses.bytes,
                })
            })
            .collect()
    }
}

fn group_json(g: &Group) -> Value {
    json!({
        "running": cpu_times(&g.running),
        "syscall": cpu_times(&g.syscall),
        "runnable": g.runnable,
        "waiting": g.waiting,
        "unknown": g.unknown,
        "latency": histogram(&g.latency),
    })
}

/// An object with the fields of another one, too.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn cpu_times(times: &CpuTimes) -> Value {
    json!({
        "on_cpu": times.on_cpu,
        "preempted": times.preempted,
        "woken": times.woken,
        "sleeping": times.sleeping,
        "blocked": times.blocked,
        "stopped": times.stopped,
        "unknown": times.unknown,
    })
}
