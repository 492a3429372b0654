//! Profiles of files: of pprof, speedscope, folded stacks, and the samples of traces.

mod speedscope;

use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{self, Format, Input};
use crate::io::progress::Progress;
use crate::sources::model::Traces;
use crate::timeline::counted;
use std::io::Read as _;
use std::path::Path;
use trace_export::profile::{Profile, ReadLimits, Samples, read_folded, read_pprof};
use trace_timeline::{Dropped, Event, EventKind, LossKind, Tables, text};

/// A profile with the tables that have its stacks.
pub(crate) struct Loaded {
    pub(crate) profile: Profile,
    pub(crate) tables: Tables,
    /// The name of its weight.
    pub(crate) name: String,
    /// The names of the other profiles of the file.
    pub(crate) others: Vec<String>,
}

/// Reads the samples of `wanted`; otherwise those that a pprof file names as its default, or of the
/// event with most samples. Other samples are reported.
pub(crate) fn load(path: &Path, wanted: Option<&str>) -> Result<Loaded> {
    let name = path.display().to_string();
    // A directory is that of `record --keep`.
    let read = if path.is_dir() { samples(path) } else { file(path) };
    let Read { profiles, default, tables, is_trace } = read?;
    let (chosen, others) = choose(profiles, default, wanted).map_err(|failure| match failure {
        Failure::Message(message, code) => Failure::about(&name, message).with_code(code),
        quiet @ Failure::Quiet(_) => quiet,
    })?;
    // All sample types of a pprof file are about the same samples.
    if is_trace && wanted.is_none() {
        report_others(&others);
    }
    report_dropped(&name, tables.dropped());
    let (name, profile) = chosen;
    let others = others.into_iter().map(|(name, _)| name).collect();
    Ok(Loaded { profile, tables, name, others })
}

/// Takes the profile with this name, or the default one. Returns the others, too.
pub(crate) fn choose(
    mut profiles: Vec<Named>,
    default: usize,
    wanted: Option<&str>,
) -> Result<(Named, Vec<Named>)> {
    let position = match wanted {
        None => default,
        Some(wanted) => profiles.iter().position(|(name, _)| name == wanted).ok_or_else(|| {
            let there = match described(&profiles) {
                none if none.is_empty() => "no samples".to_owned(),
                names => names,
            };
            Failure::new(format_args!("no samples of {wanted}: there are {there}"))
        })?,
    };
    if position >= profiles.len() {
        return Err(no_samples());
    }
    Ok((profiles.remove(position), profiles))
}

/// Reports the samples that are not in the output.
pub(crate) fn report_others(others: &[Named]) {
    if !others.is_empty() {
        message!("triscope: left out: {}: choose with --samples", OneLine(&described(others)));
    }
}

/// Reports what did not fit into the tables.
pub(crate) fn report_dropped(name: &str, dropped: Dropped) {
    for (count, missing) in text::dropped(dropped) {
        message!("triscope: {}: {count} {missing}", OneLine(name));
    }
}

/// What was lost when the traces were recorded: no profile has its samples.
#[derive(Default)]
pub(crate) struct Losses {
    samples: u64,
    /// Records of a recording with the scheduler, samples among them.
    records: u64,
    dotnet: u64,
}

impl Losses {
    pub(crate) fn push(&mut self, event: &Event) {
        // Damage has no number, and is reported by itself.
        let EventKind::Loss { kind, count: Some(count), .. } = event.kind else { return };
        let sum = match kind {
            LossKind::Samples => &mut self.samples,
            LossKind::SchedulerRecords => &mut self.records,
            LossKind::DotnetEvents => &mut self.dotnet,
            _ => return,
        };
        *sum = sum.saturating_add(count);
    }

    /// Reports their numbers, if there are some.
    pub(crate) fn report(&self, name: &str) {
        for text in self.texts() {
            message!("triscope: {}: {text}", OneLine(name));
        }
    }

    fn texts(&self) -> impl Iterator<Item = String> {
        const KERNEL: &str = "the buffer of a CPU was full";
        let all = [
            (self.samples, "sample", KERNEL),
            (self.records, "record", KERNEL),
            (self.dotnet, "event", "the buffers of the .NET runtime were full"),
        ];
        let some = all.into_iter().filter(|(count, ..)| *count > 0);
        some.map(|(count, what, why)| format!("{} lost, {why}", counted(count, what)))
    }
}

