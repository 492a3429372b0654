//! Rules: how the registers of a caller follow from those of the function that it called.

use super::registers::{Architecture, Registers, aarch64};
use super::tables::{Kind, Tables};
use crate::go::GoFrame;
use gimli::{
    CfaRule, Encoding, Evaluation, EvaluationResult, FrameDescriptionEntry, Location, Reader,
    RegisterRule, UnwindExpression, UnwindTableRow, Value,
};

/// Steps of an expression. Those of real programs have ten.
const MAX_STEPS: u32 = 1 << 10;

/// How the registers of the caller follow.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// From call frame information.
    Dwarf(Box<Dwarf>),
    /// From the tables of a Go program.
    Go(GoFrame),
    /// From the frame pointer: nothing else describes the code.
    FramePointer,
}

/// A row of call frame information.
#[derive(Clone, Debug)]
pub(super) struct Dwarf {
    kind: Kind,
    cfa: CfaRule<usize>,
    registers: Box<[(u16, RegisterRule<usize>)]>,
    return_address: u16,
    encoding: Encoding,
    is_signal: bool,
}

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// It has the registers now. Its instruction is not a call if `is_exact` is set: it was interrupted
    /// by a signal.
    Found { is_exact: bool },
    /// There is none.
    Outermost,
    /// The stack that the caller has is another one.
    OtherStack,
}

/// The reason why the registers of the caller are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownCaller {
    /// A word is behind the end of the copied stack.
    Truncated,
    /// The rule does not fit the registers or the stack.
    Invalid,
}

/// The copied part of a stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack<'a> {
    pub(super) start: u64,
    pub(super) bytes: &'a [u8],
}

impl Stack<'_> {
    /// The word at an address.
    pub(super) fn word(&self, address: u64) -> Result<u64, UnknownCaller> {
        let at = address.checked_sub(self.start).ok_or(UnknownCaller::Invalid)?;
        let at = usize::try_from(at).map_err(|_| UnknownCaller::Truncated)?;
        let bytes = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(UnknownCaller::Truncated)
    }
}

impl Rule {
    pub(super) fn new(
        kind: Kind,
        found: &FrameDescriptionEntry<impl Reader<Offset = usize>>,
        row: &UnwindTableRow<usize>,
    ) -> Self {
        let registers = row.registers();
        Self::Dwarf(Box::new(Dwarf {
            kind,
            cfa: row.cfa().clone(),
            registers: registers.map(|(register, rule)| (register.0, rule.clone())).collect(),
            return_address: found.cie().return_address_register().0,
            encoding: found.cie().encoding(),
            is_signal: found.is_signal_trampoline(),
        }))
    }

    /// Turns the registers into those of the caller. `is_exact` is set if the function did not call
    /// another one: it is the innermost one, or was interrupted by a signal.
    pub(super) fn apply(
        &self,
        tables: Option<&Tables>,
        registers: &mut Registers,
        stack: Stack<'_>,
        is_exact: bool,
    ) -> Result<Caller, UnknownCaller> {
        let before = registers.floor;
        let caller = match self {
            Self::Dwarf(rule) => rule.apply(tables, registers, stack, is_exact)?,
            Self::Go(frame) => go(frame, registers, stack, is_exact)?,
            Self::FramePointer => frame_pointer(registers, stack)?,
        };
        // A signal handler may have a stack of its own; all other callers are further up.
        let is_signal = matches!(self, Self::Dwarf(rule) if rule.is_signal);
        let has_advanced = registers.floor > before || (is_exact && registers.floor == before);
        match caller {
            Caller::Found { .. } if !has_advanced && !is_signal => Err(UnknownCaller::Invalid),
            Caller::Found { .. } if registers.ip == 0 => Ok(Caller::Outermost),
            caller => Ok(caller),
        }
    }
}

impl Dwarf {
    fn apply(
        &self,
        tables: Option<&Tables>,
        registers: &mut Registers,
        stack: Stack<'_>,
        is_exact: bool,
    ) -> Result<Caller, UnknownCaller> {
        let architecture = registers.architecture();
        let rule_of = |number: u16| self.registers.iter().find(|(register, _)| *register == number);
        let is_register = architecture == Architecture::Aarch64;
        let return_address = match rule_of(self.return_address) {
            Some((_, RegisterRule::Undefined)) => return Ok(Caller::Outermost),
            // It is still in the register that the call left it in. `gimli` has no rule for an
            // undefined one, as the outermost functions have it.
            Some((_, RegisterRule::SameValue)) | None if is_exact && is_register => None,
            None => return Ok(Caller::Outermost),
            Some((_, RegisterRule::SameValue)) => return Err(UnknownCaller::Invalid),
            Some((_, rule)) => Some(rule),
        };
        let eval = |expression, start| {
            let tables = tables.ok_or(UnknownCaller::Invalid)?;
            evaluate(tables, self, expression, registers, stack, start)
        };
        let cfa = match &self.cfa {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = registers.get(register.0).ok_or(UnknownCaller::Invalid)?;
                base.checked_add_signed(*offset).ok_or(UnknownCaller::Invalid)?
            }
            CfaRule::Expression(expression) => eval(*expression, None)?,
        };
        let value = |number: u16, rule: &RegisterRule<usize>| -> Result<u64, UnknownCaller> {
            let at = |offset: i64| cfa.checked_add_signed(offset).ok_or(UnknownCaller::Invalid);
            match rule {
                RegisterRule::SameValue => registers.get(number).ok_or(UnknownCaller::Invalid),
                RegisterRule::Offset(offset) => stack.word(at(*offset)?),
                RegisterRule::ValOffset(offset) => at(*offset),
                RegisterRule::Register(other) => {
                    registers.get(other.0).ok_or(UnknownCaller::Invalid)
                }
                RegisterRule::Expression(expression) => stack.word(eval(*expression, Some(cfa))?),
                RegisterRule::ValExpression(expression) => eval(*expression, Some(cfa)),
                RegisterRule::Constant(value) => Ok(*value),
                _ => Err(UnknownCaller::Invalid),
            }
        };
        let ip = match return_address {
            Some(rule) => value(self.return_address, rule)?,
            None => registers.get(self.return_address).ok_or(UnknownCaller::Invalid)?,
        };
        let mut caller = registers.clone();
        if !self.is_signal {
            caller.keep_preserved();
        }
        caller.set(architecture.stack_pointer(), Some(cfa));
        for (number, rule) in &self.registers {
            // A register that was restored already may be below the stack pointer: it is not copied.
            caller.set(*number, value(*number, rule).ok());
        }
        caller.ip = without_signature(architecture, ip);
        caller.floor = caller.stack_pointer().ok_or(UnknownCaller::Invalid)?;
        *registers = caller;
        Ok(Caller::Found { is_exact: self.is_signal })
    }
}

