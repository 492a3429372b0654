//! Formats that a program declares, and their data.

use crate::error::{Error, Result};
use crate::format::{FieldFormat, FieldKind, FieldValue, TracepointFormat};
use std::fmt::Write;

/// The type of a [declared](crate::Registration::field) field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FieldType {
    /// A signed integer of 8 bits.
    I8,
    /// A signed integer of 16 bits.
    I16,
    /// A signed integer of 32 bits.
    I32,
    /// A signed integer of 64 bits.
    I64,
    /// An unsigned integer of 8 bits.
    U8,
    /// An unsigned integer of 16 bits.
    U16,
    /// An unsigned integer of 32 bits.
    U32,
    /// An unsigned integer of 64 bits.
    U64,
    /// Text of any length.
    Text,
}

impl FieldType {
    /// The kernel's name of the type, its size, and whether it is signed.
    const fn of_kernel(self) -> (&'static str, usize, bool) {
        match self {
            Self::I8 => ("s8", 1, true),
            Self::I16 => ("s16", 2, true),
            Self::I32 => ("s32", 4, true),
            Self::I64 => ("s64", 8, true),
            Self::U8 => ("u8", 1, false),
            Self::U16 => ("u16", 2, false),
            Self::U32 => ("u32", 4, false),
            Self::U64 => ("u64", 8, false),
            Self::Text => ("__data_loc char[]", 4, false),
        }
    }
}

/// The field before those that are declared.
const COMMON: &str = "common_type";

fn refused(field: &str, why: &'static str) -> Error {
    Error::ExternalField { field: field.to_owned(), why }
}

/// The format of an event with these fields, in this order.
pub(crate) fn declare(event: &str, fields: &[(String, FieldType)]) -> Result<TracepointFormat> {
    // Every tracepoint begins with its type.
    let mut text = format!(
        "name: {event}\nID: 0\nformat:\n\
         \tfield:unsigned short {COMMON};\toffset:0;\tsize:2;\tsigned:0;\n\n"
    );
    let mut offset = 2usize;
    for (n, (name, type_)) in fields.iter().enumerate() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(refused(name, "a name has letters, digits and underscores only"));
        }
        if name == COMMON || fields.iter().take(n).any(|(other, _)| other == name) {
            return Err(refused(name, "the event has another field with this name"));
        }
        let (type_name, size, signed) = type_.of_kernel();
        offset = offset.next_multiple_of(size);
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "\tfield:{type_name} {name};\toffset:{offset};\tsize:{size};\tsigned:{};",
            u8::from(signed)
        );
        offset += size;
    }
    TracepointFormat::parse("external", &text)
}

