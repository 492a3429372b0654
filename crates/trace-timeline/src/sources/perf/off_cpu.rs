//! Time away from the CPU: from a sample at a context switch to the record of the switch back.

use super::deferred::Chain;
use crate::tables::{SampledEvent, SampledEventId, StackId, Tables};
use hashbrown::{HashMap, HashSet};
use perf_data::{RecordedEvent, Session};
use trace_common::Timestamp;

/// The threads that are away from the CPU.
///
/// ```text
/// context-switches   sample with stack
/// switch records     out ──────────────────────── in
///                    │<──── weight of the stack ───>│
/// ```
#[derive(Debug)]
pub(super) struct OffCpu {
    /// For each event of the recording, whether its samples are context switches.
    is_switch: Vec<bool>,
    away: HashMap<u32, Away>,
    /// Threads that exit: they do not come back.
    exiting: HashSet<u32>,
    event: Option<SampledEventId>,
}

/// A thread that left the CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) pid: u32,
    pub(super) since: Timestamp,
    pub(super) chain: Chain,
}

impl OffCpu {
    /// The recording needs both: a sample at each switch, and records of switches.
    pub(super) fn new(session: &Session) -> Self {
        let has_switches = session.events().iter().any(|event| event.attr.context_switch());
        let is_switch = |event: &RecordedEvent| {
            let attr = &event.attr;
            has_switches
                && attr.type_ == perf_sys::PERF_TYPE_SOFTWARE
                && attr.config == perf_sys::PERF_COUNT_SW_CONTEXT_SWITCHES
                && !attr.freq()
                && attr.sample_period == 1
        };
        Self {
            is_switch: session.events().iter().map(is_switch).collect(),
            away: HashMap::new(),
            exiting: HashSet::new(),
            event: None,
        }
    }

    /// Whether the samples of the event with this number are context switches.
    pub(super) fn is_switch(&self, event: usize) -> bool {
        self.is_switch.get(event).copied().unwrap_or(false)
    }

    /// Whether an event of the recording samples context switches.
    pub(super) fn has_samples(&self) -> bool {
        self.is_switch.contains(&true)
    }

    /// The event of the samples.
    pub(super) fn event(&mut self, tables: &mut Tables) -> SampledEventId {
        *self.event.get_or_insert_with(|| {
            let [name, unit] = [&b"off-cpu"[..], b"ns"].map(|text| tables.text(text));
            tables.add_sampled_event(SampledEvent { name, unit, has_others: false })
        })
    }

    /// A thread leaves the CPU. Returns the time away before it whose end is missing.
    pub(super) fn leave(&mut self, tid: u32, away: Away) -> Option<Away> {
        let comes_back = tid != 0 && !self.exiting.contains(&tid);
        comes_back.then(|| self.away.insert(tid, away)).flatten()
    }

    /// A thread that has left could have gone on: `mark` changes its stack.
    pub(super) fn preempt(
        &mut self,
        tid: u32,
        mark: impl FnMut(Option<StackId>) -> Option<StackId>,
    ) {
        if let Some(away) = self.away.get_mut(&tid) {
            away.chain = away.chain.map(mark);
        }
    }

    /// A thread is back on a CPU.
    pub(super) fn enter(&mut self, tid: u32) -> Option<Away> {
        self.away.remove(&tid)
    }

    /// A thread starts: its number is new.
    pub(super) fn start(&mut self, tid: u32) {
        self.exiting.remove(&tid);
        self.away.remove(&tid);
    }

    /// A thread executes a program. It is the main thread now, also if that one has ended before.
    pub(super) fn exec(&mut self, pid: u32) {
        self.exiting.remove(&pid);
    }

    pub(super) fn exit(&mut self, tid: u32) {
        // Without such events no switch forgets it.
        if self.has_samples() {
            self.exiting.insert(tid);
        }
    }

    /// Forgets all threads that are away: records are missing.
    pub(super) fn forget(&mut self) -> usize {
        let count = self.away.len();
        self.away.clear();
        count
    }

