//! Recordings of perf as the commands read them: records in time order, with the tasks and the
//! mappings at their time.

use super::symbols::Symbols;
use super::symbols::unwind::Unwinder;
use super::{INCOMPLETE, perf_directory};
use crate::failure::{Failure, Result};
use crate::io::input::{self, Format, Input};
use crate::io::progress::Progress;
use crate::io::spool::spool;
use perf_data::{Entry, Losses, Reader, Session, SortedReader};
use perf_monitor::{CpuMode, Record, Sample, SampleFlags, Tasks, Timestamp};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use trace_timeline::sources::perf::Unwinder as _;

/// What is known at the time of a record.
pub(crate) struct State {
    pub(crate) tasks: Tasks,
    pub(crate) symbols: Option<Symbols>,
    /// Of a recording with copies of stacks.
    unwinder: Option<RefCell<Unwinder>>,
    /// Stacks that were unwound incompletely.
    cut: Cell<u64>,
    /// Stacks that have no callers in user space here.
    without_callers: Cell<u64>,
    losses: Losses,
    /// Records that could not be decoded.
    pub(crate) undecodable: u64,
    /// Why the rest of the recording was not read.
    damage: Option<Failure>,
    /// The last value of each counter that samples read, by its id and, if threads inherit it, the thread:
    /// each has a counter of its own then, with the same id (Linux 6.12).
    values: HashMap<(u64, u32), u64>,
}

impl State {
    /// Number of samples and records that the kernel or the hardware lost.
    pub(crate) fn lost(&self) -> u64 {
        self.losses.total()
    }

    /// A failure if the recording is damaged: what is before that was read.
    pub(crate) fn outcome(self) -> Result {
        self.damage.map_or(Ok(()), Err)
    }

    /// Counts a stack whose callers in user space are neither in its call chain nor in a copy of the stack.
    pub(crate) fn count_without_callers(&self) {
        self.without_callers.set(self.without_callers.get() + 1);
    }

    /// The addresses of user space that follow from the registers and the copy of the stack of a sample:
    /// its instruction, then return addresses. `None` if it has none of these.
    pub(crate) fn unwind(&self, sample: &Sample<'_>) -> Option<Vec<u64>> {
        let unwinder = self.unwinder.as_ref().filter(|_| sample.user_stack().is_some())?;
        let mappings = self.symbols.as_ref()?.mappings();
        let mut addresses = Vec::new();
        let is_whole = unwinder.borrow_mut().unwind(sample, mappings, &mut addresses);
        self.cut.set(self.cut.get() + u64::from(!is_whole));
        Some(addresses)
    }
}

/// A sample with its event.
pub(crate) struct SampleOf<'a> {
    pub(crate) sample: &'a Sample<'a>,
    pub(crate) event: usize,
    pub(crate) mode: CpuMode,
    pub(crate) session: &'a Session,
}

