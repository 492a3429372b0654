//! Descriptions of dumps.

use crate::machine::{ClockChange, CpuGap};
use crate::ring::Segment;
use crate::window::{Cause, Window};
use serde_json::{Value, json};
use trace_common::Timestamp;

/// The part of a window that segments cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Start of the first segment.
    pub start: Option<Timestamp>,
    /// End of the last segment.
    pub end: Option<Timestamp>,
    /// Parts between segments that were not recorded.
    pub gaps: Vec<(Timestamp, Timestamp)>,
    /// Records that were lost in the segments.
    pub lost: u64,
}

impl Coverage {
    /// That of segments, oldest first.
    pub fn of<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Self {
        let mut this = Self::default();
        for segment in segments {
            this.start.get_or_insert(segment.start);
            if let Some(until) = this.end.filter(|until| *until < segment.start) {
                this.gaps.push((until, segment.start));
            }
            this.end = Some(segment.end);
            this.lost = this.lost.saturating_add(segment.lost);
        }
        this
    }

    /// Whether the whole window is covered, without gaps and losses.
    pub fn is_complete(&self, window: &Window) -> bool {
        self.start.is_some_and(|from| from <= window.start)
            && self.end.is_some_and(|until| until >= window.end)
            && self.gaps.is_empty()
            && self.lost == 0
    }
}

/// A source of a dump beside the segments, such as the trace of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// Its kind, such as `dotnet`.
    pub kind: String,
    /// The process.
    pub pid: Option<u32>,
    /// The name of the program.
    pub name: String,
    /// The name of its file beside the manifest.
    pub file: Option<String>,
    /// Start of the time that it covers.
    pub start: Option<Timestamp>,
    /// End of the time that it covers.
    pub end: Option<Timestamp>,
    /// What is missing, and why, in words.
    pub missing: Option<String>,
}

impl Source {
    /// A source without a file.
    pub fn new(kind: impl Into<String>, pid: u32, name: impl Into<String>) -> Self {
        Self { kind: kind.into(), pid: Some(pid), name: name.into(), ..Self::default() }
    }

    fn to_json(&self) -> Value {
        json!({
            "kind": self.kind,
            "pid": self.pid,
            "name": self.name,
            "file": self.file,
            "covered": times(self.start, self.end),
            "missing": self.missing,
        })
    }
}

/// What a dump is: why it was made, what was asked for, and what it has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Manifest {
    /// What was asked for.
    pub window: Window,
    /// What is covered.
    pub coverage: Coverage,
    /// Switches away from another thread than the one that the CPU had switched to: the kernel has not
    /// written at least one before. Those that it counted as lost are among them, and some kernels leave
    /// out the switches of a few threads: they do not make a dump [incomplete](Self::is_complete).
    pub switch_gaps: u64,
    /// What is missing, and why, in words.
    pub missing: Vec<String>,
    /// The sources beside the segments.
    pub sources: Vec<Source>,
    /// Names of the files beside the manifest, with their sizes.
    pub files: Vec<(String, u64)>,
    /// Versions of the recorder, of the kernel and of others, by name.
    pub versions: Vec<(String, String)>,
    /// `CLOCK_REALTIME` at the time 0 of the timestamps, in nanoseconds: the offset at the end of the
    /// window. `None` if it is not known.
    pub wall_clock_offset_nanos: Option<i64>,
    /// How that offset changed in the window, oldest first. The wall-clock time of an event is its
    /// timestamp and [`wall_clock_offset_nanos`](Self::wall_clock_offset_nanos), less all changes after it.
    pub clock_changes: Vec<ClockChange>,
    /// CPUs that went offline or came online. Nothing runs on a CPU that is offline; the begin of its
    /// time online is missing.
    pub cpus: Vec<CpuGap>,
}

/// The version of the format.
const VERSION: u64 = 1;

impl Manifest {
    /// A manifest without files.
    pub const fn new(window: Window, coverage: Coverage) -> Self {
        Self {
            window,
            coverage,
            switch_gaps: 0,
            missing: Vec::new(),
            sources: Vec::new(),
            files: Vec::new(),
            versions: Vec::new(),
            wall_clock_offset_nanos: None,
            clock_changes: Vec::new(),
            cpus: Vec::new(),
        }
    }

    /// Adds the changes of the machine that are in the window.
    pub fn add_changes<'a>(
        &mut self,
        clocks: impl IntoIterator<Item = &'a ClockChange>,
        cpus: impl IntoIterator<Item = &'a CpuGap>,
    ) {
        let (from, until) = (self.window.start, self.window.end);
        self.clock_changes.extend(clocks.into_iter().filter(|change| change.time >= from));
        self.cpus.extend(cpus.into_iter().filter(|gap| gap.is_in(from, until)));
    }

    /// Whether everything that was asked for is there.
    pub fn is_complete(&self) -> bool {
        self.coverage.is_complete(&self.window)
            && self.missing.is_empty()
            && self.cpus.iter().all(|gap| gap.end.is_none())
            && self.sources.iter().all(|source| source.missing.is_none())
    }

    /// As JSON in lines with indentation. Times are nanoseconds of `CLOCK_MONOTONIC`.
    pub fn to_json(&self) -> String {
        format!("{:#}", self.to_value())
    }

    fn to_value(&self) -> Value {
        let Self { window, coverage, switch_gaps, missing, sources, files, versions, .. } = self;
        let gaps: Vec<Value> =
            coverage.gaps.iter().map(|(from, until)| times(Some(*from), Some(*until))).collect();
        let files: Vec<Value> =
            files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        let versions: serde_json::Map<String, Value> =
            versions.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
        json!({
            "version": VERSION,
            "asked": times(Some(window.start), Some(window.end)),
            "covered": times(coverage.start, coverage.end),
            "complete": self.is_complete(),
            "gaps": gaps,
            "cpus": self.cpus.iter().map(cpu).collect::<Vec<_>>(),
            "lost": coverage.lost,
            "switch_gaps": switch_gaps,
            "missing": missing,
            "sources": sources.iter().map(Source::to_json).collect::<Vec<_>>(),
            "fired": window.fired,
            "suppressed": window.suppressed,
            "causes": window.causes.iter().map(cause).collect::<Vec<_>>(),
            "files": files,
            "versions": versions,
            "clock": {
                "domain": "CLOCK_MONOTONIC",
                "realtime_offset": self.wall_clock_offset_nanos,
                "changes": self.clock_changes.iter().map(change).collect::<Vec<_>>(),
            },
        })
    }
}

