//! Stacks whose frames of user space come later.
//!
//! With `defer_callchain` (Linux 6.19), the kernel walks the stack of user space when the thread returns
//! there. A sample has a cookie in its place, and a later record of the thread has the frames.
//!
//! ```text
//! sample              kernel frames, cookie 7  ┐ held, with all events after it
//! sample              kernel frames, cookie 7  │
//! callchain deferred  cookie 7, user frames  ◄─┘ at the return to user space
//! sample              kernel frames, cookie 7    joined at once
//! ```

use super::stacks::Stacks;
use crate::event::{Event, EventKind};
use crate::tables::{StackId, Tables};
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use trace_common::Timestamp;

/// Maximum number of events that are held.
const MAX_EVENTS: usize = 1 << 16;
/// Nanoseconds of the recording for which an event is held at most: a thread can sleep in the kernel
/// for long.
const MAX_WAIT: i64 = 10_000_000_000;
/// Maximum number of threads whose last frames are kept.
const MAX_THREADS: usize = 1 << 12;

/// The call chain of a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    /// The stack, as far as it is known.
    pub(super) stack: Option<StackId>,
    /// The frames of user space that are to come.
    pub(super) promise: Option<Promise>,
}

/// Frames of user space that are to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cookie: u64,
    /// The frames inside of them. `None` if the sample is one of user space.
    pub(super) kernel: Option<StackId>,
}

impl Chain {
    /// The same with other innermost frames.
    pub(super) fn map(self, mut frames: impl FnMut(Option<StackId>) -> Option<StackId>) -> Self {
        Self {
            stack: frames(self.stack),
            promise: self
                .promise
                .map(|promise| Promise { kernel: frames(promise.kernel), ..promise }),
        }
    }
}

/// Events that wait for the rest of their stacks, and those after them: the stream stays in order.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Whether an event of the recording writes the records.
    is_written: bool,
    held: VecDeque<Held>,
    /// The number of the first event that is held.
    first: u64,
    /// The numbers of the events that wait, by thread and cookie, in order.
    waiting: BTreeMap<(u32, u64), VecDeque<u64>>,
    /// The stacks of the events that were just made, by their index.
    made: Vec<(usize, Promise)>,
    /// The last cookie of each thread, with its frames: the kernel can take samples with this cookie
    /// until the thread is in user space.
    last: HashMap<u32, (u64, Vec<u64>)>,
    /// Stacks whose frames of user space did not come.
    pub(super) missing: u64,
}

#[derive(Debug)]
struct Held {
    event: Event,
    promise: Option<Promise>,
}

impl Deferred {
    pub(super) fn new(is_written: bool) -> Self {
        Self { is_written, ..Self::default() }
    }

    /// A chain with the frames of user space, if they came already. Those that never come are counted.
    pub(super) fn complete(
        &mut self,
        chain: Chain,
        stacks: &mut Stacks,
        tables: &mut Tables,
    ) -> Chain {
        let Some(promise) = chain.promise else { return chain };
        if !self.is_written {
            self.missing += 1;
            return Chain { promise: None, ..chain };
        }
        match self.last.get(&promise.tid) {
            Some((cookie, addresses)) if *cookie == promise.cookie => {
                let joined = stacks.join(promise.pid, promise.kernel, addresses, tables);
                Chain { stack: joined.or(chain.stack), promise: None }
            }
            _ => chain,
        }
    }

    /// The event with this index was made of a chain that is not complete.
    pub(super) fn promise(&mut self, index: usize, promise: Promise) {
        self.made.push((index, promise));
    }

    /// The frames of a thread came.
    pub(super) fn join(
        &mut self,
        tid: u32,
        cookie: u64,
        addresses: Vec<u64>,
        stacks: &mut Stacks,
        tables: &mut Tables,
    ) {
        if addresses.is_empty() {
            return;
        }
        for number in self.waiting.remove(&(tid, cookie)).unwrap_or_default() {
            let Some(held) = held(&mut self.held, self.first, number) else { continue };
            let Some(promise) = held.promise.take() else { continue };
            let joined = stacks.join(promise.pid, promise.kernel, &addresses, tables);
            if let (Some(stack), Some(joined)) = (stack_of(&mut held.event), joined) {
                *stack = Some(joined);
            }
        }
        if self.last.len() < MAX_THREADS || self.last.contains_key(&tid) {
            self.last.insert(tid, (cookie, addresses));
        }
    }

