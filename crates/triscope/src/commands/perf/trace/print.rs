//! The lines of events, as text or JSON.

use super::syscalls::{self, Role, Started};
use crate::failure::Result;
use crate::io::stdout::Output;
use crate::sources::symbols::{Symbols, mode_of, put_place};
use perf_monitor::{
    Callchain, CpuMode, Event, FieldFormat, FieldValue, Record, Sample, SetEvent, SetRecord,
    SetStats, Timestamp, TracepointFormat,
};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Write as _;

/// How an event is printed.
pub(super) struct Printed<'a> {
    pub(super) format: &'a TracepointFormat,
    pub(super) name: &'a str,
    pub(super) role: Role,
    /// The field with the number of the thread in the initial PID namespace.
    pub(super) thread: Option<&'a FieldFormat>,
}

pub(super) struct Printer<'a> {
    pub(super) events: Vec<SetEvent>,
    /// How each of them is printed.
    pub(super) printed: Vec<Printed<'a>>,
    pub(super) is_json: bool,
    /// With call chains.
    pub(super) symbols: Option<Symbols>,
    /// The calls that have not returned, by the number of the thread in the initial PID namespace.
    pub(super) calls: HashMap<u64, Started>,
    pub(super) lost: u64,
    /// Samples of threads outside of the PID namespace of this program.
    pub(super) outside: u64,
    /// Samples of unknown layouts.
    pub(super) undecodable: u64,
}

// Writing to a vector does not fail.

impl Printer<'_> {
    pub(super) fn record(&mut self, record: &SetRecord<'_>, out: &mut Output) -> Result {
        match record.layout.decode(record.raw) {
            Ok(Record::Sample(sample)) => {
                let of = self.events.iter().position(|event| *event == record.event);
                let place = (record.time, record.cpu, record.raw.cpu_mode());
                self.sample(of, place, &sample, out);
            }
            Ok(Record::Lost(lost) | Record::LostSamples(lost)) => {
                self.lost += lost.lost;
                // The end of a call may be lost, and the start of another one of the same name.
                self.finish(out);
                let (time, cpu, lost) = (record.time, record.cpu, lost.lost);
                let _ = if self.is_json {
                    let line = json!({ "time_ns": time.nanos(), "cpu": cpu, "lost": lost });
                    writeln!(out.buffer, "{line}")
                } else {
                    writeln!(out.buffer, "{time} {cpu:03} {:>7} {lost} events lost", "-")
                };
            }
            Ok(other) => {
                if let Some(symbols) = &mut self.symbols {
                    symbols.apply_live(&other, record.layout, record.raw);
                }
            }
            Err(_) => self.undecodable += 1,
        }
        out.write_if_full()
    }

    /// Prints a sample of the event at this position of those that are printed.
    fn sample(
        &mut self,
        of: Option<usize>,
        (time, cpu, mode): (Timestamp, u32, CpuMode),
        sample: &Sample<'_>,
        out: &mut Output,
    ) {
        let Some(event) = of.and_then(|of| self.printed.get(of)) else {
            // That of the mappings has no samples.
            self.undecodable += 1;
            return;
        };
        let [pid, tid] = [sample.pid, sample.tid].map(Option::unwrap_or_default);
        let raw = sample.raw.unwrap_or_default();
        // All threads outside of the namespace have the same number in it.
        let thread = event.thread.and_then(|field| field.u64(raw)).unwrap_or(u64::from(tid));
        self.outside += u64::from(tid == 0 && thread != 0 && event.role != Role::End);
        let chain = self.symbols.as_ref().zip(sample.callchain);
        let frames = chain.map(|(symbols, chain)| Frames { symbols, chain, pid, mode });
        let call = syscalls::call_name(event.format).unwrap_or_default();
        match event.role {
            Role::Enter => {
                let args = match self.is_json {
                    true => event.arguments_json(raw).to_string(),
                    false => syscalls::arguments_text(event.format, raw),
                };
                let started = Started { call: call.to_owned(), at: time, cpu, pid, tid, args };
                // A call before whose end was lost.
                let (before, endless) = match syscalls::returns(call) {
                    true => (self.calls.insert(thread, started), None),
                    false => (self.calls.remove(&thread), Some(started)),
                };
                for call in before.iter().chain(&endless) {
                    unfinished(self.is_json, call, out);
                }
                return;
            }
            Role::Exit => {
                let result = event.format.field("ret").and_then(|field| field.i64(raw));
                let started = match self.calls.remove(&thread) {
                    Some(other) if other.call != call => {
                        unfinished(self.is_json, &other, out);
                        None
                    }
                    started => started,
                };
                let started = match (call, result) {
                    ("execve" | "execveat", Some(0)) => {
                        let mut ended = end_others(&mut self.calls, pid);
                        // That of another thread, which has the number of the main thread now.
                        let is_it = |other: &Started| other.call == call;
                        let other = ended.iter().position(is_it).filter(|_| started.is_none());
                        let started = other.map(|at| ended.remove(at)).or(started);
                        ended.iter().for_each(|other| unfinished(self.is_json, other, out));
                        started
                    }
                    _ => started,
                };
                let nanos = started.as_ref().map(|s| time.nanos().saturating_sub(s.at.nanos()));
                if self.is_json {
                    let args = started.and_then(|s| serde_json::from_str::<Value>(&s.args).ok());
                    let mut line = json!({
                        "time_ns": time.nanos(), "cpu": cpu, "pid": shown(pid), "tid": shown(tid),
                        "syscall": call, "args": args, "result": result, "duration_ns": nanos,
                    });
                    frames.inspect(|frames| line["callchain"] = frames.json());
                    let _ = writeln!(out.buffer, "{line}");
                    return;
                }
                let args = started.map_or_else(|| "?".to_owned(), |started| started.args);
                let result = result.map_or_else(|| "?".to_owned(), syscalls::result_text);
                let tid = shown(tid);
                let _ = write!(out.buffer, "{time} {cpu:03} {tid:>7} {call}({args}) = {result}");
                if let Some(nanos) = nanos {
                    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
                    let _ = write!(out.buffer, " <{seconds}.{nanos:09}>");
                }
            }
            Role::None if self.is_json => {
                let mut line = json!({
                    "time_ns": time.nanos(), "cpu": cpu, "pid": shown(pid), "tid": shown(tid),
                    "event": event.name, "fields": event.fields_json(raw),
                });
                frames.inspect(|frames| line["callchain"] = frames.json());
                let _ = writeln!(out.buffer, "{line}");
                return;
            }
            Role::None => {
                let tid = shown(tid);
                let _ = write!(out.buffer, "{time} {cpu:03} {tid:>7} {}", event.name);
                event.fields(raw, out);
            }
            Role::End => {
                if let Some(call) = self.calls.remove(&thread) {
                    unfinished(self.is_json, &call, out);
                }
                return;
            }
        }
        out.buffer.push(b'\n');
        frames.inspect(|frames| frames.print(out));
    }

    /// The events that are not shown, with those that the set could not decode.
    pub(super) const fn not_shown(&self, stats: &SetStats) -> u64 {
        self.undecodable + stats.undecodable + stats.rings.unknown_ids
    }

    /// Prints the calls whose end was not seen.
    pub(super) fn finish(&mut self, out: &mut Output) {
        let mut calls: Vec<Started> = self.calls.drain().map(|(_, started)| started).collect();
        calls.sort_by_key(|started| started.at);
        for started in calls {
            unfinished(self.is_json, &started, out);
        }
    }
}

