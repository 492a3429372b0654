//! The identifiers of strings and stacks in an event.

use crate::error::ErrorKind;
use crate::event::Record;
use crate::spec::{MAX_ARGS, Plan};
use crate::table::Table;

/// Returns an identifier of an event that is not in the tables of its generation.
#[inline(always)]
pub(crate) fn missing_id(record: &Record, table: &Table) -> Option<ErrorKind> {
    let plan = record.ty.plan();
    // The type of an event determines its identifiers, and the sequence of types is not predictable
    // for the CPU. So this has one branch, which is nearly always taken. A missing identifier is
    // looked up as 0, which all tables contain.
    let known = table.stacks.surely_has(argument(record, plan.stack))
        & table.strings.surely_has(argument(record, plan.string))
        & !plan.has_other_ids;
    if known { None } else { find_missing_id(record, plan, table) }
}

/// Returns the argument with this index; 0 for [`Plan::NONE`].
#[inline(always)]
#[expect(
    clippy::indexing_slicing,
    reason = "the remainder keeps the index within the array: no check is left to do"
)]
fn argument(record: &Record, index: u8) -> u64 {
    let value = record.args[usize::from(index) % MAX_ARGS];
    if index == Plan::NONE { 0 } else { value }
}

#[inline(never)]
fn find_missing_id(record: &Record, plan: &Plan, table: &Table) -> Option<ErrorKind> {
    let stack = |index| {
        let id = argument(record, index);
        (!table.has_stack(id)).then_some(ErrorKind::UnknownId { what: "stack", id })
    };
    let string = |index| {
        let id = argument(record, index);
        (!table.has_string(id)).then_some(ErrorKind::UnknownId { what: "string", id })
    };
    stack(plan.stack)
        .or_else(|| string(plan.string))
        .or_else(|| stack(plan.other_stack))
        .or_else(|| string(plan.other_string))
}
