//! Layout of an event's payload.

/// One field of an event's payload, or of an object within it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// The field's name.
    pub name: Box<str>,
    /// Its type, which determines the encoding.
    pub ty: FieldType,
    /// Bytes from the start of the payload, when every field before it has a fixed size.
    pub(crate) offset: Option<u32>,
    /// The layout of its type, once it is known where the fields are. A type without elements or fields has
    /// none.
    pub(crate) layout: Option<Box<Layout>>,
}

impl Field {
    /// A field with its name and type.
    pub fn new(name: impl Into<Box<str>>, ty: FieldType) -> Self {
        Self { name: name.into(), ty, offset: None, layout: None }
    }
}

/// The type of a field: the type codes of the format, and additional types of the runtime's own
/// events, whose layout is not in the stream: see [`crate::manifest`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldType {
    /// Code 3: 4 bytes, 0 is false. Self-describing events declare this and write one byte: see
    /// [`crate::Event::fields`].
    Bool32,
    /// Code 26: 1 byte, 0 is false.
    Bool8,
    /// Code 4: a UTF-16 code unit.
    Utf16Unit,
    /// Code 23: a UTF-8 code unit.
    Utf8Unit,
    /// Code 5.
    I8,
    /// Code 6.
    U8,
    /// Code 7.
    I16,
    /// Code 8.
    U16,
    /// Code 9.
    I32,
    /// Code 10.
    U32,
    /// Code 11.
    I64,
    /// Code 12.
    U64,
    /// Code 13.
    F32,
    /// Code 14.
    F64,
    /// Code 15: .NET's `decimal`, 16 bytes. Self-describing events declare this and write a
    /// double: see [`crate::Event::fields`].
    Decimal,
    /// Code 16: 8 bytes, a Windows FILETIME. (The specification of version 6 describes eight 16-bit
    /// integers; `EventSource` writes a FILETIME in every version.)
    DateTime,
    /// Code 17: 16 bytes.
    Guid,
    /// Code 18: UTF-16 up to a NUL.
    Utf16,
    /// Code 19: a 16-bit count, then the elements.
    Array(Box<FieldType>),
    /// Code 1: the fields one after the other.
    Object(Vec<Field>),
    /// Code 20: a zigzag variable-length integer.
    VarInt,
    /// Code 21: a variable-length integer.
    VarUInt,
    /// Code 22: a fixed number of elements.
    FixedArray(Box<FieldType>, u16),
    /// Code 24: 32 bits, the size in bytes (high half) and the position relative to the end of
    /// this field (low half) of elements elsewhere in the payload.
    RelLoc(Box<FieldType>),
    /// Code 25: the same, the position relative to the start of the payload.
    DataLoc(Box<FieldType>),
    /// A pointer of the size in the stream's `Trace` object.
    Pointer,
    /// Bytes up to a NUL, read as UTF-8.
    Utf8Z,
    /// A 16-bit count of bytes, then UTF-8: the strings of `Universal.System`.
    Utf8Len16,
    /// An array with its length in the field with this index (before this one, in the same object).
    Counted(Box<FieldType>, usize),
}

impl FieldType {
    /// Size of a value in bytes, if it is fixed.
    pub fn fixed_size(&self, pointer_size: u32) -> Option<u32> {
        Some(match self {
            Self::Bool8 | Self::Utf8Unit | Self::I8 | Self::U8 => 1,
            Self::Utf16Unit | Self::I16 | Self::U16 => 2,
            Self::Bool32 | Self::I32 | Self::U32 | Self::F32 => 4,
            Self::RelLoc(_) | Self::DataLoc(_) => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::DateTime => 8,
            Self::Decimal | Self::Guid => 16,
            Self::Pointer => pointer_size,
            Self::Object(fields) => fixed_size(fields, pointer_size)?,
            Self::FixedArray(_, 0) => 0,
            Self::FixedArray(element, count) => {
                element.fixed_size(pointer_size)?.checked_mul(u32::from(*count))?
            }
            Self::Utf16
            | Self::Array(_)
            | Self::VarInt
            | Self::VarUInt
            | Self::Utf8Z
            | Self::Utf8Len16
            | Self::Counted(..) => return None,
        })
    }
}

