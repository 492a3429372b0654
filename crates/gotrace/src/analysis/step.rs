//! Transitions of goroutines, by the identifiers of their generation.

use crate::event::{Event, Record, State};
use crate::id::{GoId, GoState, ProcId, ProcState};
use crate::spec::{EventType, Plan};

/// A change of state of a goroutine: the parts of a [`StateTransition`](crate::StateTransition)
/// that analyses look at, without looking up its strings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) id: GoId,
    pub(super) from: GoState,
    pub(super) to: GoState,
    /// The string with the reason; 0 if there is none.
    pub(super) reason: u64,
    /// The goroutine's own stack; 0 if there is none.
    pub(super) stack: u64,
}

/// A change of state of a goroutine or a proc.
pub(super) enum Change {
    Goroutine(Step),
    Proc(ProcId, ProcState, ProcState),
}

impl Step {
    /// The transition of a goroutine that an event is; `None` for any other event.
    #[inline]
    pub(super) fn of(event: Event<'_>) -> Option<Self> {
        match Change::of(event) {
            Some(Change::Goroutine(step)) => Some(step),
            _ => None,
        }
    }
}

impl Change {
    #[inline(always)]
    pub(super) fn of(event: Event<'_>) -> Option<Self> {
        use EventType as T;
        use GoState as G;
        use ProcState as P;
        let record = event.record;
        let Record { ty, g, p, .. } = record;
        let first = record.named_goroutine();
        let step = |id, from, to| Step { id, from, to, reason: 0, stack: 0 };
        Some(Self::Goroutine(match *ty {
            T::GO_START => step(first, G::Runnable, G::Running),
            T::GO_UNBLOCK | T::GO_SWITCH | T::GO_SWITCH_DESTROY => {
                step(first, G::Waiting, G::Runnable)
            }
            T::GO_BLOCK | T::GO_STOP => Step {
                reason: record.stop_reason(),
                stack: stack_of(event),
                ..step(
                    *g,
                    record.go_from(G::Running),
                    if *ty == T::GO_STOP { G::Runnable } else { G::Waiting },
                )
            },
            T::GO_SYSCALL_BEGIN => {
                let from = record.go_from(G::Running);
                Step { stack: stack_of(event), ..step(*g, from, G::Syscall) }
            }
            T::GO_SYSCALL_END => step(*g, G::Syscall, G::Running),
            T::GO_SYSCALL_END_BLOCKED => step(*g, G::Syscall, G::Runnable),
            T::GO_CREATE | T::GO_CREATE_BLOCKED => {
                let from = record.go_from(G::NotExist);
                let to = if *ty == T::GO_CREATE { G::Runnable } else { G::Waiting };
                Step { stack: record.new_stack(), ..step(first, from, to) }
            }
            T::GO_CREATE_SYSCALL => step(first, G::NotExist, G::Syscall),
            T::GO_DESTROY => step(*g, G::Running, G::NotExist),
            T::GO_DESTROY_SYSCALL => step(*g, G::Syscall, G::NotExist),
            T::GO_STATUS | T::GO_STATUS_STACK => match (record.from, record.to) {
                (State::Go(from), State::Go(to)) => {
                    Step { stack: stack_of(event), ..step(first, from, to) }
                }
                _ => return None,
            },
            T::PROC_START => {
                return Some(Self::Proc(record.named_proc(), P::Idle, P::Running));
            }
            T::PROC_STOP => return Some(Self::Proc(*p, P::Running, P::Idle)),
            T::PROC_STEAL | T::PROC_STATUS => match (record.from, record.to) {
                (State::Proc(from), State::Proc(to)) => {
                    return Some(Self::Proc(record.named_proc(), from, to));
                }
                _ => return None,
            },
            _ => return None,
        }))
    }
}

/// The stack of the goroutine that emitted the event; 0 if there is none.
#[inline]
pub(super) fn stack_of(event: Event<'_>) -> u64 {
    match event.record.ty.plan().stack {
        Plan::NONE => 0,
        index => event.record.args.get(usize::from(index)).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;
    use crate::id::ResourceId;

    /// Of every event of a recorded trace, the same as its public form.
    #[test]
    fn a_change_is_the_state_transition() -> Result<(), crate::Error> {
        let trace: &[u8] = include_bytes!("../../tests/data/shop.trace");
        let mut reader = Reader::new(trace)?;
        let (mut steps, mut others) = (0, 0);
        while let Some(event) = reader.next_event()? {
            let (change, transition) = (Change::of(event), event.state_transition());
            assert_eq!(change.is_some(), transition.is_some(), "{event}");
            let Some(transition) = transition else { continue };
            match change {
                Some(Change::Goroutine(step)) => {
                    assert_eq!(transition.resource(), ResourceId::Goroutine(step.id));
                    assert_eq!(transition.goroutine(), Some((step.from, step.to)));
                    assert_eq!(event.table.string(step.reason), Some(transition.reason()));
                    assert_eq!(step.stack, transition.stack().map_or(0, |stack| stack.id));
                    steps += 1;
                }
                Some(Change::Proc(id, from, to)) => {
                    assert_eq!(transition.resource(), ResourceId::Proc(id));
                    assert_eq!(transition.proc(), Some((from, to)));
                    others += 1;
                }
                None => {}
            }
        }
        assert!(steps > 1000 && others > 100, "{steps} {others}");
        Ok(())
    }
}
