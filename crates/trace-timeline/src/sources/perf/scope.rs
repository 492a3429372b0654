//! What a recording has the context switches of: whole CPUs, or some threads.
//!
//! Without `-a`, an event of `perf record` is one of threads. `sched_switch` occurs in the thread that
//! leaves the CPU, so the records lack all switches away from other threads: when a thread gets a CPU, and
//! how long the one after it has that CPU, is in none. No record says which kind it is.

use perf_data::{Entry, Features, Session, record_type};
use std::path::Path;

/// Whether a recording is known to have the records of some threads before any is read.
pub(super) fn is_of_threads(session: &Session) -> bool {
    let mut events = session.events().iter();
    // Recorders set it for the command that they start, unless they record CPUs.
    events.any(|event| event.attr.enable_on_exec())
        || has_inherited_switches(session)
        || names_threads(&session.features().command_line)
}

/// Whether this program recorded threads: it lets threads inherit the events of threads, and only those. perf
/// before 2025 sets it for CPUs, too.
fn has_inherited_switches(session: &Session) -> bool {
    let Features { version, .. } = session.features();
    let is_own = version.as_ref().is_some_and(|version| version.starts_with("triscope "));
    is_own && session.events().iter().any(|event| event.attr.inherit())
}

/// Whether a command line of `perf record` names processes, threads or a user, and no CPUs.
fn names_threads(command_line: &[String]) -> bool {
    let [program, command, options @ ..] = command_line else { return false };
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with("perf") || command != "record" {
        return false;
    }
    let (mut threads, mut cpus) = (false, false);
    // Those of the recorded command are among them. With it, and without CPUs, the records are of threads.
    for option in options.iter().take_while(|option| *option != "--") {
        match option.strip_prefix("--") {
            Some(long) => {
                let is = |name: &str| long.split('=').next() == Some(name);
                threads |= ["pid", "tid", "uid"].into_iter().any(is);
                cpus |= long.starts_with("all-cp") || long.starts_with("cpu");
            }
            None => {
                let short = option.strip_prefix('-').map_or("", letters);
                threads |= short.contains(['p', 't', 'u']);
                cpus |= short.contains(['a', 'C']);
            }
        }
    }
    threads && !cpus
}

/// The options in a cluster of short ones, as `ag`, up to the first one that takes an argument: the rest is the
/// argument.
fn letters(cluster: &str) -> &str {
    /// Of `perf record`, also where the argument can be left out.
    const WITH_ARGUMENT: &str = "cCDeFGIjkmoprStuz";
    cluster
        .split_inclusive(|letter: char| WITH_ARGUMENT.contains(letter))
        .next()
        .unwrap_or_default()
}