impl FieldType {
    /// Bytes of memory that it refers to.
    fn memory(&self) -> usize {
        match self {
            Self::Array(element)
            | Self::FixedArray(element, _)
            | Self::RelLoc(element)
            | Self::DataLoc(element)
            | Self::Counted(element, _) => size_of::<Self>() + element.memory(),
            Self::Object(fields) => fields.iter().map(Field::memory).sum(),
            _ => 0,
        }
    }

    /// This type in the layout of self-describing events: booleans of one byte, and decimals as
    /// doubles. `None` if it is the same.
    fn compact(&self) -> Option<Self> {
        match self {
            Self::Bool32 => Some(Self::Bool8),
            Self::Decimal => Some(Self::F64),
            Self::Array(element) => Some(Self::Array(Box::new(element.compact()?))),
            Self::Object(fields) => compact(fields).map(Self::Object),
            _ => None,
        }
    }
}

/// Fields in the layout of self-describing events; `None` if they are the same.
pub(crate) fn compact(fields: &[Field]) -> Option<Vec<Field>> {
    let mut changed = false;
    let compact = fields.iter().map(|field| {
        let ty = field.ty.compact();
        changed |= ty.is_some();
        Field::new(field.name.clone(), ty.unwrap_or_else(|| field.ty.clone()))
    });
    let compact = compact.collect();
    changed.then_some(compact)
}

/// The total size of fields, if it is fixed.
pub(crate) fn fixed_size(fields: &[Field], pointer_size: u32) -> Option<u32> {
    fields.iter().try_fold(0u32, |size, f| size.checked_add(f.facts(pointer_size).fixed_size?))
}

/// Fills in the layout of each field, and its offset where that is fixed.
pub(crate) fn place(fields: &mut [Field], pointer_size: u32) {
    let mut offset = Some(0u32);
    for field in fields {
        field.offset = offset;
        field.layout = Layout::new(&mut field.ty, pointer_size);
        let size = field.facts(pointer_size).fixed_size;
        offset = offset.and_then(|o| o.checked_add(size?));
    }
}

impl Field {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        let layout = self.layout.as_ref().map_or(0, |layout| layout.memory());
        size_of::<Self>() + self.name.len() + self.ty.memory() + layout
    }

    fn facts(&self, pointer_size: u32) -> Facts {
        Facts::of(&self.ty, self.layout.as_deref(), pointer_size)
    }
}

/// What holds for every value of a type. It is computed once: each element of an array needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    facts: Facts,
    /// The layout of the elements.
    pub(crate) element: Option<Box<Layout>>,
}

impl Layout {
    fn memory(&self) -> usize {
        size_of::<Self>() + self.element.as_ref().map_or(0, |element| element.memory())
    }

    /// The layout of a type with elements or fields, which are placed.
    fn new(ty: &mut FieldType, pointer_size: u32) -> Option<Box<Self>> {
        let element = match ty {
            FieldType::Array(element)
            | FieldType::FixedArray(element, _)
            | FieldType::RelLoc(element)
            | FieldType::DataLoc(element)
            | FieldType::Counted(element, _) => Self::new(element, pointer_size),
            FieldType::Object(fields) => {
                place(fields, pointer_size);
                None
            }
            _ => return None,
        };
        let facts = Facts::compute(ty, element.as_deref(), pointer_size);
        Some(Box::new(Self { facts, element }))
    }
}

/// What holds for every value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// [`FieldType::fixed_size`].
    pub(crate) fixed_size: Option<u32>,
    /// Whether a value refers to bytes elsewhere in the payload.
    pub(crate) has_location: bool,
    /// Whether the size alone does not show that a value is valid: it refers to bytes elsewhere in the
    /// payload, or has elements without bytes.
    is_checked: bool,
    /// Whether every value takes no bytes.
    is_empty: bool,
    /// Bytes that a value has at least.
    least_size: u32,
    /// Number of fields and elements of such a value.
    least_steps: u32,
}

