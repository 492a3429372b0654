//! The integer types of C, which decide how an expression is computed.

/// An integer type of 64-bit Linux.
///
/// A value of a type is kept in an `i64`: sign-extended if the type is signed, zero-extended
/// otherwise. Those of `unsigned long` above `i64::MAX` are negative there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    bits: u32,
    signed: bool,
}

impl Type {
    pub(super) const INT: Self = Self::new(32, true);
    pub(super) const UNSIGNED: Self = Self::new(32, false);
    pub(super) const LONG: Self = Self::new(64, true);
    pub(super) const UNSIGNED_LONG: Self = Self::new(64, false);

    /// A type of 8, 16, 32 or 64 bits.
    pub(super) const fn new(bits: u32, signed: bool) -> Self {
        Self { bits, signed }
    }

    /// The type of a field or an element.
    pub(super) const fn of_bytes(size: usize, signed: bool) -> Self {
        Self::new(if size < 8 { size as u32 * 8 } else { 64 }, signed)
    }

    pub(super) const fn bytes(self) -> i64 {
        self.bits as i64 / 8
    }

    /// The type that operators have for a value of this one: `int` has all values of smaller types.
    pub(super) const fn promoted(self) -> Self {
        if self.bits < 32 { Self::INT } else { self }
    }

    /// The type that an operator converts both of its operands to (the usual arithmetic
    /// conversions).
    pub(super) fn common(self, other: Self) -> Self {
        let (a, b) = (self.promoted(), other.promoted());
        match a.bits.cmp(&b.bits) {
            std::cmp::Ordering::Less => b,
            std::cmp::Ordering::Greater => a,
            std::cmp::Ordering::Equal => Self::new(a.bits, a.signed && b.signed),
        }
    }

    /// The type of a literal: the first that has its value. Only `int` and `long` for a decimal
    /// number without `U`.
    pub(super) fn of_literal(value: u64, is_decimal: bool, suffix: &str) -> Self {
        let has = |letter: char| suffix.chars().any(|c| c.eq_ignore_ascii_case(&letter));
        let (is_unsigned, is_long) = (has('u'), has('l'));
        let types = [Self::INT, Self::UNSIGNED, Self::LONG];
        let fits = |of: &Self| {
            let bits = of.bits - u32::from(of.signed);
            let may_be = if of.signed { !is_unsigned } else { is_unsigned || !is_decimal };
            may_be && !(is_long && of.bits < 64) && value >> bits == 0
        };
        types.into_iter().find(fits).unwrap_or(Self::UNSIGNED_LONG)
    }

    /// A value converted to this type.
    pub(super) const fn convert(self, value: i64) -> i64 {
        match (self.bits, self.signed) {
            (8, true) => value as i8 as i64,
            (8, false) => value as u8 as i64,
            (16, true) => value as i16 as i64,
            (16, false) => value as u16 as i64,
            (32, true) => value as i32 as i64,
            (32, false) => value as u32 as i64,
            _ => value,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Minus,
    Not,
    IsZero,
}

impl Unary {
    /// The result for a value of a promoted type.
    pub(super) fn compute(self, of: Type, value: i64) -> i64 {
        match self {
            Self::Minus => of.convert(value.wrapping_neg()),
            Self::Not => of.convert(!value),
            Self::IsZero => i64::from(value == 0),
        }
    }
}

macro_rules! binary {
    ($($name:ident $op:literal $precedence:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Binary { $($name,)* }

        impl Binary {
            /// The operator with its precedence.
            pub(super) fn of(op: &str) -> Option<(Self, usize)> {
                match op {
                    $($op => Some((Self::$name, $precedence)),)*
                    _ => None,
                }
            }
        }
    };
}

binary! {
    Or "||" 1,
    And "&&" 2,
    BitOr "|" 3,
    BitXor "^" 4,
    BitAnd "&" 5,
    Equal "==" 6,
    NotEqual "!=" 6,
    Less "<" 7,
    Greater ">" 7,
    LessOrEqual "<=" 7,
    GreaterOrEqual ">=" 7,
    Left "<<" 8,
    Right ">>" 8,
    Plus "+" 9,
    Minus "-" 9,
    Times "*" 10,
    Divide "/" 10,
    Rest "%" 10,
}

impl Binary {
    /// The type that it computes in.
    pub(super) fn operands(self, left: Type, right: Type) -> Type {
        if self.is_shift() { left.promoted() } else { left.common(right) }
    }

    /// The type of its result.
    pub(super) const fn result(self, operands: Type) -> Type {
        match self {
            Self::Or
            | Self::And
            | Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::Greater
            | Self::LessOrEqual
            | Self::GreaterOrEqual => Type::INT,
            _ => operands,
        }
    }

    const fn is_shift(self) -> bool {
        matches!(self, Self::Left | Self::Right)
    }

    /// The result of operands that are converted to the type `of`; `None` for a division by 0.
    ///
    /// The right side is evaluated only if it is needed: it can divide by 0.
    pub(super) fn compute(
        self,
        of: Type,
        left: i64,
        right: impl FnOnce() -> Option<i64>,
    ) -> Option<i64> {
        match self {
            Self::Or if left != 0 => return Some(1),
            Self::And if left == 0 => return Some(0),
            _ => {}
        }
        let right = right()?;
        if matches!(self, Self::Or | Self::And) {
            return Some(i64::from(right != 0));
        }
        let left = of.convert(left);
        if self.is_shift() {
            // As x86-64 shifts: C has no result for a count of more bits.
            let count = right as u32 % of.bits;
            return Some(match (self, of.signed) {
                (Self::Left, _) => of.convert(left << count),
                (_, true) => left >> count,
                (_, false) => (left as u64 >> count) as i64,
            });
        }
        let right = of.convert(right);
        let (a, b) = (left as u64, right as u64);
        let order = if of.signed { left.cmp(&right) } else { a.cmp(&b) };
        Some(match self {
            Self::Equal => i64::from(order.is_eq()),
            Self::NotEqual => i64::from(order.is_ne()),
            Self::Less => i64::from(order.is_lt()),
            Self::Greater => i64::from(order.is_gt()),
            Self::LessOrEqual => i64::from(order.is_le()),
            Self::GreaterOrEqual => i64::from(order.is_ge()),
            Self::Divide if of.signed => of.convert(left.checked_div(right)?),
            Self::Rest if of.signed => of.convert(left.checked_rem(right)?),
            Self::Divide => a.checked_div(b)? as i64,
            Self::Rest => a.checked_rem(b)? as i64,
            Self::BitOr => left | right,
            Self::BitXor => left ^ right,
            Self::BitAnd => left & right,
            Self::Plus => of.convert(left.wrapping_add(right)),
            Self::Minus => of.convert(left.wrapping_sub(right)),
            Self::Times => of.convert(left.wrapping_mul(right)),
            // Computed above.
            Self::Or | Self::And | Self::Left | Self::Right => return None,
        })
    }
}
