//! The intervals of the subjects: what each open one shows, and when it no longer holds.

use super::model::{Derived, Interval};
use super::place::Seen;
use super::{Correlator, CorrelatorOptions, Out, Subject, queued};
use crate::entity::{EntityId, EntityKind};
use crate::event::State;
use crate::tables::{StackId, TextId};
use trace_common::Timestamp;

/// What the open interval shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) state: State,
    pub(super) reason: TextId,
    pub(super) stack: Option<StackId>,
    pub(super) thread: Option<EntityId>,
    pub(super) proc: Option<EntityId>,
    pub(super) holder: Option<EntityId>,
    pub(super) kernel: Seen,
}

/// What an M is related to: its goroutine, its P and its kernel thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Linked {
    pub(super) carries: Option<EntityId>,
    pub(super) proc: Option<EntityId>,
    pub(super) thread: Option<EntityId>,
}

impl Correlator {
    /// `m` is that of the subject, if it was looked up.
    #[inline(always)]
    fn derive(&self, id: EntityId, subject: &Subject, m: Option<Linked>) -> Shown {
        let mut shown = Shown {
            state: subject.state,
            reason: subject.reason,
            stack: subject.stack,
            ..Shown::default()
        };
        match subject.kind {
            EntityKind::Thread => {
                shown.kernel = self.kernel(id);
                shown.state = shown.kernel.state();
                shown.thread = Some(id);
                shown.holder = self.held(Some(id), subject);
            }
            EntityKind::DotnetThread => {
                shown.thread = subject.thread.or(Some(id));
                shown.kernel = subject.thread.map_or(Seen::UNKNOWN, |t| self.kernel(t));
            }
            _ => {
                let m = m.unwrap_or_else(|| {
                    let m = subject.on.and_then(|on| self.subjects.get(on.key()));
                    m.map_or(Linked::default(), Subject::linked)
                });
                shown.thread = m.thread.or(subject.on);
                let kernel = m.thread.map_or(Seen::UNKNOWN, |t| self.kernel(t));
                shown.kernel = if subject.is_executing() { kernel } else { Seen::ABSENT };
                if subject.kind == EntityKind::Proc {
                    shown.holder = m.carries;
                } else if subject.is_executing() {
                    shown.proc = m.proc;
                }
            }
        }
        shown
    }

    /// Ends the open interval if it no longer holds.
    pub(super) fn refresh(&mut self, id: EntityId, at: Timestamp, out: &mut (impl Out + ?Sized)) {
        self.refresh_of(id, None, at, out);
    }

    /// As [`Correlator::refresh`], of what this M executes.
    pub(super) fn refresh_of(
        &mut self,
        id: EntityId,
        m: Option<Linked>,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get(id.key()) else { return };
        if subject.kind == EntityKind::GoThread {
            return; // its goroutine, its P and its kernel thread have intervals
        }
        if subject.kind == EntityKind::Thread && !self.options.threads {
            return;
        }
        let shown = self.derive(id, subject, m);
        if shown != subject.shown {
            let Some(subject) = self.subjects.get_mut(id.key()) else { return };
            subject.show(id, shown, at, self.options, out);
        }
    }

    /// A kernel thread, and what it executes.
    pub(super) fn refresh_thread(
        &mut self,
        id: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        self.refresh(id, at, out);
        if let Some(runtime) = self.subjects.get(id.key()).and_then(|thread| thread.carries) {
            self.refresh(runtime, at, out);
            let Some(m) = self.subjects.get(runtime.key()) else { return };
            for id in [m.carries, m.proc].into_iter().flatten() {
                self.refresh(id, at, out);
            }
        }
    }

    /// A runtime thread, what it executes, and the kernel thread that it is.
    pub(super) fn refresh_runtime_thread(
        &mut self,
        id: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        self.refresh_others(id, None, at, out);
    }

    /// As [`Correlator::refresh_runtime_thread`], without an entity that is up to date.
    pub(super) fn refresh_others(
        &mut self,
        id: EntityId,
        fresh: Option<EntityId>,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get(id.key()) else { return };
        let (m, is_m) = (subject.linked(), subject.kind == EntityKind::GoThread);
        if !is_m {
            self.refresh(id, at, out);
        }
        for id in [m.carries, m.proc].into_iter().flatten().filter(|id| Some(*id) != fresh) {
            self.refresh_of(id, Some(m).filter(|_| is_m), at, out);
        }
        if let Some(thread) = m.thread {
            self.refresh(thread, at, out);
        }
    }

    /// The threads that wait for a CPU, which has got another occupant.
    pub(super) fn refresh_queue(
        &mut self,
        cpu_id: EntityId,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(cpu) = self.cpus.get_mut(cpu_id.key()).filter(|cpu| !cpu.queue.is_empty()) else {
            return;
        };
        let (queue, running) = (std::mem::take(&mut cpu.queue), cpu.now.running);
        for &id in &queue {
            let Some(subject) = self.subjects.get_mut(id.key()) else { continue };
            // What it waits for is known when it gets a CPU.
            if subject.place.is_woken() {
                continue;
            }
            if subject.kind == EntityKind::Thread && subject.carries.is_none() {
                if self.options.threads {
                    let seen = queued(id, subject.place, running);
                    subject.show_kernel(id, seen, at, self.options, out);
                }
            } else {
                self.refresh_thread(id, at, out);
            }
        }
        if let Some(cpu) = self.cpus.get_mut(cpu_id.key()) {
            cpu.queue = queue;
        }
    }