impl Facts {
    pub(crate) fn of(ty: &FieldType, layout: Option<&Layout>, pointer_size: u32) -> Self {
        match layout {
            Some(layout) => layout.facts,
            None => Self::compute(ty, None, pointer_size),
        }
    }

    /// `layout` is that of the elements.
    fn compute(ty: &FieldType, layout: Option<&Layout>, pointer_size: u32) -> Self {
        let of_element = |element| Self::of(element, layout, pointer_size);
        let plain = Self {
            fixed_size: None,
            has_location: false,
            is_checked: false,
            is_empty: false,
            least_size: 0,
            least_steps: 1,
        };
        match ty {
            FieldType::Array(element) | FieldType::Counted(element, _) => {
                // An array of the manifest has its count in another field.
                let least_size = if matches!(ty, FieldType::Array(_)) { 2 } else { 0 };
                let has_location = of_element(element).has_location;
                Self { least_size, has_location, ..plain }
            }
            FieldType::RelLoc(_) | FieldType::DataLoc(_) => Self {
                fixed_size: Some(4),
                has_location: true,
                is_checked: true,
                least_size: 4,
                ..plain
            },
            FieldType::FixedArray(element, count) => {
                let (each, n) = (of_element(element), u32::from(*count));
                Self {
                    fixed_size: match n {
                        0 => Some(0),
                        _ => each.fixed_size.and_then(|size| size.checked_mul(n)),
                    },
                    has_location: each.has_location,
                    is_checked: each.is_checked || (n > 0 && each.is_unbounded()),
                    is_empty: n == 0 || each.is_empty,
                    least_size: each.least_size.saturating_mul(n),
                    least_steps: each.least_steps.saturating_mul(n).saturating_add(1),
                }
            }
            FieldType::Object(fields) => {
                #[cfg(test)]
                tests::WALKS.with(|walks| walks.set(walks.get() + 1));
                let start = Self { fixed_size: Some(0), is_empty: true, ..plain };
                fields.iter().map(|field| field.facts(pointer_size)).fold(start, |sum, field| {
                    Self {
                        fixed_size: sum
                            .fixed_size
                            .and_then(|size| size.checked_add(field.fixed_size?)),
                        has_location: sum.has_location || field.has_location,
                        is_checked: sum.is_checked || field.is_checked,
                        is_empty: sum.is_empty && field.is_empty,
                        least_size: sum.least_size.saturating_add(field.least_size),
                        least_steps: sum.least_steps.saturating_add(field.least_steps),
                    }
                })
            }
            FieldType::Utf16 | FieldType::Utf8Len16 => Self { least_size: 2, ..plain },
            FieldType::VarInt | FieldType::VarUInt | FieldType::Utf8Z => {
                Self { least_size: 1, ..plain }
            }
            _ => {
                let fixed_size = ty.fixed_size(pointer_size);
                Self { fixed_size, least_size: fixed_size.unwrap_or(0), ..plain }
            }
        }
    }

    /// The size of every value, unless it alone does not show that a value is valid.
    pub(crate) fn inline_size(self) -> Option<u32> {
        if self.is_checked { None } else { self.fixed_size }
    }

    /// Whether the bytes of an array do not bound the work to read its elements: they refer to bytes
    /// elsewhere, or consist of fields without bytes, but for a few.
    pub(crate) fn is_unbounded(self) -> bool {
        let most = self.least_size.saturating_add(1).saturating_mul(MAX_STEPS_PER_BYTE);
        self.is_empty || self.has_location || self.least_steps > most
    }
}