fn described(profiles: &[Named]) -> String {
    let one = |(name, profile): &Named| format!("{} of {name}", counted(profile.count(), "sample"));
    profiles.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The failure for traces without samples.
pub(crate) fn no_samples() -> Failure {
    Failure::new(
        "the traces have no samples: a flame graph needs those of perf record, of Go's CPU profiler, \
         or of .NET's sample profiler or allocations",
    )
}

/// A profile with the name of its weight.
pub(crate) type Named = (String, Profile);

/// What a file has.
struct Read {
    profiles: Vec<Named>,
    /// The index of the profile that is meant if none is named.
    default: usize,
    tables: Tables,
    is_trace: bool,
}

fn file(path: &Path) -> Result<Read> {
    let input = Input::open(path, Progress::bytes())?;
    match input.format {
        Format::Pprof => pprof(input),
        Format::Unknown => others(input),
        _ => {
            input::check_twice(path, "this command")?;
            samples(path)
        }
    }
}

/// Reads all of a file; not more than a limit, which the readers then report.
fn content(mut input: Input, limits: &ReadLimits) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    let read = input.by_ref().take(limits.bytes as u64 + 1).read_to_end(&mut data);
    read.map_err(|error| input.failure(error))?;
    Ok(data)
}

fn pprof(input: Input) -> Result<Read> {
    let (name, limits) = (input.name.clone(), ReadLimits::default());
    decoded(&name, &content(input, &limits)?, &limits)
}

/// Takes the samples of `wanted` of a pprof file; otherwise those that it names as its default.
pub(crate) fn of_pprof(name: &str, data: &[u8], wanted: Option<&str>) -> Result<Loaded> {
    let Read { profiles, default, tables, .. } = decoded(name, data, &ReadLimits::default())?;
    let ((weight, profile), others) = choose(profiles, default, wanted)?;
    report_dropped(name, tables.dropped());
    let others = others.into_iter().map(|(name, _)| name).collect();
    Ok(Loaded { profile, tables, name: weight, others })
}

fn decoded(name: &str, data: &[u8], limits: &ReadLimits) -> Result<Read> {
    let mut tables = Tables::new();
    let file =
        read_pprof(data, limits, &mut tables).map_err(|error| Failure::about(name, error))?;
    if !file.drop_frames.is_empty() {
        message!(
            "triscope: {}: frames that go tool pprof leaves out are shown: {}",
            OneLine(name),
            OneLine(&file.drop_frames)
        );
    }
    let named = |profile: Profile| (profile.measure().weight.clone().into_owned(), profile);
    let profiles = file.profiles.into_iter().map(named).collect();
    Ok(Read { profiles, default: file.default, tables, is_trace: false })
}

/// Formats that are text.
fn others(input: Input) -> Result<Read> {
    let (name, limits) = (input.name.clone(), ReadLimits::default());
    let data = content(input, &limits)?;
    let mut tables = Tables::new();
    let profile = match data.trim_ascii_start().first() {
        Some(b'{') => speedscope::read(&data, &limits, &mut tables)
            .map_err(|failure| Failure::about(&name, failure.message()))?,
        _ => read_folded(&data, &limits, &mut tables).map_err(|error| {
            let what = "profiles are pprof files, folded stacks, speedscope files, or traces with \
                        samples";
            Failure::about(&name, error).and(what)
        })?,
    };
    let profiles = vec![(profile.measure().weight.clone().into_owned(), profile)];
    Ok(Read { profiles, default: 0, tables, is_trace: false })
}

fn samples(path: &Path) -> Result<Read> {
    let mut tables = Tables::new();
    let (mut samples, mut lost) = (Samples::new(), Losses::default());
    let outcome = Traces::of(vec![path.to_owned()]).with_lines().merge(
        &mut tables,
        &mut |event, tables| {
            samples.push(event, tables);
            lost.push(event);
            Ok(())
        },
    )?;
    lost.report(&path.display().to_string());
    // Half a trace has other shares than all of it.
    outcome?;
    let profiles = samples.into_profiles(&tables);
    Ok(Read { profiles, default: 0, tables, is_trace: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_common::Timestamp;

    #[test]
    fn losses_of_each_kind_are_summed() {
        let mut losses = Losses::default();
        let kinds = [
            (LossKind::Samples, Some(40)),
            (LossKind::SchedulerRecords, Some(5)),
            (LossKind::SchedulerRecords, Some(2)),
            (LossKind::UnreportedSwitch, None),
            (LossKind::GoTrace, Some(9)),
            (LossKind::DotnetEvents, None),
            (LossKind::DotnetEvents, Some(1)),
        ];
        for (kind, count) in kinds {
            let at = Timestamp::default();
            let kind = EventKind::Loss { entity: None, kind, since: at, count };
            losses.push(&Event { time: at, kind });
        }
        assert_eq!(
            losses.texts().collect::<Vec<_>>(),
            [
                "40 samples lost, the buffer of a CPU was full",
                "7 records lost, the buffer of a CPU was full",
                "1 event lost, the buffers of the .NET runtime were full"
            ]
        );
        assert_eq!(Losses::default().texts().count(), 0);
    }
}