/// A return address without the signature that 64-bit Arm keeps in its upper bits. User space has 48
/// bits unless a program asks for more.
const fn without_signature(architecture: Architecture, address: u64) -> u64 {
    match architecture {
        Architecture::X86_64 => address,
        Architecture::Aarch64 => address & ((1 << 48) - 1),
    }
}

/// The value of an expression. `start` is the value that it begins with.
fn evaluate(
    tables: &Tables,
    rule: &Dwarf,
    expression: UnwindExpression<usize>,
    registers: &Registers,
    stack: Stack<'_>,
    start: Option<u64>,
) -> Result<u64, UnknownCaller> {
    let expression = tables.expression(rule.kind, expression).ok_or(UnknownCaller::Invalid)?;
    let mut evaluation = Evaluation::new(expression.0, rule.encoding);
    evaluation.set_max_iterations(MAX_STEPS);
    if let Some(start) = start {
        evaluation.set_initial_value(start);
    }
    let invalid = |_: gimli::Error| UnknownCaller::Invalid;
    let mut state = evaluation.evaluate().map_err(invalid)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = registers.get(register.0).ok_or(UnknownCaller::Invalid)?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(invalid)?
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                let value = stack.word(address)?;
                evaluation.resume_with_memory(Value::Generic(value)).map_err(invalid)?
            }
            _ => return Err(UnknownCaller::Invalid),
        };
    }
    match evaluation.as_result().last().map(|piece| &piece.location) {
        Some(Location::Address { address }) => Ok(*address),
        _ => Err(UnknownCaller::Invalid),
    }
}

/// The caller of a Go function: the table has the bytes of its frame at each instruction.
fn go(
    frame: &GoFrame,
    registers: &mut Registers,
    stack: Stack<'_>,
    is_exact: bool,
) -> Result<Caller, UnknownCaller> {
    if frame.is_outermost {
        return Ok(Caller::Outermost);
    }
    if frame.switches_stack {
        return Ok(Caller::OtherStack);
    }
    let sp = registers.stack_pointer().ok_or(UnknownCaller::Invalid)?;
    let end = sp.checked_add(frame.size).ok_or(UnknownCaller::Invalid)?;
    let saved = |place: Option<u64>| place.and_then(|at| stack.word(at).ok());
    let number = registers.architecture().frame_pointer();
    let own = registers.get(number);
    let (ip, floor, frame_pointer) = match registers.architecture() {
        // The frame pointer is saved next to the return address.
        Architecture::X86_64 => {
            let floor = end.checked_add(8).ok_or(UnknownCaller::Invalid)?;
            (stack.word(end)?, floor, saved(end.checked_sub(8)))
        }
        // Both are at the bottom of the frame. A function without one leaves them in registers.
        Architecture::Aarch64 if frame.size > 0 => (stack.word(sp)?, end, saved(sp.checked_sub(8))),
        Architecture::Aarch64 => {
            let link = registers.get(aarch64::LR).filter(|_| is_exact);
            (link.ok_or(UnknownCaller::Invalid)?, end, None)
        }
    };
    // No other register is preserved by a Go function.
    registers.forget();
    registers.set(number, if frame.size > 0 { frame_pointer } else { own });
    registers.set(registers.architecture().stack_pointer(), Some(floor));
    (registers.ip, registers.floor) = (ip, floor);
    Ok(Caller::Found { is_exact: false })
}

/// The caller by the chain of frame pointers.
fn frame_pointer(registers: &mut Registers, stack: Stack<'_>) -> Result<Caller, UnknownCaller> {
    let architecture = registers.architecture();
    let number = architecture.frame_pointer();
    let frame = registers.get(number).ok_or(UnknownCaller::Invalid)?;
    if frame == 0 {
        return Ok(Caller::Outermost);
    }
    let end = frame.checked_add(16).ok_or(UnknownCaller::Invalid)?;
    if frame < registers.floor || frame % 8 != 0 {
        return Err(UnknownCaller::Invalid);
    }
    let (caller, ip) = (stack.word(frame)?, stack.word(frame + 8)?);
    registers.keep_preserved();
    registers.ip = without_signature(architecture, ip);
    registers.set(number, Some(caller));
    // On 64-bit Arm the saved registers are at the bottom of the frame: its end is unknown.
    let sp = (architecture == Architecture::X86_64).then_some(end);
    registers.set(architecture.stack_pointer(), sp);
    registers.floor = end;
    Ok(Caller::Found { is_exact: false })
}