    /// The open interval begins now, and is the first one of its subject, which had the state before.
    #[cold]
    pub(super) fn holds_since(
        &mut self,
        id: EntityId,
        since: Timestamp,
        at: Timestamp,
        out: &mut (impl Out + ?Sized),
    ) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        if subject.since != at || since >= at {
            return;
        }
        let kernel = subject.shown.kernel;
        if matches!(kernel, Seen::ABSENT | Seen::UNKNOWN) {
            subject.since = since;
            return;
        }
        // What its thread did before is in the intervals of that one.
        subject.since = since;
        subject.shown.kernel = Seen::UNKNOWN;
        subject.emit(id, at, self.options, out);
        subject.since = at;
        subject.shown.kernel = kernel;
    }

    pub(super) fn close(&mut self, id: EntityId, at: Timestamp, out: &mut (impl Out + ?Sized)) {
        let Some(subject) = self.subjects.get_mut(id.key()) else { return };
        if subject.kind == EntityKind::Thread && !self.options.threads {
            return;
        }
        subject.emit(id, at, self.options, out);
        subject.since = at;
    }
}

impl Subject {
    pub(super) const fn linked(&self) -> Linked {
        Linked { carries: self.carries, proc: self.proc, thread: self.thread }
    }

    /// Shows what the kernel does with a thread that executes nothing that has a state.
    #[inline]
    pub(super) fn show_kernel(
        &mut self,
        id: EntityId,
        kernel: Seen,
        at: Timestamp,
        options: CorrelatorOptions,
        out: &mut (impl Out + ?Sized),
    ) {
        let shown = &self.shown;
        let is_shown = shown.kernel == kernel
            && shown.thread == Some(id)
            && shown.holder.is_none()
            && (shown.reason, shown.stack) == (self.reason, self.stack);
        if is_shown {
            return;
        }
        let at = at.max(self.since);
        self.emit(id, at, options, out);
        self.since = at;
        // Field by field: the processor waits where it copies what it has just written in parts.
        let shown = &mut self.shown;
        shown.state = kernel.state();
        shown.kernel = kernel;
        shown.thread = Some(id);
        shown.holder = None;
        shown.reason = self.reason;
        shown.stack = self.stack;
        if options.starts {
            self.start(id, out);
        }
    }

    /// What the kernel did with its thread from `since` on was not known before: the open interval is divided there.
    pub(super) fn learn_kernel(
        &mut self,
        id: EntityId,
        kernel: Seen,
        since: Timestamp,
        options: CorrelatorOptions,
        out: &mut (impl Out + ?Sized),
    ) {
        if kernel == self.shown.kernel {
            return;
        }
        let is_divided = since > self.since;
        if is_divided {
            self.emit(id, since, options, out);
            self.since = since;
        }
        self.shown.kernel = kernel;
        if self.kind == EntityKind::Thread {
            self.shown.state = kernel.state();
        }
        if is_divided && options.starts {
            self.start(id, out);
        }
    }

    /// Ends the open interval and begins one that shows this.
    #[inline]
    fn show(
        &mut self,
        id: EntityId,
        shown: Shown,
        at: Timestamp,
        options: CorrelatorOptions,
        out: &mut (impl Out + ?Sized),
    ) {
        // A loss is reported when it is over.
        let at = at.max(self.since);
        self.emit(id, at, options, out);
        self.since = at;
        // Field by field, and not read again: the processor waits where it copies what it has just
        // written in parts.
        self.shown.state = shown.state;
        self.shown.reason = shown.reason;
        self.shown.stack = shown.stack;
        self.shown.thread = shown.thread;
        self.shown.proc = shown.proc;
        self.shown.holder = shown.holder;
        self.shown.kernel = shown.kernel;
        if options.starts {
            out(Derived::Start(shown.interval(id, self.kind, at, at)));
        }
    }

    /// Gives the open interval, as far as it has a duration.
    #[inline]
    pub(super) fn emit(
        &self,
        subject: EntityId,
        end: Timestamp,
        options: CorrelatorOptions,
        out: &mut (impl Out + ?Sized),
    ) {
        if options.intervals && end > self.since && self.kind != EntityKind::GoThread {
            out(Derived::Interval(self.shown.interval(subject, self.kind, self.since, end)));
        }
    }

    /// Gives the start of the open interval.
    pub(super) fn start(&self, subject: EntityId, out: &mut (impl Out + ?Sized)) {
        let since = self.since;
        out(Derived::Start(self.shown.interval(subject, self.kind, since, since)));
    }
}

impl Shown {
    #[inline(always)]
    fn interval(
        self,
        subject: EntityId,
        kind: EntityKind,
        start: Timestamp,
        end: Timestamp,
    ) -> Interval {
        let Self { state, reason, stack, thread, proc, holder, kernel } = self;
        let kernel = kernel.kernel();
        Interval { subject, kind, start, end, state, reason, stack, thread, proc, holder, kernel }
    }
}