fn times(from: Option<Timestamp>, until: Option<Timestamp>) -> Value {
    json!({ "start": from.map(Timestamp::nanos), "end": until.map(Timestamp::nanos) })
}

fn cpu(gap: &CpuGap) -> Value {
    json!({
        "cpu": gap.cpu,
        "start": gap.start.nanos(),
        "end": gap.end.map(Timestamp::nanos),
    })
}

fn change(change: &ClockChange) -> Value {
    json!({ "time": change.time.nanos(), "cause": change.cause.name(), "by": change.by_nanos })
}

fn cause(cause: &Cause) -> Value {
    json!({
        "trigger": cause.trigger,
        "what": cause.what,
        "time": cause.time.map(Timestamp::nanos),
        "pid": cause.pid,
        "tid": cause.tid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ClockCause;

    fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn segment(id: u64, start: i64, end: i64, lost: u64) -> Segment {
        Segment { id, start: at(start), end: at(end), bytes: 1, lost }
    }

    #[test]
    fn gaps_and_losses_are_found() {
        let window = Window::new(at(10), at(40), Cause::new("signal", "SIGUSR1"));
        let whole = [segment(1, 5, 20, 0), segment(2, 20, 40, 0)];
        assert!(Coverage::of(&whole).is_complete(&window));
        let gap = [segment(1, 5, 20, 0), segment(2, 25, 40, 3)];
        let coverage = Coverage::of(&gap);
        assert_eq!((coverage.gaps.as_slice(), coverage.lost), (&[(at(20), at(25))][..], 3));
        assert!(!coverage.is_complete(&window));
        for short in [[segment(1, 11, 40, 0)], [segment(1, 10, 39, 0)], [segment(1, 10, 40, 1)]] {
            assert!(!Coverage::of(&short).is_complete(&window), "{short:?}");
        }
        assert!(!Coverage::of([]).is_complete(&window));
    }

    #[test]
    fn manifests_say_what_is_missing() {
        let window =
            Window::new(at(10), at(40), Cause::new("signal", "SIGUSR1").of_thread(None, 7));
        let mut manifest = Manifest::new(window, Coverage::of(&[segment(1, 10, 40, 0)]));
        assert_eq!(manifest.to_value()["complete"], true);
        manifest.missing.push("the newest segment was truncated".to_owned());
        manifest.files.push(("kernel.perf.data".to_owned(), 9));
        let json = manifest.to_value();
        assert_eq!(json["complete"], false);
        assert_eq!(json["asked"]["start"], 10);
        assert_eq!(json["causes"][0]["tid"], 7);
        assert_eq!(json["files"][0]["name"], "kernel.perf.data");
        manifest.missing.clear();
        let mut source = Source::new("go", 7, "server");
        source.end = Some(at(30));
        manifest.sources.push(source);
        assert!(manifest.is_complete());
        assert!(manifest.to_value()["clock"]["realtime_offset"].is_null());
        let set = |nanos| ClockChange { time: at(nanos), cause: ClockCause::Set, by_nanos: -7 };
        let gap = |cpu, until: Option<i64>| CpuGap { cpu, start: at(20), end: until.map(at) };
        // Those after its end are needed for the wall clock, too.
        manifest.add_changes(&[set(9), set(20), set(50)], &[gap(1, None)]);
        assert!(manifest.is_complete(), "nothing runs on a CPU that is offline");
        manifest.add_changes([], &[gap(2, Some(30))]);
        assert!(!manifest.is_complete());
        let json = manifest.to_value();
        assert_eq!(json["clock"]["changes"].as_array().map(Vec::len), Some(2));
        assert_eq!(json["clock"]["changes"][0]["cause"], "set");
        assert_eq!((&json["cpus"][0]["end"], &json["cpus"][1]["end"]), (&Value::Null, &30.into()));
        manifest.cpus.clear();
        manifest.sources[0].missing = Some("the last second".to_owned());
        let json = manifest.to_value();
        assert_eq!(json["complete"], false);
        assert_eq!(json["sources"][0]["covered"]["end"], 30);
    }

    #[test]
    fn types_are_shared_between_threads() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Manifest>();
        is_shared::<crate::Ring>();
        is_shared::<crate::Windows>();
        is_shared::<crate::Clocks>();
        is_shared::<crate::OutOfOrder>();
    }
}