    /// A thread ends: it does not return to user space.
    pub(super) fn exit(&mut self, tid: u32) {
        self.last.remove(&tid);
        let of_thread = self.waiting.range((tid, 0)..=(tid, u64::MAX));
        let keys: Vec<(u32, u64)> = of_thread.map(|(key, _)| *key).collect();
        for number in keys.iter().filter_map(|key| self.waiting.remove(key)).flatten() {
            if let Some(held) = held(&mut self.held, self.first, number) {
                self.missing += u64::from(held.promise.take().is_some());
            }
        }
    }

    /// Holds the events from this index on, if one of them or before them waits, and passes on those
    /// that need not wait.
    pub(super) fn pass(&mut self, from: usize, now: Option<Timestamp>, out: &mut Vec<Event>) {
        if self.held.is_empty() && self.made.is_empty() {
            return;
        }
        let mut made = self.made.drain(..).peekable();
        for (index, event) in out.drain(from..).enumerate() {
            let made = made.next_if(|(made, _)| *made == from + index);
            let promise = made.map(|(_, promise)| promise);
            if let Some(Promise { tid, cookie, .. }) = promise {
                let number = self.first + self.held.len() as u64;
                self.waiting.entry((tid, cookie)).or_default().push_back(number);
            }
            self.held.push_back(Held { event, promise });
        }
        drop(made);
        self.release(now, out);
    }

    /// Passes on all events.
    pub(super) fn finish(&mut self, from: usize, out: &mut Vec<Event>) {
        self.pass(from, None, out);
        while let Some(event) = self.pop() {
            out.push(event);
        }
    }

    fn release(&mut self, now: Option<Timestamp>, out: &mut Vec<Event>) {
        while let Some(Held { event, promise }) = self.held.front() {
            let waited = now.map_or(0, |now| now.nanos_since(event.time));
            if promise.is_some() && self.held.len() <= MAX_EVENTS && waited <= MAX_WAIT {
                return;
            }
            out.extend(self.pop());
        }
    }

    /// The first event, also if its stack is not complete.
    fn pop(&mut self) -> Option<Event> {
        let Held { event, promise } = self.held.pop_front()?;
        if let Some(Promise { tid, cookie, .. }) = promise {
            self.missing += 1;
            if let Some(numbers) = self.waiting.get_mut(&(tid, cookie)) {
                // It is the first one of all.
                if numbers.front() == Some(&self.first) {
                    numbers.pop_front();
                }
                if numbers.is_empty() {
                    self.waiting.remove(&(tid, cookie));
                }
            }
        }
        self.first += 1;
        Some(event)
    }
}

fn held(held: &mut VecDeque<Held>, first: u64, number: u64) -> Option<&mut Held> {
    held.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
}