/// Reads a recording, and passes its samples on in time order. Damage within it is the
/// [outcome](State::outcome).
pub(crate) fn read(
    path: &Path,
    mut on_sample: impl FnMut(&SampleOf<'_>, &State) -> Result,
) -> Result<State> {
    let name = path.display();
    let failed = |error: perf_data::Error| Failure::about(&name, error);
    let mut state = State {
        tasks: Tasks::new(),
        symbols: None,
        unwinder: None,
        cut: Cell::new(0),
        without_callers: Cell::new(0),
        losses: Losses::default(),
        undecodable: 0,
        damage: None,
        values: HashMap::new(),
    };
    let input = open(path)?;
    let late = if path.as_os_str() == "-" {
        let reader = Reader::of_pipe(input).map_err(failed)?;
        read_all(reader, &mut state, &failed, &mut on_sample)?
    } else {
        // What is read of a pipe is not there again.
        let file = match input.is_compressed || !input::is_file(path) {
            true => spool(input)?,
            false => File::open(path).map_err(|error| input::failure(path, &error))?,
        };
        let reader = Reader::new(file).map_err(failed)?;
        if !reader.is_complete() {
            message!("triscope: {name}: {INCOMPLETE}");
        }
        read_all(reader, &mut state, &failed, &mut on_sample)?
    };
    let report = |count: u64, what: &str| {
        if count > 0 {
            message!("triscope: {name}: {count} {what}");
        }
    };
    report(state.lost(), "samples or records were lost when it was recorded");
    report(late, "records were out of order");
    report(state.undecodable, "records could not be decoded");
    report(state.cut.get(), "stacks were unwound incompletely");
    report(state.without_callers.get(), "stacks are without callers in user space");
    let dropped = state.symbols.as_ref().map_or(0, |symbols| symbols.mappings().dropped());
    report(dropped, "mappings were too many: their frames have no file");
    state.symbols.iter().for_each(Symbols::print_problems);
    Ok(state)
}

/// Opens a recording. The error names the actual format of the file.
fn open(path: &Path) -> Result<Input> {
    if let Some(why) = perf_directory(path) {
        return Err(Failure::about(path.display(), why));
    }
    let input = Input::open(path, Progress::beside_output())?;
    match (input.format, input.format.description()) {
        (Format::PerfData, _) => Ok(input),
        (_, Some(other)) => {
            let what = format!("looks like {other}, not a perf.data recording of Linux perf");
            Err(input.failure(what))
        }
        (_, None) => Err(input.failure("is not a perf.data recording of Linux perf")),
    }
}

fn read_all<R: Read>(
    reader: Reader<R>,
    state: &mut State,
    failed: &dyn Fn(perf_data::Error) -> Failure,
    on_sample: &mut dyn FnMut(&SampleOf<'_>, &State) -> Result,
) -> Result<u64> {
    let mut records = SortedReader::new(reader);
    loop {
        match records.next_record() {
            Ok(Some(entry)) => apply(&entry, state, on_sample)?,
            Ok(None) => break,
            Err(error) => {
                state.damage = Some(failed(error));
                break;
            }
        }
    }
    for (number, error) in &records.session().features().damaged {
        message!("triscope: feature section {number} is damaged: {error}");
    }
    Ok(records.late())
}

/// Whether samples have what callers are found from by unwind tables.
fn has_copies_of_stacks(session: &Session) -> bool {
    let needed = SampleFlags::REGS_USER | SampleFlags::STACK_USER;
    let mut events = session.events().iter();
    events.any(|event| SampleFlags::from_bits_retain(event.attr.sample_type).contains(needed))
}

fn apply(
    entry: &Entry<'_>,
    state: &mut State,
    on_sample: &mut dyn FnMut(&SampleOf<'_>, &State) -> Result,
) -> Result {
    let session = entry.session;
    // In pipe mode the events and features come before the records.
    if state.symbols.is_none() {
        let unwinder = has_copies_of_stacks(session).then(|| Unwinder::new(session.features()));
        state.unwinder = unwinder.map(RefCell::new);
    }
    let symbols = state.symbols.get_or_insert_with(|| Symbols::new(session.features()));
    let record = match entry.decode() {
        Some(Ok(record)) => record,
        Some(Err(_)) => {
            state.undecodable += 1;
            return Ok(());
        }
        None => return Ok(()),
    };
    symbols.apply(&record, entry.raw);
    state.losses.push(entry.raw, &record);
    if let Record::Sample(sample) = &record {
        let Some(event) = session.event_of(entry.raw) else {
            state.undecodable += 1;
            return Ok(());
        };
        let mode = entry.raw.cpu_mode();
        if sample.read.is_some() {
            return apply_values(sample, mode, session, state, on_sample);
        }
        return on_sample(&SampleOf { sample, event, mode, session }, state);
    }
    state.tasks.push(&record);
    Ok(())
}

/// Passes a sample on that has the values of counters: once for each counter that has changed, with
/// the difference as its period, as perf does.
fn apply_values(
    sample: &Sample<'_>,
    mode: CpuMode,
    session: &Session,
    state: &mut State,
    on_sample: &mut dyn FnMut(&SampleOf<'_>, &State) -> Result,
) -> Result {
    for count in sample.read.iter().flat_map(perf_monitor::ReadValues::iter) {
        let Some(id) = count.id.or(sample.identifier) else {
            state.undecodable += 1;
            continue;
        };
        let Some(event) = session.event_of_id(id) else {
            state.undecodable += 1;
            continue;
        };
        let is_inherited = session.events().get(event).is_some_and(|event| event.attr.inherit());
        let thread = sample.tid.filter(|_| is_inherited).unwrap_or(0);
        let before = state.values.insert((id, thread), count.value).unwrap_or(0);
        // A smaller value is that of another thread, which has the id of one that ended.
        let period = count.value.checked_sub(before).unwrap_or(count.value);
        if period != 0 {
            let mut of_event = sample.clone();
            of_event.period = Some(period);
            on_sample(&SampleOf { sample: &of_event, event, mode, session }, state)?;
        }
    }
    Ok(())
}

impl SampleOf<'_> {
    /// The name of its event.
    pub(crate) fn event_name(&self) -> &str {
        self.session.events().get(self.event).map_or("[unknown]", |event| &event.name)
    }

    /// The name of its thread, as perf shows it.
    pub(crate) fn comm(&self, state: &State) -> String {
        let tid = self.sample.tid.unwrap_or(0);
        if tid == 0 {
            return "swapper".to_owned();
        }
        let time = self.sample.time.unwrap_or(Timestamp::from_nanos(i64::MAX));
        match state.tasks.at(tid, time).map(|task| task.name()) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!(":{}", tid as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::{Features, FileWriter, RecordWriter, RecordedEvent, perf_event_attr};
    use perf_monitor::{RawRecord, SampleFlags};

    /// The periods of samples of a counter: (thread, value).
    fn periods(is_inherited: bool, samples: &[(u64, u64)]) -> Vec<(u32, u64)> {
        const ID: u64 = 7;
        const PERF_FORMAT_ID: u64 = 1 << 2;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut attr = perf_event_attr::new(1, 0);
        attr.sample_type = (SampleFlags::TID | SampleFlags::READ).bits();
        attr.read_format = PERF_FORMAT_ID;
        attr.set_inherit(is_inherited);
        let event = RecordedEvent { name: "page-faults".into(), attr, ids: vec![ID] };
        let mut writer = FileWriter::new(file.reopen().unwrap(), vec![event]).unwrap();
        for (tid, value) in samples {
            let words = [9 | 32 << 48, 5 | tid << 32, *value, ID];
            let bytes = words.map(u64::to_ne_bytes).concat();
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            writer.record(raw).unwrap();
        }
        writer.finish(&Features::default()).unwrap();
        let mut periods = Vec::new();
        read(file.path(), |of, _| {
            periods.push((of.sample.tid.unwrap(), of.sample.period.unwrap()));
            Ok(())
        })
        .unwrap();
        periods
    }

    #[test]
    fn threads_that_inherit_a_counter_have_values_of_their_own() {
        let samples = [(5, 100), (6, 30), (5, 150), (6, 50)];
        assert_eq!(periods(true, &samples), [(5, 100), (6, 30), (5, 50), (6, 20)]);
        let samples = [(5, 100), (6, 130), (5, 150)];
        assert_eq!(periods(false, &samples), [(5, 100), (6, 30), (5, 20)]);
        // A thread id that is used again.
        assert_eq!(periods(true, &[(5, 100), (5, 30)]), [(5, 100), (5, 30)]);
    }

    #[test]
    fn addresses_of_a_virtual_machine_are_not_of_its_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut attr = perf_event_attr::new(0, 0);
        attr.sample_type = (SampleFlags::IP | SampleFlags::TID).bits();
        let event = RecordedEvent { name: "cycles".into(), attr, ids: vec![] };
        let mut writer = FileWriter::new(file.reopen().unwrap(), vec![event]).unwrap();
        let record = |type_: u64, misc: u64, body: &[u64]| {
            let size = 8 + 8 * body.len() as u64;
            let words = [&[type_ | misc << 32 | size << 48], body].concat();
            words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>()
        };
        const USER: u64 = 2;
        let name = u64::from_ne_bytes(*b"/bin/vm\0");
        let thread = 5 | 5 << 32;
        let mmap2 = record(10, USER, &[thread, 0x1000, 0x1000, 0, 0, 0, 0, 5, name]);
        let samples = (0..6).map(|misc| record(9, misc, &[0x1800, thread]));
        for bytes in [mmap2].into_iter().chain(samples) {
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        }
        writer.finish(&Features::default()).unwrap();
        let mut places = Vec::new();
        read(file.path(), |of, state| {
            let ip = of.sample.ip.unwrap();
            let place = state.symbols.as_ref().unwrap().at(5, ip, of.mode);
            places.push((place.level(), place.file.map(str::to_owned)));
            Ok(())
        })
        .unwrap();
        let of_process = Some("/bin/vm".to_owned());
        let levels = ["[H]", "[k]", "[.]", "[H]", "[g]", "[u]"];
        let expected = levels.map(|level| (level, of_process.clone().filter(|_| level == "[.]")));
        assert_eq!(places, expected);
    }
}