/// The process or thread id of a task that has none any more: the `pid_t` -1 of a sample.
const ENDED: u32 = u32::MAX;

/// An id as perf prints it: -1 of a task without one.
const fn shown(id: u32) -> i32 {
    id as i32
}

/// Removes the calls of the other threads of a process that has executed a program: they have ended.
fn end_others(calls: &mut HashMap<u64, Started>, pid: u32) -> Vec<Started> {
    // All processes outside of the namespace have the number 0 in it.
    let is_of = |started: &Started| pid != 0 && pid != ENDED && started.pid == pid;
    let threads = calls.iter().filter(|(_, started)| is_of(started));
    let threads: Vec<u64> = threads.map(|(thread, _)| *thread).collect();
    let mut ended: Vec<Started> =
        threads.iter().filter_map(|thread| calls.remove(thread)).collect();
    ended.sort_by_key(|started| started.at);
    ended
}

/// Prints a call whose end was not seen, with the time of its start.
fn unfinished(is_json: bool, started: &Started, out: &mut Output) {
    let Started { call, at, cpu, pid, tid, args } = started;
    let (pid, tid) = (shown(*pid), shown(*tid));
    let _ = if is_json {
        let args = serde_json::from_str::<Value>(args).ok();
        let line = json!({
            "time_ns": at.nanos(), "cpu": cpu, "pid": pid, "tid": tid, "syscall": call, "args": args,
            "result": null, "duration_ns": null,
        });
        writeln!(out.buffer, "{line}")
    } else {
        writeln!(out.buffer, "{at} {cpu:03} {tid:>7} {call}({args}) = ?")
    };
}

impl<'a> Printed<'a> {
    pub(super) fn new(event: &'a Event, format: &'a TracepointFormat, role: Role) -> Self {
        Self { format, name: event.name(), role, thread: format.field("common_pid") }
    }
}

impl Printed<'_> {
    /// Prints the fields of a sample.
    fn fields(&self, data: &[u8], out: &mut Output) {
        for field in self.format.fields() {
            let name = field.name();
            let _ = match field.value(data) {
                // Quoted, so that spaces do not look like the start of another field.
                Some(value @ FieldValue::Text(text)) if is_to_be_quoted(text) => {
                    write!(out.buffer, " {name}=\"{value}\"")
                }
                Some(value) => write!(out.buffer, " {name}={value}"),
                None => write!(out.buffer, " {name}=?"),
            };
        }
    }

    fn fields_json(&self, data: &[u8]) -> Value {
        object(self.format.fields().iter(), |field| field.value(data))
    }

    fn arguments_json(&self, data: &[u8]) -> Value {
        object(syscalls::arguments(self.format), |field| syscalls::argument(field, data))
    }
}

