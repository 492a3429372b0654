//! A timeline by hand.

use trace_timeline::answers::{CriticalPath, History, Report, What, critical_path};
use trace_timeline::{
    Context, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, FlowKind,
    Interval, LossKind, Pause, Sampled, SpanId, SpanKind, State, Tables, TextId, ThreadState,
    Timestamp, Value,
};

pub(crate) fn at(n: i64) -> Timestamp {
    Timestamp::from_nanos(n)
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) tables: Tables,
    pub(crate) events: Vec<Event>,
    pub(crate) now: i64,
}

impl World {
    /// Everything that follows happens at this time.
    pub(crate) fn at(&mut self, now: i64) -> &mut Self {
        assert!(now >= self.now);
        self.now = now;
        self
    }

    pub(crate) fn push(&mut self, kind: EventKind) -> &mut Self {
        self.events.push(Event { time: at(self.now), kind });
        self
    }

    pub(crate) fn entity(
        &mut self,
        kind: EntityKind,
        number: i64,
        parent: Option<EntityId>,
    ) -> EntityId {
        let entity = Entity::new(kind, number).child_of(parent);
        let entity = self.tables.entity(entity).unwrap();
        self.push(EventKind::Start { entity });
        entity
    }

    pub(crate) fn text(&mut self, text: &str) -> TextId {
        self.tables.text(text.as_bytes())
    }

    pub(crate) fn go(
        &mut self,
        entity: EntityId,
        state: State,
        on: Option<EntityId>,
        reason: &str,
    ) {
        let reason = self.text(reason);
        self.push(EventKind::State { entity, state, on, reason, stack: None });
    }

    pub(crate) fn switch(
        &mut self,
        cpu: EntityId,
        prev: Option<EntityId>,
        left: ThreadState,
        next: Option<EntityId>,
    ) {
        let (is_next_unknown, prio) = (false, 120);
        self.push(EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
    }

    pub(crate) fn wake(&mut self, from: Option<EntityId>, context: Context, to: EntityId) {
        let kind = FlowKind::Wakes;
        let (on, cpu, stack) = (None, None, None);
        self.push(EventKind::Flow { kind, from, context, on, to, cpu, stack });
    }

    #[allow(dead_code, reason = "one of several test binaries")]
    pub(crate) fn lost(&mut self, cpu: EntityId, kind: LossKind, since: i64) {
        self.push(EventKind::Loss { entity: Some(cpu), kind, since: at(since), count: None });
    }

    pub(crate) fn begin(
        &mut self,
        entity: EntityId,
        kind: SpanKind,
        name: &str,
        by: Option<EntityId>,
        of: Option<EntityId>,
    ) -> SpanId {
        let span = self.tables.new_span();
        let name = self.text(name);
        self.push(EventKind::Begin { span, entity, kind, name, by, of, stack: None });
        span
    }

    /// A thread waits for the lock with this number.
    #[allow(dead_code, reason = "one of several test binaries")]
    pub(crate) fn begin_lock(
        &mut self,
        thread: EntityId,
        lock: u64,
        owner: Option<EntityId>,
    ) -> SpanId {
        let name = self.text("lock");
        self.push(EventKind::Argument { name, value: Value::Uint(lock) });
        let span = self.begin(thread, SpanKind::LockWait, "lock", None, owner);
        self.go(thread, State::Waiting, None, "lock");
        span
    }

    pub(crate) fn finish(&mut self, span: SpanId, by: Option<EntityId>) {
        self.push(EventKind::Finish { span, by, is_cut: false });
    }

    fn derive(&self, each: &mut dyn FnMut(Derived<'_>)) {
        let mut correlator = Correlator::new();
        for event in &self.events {
            correlator.push(event, &self.tables.entities, each);
        }
        correlator.finish(each);
    }

    #[allow(dead_code, reason = "one of several test binaries")]
    pub(crate) fn report(&self, mut report: Report) -> Report {
        self.derive(&mut |derived| report.push(&derived, &self.tables.entities));
        report
    }

    pub(crate) fn history(&self) -> History {
        self.history_within(&[(at(i64::MIN), Timestamp::MAX)])
    }

    /// The history of these windows of time.
    pub(crate) fn history_within(&self, windows: &[(Timestamp, Timestamp)]) -> History {
        let mut history = History::new(windows[0].0, windows[0].1);
        windows[1..].iter().for_each(|(start, end)| history.add_window(*start, *end));
        self.derive(&mut |derived| history.push(&derived));
        history.finish();
        history
    }

    #[allow(dead_code, reason = "one of several test binaries")]
    pub(crate) fn intervals(&self, subject: EntityId) -> Vec<Interval> {
        self.history().intervals(subject).to_vec()
    }

    pub(crate) fn pauses(&self) -> Vec<Pause> {
        let mut pauses = Vec::new();
        self.derive(&mut |derived| {
            if let Derived::Pause(pause) = derived {
                pauses.push(pause.clone());
            }
        });
        pauses
    }

    #[allow(dead_code, reason = "one of several test binaries")]
    pub(crate) fn samples(&self) -> Vec<Sampled> {
        let mut samples = Vec::new();
        self.derive(&mut |derived| {
            if let Derived::Sample(sample) = derived {
                samples.push(sample);
            }
        });
        samples
    }

    pub(crate) fn explain(
        &self,
        subject: EntityId,
        start: i64,
        end: i64,
        task: Option<EntityId>,
    ) -> CriticalPath {
        let (start, end) = (at(start), at(end));
        let path = critical_path(&self.history(), &self.tables.entities, subject, start, end, task);
        let mut time = start;
        for piece in &path.pieces {
            assert_eq!(piece.start, time, "{path:#?}");
            time = piece.end;
        }
        assert_eq!(time, end, "{path:#?}");
        path
    }
}

/// Each piece as its end, its entity and what it was spent on.
pub(crate) fn pieces(path: &CriticalPath) -> Vec<(i64, EntityId, What)> {
    path.pieces.iter().map(|piece| (piece.end.nanos(), piece.entity, piece.what)).collect()
}