/// Whether a record of perf says that an event was opened on a thread (`PERF_RECORD_ID_INDEX`, always
/// written since perf 6.0). `is_of` chooses the events.
pub(super) fn opens_on_threads(entry: &Entry<'_>, is_of: impl Fn(usize) -> bool) -> bool {
    /// The id, its place, the CPU and the thread.
    const WORDS: usize = 4;
    const ANY: i32 = -1;
    if entry.raw.type_() != record_type::ID_INDEX {
        return false;
    }
    let body = entry.raw.bytes().get(8..).unwrap_or_default();
    let words = body.chunks_exact(8).filter_map(|word| word.first_chunk());
    let mut words = words.map(|word| u64::from_le_bytes(*word));
    let count = words.next().map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let words: Vec<u64> = words.take(count.saturating_mul(WORDS)).collect();
    words.chunks_exact(WORDS).any(|words| {
        let &[id, _, _, thread] = words else { return false };
        // A pid_t.
        thread as i32 != ANY && entry.session.event_of_id(id).is_some_and(&is_of)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::perf::testing::{Run, SWITCHES, features, sched_switch, sched_waking};
    use crate::{Correlator, Derived, EntityKind, Event, EventKind, Interval, Kernel, State};
    use perf_data::perf_event_attr;
    use perf_sys::PERF_RECORD_SAMPLE;

    /// A recording of `sched_switch` with this attribute changed, by this recorder.
    fn run(change: impl Fn(&mut perf_event_attr), version: &str, command_line: &[&str]) -> Run {
        let mut event = sched_switch();
        change(&mut event.attr);
        let mut features = features();
        features.version = Some(version.to_owned());
        features.command_line = command_line.iter().map(ToString::to_string).collect();
        Run::with([event], features)
    }

    /// A thread leaves CPU 0, runs on CPU 1 unseen, leaves it, and does it once more.
    fn leave(run: &mut Run) {
        const SLEEPS: u64 = 1;
        run.switch_of(10_000_000, 0, (7, SLEEPS), 8);
        run.switch_of(50_000_000, 1, (7, SLEEPS), 9);
        run.switch_of(90_000_000, 1, (7, SLEEPS), 9);
        run.source.finish(&mut run.tables, &mut run.events);
    }

    fn intervals(run: &Run) -> Vec<Interval> {
        let (mut correlator, mut intervals) = (Correlator::new(), Vec::new());
        let mut each = |derived: Derived<'_>| {
            if let Derived::Interval(interval) = derived {
                intervals.push(interval);
            }
        };
        for event in &run.events {
            correlator.push(event, &run.tables.entities, &mut each);
        }
        correlator.finish(&mut each);
        intervals
    }

    fn has_switches(run: &Run) -> bool {
        let is_switch = |event: &Event| matches!(event.kind, EventKind::Switch { .. });
        run.events.iter().any(is_switch)
    }

    fn samples(run: &Run) -> usize {
        let is_sample = |event: &&Event| matches!(event.kind, EventKind::Sample { .. });
        run.events.iter().filter(is_sample).count()
    }

    #[test]
    fn switches_of_the_threads_of_a_command_say_no_states() {
        let mut run = run(|attr| attr.set_enable_on_exec(true), "6.1", &[]);
        leave(&mut run);
        assert!(intervals(&run).iter().all(|interval| interval.kernel == Kernel::Unknown));
        assert_eq!((has_switches(&run), samples(&run)), (false, 3));
        let stats = run.source.kernel_stats();
        assert_eq!((stats.switches, stats.unreported, run.source.stats().samples), (0, 0, 3));
    }

    /// Thread 7 of a command waits for a CPU while its records say so. Nothing says when thread 20 of another
    /// program, which it wakes, has one.
    #[test]
    fn a_wake_up_of_a_thread_that_is_not_recorded_says_no_state() {
        let events = [sched_switch(), sched_waking()].map(|mut event| {
            event.attr.set_enable_on_exec(true);
            event.attr.set_context_switch(true);
            event
        });
        let mut run = Run::with(events, features());
        let (recorded, other) = (7, 20);
        run.switch_record(10, 0, recorded, false);
        run.waking_of(20, 0, recorded, other);
        run.switch_record(30, 0, recorded, true);
        run.waking_of(40, 0, 9, other);
        run.waking_of(50, 0, 9, recorded);
        run.switch_record(60, 0, recorded, false);
        run.waking_of(70, 0, recorded, other);
        run.switch_record(80, 0, recorded, true);
        run.waking_of(90, 1, 9, other);
        run.source.finish(&mut run.tables, &mut run.events);
        let states = |tid| {
            let thread = run.tables.entities.shared(EntityKind::Thread, tid).unwrap();
            let of = intervals(&run).into_iter().filter(move |interval| interval.subject == thread);
            of.map(|i| (i.end.nanos(), i.kernel.state())).collect::<Vec<_>>()
        };
        let expected = [
            (30, State::Running),
            (50, State::Waiting),
            (60, State::Runnable),
            (80, State::Running),
            (90, State::Waiting),
        ];
        assert_eq!(states(recorded.into()), expected);
        assert!(states(other.into()).iter().all(|(_, state)| *state == State::Unknown));
    }

    /// perf before 2025 lets them be inherited, too.
    #[test]
    fn switches_of_cpus_are_those_of_all_threads() {
        let command = ["/usr/bin/perf", "record", "-a", "-e", "sched:sched_switch", "x", "-p", "1"];
        let mut run = run(|attr| attr.set_inherit(true), "6.1", &command);
        leave(&mut run);
        assert_eq!((has_switches(&run), samples(&run)), (true, 0));
        assert!(run.tables.entities.shared(EntityKind::Thread, 8).is_some());
    }

    #[test]
    fn switches_that_this_program_lets_threads_inherit_are_of_threads() {
        let has = |is_inherited, version| {
            let mut run = run(|attr| attr.set_inherit(is_inherited), version, &[]);
            leave(&mut run);
            has_switches(&run)
        };
        assert!(!has(true, "triscope 0.1.0"));
        assert!(has(false, "triscope 0.1.0"));
    }

    #[test]
    fn a_command_line_names_threads() {
        let names = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            names_threads(&words)
        };
        for threads in [
            "/usr/bin/perf record -e sched:sched_switch -p 7",
            "/usr/lib/linux-tools/perf_5.10 record -p7 -e sched:sched_switch",
            "perf record -kCLOCK_MONOTONIC -p 7 -e sched:sched_switch",
            "perf record -o/data/x.data -p 7",
            "perf record -gp7",
            "perf record --pid=7",
            "perf record --tid 7 -- sleep 5",
            "perf record -u user",
        ] {
            assert!(names(threads), "{threads}");
        }
        for others in [
            "perf record -e sched:sched_switch",
            "perf record -ag server -p 80",
            "perf record -gF99 -vC0 -t 1",
            "perf record -ep",
            "perf record --all-cpus server -p 80",
            "perf record -C 0 server -t 1",
            "perf record --cpu=0 server -t 1",
            "perf record -- server -p 80",
            "perf record --percent 1",
            "perf sched record -p 7",
            "triscope record -p 7",
            "perf",
        ] {
            assert!(!names(others), "{others}");
        }
    }

    #[test]
    fn an_index_of_the_ids_says_that_events_are_of_threads() {
        let has = |id: u64, thread: i64, count: u64| {
            let mut run = run(|_| (), "6.1", &[]);
            // Of another event, and this one.
            let index = [count, 77, 0, 0, 5, id, 0, 0, thread as u64];
            run.push(record_type::ID_INDEX, 0, &index);
            leave(&mut run);
            has_switches(&run)
        };
        assert!(has(SWITCHES, -1, 2), "of CPUs");
        assert!(!has(SWITCHES, 5, 2));
        assert!(has(88, 5, 2), "another event");
        assert!(has(SWITCHES, 5, 1), "behind the index");
    }

    #[test]
    fn an_index_that_is_cut_is_read_to_its_end() {
        for count in [u64::MAX, 2] {
            let mut run = run(|_| (), "6.1", &[]);
            run.push(record_type::ID_INDEX, 0, &[count, SWITCHES, 0, 0, 5, SWITCHES]);
            leave(&mut run);
            assert!(!has_switches(&run));
        }
        let mut run = run(|_| (), "6.1", &[]);
        run.push(record_type::ID_INDEX, 0, &[]);
        run.push(PERF_RECORD_SAMPLE, 0, &[]);
        leave(&mut run);
        assert!(has_switches(&run));
    }
}