fn object<'f, 'd>(
    fields: impl Iterator<Item = &'f FieldFormat>,
    value: impl Fn(&FieldFormat) -> Option<FieldValue<'d>>,
) -> Value {
    let member = |field: &FieldFormat| (field.name().to_owned(), json_of(field, value(field)));
    Value::Object(fields.map(member).collect::<Map<_, _>>())
}

/// Pointers and bytes are text, as JSON has no hexadecimal numbers; null is a field that is missing.
fn json_of(field: &FieldFormat, value: Option<FieldValue<'_>>) -> Value {
    match value {
        Some(FieldValue::Signed(number)) => number.into(),
        Some(FieldValue::Unsigned(number)) => number.into(),
        Some(FieldValue::Text(text)) => String::from_utf8_lossy(text).into(),
        Some(FieldValue::Array(elements)) if field.is_signed() => {
            elements.iter().map(Value::from).collect()
        }
        Some(FieldValue::Array(elements)) => {
            elements.iter().map(|element| Value::from(element as u64)).collect()
        }
        Some(other) => other.to_string().into(),
        None => Value::Null,
    }
}

fn is_to_be_quoted(text: &[u8]) -> bool {
    text.is_empty() || text.contains(&b' ')
}

/// A call chain with the symbols of its process.
struct Frames<'a> {
    symbols: &'a Symbols,
    chain: Callchain<'a>,
    pid: u32,
    mode: CpuMode,
}

impl Frames<'_> {
    fn places(&self) -> impl Iterator<Item = crate::sources::symbols::Place<'_>> {
        self.chain.frames().filter_map(|frame| {
            let mode = mode_of(frame.context, self.mode)?;
            Some(self.symbols.at(self.pid, frame.ip, mode))
        })
    }

    /// Prints a line for each frame, and an empty one.
    fn print(&self, out: &mut Output) {
        let mut text = String::new();
        for place in self.places() {
            use std::fmt::Write as _;
            let _ = write!(text, "\t{:>16x}", place.address);
            let _ = put_place(&mut text, &place, true);
            text.push('\n');
        }
        text.push('\n');
        out.buffer.extend(text.into_bytes());
    }

    fn json(&self) -> Value {
        let frame = |place: crate::sources::symbols::Place<'_>| {
            let symbol = place.symbol.as_ref();
            json!({
                "address": format!("{:#x}", place.address),
                "symbol": symbol.map(|symbol| &*symbol.name),
                "offset": symbol.map(|symbol| symbol.offset),
                "file": place.file,
            })
        };
        self.places().map(frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(printed: Vec<Printed<'_>>) -> Printer<'_> {
        Printer {
            events: Vec::new(),
            printed,
            is_json: false,
            symbols: None,
            calls: HashMap::new(),
            lost: 0,
            outside: 0,
            undecodable: 0,
        }
    }

    /// A tracepoint with the number of the thread alone.
    fn format(system: &str, name: &str) -> TracepointFormat {
        let text = format!(
            "name: {name}\nID: 7\nformat:\n\
             \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
             \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n"
        );
        TracepointFormat::parse(system, &text).unwrap()
    }

    /// Another thread has ended the process.
    #[test]
    fn the_end_of_a_thread_ends_its_call() {
        let formats =
            [format("syscalls", "sys_enter_pause"), format("sched", "sched_process_exit")];
        let printed = formats.iter().zip([Role::Enter, Role::End]).map(|(format, role)| {
            let thread = format.field("common_pid");
            Printed { format, name: "", role, thread }
        });
        let mut printer = printer(printed.collect());
        let mut out = Output::new();
        let mut sample = |printer: &mut Printer<'_>, of, thread: u32| {
            let raw = [7, thread].map(u32::to_ne_bytes).concat();
            let mut sample = Sample::default();
            (sample.pid, sample.tid, sample.raw) = (Some(5), Some(thread), Some(&raw[..]));
            printer.sample(
                Some(of),
                (Timestamp::from_nanos(1), 0, CpuMode::User),
                &sample,
                &mut out,
            );
            String::from_utf8(std::mem::take(&mut out.buffer)).unwrap()
        };
        assert_eq!(sample(&mut printer, 0, 6), "");
        assert_eq!(sample(&mut printer, 1, 8), "", "another thread");
        assert_eq!(printer.calls.len(), 1);
        let line = sample(&mut printer, 1, 6);
        assert!(line.ends_with(" pause() = ?\n") && line.lines().count() == 1, "{line}");
        assert!(printer.calls.is_empty());
        assert_eq!(sample(&mut printer, 1, 6), "");
    }

    #[test]
    fn all_that_is_not_shown_is_counted() {
        let mut printer = printer(Vec::new());
        let mut out = Output::new();
        let place = (Timestamp::from_nanos(1), 0, CpuMode::User);
        printer.sample(None, place, &Sample::default(), &mut out);
        assert_eq!((printer.undecodable, out.buffer.is_empty()), (1, true));
        let mut stats = SetStats::default();
        (stats.undecodable, stats.rings.unknown_ids) = (10, 100);
        assert_eq!(printer.not_shown(&stats), 111);
    }
}
