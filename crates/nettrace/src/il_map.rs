//! Maps from offsets in compiled code to offsets in the IL of a method.

use crate::{Event, Value};

/// Code without IL of its own.
const NO_MAPPING: u32 = u32::MAX;
/// Code before the first instruction of the IL.
const PROLOG: u32 = u32::MAX - 1;
/// Code behind the last instruction of the IL.
const EPILOG: u32 = u32::MAX - 2;

/// The IL offsets of the code of one compilation, from the runtime's `MethodILToNativeMap` events.
/// The default has no entries.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct IlMap {
    /// By offset in the code; of entries with the same one, the last has the code.
    entries: Box<[Entry]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    native: u32,
    il: u32,
}

/// An entry of an [`IlMap`]: code from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IlOffset {
    /// Code of the instruction at this offset in the IL.
    At(u32),
    /// Code that belongs to no instruction (`NO_MAPPING`).
    NoMapping,
    /// Code before the first instruction (`PROLOG`).
    Prolog,
    /// Code behind the last instruction (`EPILOG`).
    Epilog,
}

impl IlOffset {
    const fn of(il: u32) -> Self {
        match il {
            NO_MAPPING => Self::NoMapping,
            PROLOG => Self::Prolog,
            EPILOG => Self::Epilog,
            il => Self::At(il),
        }
    }
}

impl IlMap {
    /// The map in an event. `None` if its payload is not one, or describes other code than the main
    /// part of a method.
    pub(crate) fn read(event: &Event<'_>) -> Option<Self> {
        let extent = event.field("MethodExtent").and_then(|v| v.as_u64());
        let (Some(Value::Array(il)), Some(Value::Array(native)), Some(0)) =
            (event.field("ILOffsets"), event.field("NativeOffsets"), extent)
        else {
            return None;
        };
        let number = |value: Value<'_>| value.as_u64().and_then(|v| u32::try_from(v).ok());
        let entries = native
            .zip(il)
            .map(|(native, il)| Some(Entry { native: number(native)?, il: number(il)? }));
        let mut entries = entries.collect::<Option<Vec<_>>>()?;
        // Stable: of several entries at one offset, the last one stays the last.
        entries.sort_by_key(|entry| entry.native);
        Some(Self { entries: entries.into() })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// The entries by their offset in the code.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u32, IlOffset)> + '_ {
        self.entries.iter().map(|entry| (entry.native, IlOffset::of(entry.il)))
    }

    /// The offset in the IL of the code at an offset. `None` if the code belongs to no instruction.
    ///
    /// As in the runtime's own stack traces, the code before the first instruction has offset 0, and
    /// that behind the last one has the offset of the last one.
    pub fn il_offset(&self, native: u32) -> Option<u32> {
        let after = self.entries.partition_point(|entry| entry.native <= native);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        match IlOffset::of(entry.il) {
            IlOffset::At(il) => Some(il),
            IlOffset::Prolog => Some(0),
            IlOffset::Epilog => {
                let il = self.entries.iter().map(|entry| entry.il);
                il.filter(|il| *il < EPILOG).max()
            }
            IlOffset::NoMapping => None,
        }
    }
}

impl std::fmt::Debug for IlMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.entries()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(u32, u32)]) -> IlMap {
        let entries = entries.iter().map(|(native, il)| Entry { native: *native, il: *il });
        IlMap { entries: entries.collect() }
    }

    #[test]
    fn code_has_the_offset_of_the_entry_before_it() {
        let map = map(&[(4, PROLOG), (8, 0), (16, 5), (16, 7), (32, NO_MAPPING), (40, EPILOG)]);
        let offsets = [0, 4, 8, 15, 16, 31, 32, 40, u32::MAX].map(|native| map.il_offset(native));
        let last = Some(7);
        assert_eq!(
            offsets,
            [None, Some(0), Some(0), Some(0), last, last, None, last, last],
            "{map:?}"
        );
    }

    #[test]
    fn an_epilog_alone_has_no_offset() {
        assert_eq!(map(&[(0, EPILOG)]).il_offset(3), None);
        assert_eq!(map(&[]).il_offset(3), None);
    }
}
