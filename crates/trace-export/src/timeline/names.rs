//! Texts and stacks of the model in the tables of a sink.

use super::Context;
use crate::cut;
use crate::frame;
use crate::intern::{Frame, Interner, StackId, TextId};
use crate::model::{Category, Sink};
use hashbrown::HashMap;
use std::borrow::Cow;
use trace_timeline::{
    EntityId, EntityKind, Interval, Kernel, SampledEventId, SpanKind, State, Tables,
};
use trace_timeline::{Frame as ModelFrame, StackId as ModelStack, TextId as ModelText};

/// The sink's identifiers of texts, names and stacks. The sink can evict them.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By the position of the text.
    texts: Vec<Option<TextId>>,
    states: HashMap<(Shown, ModelText), TextId>,
    /// The last ones of `states`: a program has few reasons.
    recent: Recent,
    spans: HashMap<(SpanKind, ModelText), TextId>,
    labels: HashMap<EntityId, (ModelText, TextId)>,
    places: HashMap<(Option<EntityId>, Option<EntityId>), TextId>,
    /// By the position of the stack.
    stacks: Vec<Option<StackId>>,
    /// By the outermost frame that is added, and the stack.
    rooted: HashMap<(Root, ModelStack), StackId>,
    /// Texts of this crate: some twenty.
    fixed: Vec<(&'static str, TextId)>,
    /// States without a reason.
    plain: [Option<TextId>; Shown::COUNT],
    scratch: Vec<u8>,
}

/// Names of states by the low bits of their reasons.
#[derive(Debug)]
struct Recent([Option<((Shown, ModelText), TextId)>; 256]);

impl Default for Recent {
    fn default() -> Self {
        Self([None; 256])
    }
}

impl Recent {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "an index of 8 bits")]
    fn entry(
        &mut self,
        shown: Shown,
        reason: ModelText,
    ) -> &mut Option<((Shown, ModelText), TextId)> {
        let index = reason.index() as u8 ^ (shown as u8).rotate_right(4);
        &mut self.0[usize::from(index)]
    }
}

/// Stacks with an added frame that are remembered: each stack can be one of each sampled event.
const MAX_ROOTED: usize = 1 << 16;

/// The outermost frame of a sample, which says what cannot be added up with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Root {
    /// No such frame.
    None,
    /// Whether the thread had a CPU.
    OnCpu,
    OffCpu,
    Unknown,
    /// The sampled event, of several.
    Event(SampledEventId),
}

impl Root {
    fn name(self, tables: &Tables) -> Cow<'_, [u8]> {
        Cow::Borrowed(match self {
            Self::None => b"",
            Self::OnCpu => b"[on CPU]",
            Self::OffCpu => b"[off CPU]",
            Self::Unknown => b"[on or off CPU: unknown]",
            Self::Event(event) => {
                let name = tables.get(tables.sampled_event(event).name);
                return Cow::Owned([b"[", name, b"]"].concat());
            }
        })
    }
}

/// A state with the part that the kernel has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shown {
    Running,
    Preempted,
    WaitsForCpu,
    ThreadBlocked,
    Syscall,
    SyscallPreempted,
    SyscallWaits,
    Runnable,
    Waiting,
    Unknown,
}

impl Shown {
    const COUNT: usize = 10;

    pub(super) const fn of(state: &Interval) -> Self {
        match (state.state, state.kernel) {
            (State::Running, Kernel::Runnable { is_preempted: true, .. }) => Self::Preempted,
            (State::Running, Kernel::Runnable { .. }) => Self::WaitsForCpu,
            (State::Running, Kernel::Sleeping | Kernel::Blocked | Kernel::Stopped) => {
                Self::ThreadBlocked
            }
            (State::Running, _) => Self::Running,
            (State::Syscall, Kernel::Runnable { .. }) => Self::SyscallPreempted,
            (State::Syscall, Kernel::Sleeping | Kernel::Blocked | Kernel::Stopped) => {
                Self::SyscallWaits
            }
            (State::Syscall, _) => Self::Syscall,
            (State::Runnable, _) => Self::Runnable,
            (State::Waiting | State::Idle, _) => Self::Waiting,
            _ => Self::Unknown,
        }
    }

