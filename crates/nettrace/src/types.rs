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
}

impl Field {
    /// A field with its name and type.
    pub fn new(name: impl Into<Box<str>>, ty: FieldType) -> Self {
        Self { name: name.into(), ty, offset: None }
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
    /// [`FieldType::fixed_size`], unless the size alone does not show that a value is valid.
    pub(crate) fn inline_size(&self, pointer_size: u32) -> Option<u32> {
        if self.is_checked() { None } else { self.fixed_size(pointer_size) }
    }

    /// Whether a value refers to bytes elsewhere in the payload, or has elements without bytes.
    fn is_checked(&self) -> bool {
        match self {
            Self::RelLoc(_) | Self::DataLoc(_) => true,
            Self::FixedArray(element, count) => {
                element.is_checked() || (*count > 0 && element.is_empty())
            }
            Self::Object(fields) => fields.iter().any(|f| f.ty.is_checked()),
            _ => false,
        }
    }

    /// Whether every value takes no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Object(fields) => fields.iter().all(|f| f.ty.is_empty()),
            Self::FixedArray(element, count) => *count == 0 || element.is_empty(),
            _ => false,
        }
    }

    /// Whether a value refers to bytes elsewhere in the payload.
    pub(crate) fn has_location(&self) -> bool {
        match self {
            Self::RelLoc(_) | Self::DataLoc(_) => true,
            Self::FixedArray(element, _) | Self::Array(element) | Self::Counted(element, _) => {
                element.has_location()
            }
            Self::Object(fields) => fields.iter().any(|f| f.ty.has_location()),
            _ => false,
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
    fields.iter().try_fold(0u32, |size, f| size.checked_add(f.ty.fixed_size(pointer_size)?))
}

/// Fills in the offset of each field, where it is fixed.
pub(crate) fn place(fields: &mut [Field], pointer_size: u32) {
    let mut offset = Some(0u32);
    for field in fields {
        field.offset = offset;
        offset = offset.and_then(|o| o.checked_add(field.ty.fixed_size(pointer_size)?));
        if let FieldType::Object(inner) = &mut field.ty {
            place(inner, pointer_size);
        }
    }
}