/// Maximum number of fields for each byte of an element, and once more.
const MAX_STEPS_PER_BYTE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;
    use crate::payload::{Fields, PayloadErrorKind};

    thread_local! {
        /// How often the fields of an object were looked at to compute what holds for its values.
        pub(super) static WALKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    fn event(ty: FieldType) -> Metadata {
        let mut metadata = Metadata::empty(1);
        metadata.fields = vec![Field::new("f", ty)];
        metadata.complete(8, 4);
        metadata
    }

    fn array(element: FieldType) -> FieldType {
        FieldType::Array(Box::new(element))
    }

    fn object(types: impl IntoIterator<Item = FieldType>) -> FieldType {
        FieldType::Object(types.into_iter().map(|ty| Field::new("", ty)).collect())
    }

    #[test]
    fn types_are_not_walked_for_each_element() {
        let inner = object(vec![FieldType::I32; 100]);
        let metadata = event(array(array(object([inner, FieldType::Utf16]))));
        let before = WALKS.get();
        let mut payload = 1_000_u16.to_le_bytes().to_vec();
        payload.resize(2 + 999 * 2, 0); // empty arrays, then one of one object
        payload.extend([1, 0]);
        payload.resize(payload.len() + 402, 0);
        let fields = Fields::of_payload(&metadata, &payload);
        assert_eq!(fields.check(), Ok(()));
        let arrays = fields.at(0).unwrap().as_array().unwrap();
        assert_eq!(arrays.map(|array| array.as_array().unwrap().len()).sum::<usize>(), 1);
        assert_eq!(WALKS.get(), before, "all is known from the metadata");
    }

    #[test]
    fn elements_of_many_fields_without_bytes_are_refused() {
        let check = |empty: usize, count: u16| {
            let empty = vec![object([]); empty];
            let element = object(empty.into_iter().chain([array(FieldType::U8)]));
            let payload = [&count.to_le_bytes()[..], &vec![0; 2 * usize::from(count)]].concat();
            Fields::of_payload(&event(array(element)), &payload).check().map_err(|e| e.kind)
        };
        assert_eq!(check(10, 100), Ok(()));
        assert_eq!(check(100, 0), Ok(()));
        assert_eq!(check(100, 1), Err(PayloadErrorKind::Unbounded));
        // The same in an array whose size is fixed.
        let sparse = object(vec![object([]); 100].into_iter().chain([FieldType::U8]));
        let fixed = FieldType::FixedArray(Box::new(sparse), 2);
        let error = Fields::of_payload(&event(fixed), &[0; 2]).check().unwrap_err();
        assert_eq!(error.kind, PayloadErrorKind::Unbounded);
    }

    #[test]
    fn facts_are_those_of_the_type() {
        let sizes = |ty: FieldType| {
            let metadata = event(ty);
            let facts = metadata.fields[0].facts(8);
            assert_eq!(facts.fixed_size, metadata.fields[0].ty.fixed_size(8));
            (facts.fixed_size, facts.inline_size(), facts.is_unbounded())
        };
        let of = |ty| Box::new(ty);
        assert_eq!(sizes(FieldType::Pointer), (Some(8), Some(8), false));
        assert_eq!(sizes(FieldType::Utf16), (None, None, false));
        assert_eq!(sizes(array(FieldType::I32)), (None, None, false));
        assert_eq!(sizes(FieldType::DataLoc(of(FieldType::U8))), (Some(4), None, true));
        assert_eq!(sizes(array(FieldType::DataLoc(of(FieldType::U8)))), (None, None, true));
        let fixed = |ty, count| FieldType::FixedArray(of(ty), count);
        assert_eq!(sizes(fixed(FieldType::I32, 3)), (Some(12), Some(12), false));
        assert_eq!(sizes(fixed(FieldType::Utf16, 0)), (Some(0), Some(0), true));
        assert_eq!(sizes(fixed(object([]), 2)), (Some(0), None, true));
        let mixed = [FieldType::I32, object([FieldType::Guid]), fixed(FieldType::U8, 4)];
        assert_eq!(sizes(array(object(mixed.clone()))), (None, None, false));
        assert_eq!(sizes(fixed(object(mixed), 2)), (Some(48), Some(48), false));
    }
}