    pub(super) const fn category(self) -> Category {
        match self {
            Self::Preempted | Self::WaitsForCpu | Self::SyscallPreempted => Category::Sched,
            _ => Category::Go,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Preempted => "Preempted",
            Self::WaitsForCpu => "Waits for a CPU",
            Self::ThreadBlocked => "Thread blocked",
            Self::Syscall => "Syscall",
            Self::SyscallPreempted => "Syscall (preempted)",
            Self::SyscallWaits => "Syscall (waits)",
            Self::Runnable => "Runnable",
            Self::Waiting => "Waiting",
            Self::Unknown => "Unknown state",
        }
    }
}

impl Names {
    /// A text of this crate.
    pub(super) fn fixed(&mut self, text: &'static str, sink: &mut impl Sink) -> TextId {
        // By address: the same text at two addresses is there twice.
        let known = self.fixed.iter_mut().find(|(known, _)| std::ptr::eq(*known, text));
        match known {
            Some((_, id)) if sink.holds_text(*id) => *id,
            Some((_, id)) => {
                *id = sink.text(text.as_bytes());
                *id
            }
            None => {
                let id = sink.text(text.as_bytes());
                self.fixed.push((text, id));
                id
            }
        }
    }

    pub(super) fn text(&mut self, text: ModelText, cx: &mut Context<'_, impl Sink>) -> TextId {
        let tables = cx.tables;
        let known = self.texts.get(text.index()).copied().flatten();
        match known.filter(|id| cx.sink.holds_text(*id)) {
            Some(id) => id,
            None => {
                let id = cx.sink.text(tables.get(text));
                set(&mut self.texts, text.index(), id);
                id
            }
        }
    }

    /// The name of a state: `Waiting (chan receive)`.
    pub(super) fn state(
        &mut self,
        shown: Shown,
        reason: ModelText,
        cx: &mut Context<'_, impl Sink>,
    ) -> TextId {
        if reason.is_empty() {
            return self.plain_state(shown, cx.sink);
        }
        let recent = self.recent.entry(shown, reason);
        if let Some((_, id)) =
            recent.filter(|(of, id)| *of == (shown, reason) && cx.sink.holds_text(*id))
        {
            return id;
        }
        let id = self.state_of(shown, reason, cx);
        *self.recent.entry(shown, reason) = Some(((shown, reason), id));
        id
    }