/// The stack of an event.
pub(super) fn stack_of(event: &mut Event) -> Option<&mut Option<StackId>> {
    match &mut event.kind {
        EventKind::Sample { stack, .. } | EventKind::Flow { stack, .. } => Some(stack),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_EVENTS, MAX_WAIT};
    use crate::sources::perf::testing::Run;
    use crate::{Event, EventKind};
    use perf_data::{RecordedEvent, perf_event_attr};
    use perf_sys::*;
    use std::collections::VecDeque;

    const CLOCK: u64 = 8;
    const SWITCHES: u64 = 9;
    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    impl Run {
        /// A recording of a clock and of context switches.
        fn deferring() -> Self {
            let event = |id, config, is_written| {
                let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, config);
                attr.sample_type = PERF_SAMPLE_IDENTIFIER
                    | PERF_SAMPLE_IP
                    | PERF_SAMPLE_TID
                    | PERF_SAMPLE_TIME
                    | PERF_SAMPLE_CPU
                    | PERF_SAMPLE_CALLCHAIN;
                attr.sample_period = 1;
                attr.set_sample_id_all(true);
                attr.set_context_switch(true);
                attr.set_defer_callchain(true);
                attr.set_defer_output(is_written);
                RecordedEvent { name: "event".into(), attr, ids: vec![id] }
            };
            let clock = event(CLOCK, PERF_COUNT_SW_CPU_CLOCK, true);
            let switches = event(SWITCHES, PERF_COUNT_SW_CONTEXT_SWITCHES, false);
            Self::of([clock, switches])
        }

        fn sample(&mut self, id: u64, time: u64, tid: u64, chain: &[u64]) {
            let is_kernel = chain.first() == Some(&PERF_CONTEXT_KERNEL);
            let misc = if is_kernel { PERF_RECORD_MISC_KERNEL } else { PERF_RECORD_MISC_USER };
            let fixed = [id, chain[1], 1 | tid << 32, time, 0, chain.len() as u64];
            self.push(PERF_RECORD_SAMPLE, misc, &[&fixed, chain].concat());
        }

        /// A sample in the kernel, at this address.
        fn promises(&mut self, id: u64, time: u64, tid: u64, address: u64, cookie: u64) {
            let chain = [PERF_CONTEXT_KERNEL, KERNEL + address, PERF_CONTEXT_USER_DEFERRED, cookie];
            self.sample(id, time, tid, &chain);
        }

        fn keeps(&mut self, time: u64, tid: u64, cookie: u64, user: &[u64]) {
            let fixed = [cookie, 1 + user.len() as u64, PERF_CONTEXT_USER];
            let body = [&fixed, user, &[1 | tid << 32, time, 0, CLOCK]].concat();
            self.push(PERF_RECORD_CALLCHAIN_DEFERRED, 0, &body);
        }

        fn switches(&mut self, time: u64, tid: u64, misc: u16) {
            self.push(PERF_RECORD_SWITCH, misc, &[1 | tid << 32, time, 0, CLOCK]);
        }

        fn exit(&mut self, time: u64, tid: u64) {
            let ids = [1 | 1 << 32, tid | tid << 32];
            self.push(
                PERF_RECORD_EXIT,
                0,
                &[&ids[..], &[time, 1 | tid << 32, time, 0, CLOCK]].concat(),
            );
        }

        fn finish(&mut self) {
            self.source.finish(&mut self.tables, &mut self.events);
        }

        /// Time and addresses of each sample, those of the kernel without its start.
        fn addresses(&self) -> Vec<(i64, Vec<u64>)> {
            let sample = |event: &Event| match event.kind {
                EventKind::Sample { stack, .. } => {
                    let frames = self.tables.frames(stack.unwrap()).iter();
                    let of_code = frames.filter(|frame| frame.function.is_empty());
                    let addresses = of_code.map(|frame| match frame.address {
                        address @ KERNEL.. => address - KERNEL,
                        address => address,
                    });
                    Some((event.time.nanos(), addresses.collect()))
                }
                _ => None,
            };
            self.events.iter().filter_map(sample).collect()
        }

        fn missing(&self) -> u64 {
            self.source.stats().deferred
        }
    }

    #[test]
    fn frames_that_come_later_are_those_of_the_samples_before() {
        let mut run = Run::deferring();
        run.promises(CLOCK, 10, 7, 0xa, 77);
        run.sample(CLOCK, 20, 8, &[PERF_CONTEXT_USER, 0x400, 0x500]);
        run.promises(CLOCK, 30, 7, 0xb, 77);
        // The cookies of threads are not related.
        run.keeps(35, 8, 77, &[0x600]);
        run.keeps(36, 7, 76, &[0x600]);
        assert_eq!(run.addresses(), []);
        run.keeps(40, 7, 77, &[0x100, 0x200]);
        let expected = vec![
            (10, vec![0xa, 0x100, 0x200]),
            (20, vec![0x400, 0x500]),
            (30, vec![0xb, 0x100, 0x200]),
        ];
        assert_eq!(run.addresses(), expected);
        // It is not in user space yet, and then in the kernel again.
        run.promises(CLOCK, 50, 7, 0xc, 77);
        run.promises(CLOCK, 60, 7, 0xd, 78);
        assert_eq!(run.addresses()[3..], [(50, vec![0xc, 0x100, 0x200])]);
        run.keeps(70, 7, 78, &[0x300]);
        assert_eq!(run.addresses()[4..], [(60, vec![0xd, 0x300])]);
        assert_eq!(run.missing(), 0);
    }

    #[test]
    fn a_sample_of_user_space_has_the_deferred_frames_alone() {
        let mut run = Run::deferring();
        let chain = [PERF_CONTEXT_USER_DEFERRED, 5];
        let fixed = [CLOCK, 0x100, 1 | 7 << 32, 10, 0, 2];
        for _ in 0..2 {
            let body = [&fixed[..], &chain].concat();
            run.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &body);
        }
        run.keeps(11, 7, 5, &[0x100, 0x200]);
        run.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &[&fixed[..], &[chain[0], 6]].concat());
        run.finish();
        let joined = (10, vec![0x100, 0x200]);
        assert_eq!(run.addresses(), [joined.clone(), joined, (10, vec![0x100])]);
        assert_eq!(run.missing(), 1);
    }

    #[test]
    fn the_time_away_has_the_frames_that_come_after_it() {
        const OUT: u16 = PERF_RECORD_MISC_SWITCH_OUT;
        let mut run = Run::deferring();
        run.promises(SWITCHES, 10, 7, 0xa, 1);
        run.switches(11, 7, OUT | PERF_RECORD_MISC_SWITCH_OUT_PREEMPT);
        run.promises(SWITCHES, 12, 8, 0xb, 1);
        run.switches(13, 8, OUT);
        run.switches(50, 7, 0);
        run.keeps(51, 7, 1, &[0x100]);
        assert_eq!(run.addresses(), [(50, vec![0xa, 0x100])]);
        // The last one is away to the end.
        run.finish();
        assert_eq!(run.addresses()[1..], [(50, vec![0xb])]);
        assert_eq!(run.missing(), 1);
        let first = run.events.iter().find_map(|event| match event.kind {
            EventKind::Sample { stack, .. } => stack,
            _ => None,
        });
        let innermost = run.tables.frames(first.unwrap())[0].function;
        assert_eq!(run.tables.str(innermost), "[preempted]");
    }

    #[test]
    fn the_exit_of_a_thread_ends_its_waits() {
        let mut run = Run::deferring();
        run.promises(CLOCK, 10, 7, 0xa, 1);
        run.promises(CLOCK, 11, 8, 0xb, 1);
        run.promises(CLOCK, 12, 7, 0xc, 2);
        run.exit(20, 7);
        assert_eq!(run.addresses(), [(10, vec![0xa])]);
        run.keeps(30, 8, 1, &[0x100]);
        assert_eq!(run.addresses()[1..], [(11, vec![0xb, 0x100]), (12, vec![0xc])]);
        assert_eq!(run.missing(), 2);
    }

    #[test]
    fn events_are_held_for_a_limited_time() {
        let mut run = Run::deferring();
        run.promises(CLOCK, 10, 7, 0xa, 1);
        let last = 10 + MAX_WAIT as u64;
        run.sample(CLOCK, last, 8, &[PERF_CONTEXT_USER, 0x400]);
        assert_eq!(run.addresses(), []);
        run.sample(CLOCK, last + 1, 8, &[PERF_CONTEXT_USER, 0x500]);
        assert_eq!(run.addresses().len(), 3);
        run.keeps(last + 2, 7, 1, &[0x100]);
        assert_eq!(run.addresses()[0], (10, vec![0xa]));
        assert_eq!(run.missing(), 1);
    }

    /// A thread can be in the kernel for long. An event that is passed on costs no walk over the others.
    #[test]
    fn events_of_one_cookie_are_passed_on_one_by_one() {
        let mut run = Run::deferring();
        for time in 1..=2 * MAX_EVENTS as u64 {
            run.promises(CLOCK, time, 7, 0xa, 1);
            run.events.clear();
        }
        let waiting: Vec<usize> = run.source.deferred.waiting.values().map(VecDeque::len).collect();
        let [waiting] = waiting[..] else { panic!("{waiting:?}") };
        assert_eq!(run.missing() + waiting as u64, 2 * MAX_EVENTS as u64);
        assert!(waiting <= MAX_EVENTS + 1, "{waiting}");
    }

    #[test]
    fn a_limited_number_of_events_is_held() {
        let mut run = Run::deferring();
        run.promises(CLOCK, 10, 7, 0xa, 1);
        run.promises(CLOCK, 11, 7, 0xb, 2);
        while run.source.stats().deferred == 0 {
            assert!(run.source.deferred.held.len() <= MAX_EVENTS);
            assert_eq!(run.addresses(), []);
            run.sample(CLOCK, 20, 8, &[PERF_CONTEXT_USER, 0x400]);
        }
        assert_eq!(run.addresses(), [(10, vec![0xa])]);
        run.keeps(21, 7, 2, &[0x100]);
        assert_eq!(run.addresses()[1], (11, vec![0xb, 0x100]));
        assert!(run.source.deferred.held.is_empty() && run.source.deferred.waiting.is_empty());
        assert_eq!(run.missing(), 1);
    }
}