/// The data of an event with these values. Fields without a value are 0 or empty.
pub(crate) fn encode(
    format: &TracepointFormat,
    values: &[(&str, FieldValue<'_>)],
) -> Result<Vec<u8>> {
    let fields = format.common_fields().iter().chain(format.fields());
    let end = fields.map(|field| field.offset() + field.size()).max();
    let mut data = vec![0; end.unwrap_or(0)];
    for (name, value) in values {
        let field = format.fields().iter().find(|field| field.name() == *name);
        let field = field.ok_or_else(|| refused(name, "there is no such field"))?;
        let (bytes, len) = match (field.kind(), value) {
            (FieldKind::DataLoc { .. }, FieldValue::Text(text)) => {
                let location = location(data.len(), text.len() + 1);
                let location = location.ok_or_else(|| refused(name, "the text is too long"))?;
                data.extend_from_slice(text);
                data.push(0);
                (u64::from(location).to_le_bytes(), 4)
            }
            (FieldKind::Integer, value) => {
                let number = integer(field, *value);
                let number = number.ok_or_else(|| refused(name, "the value is not of its type"))?;
                (number.to_le_bytes(), field.size())
            }
            _ => return Err(refused(name, "the value is not of its type")),
        };
        let place = data.get_mut(field.offset()..field.offset() + len);
        if let (Some(place), Some(bytes)) = (place, bytes.get(..len)) {
            place.copy_from_slice(bytes);
            if cfg!(target_endian = "big") {
                place.reverse();
            }
        }
    }
    Ok(data)
}

/// The content of a `__data_loc` field.
fn location(offset: usize, size: usize) -> Option<u32> {
    let (offset, size) = (u16::try_from(offset).ok()?, u16::try_from(size).ok()?);
    Some(u32::from(size) << 16 | u32::from(offset))
}

/// A value in two's complement, if the field can have it.
fn integer(field: &FieldFormat, value: FieldValue<'_>) -> Option<u64> {
    let bits = 8 * field.size() as u32;
    match value {
        FieldValue::Signed(n) if field.is_signed() => {
            let shift = 64 - bits;
            (n << shift >> shift == n).then_some(n as u64)
        }
        FieldValue::Unsigned(n) | FieldValue::Pointer(n) if !field.is_signed() => {
            (bits == 64 || n >> bits == 0).then_some(n)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(fields: &[(&str, FieldType)]) -> Vec<(String, FieldType)> {
        fields.iter().map(|(name, type_)| ((*name).to_owned(), *type_)).collect()
    }

    #[test]
    fn declared_fields_are_read_like_those_of_a_tracepoint() {
        let declared = [("a", FieldType::U8), ("b", FieldType::I64), ("c", FieldType::Text)];
        let format = declare("mine", &fields(&declared)).unwrap();
        assert_eq!((format.system(), format.name()), ("external", "mine"));
        let values = [
            ("c", FieldValue::Text(b"text")),
            ("b", FieldValue::Signed(-5)),
            ("a", FieldValue::Unsigned(255)),
        ];
        let data = encode(&format, &values).unwrap();
        let read: Vec<_> = format.fields().iter().map(|f| f.value(&data).unwrap()).collect();
        assert_eq!(read, [values[2].1, values[1].1, values[0].1]);
        let empty = encode(&format, &[]).unwrap();
        assert_eq!(format.field("a").unwrap().u64(&empty), Some(0));
        assert_eq!(format.field("c").unwrap().text(&empty), Some(&b""[..]));
    }

    #[test]
    fn names_and_values_that_do_not_fit_are_refused() {
        for (first, second) in [("", "b"), ("a b", "b"), ("a;", "b"), ("a", "a"), (COMMON, "b")] {
            let both = fields(&[(first, FieldType::U8), (second, FieldType::U8)]);
            let error = declare("mine", &both).unwrap_err();
            assert!(matches!(error, Error::ExternalField { .. }), "{error}");
        }
        let declared = [("u", FieldType::U16), ("s", FieldType::I16), ("t", FieldType::Text)];
        let format = declare("mine", &fields(&declared)).unwrap();
        let long = vec![b'x'; 65536];
        for (name, value) in [
            ("x", FieldValue::Unsigned(0)),
            (COMMON, FieldValue::Unsigned(0)),
            ("u", FieldValue::Unsigned(65536)),
            ("u", FieldValue::Signed(1)),
            ("u", FieldValue::Text(b"1")),
            ("s", FieldValue::Signed(-32769)),
            ("s", FieldValue::Unsigned(1)),
            ("t", FieldValue::Unsigned(1)),
            ("t", FieldValue::Text(&long)),
        ] {
            let error = encode(&format, &[(name, value)]).unwrap_err();
            assert!(matches!(error, Error::ExternalField { .. }), "{name} {value}: {error}");
        }
    }

    proptest! {
        #[test]
        fn integers_of_all_sizes_are_kept(size in 0usize..4, signed: bool, n: i64) {
            let types = [
                [FieldType::U8, FieldType::U16, FieldType::U32, FieldType::U64],
                [FieldType::I8, FieldType::I16, FieldType::I32, FieldType::I64],
            ];
            let type_ = types[usize::from(signed)][size];
            let format = declare("mine", &fields(&[("x", FieldType::U8), ("n", type_)])).unwrap();
            let shift = 64 - (8u32 << size);
            let value = match signed {
                true => FieldValue::Signed(n << shift >> shift),
                false => FieldValue::Unsigned(n as u64 >> shift),
            };
            let data = encode(&format, &[("n", value)]).unwrap();
            prop_assert_eq!(format.field("n").unwrap().value(&data), Some(value));
        }
    }
}