    fn state_of(
        &mut self,
        shown: Shown,
        reason: ModelText,
        cx: &mut Context<'_, impl Sink>,
    ) -> TextId {
        let tables = cx.tables;
        if let Some(id) = self.states.get(&(shown, reason)).filter(|id| cx.sink.holds_text(**id)) {
            return *id;
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(shown.name().as_bytes());
        self.scratch.extend_from_slice(b" (");
        self.scratch.extend_from_slice(tables.get(reason));
        self.scratch.push(b')');
        let id = cx.sink.text(&self.scratch);
        self.states.insert((shown, reason), id);
        id
    }

    fn plain_state(&mut self, shown: Shown, sink: &mut impl Sink) -> TextId {
        let known = self.plain.get(shown as usize).copied().flatten();
        if let Some(id) = known.filter(|id| sink.holds_text(*id)) {
            return id;
        }
        let id = sink.text(shown.name().as_bytes());
        if let Some(known) = self.plain.get_mut(shown as usize) {
            *known = Some(id);
        }
        id
    }

    /// The name of a span: `GC gen 0`, `Stop-the-world (GC mark termination)`.
    pub(super) fn span(
        &mut self,
        kind: SpanKind,
        name: ModelText,
        cx: &mut Context<'_, impl Sink>,
    ) -> TextId {
        let tables = cx.tables;
        if let Some(id) = self.spans.get(&(kind, name)).filter(|id| cx.sink.holds_text(**id)) {
            return *id;
        }
        let text = tables.get(name);
        self.scratch.clear();
        match kind {
            SpanKind::Task if text.is_empty() => self.scratch.extend_from_slice(b"(no type)"),
            _ if text.is_empty() => {
                self.scratch.extend_from_slice(super::spans::title(kind).as_bytes());
            }
            SpanKind::Gc | SpanKind::GcAssist | SpanKind::GcSweep => {
                self.scratch.extend_from_slice(b"GC ");
                self.scratch.extend_from_slice(text);
            }
            SpanKind::Jit => {
                self.scratch.extend_from_slice(b"JIT ");
                self.scratch.extend_from_slice(text);
            }
            SpanKind::StopTheWorld => {
                self.scratch.extend_from_slice(b"Stop-the-world (");
                self.scratch.extend_from_slice(text);
                self.scratch.push(b')');
            }
            SpanKind::LockWait => self.scratch.extend_from_slice(b"waits for a lock"),
            SpanKind::TaskWait | SpanKind::Await => {
                self.scratch.extend_from_slice(b"waits for ");
                self.scratch.extend_from_slice(text);
            }
            // Their track has the event source.
            SpanKind::Activity | SpanKind::Request => {
                self.scratch.extend_from_slice(tables.get(tables.short(name)));
            }
            _ => self.scratch.extend_from_slice(text),
        }
        let id = cx.sink.text(&self.scratch);
        /// Names that are remembered: a program can compile any number of methods.
        const MAX_SPANS: usize = 1 << 14;
        if self.spans.len() >= MAX_SPANS {
            self.spans.clear();
        }
        self.spans.insert((kind, name), id);
        id
    }

    /// The name of a goroutine: `G7 main.worker`.
    pub(super) fn goroutine(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> TextId {
        let tables = cx.tables;
        let entity = tables.entities.get(id);
        self.scratch.clear();
        self.scratch.push(b'G');
        decimal(&mut self.scratch, entity.map_or(-1, |entity| entity.number));
        let name = entity.map_or(&b""[..], |entity| tables.get(entity.name));
        if !name.is_empty() {
            self.scratch.push(b' ');
            // All goroutines of the function have it.
            match name.len() {
                0..=cut::NAME => self.scratch.extend_from_slice(name),
                _ => self.scratch.extend_from_slice(cut::text(name, cut::NAME).as_bytes()),
            }
        }
        cx.sink.unique_text(&self.scratch)
    }

    /// The name of any other entity: `P 3`.
    pub(super) fn label(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> TextId {
        let tables = cx.tables;
        let entity = tables.entities.get(id);
        let name = entity.map_or(ModelText::EMPTY, |entity| entity.name);
        let known = self.labels.get(&id).filter(|(known, _)| *known == name);
        if let Some((_, label)) = known.filter(|(_, label)| cx.sink.holds_text(*label)) {
            return *label;
        }
        let text = match entity {
            Some(entity) if entity.kind == EntityKind::Goroutine => {
                return self.goroutine(id, cx); // it has no track
            }
            Some(entity) if entity.kind == EntityKind::Proc => format!("P {}", entity.number),
            _ => trace_timeline::text::name(tables, id),
        };
        let label = cx.sink.text(text.as_bytes());
        /// Labels that are remembered: what has ended can be the parent of something.
        const MAX_LABELS: usize = 1 << 14;
        if self.labels.len() >= MAX_LABELS {
            self.labels.clear();
        }
        self.labels.insert(id, (name, label));
        label
    }

    /// An entity that ended needs no label.
    pub(super) fn forget(&mut self, id: EntityId) {
        self.labels.remove(&id);
    }

    /// Where an entity executes: `P 3, thread 1234`.
    pub(super) fn place(
        &mut self,
        proc: Option<EntityId>,
        thread: Option<EntityId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> TextId {
        let tables = cx.tables;
        if let Some(id) = self.places.get(&(proc, thread)).filter(|id| cx.sink.holds_text(**id)) {
            return *id;
        }
        let number = |id: EntityId| tables.entities.get(id).map_or(-1, |entity| entity.number);
        let proc_text = proc.map(|proc| format!("P {}", number(proc)));
        let thread_text = thread.map(|thread| format!("thread {}", number(thread)));
        let parts: Vec<String> = [proc_text, thread_text].into_iter().flatten().collect();
        let id = cx.sink.text(parts.join(", ").as_bytes());
        /// Pairs of Ps and threads that are remembered.
        const MAX_PLACES: usize = 1 << 14;
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        self.places.insert((proc, thread), id);
        id
    }

    /// The name of a wait: the reason, as `[preempted]`, or the innermost function of user space.
    pub(super) fn wait(
        &mut self,
        stack: Option<ModelStack>,
        cx: &mut Context<'_, impl Sink>,
    ) -> TextId {
        let tables = cx.tables;
        let frames = stack.map_or(&[][..], |stack| tables.frames(stack));
        let is_kernel = |id| tables.mapping(id).is_kernel;
        let outside = frames.iter().find(|frame| !frame.mapping.is_some_and(is_kernel));
        match outside.map(|frame| frame.function).filter(|function| !function.is_empty()) {
            Some(function) => self.text(function, cx),
            None => self.fixed("off CPU", cx.sink),
        }
    }

    pub(super) fn stack(
        &mut self,
        stack: Option<ModelStack>,
        cx: &mut Context<'_, impl Sink>,
    ) -> Option<StackId> {
        let stack = stack?;
        let known = self.stacks.get(stack.index()).copied().flatten();
        if let Some(id) = known.filter(|id| cx.sink.holds_stack(*id)) {
            return Some(id);
        }
        let id = intern(Root::None, stack, cx);
        set(&mut self.stacks, stack.index(), id);
        Some(id)
    }

    /// A stack with one more outermost frame.
    pub(super) fn stack_from(
        &mut self,
        root: Root,
        stack: Option<ModelStack>,
        cx: &mut Context<'_, impl Sink>,
    ) -> Option<StackId> {
        if root == Root::None {
            return self.stack(stack, cx);
        }
        let Some(stack) = stack else {
            let name = root.name(cx.tables);
            return Some(cx.sink.stack(&mut std::iter::once(Frame::new(&name))));
        };
        let known = self.rooted.get(&(root, stack)).copied();
        if let Some(id) = known.filter(|id| cx.sink.holds_stack(*id)) {
            return Some(id);
        }
        let id = intern(root, stack, cx);
        if self.rooted.len() >= MAX_ROOTED {
            self.rooted.clear();
        }
        self.rooted.insert((root, stack), id);
        Some(id)
    }
}

/// A stack with one more outermost frame in the table of the sink.
fn intern(root: Root, stack: ModelStack, cx: &mut Context<'_, impl Sink>) -> StackId {
    let tables = cx.tables;
    let name = root.name(tables);
    let outermost = (root != Root::None).then(|| Frame::new(&name));
    let frames = tables.frames(stack).iter();
    let path = |frame: &ModelFrame| {
        frame.mapping.map_or(ModelText::EMPTY, |mapping| tables.mapping(mapping).path)
    };
    // Frames without a function, which are few, are named by their place.
    let is_unnamed = |frame: &&ModelFrame| frame.function.is_empty();
    let places: Vec<Cow<'static, str>> = frames
        .clone()
        .filter(is_unnamed)
        .map(|frame| frame::place(&tables.str(path(frame)), frame.address))
        .collect();
    let mut places = places.iter();
    let frames = frames.map(|frame| {
        let place = if is_unnamed(&frame) { places.next() } else { None };
        let function = place.map_or(tables.get(frame.function), |place| place.as_bytes());
        Frame::new(function)
            .source(tables.get(frame.file), frame.line)
            .module(tables.get(path(frame)), frame.address)
    });
    // The outermost frames of a deep stack are left out, but not this one.
    let most = Interner::MAX_FRAMES - usize::from(outermost.is_some());
    cx.sink.stack(&mut frames.take(most).chain(outermost))
}

/// Sets an entry of a list, which grows.
fn set<T: Copy>(list: &mut Vec<Option<T>>, index: usize, value: T) {
    if index >= list.len() {
        list.resize(index + 1, None);
    }
    if let Some(entry) = list.get_mut(index) {
        *entry = Some(value);
    }
}

/// Appends a number: half the time of `write!`, which is noticeable for goroutines that live
/// shortly.
fn decimal(text: &mut Vec<u8>, number: i64) {
    if number < 0 {
        text.push(b'-');
    }
    let mut rest = number.unsigned_abs();
    let start = text.len();
    loop {
        text.push(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if let Some(digits) = text.get_mut(start..) {
        digits.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::TimelineSource;
    use crate::{ClockDomain, PerfettoSink, Timestamp};
    use trace_timeline::{Entity, Event, EventKind, SampledEvent};

    /// Each activity is the parent of the next one.
    #[test]
    fn labels_of_what_has_ended_are_forgotten() {
        let mut tables = Tables::new();
        let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
        let mut source = TimelineSource::default();
        let (name, kind) = (tables.text(b"job"), SpanKind::Activity);
        let (mut last, mut most) = (None, 0);
        for number in 0..100 {
            let entity = tables.entity(Entity::new(EntityKind::Activity, number)).unwrap();
            let (span, of) = (tables.new_span(), last.replace(entity));
            let begin = EventKind::Begin { span, entity, kind, name, by: None, of, stack: None };
            let end = of.map(|entity| EventKind::End { entity });
            for kind in [Some(begin), end].into_iter().flatten() {
                let event = Event { time: Timestamp::from_nanos(number), kind };
                source.push(&event, &tables, &mut sink).unwrap();
                most = most.max(source.drawing.names.labels.len());
            }
        }
        assert_eq!((most, source.drawing.names.labels.len()), (1, 0));
        assert_eq!(sink.stats().slices, 100);
    }

    /// The track of an activity of .NET has its event source; other names have slashes of their own.
    #[test]
    fn names_of_requests_are_whole() {
        let mut tables = Tables::new();
        let mut sink = crate::ChromeSink::new(Vec::new(), ClockDomain::Monotonic);
        let mut source = TimelineSource::default();
        let names = [&b"Shop/Order"[..], b"POST /order", b"GET /users/42"];
        for (number, name) in (0..).zip(names) {
            let name = tables.text(name);
            if number == 0 {
                tables.set_short(name, b"Order");
            }
            let entity = tables.entity(Entity::new(EntityKind::Request, number)).unwrap();
            let (span, kind) = (tables.new_span(), SpanKind::Request);
            let (by, of, stack) = (None, None, None);
            let kind = EventKind::Begin { span, entity, kind, name, by, of, stack };
            let event = Event { time: Timestamp::from_nanos(number), kind };
            source.push(&event, &tables, &mut sink).unwrap();
        }
        sink.finish().unwrap();
        let text = String::from_utf8(sink.into_inner()).unwrap();
        for name in ["Order", "POST /order", "GET /users/42"] {
            let is_slice = |line: &&str| {
                line.contains("\"ph\":\"B\"") && line.contains(&format!("\"name\":\"{name}\""))
            };
            assert_eq!(text.lines().filter(is_slice).count(), 1, "{name}: {text}");
        }
    }

    /// Each stack can be one of each of many events.
    #[test]
    fn stacks_of_sampled_events_are_forgotten() {
        const EVENTS: u32 = 2_000;
        const STACKS: u64 = 100_000;
        let mut tables = Tables::new();
        let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
        let mut add = |number: u32| {
            let (name, unit) = (tables.text(&number.to_ne_bytes()), ModelText::EMPTY);
            tables.add_sampled_event(SampledEvent { name, unit, has_others: true })
        };
        let events: Vec<SampledEventId> = (0..EVENTS).map(&mut add).collect();
        let mut names = Names::default();
        let at = Timestamp::default();
        for (address, event) in (0..STACKS).zip(events.iter().cycle()) {
            let stack = tables.stack(&[ModelFrame { address, ..ModelFrame::default() }]);
            let cx = &mut Context { at, tables: &tables, sink: &mut sink };
            let known = names.stack_from(Root::Event(*event), stack, cx);
            assert_eq!(names.stack_from(Root::Event(*event), stack, cx), known);
        }
        assert!((1..=MAX_ROOTED).contains(&names.rooted.len()), "{}", names.rooted.len());
        assert_eq!(names.stacks.len(), 0);
    }

    #[test]
    fn decimals_are_those_of_the_standard_library() {
        for number in [i64::MIN, -1, 0, 9, 10, 120, i64::MAX] {
            let mut text = b"G".to_vec();
            decimal(&mut text, number);
            assert_eq!(text, format!("G{number}").as_bytes());
        }
    }
}