    /// The threads that are still away at the end, by number.
    pub(super) fn rest(&mut self) -> Vec<(u32, Away)> {
        let mut rest: Vec<(u32, Away)> = self.away.drain().collect();
        rest.sort_unstable_by_key(|(tid, _)| *tid);
        rest
    }
}

#[cfg(test)]
mod tests {
    use crate::sources::perf::testing::{Run, SWITCHES, features, sched_switch};
    use crate::{EntityKind, Event, EventKind, LossKind, SampleKind, ThreadState};
    use perf_data::{RecordedEvent, perf_event_attr};
    use perf_sys::*;
    use trace_common::Timestamp;

    const ID: u64 = 9;

    impl Run {
        fn new() -> Self {
            let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CONTEXT_SWITCHES);
            attr.sample_type = PERF_SAMPLE_IDENTIFIER
                | PERF_SAMPLE_TID
                | PERF_SAMPLE_TIME
                | PERF_SAMPLE_CPU
                | PERF_SAMPLE_CALLCHAIN;
            attr.sample_period = 1;
            attr.set_sample_id_all(true);
            attr.set_context_switch(true);
            let event = RecordedEvent { name: "context-switches".into(), attr, ids: vec![ID] };
            Self::of([event])
        }

        /// The sample of a switch, in user code at this address.
        fn leaves(&mut self, time: u64, tid: u64, address: u64) {
            let chain = [2, PERF_CONTEXT_USER, address];
            let body = [&[ID, 1 | tid << 32, time, 0][..], &chain].concat();
            self.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &body);
        }

        fn switch(&mut self, time: u64, tid: u64, misc: u16) {
            self.push(PERF_RECORD_SWITCH, misc, &[1 | tid << 32, time, 0, ID]);
        }

        fn count_waits(&mut self, at: i64) {
            self.source.count_waits(Timestamp::from_nanos(at), &mut self.tables, &mut self.events);
        }

        /// Thread, time of the return, nanoseconds and address of each sample.
        fn samples(&self) -> Vec<(i64, i64, u64, u64)> {
            let sample = |event: &Event| match event.kind {
                EventKind::Sample { entity, kind: SampleKind::OffCpu, stack, weight, .. } => {
                    let thread = self.tables.entities.get(entity).unwrap();
                    let outermost = self.tables.frames(stack.unwrap()).last().unwrap();
                    Some((thread.number, event.time.nanos(), weight, outermost.address))
                }
                _ => None,
            };
            self.events.iter().filter_map(sample).collect()
        }
    }

    const OUT: u16 = PERF_RECORD_MISC_SWITCH_OUT;
    const PREEMPTED: u16 = PERF_RECORD_MISC_SWITCH_OUT | PERF_RECORD_MISC_SWITCH_OUT_PREEMPT;

    #[test]
    fn the_time_away_is_that_of_the_stack_where_the_thread_left() {
        let mut run = Run::new();
        run.switch(5, 7, 0); // it was away before
        run.leaves(10, 7, 0xa0);
        run.switch(11, 7, OUT);
        run.leaves(12, 8, 0xb0);
        run.switch(13, 8, PREEMPTED);
        run.switch(110, 7, 0);
        run.leaves(120, 7, 0xc0);
        run.switch(121, 7, OUT);
        run.switch(212, 8, 0);
        run.switch(300, 9, 0);
        run.source.finish(&mut run.tables, &mut run.events);
        let expected = [(7, 110, 100, 0xa0), (8, 212, 200, 0xb0), (7, 300, 180, 0xc0)];
        assert_eq!(run.samples(), expected);
        let innermost = |n: usize| {
            let samples: Vec<_> = run
                .events
                .iter()
                .filter_map(|event| match event.kind {
                    EventKind::Sample { stack, .. } => stack,
                    _ => None,
                })
                .collect();
            let frame = run.tables.frames(samples[n])[0];
            run.tables.str(frame.function).into_owned()
        };
        assert_eq!(innermost(0), "");
        assert_eq!(innermost(1), "[preempted]");
    }

    #[test]
    fn a_wait_can_be_counted_in_parts() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.switch(11, 7, OUT);
        run.leaves(40, 8, 0xb0);
        // Not before the last record.
        run.count_waits(20);
        run.switch(41, 8, PREEMPTED);
        run.switch(110, 7, 0);
        run.count_waits(120);
        run.count_waits(120);
        run.switch(150, 8, 0);
        run.source.finish(&mut run.tables, &mut run.events);
        let expected =
            [(7, 40, 30, 0xa0), (7, 110, 70, 0xa0), (8, 120, 80, 0xb0), (8, 150, 30, 0xb0)];
        assert_eq!(run.samples(), expected);
    }

    /// No record comes while all threads wait.
    #[test]
    fn waits_that_are_counted_up_to_the_end_are_counted_once() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.switch(11, 7, OUT);
        run.count_waits(1000);
        run.source.finish(&mut run.tables, &mut run.events);
        assert_eq!(run.samples(), [(7, 1000, 990, 0xa0)]);
    }

    #[test]
    fn records_of_switches_say_when_threads_have_a_cpu() {
        let mut run = Run::new();
        run.switch(5, 7, 0);
        run.leaves(10, 7, 0xa0);
        run.switch(11, 7, OUT);
        run.switch(12, 8, 0);
        run.switch(13, 8, PREEMPTED);
        run.switch(14, 0, 0); // the idle thread
        let number = |id| run.tables.entities.get(id).map(|thread| thread.number);
        let switches: Vec<_> = run
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Switch { prev, left, next, .. } => {
                    Some((event.time.nanos(), prev.and_then(number), left, next.and_then(number)))
                }
                _ => None,
            })
            .collect();
        let expected = [
            (5, None, ThreadState::Unknown, Some(7)),
            (11, Some(7), ThreadState::Sleeping, None),
            (12, None, ThreadState::Unknown, Some(8)),
            (13, Some(8), ThreadState::Preempted, None),
        ];
        assert_eq!(switches, expected);
    }

    #[test]
    fn threads_that_exit_do_not_come_back() {
        let mut run = Run::new();
        let ids = [1 | 1 << 32, 7 | 7 << 32];
        let body = |time| [&ids[..], &[time, 1 | 7 << 32, time, 0, ID]].concat();
        run.push(PERF_RECORD_EXIT, 0, &body(5));
        run.leaves(10, 7, 0xa0);
        // The number is used again.
        run.push(PERF_RECORD_FORK, 0, &body(50));
        run.switch(60, 7, 0);
        run.leaves(70, 7, 0xb0);
        run.switch(90, 7, 0);
        assert_eq!(run.samples(), [(7, 90, 20, 0xb0)]);
    }

    /// Linux before 4.14 has another state of a thread that has ended.
    #[test]
    fn a_thread_that_has_ended_is_not_away() {
        let mut event = sched_switch();
        event.attr.sample_type |= PERF_SAMPLE_CALLCHAIN;
        let mut run = Run::with([event], features());
        let body = |time| [7 | 1 << 32, 7 | 1 << 32, time, 7 | 7 << 32, time, 0, SWITCHES];
        run.push(PERF_RECORD_FORK, 0, &body(5));
        run.switch_of(10, 0, (5, 1), 7);
        run.push(PERF_RECORD_EXIT, 0, &body(20));
        run.switch_of(30, 0, (7, 0x40), 5);
        run.source.finish(&mut run.tables, &mut run.events);
        assert_eq!(run.samples(), [(5, 30, 20, 0xa0)]);
        let entities = run.tables.entities.iter();
        let threads = entities.filter(|(_, e)| (e.kind, e.number) == (EntityKind::Thread, 7));
        assert_eq!(threads.count(), 1);
    }

    /// A recorder lists the tasks at the end, or in each part of a recording.
    #[test]
    fn a_thread_that_is_listed_later_is_away_since_it_left() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.push(PERF_RECORD_FORK, 0, &[1 | 1 << 32, 7 | 1 << 32, 0, 0, 0, 0, ID]);
        run.switch(110, 7, 0);
        assert_eq!(run.samples(), [(7, 110, 100, 0xa0)]);
    }

    /// The main thread has ended, and another thread executes a program.
    #[test]
    fn a_thread_that_executes_a_program_is_the_main_thread() {
        let mut run = Run::new();
        run.push(PERF_RECORD_EXIT, 0, &[1 | 1 << 32, 7 | 7 << 32, 5, 1 | 7 << 32, 5, 0, ID]);
        let name = u64::from(b'x');
        let exec = PERF_RECORD_MISC_COMM_EXEC;
        run.push(PERF_RECORD_COMM, exec, &[7 | 7 << 32, name, 7 | 7 << 32, 6, 0, ID]);
        run.leaves(70, 7, 0xb0);
        run.switch(90, 7, 0);
        assert_eq!(run.samples(), [(7, 90, 20, 0xb0)]);
    }

    /// The thread can have run in between.
    #[test]
    fn a_time_with_losses_is_not_known() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.push(PERF_RECORD_LOST, 0, &[ID, 3, 1 | 7 << 32, 50, 0, ID]);
        run.switch(110, 7, 0);
        assert_eq!(run.samples(), []);
        assert_eq!(run.source.stats().unfinished, 1);
    }

    /// Nothing is missing of the threads that are away.
    #[test]
    fn a_cpu_that_goes_offline_ends_no_time_away() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.push(PERF_RECORD_LOST, 0, &[0, 0, 1 | 7 << 32, 50, 0, ID]);
        run.switch(110, 7, 0);
        assert_eq!(run.samples(), [(7, 110, 100, 0xa0)]);
        assert_eq!(run.source.stats().unfinished, 0);
    }

    /// A kernel can leave out a switch, without a record of a loss.
    #[test]
    fn a_time_whose_end_is_missing_is_not_known() {
        let mut run = Run::new();
        run.leaves(10, 7, 0xa0);
        run.leaves(60, 7, 0xb0);
        run.switch(90, 7, 0);
        assert_eq!(run.samples(), [(7, 90, 30, 0xb0)]);
        assert_eq!(run.source.stats().unfinished, 1);
    }

    /// Records of switches say which threads have a CPU: not what they do where records are lost.
    #[test]
    fn a_loss_makes_states_unknown_if_there_are_switches() {
        let losses = |run: &Run| {
            let loss = |event: &Event| match event.kind {
                EventKind::Loss { kind, since, .. } => Some((kind, since.nanos())),
                _ => None,
            };
            run.events.iter().filter_map(loss).collect::<Vec<_>>()
        };
        let lost = |run: &mut Run| run.push(PERF_RECORD_LOST, 0, &[ID, 3, 1 | 7 << 32, 50, 0, ID]);
        let mut run = Run::new();
        run.leaves(20, 7, 0xa0);
        lost(&mut run);
        assert!(matches!(losses(&run)[..], [(LossKind::Samples, _)]), "{:?}", losses(&run));
        let mut run = Run::new();
        run.switch(10, 7, 0);
        lost(&mut run);
        assert_eq!(losses(&run), [(LossKind::SchedulerRecords, 10)]);
    }

    #[test]
    fn throttled_events_are_counted() {
        let mut run = Run::new();
        run.push(PERF_RECORD_THROTTLE, 0, &[5, ID, ID, 1 | 7 << 32, 5, 0, ID]);
        run.push(PERF_RECORD_UNTHROTTLE, 0, &[9, ID, ID, 1 | 7 << 32, 9, 0, ID]);
        assert_eq!(run.source.stats().throttled, 1);
    }

    /// A recording of several parts has the tasks at the start of each.
    #[test]
    fn a_process_that_is_listed_later_has_its_name() {
        let mut run = Run::new();
        run.switch(10, 7, 0);
        let name = u64::from(b'x');
        run.push(PERF_RECORD_FORK, 0, &[20 | 1 << 32, 20 | 1 << 32, 0, 0, 0, 0, ID]);
        run.push(PERF_RECORD_COMM, 0, &[20 | 20 << 32, name, 0, 0, 0, ID]);
        run.switch(30, 8, 0);
        let process = run.tables.entities.shared(EntityKind::Process, 20).unwrap();
        let process = run.tables.entities.get(process).unwrap();
        assert_eq!(run.tables.get(process.name), b"x");
    }
}
