//! The parser of print formats: a subset of C.

use super::integer::{Binary, Type, Unary};
use super::pointer::Pointer;
use super::{Arg, Entry, Flag, MAX_WIDTH, Piece, Spec, shown};
use crate::format::TracepointFormat;

/// Maximum depth of nested expressions. The deepest of Linux 7.2 have about 40.
const MAX_DEPTH: usize = 200;

/// Maximum number of binary operators and indices of an argument.
const MAX_OPERATORS: usize = 500;

pub(super) type Parsed<T> = Result<T, &'static str>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Number(i64, Type),
    Text(String),
    Op(&'static str),
}

/// Operators, longest first.
const OPS: [&str; 34] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "(", ")", "[", "]", "{", "}", ",", "?",
    ":", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", ".", ";", "=", "#",
];

fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let mut rest = text.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let token;
        (token, rest) = match first {
            '"' => {
                let (text, rest) = literal(rest, '"')?;
                (Token::Text(shown(text.as_bytes())), rest)
            }
            '\'' => {
                let (text, rest) = literal(rest, '\'')?;
                let value = text.chars().next().ok_or("an empty character")?;
                (Token::Number(i64::from(u32::from(value)), Type::INT), rest)
            }
            '0'..='9' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let (number, rest) = rest.split_at(end);
                let (number, of) = integer(number).ok_or("not a number")?;
                (Token::Number(number, of), rest)
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                let (name, rest) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
                (Token::Name(name.to_owned()), rest)
            }
            _ => {
                let op = OPS.iter().find(|op| rest.starts_with(**op)).ok_or("not an operator")?;
                (Token::Op(op), rest.get(op.len()..).unwrap_or(""))
            }
        };
        tokens.push(token);
        rest = rest.trim_start();
    }
    Ok(tokens)
}

/// A text in quotes, with its escapes, and what follows.
fn literal(text: &str, quote: char) -> Parsed<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next().ok_or("an escape at the end")?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                '0' => out.push('\0'),
                other => out.push(other),
            },
            c if c == quote => return Ok((out, text.get(at + 1..).unwrap_or(""))),
            c => out.push(c),
        }
    }
    Err("a text without its closing quote")
}

/// An integer in C syntax, and its type.
fn integer(text: &str) -> Option<(i64, Type)> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let suffix = text.get(digits.len()..).unwrap_or_default();
    let (number, is_decimal) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => (u64::from_str_radix(hex, 16), false),
        None if digits.len() > 1 && digits.starts_with('0') => {
            (u64::from_str_radix(digits, 8), false)
        }
        None => (digits.parse(), true),
    };
    let number = number.ok()?;
    Some((number as i64, Type::of_literal(number, is_decimal, suffix)))
}

pub(super) struct Parser<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    format: &'a TracepointFormat,
    depth: usize,
    operators: usize,
}

/// The words of integer types.
const INTEGERS: [&str; 6] = ["unsigned", "signed", "long", "short", "int", "char"];

impl<'a> Parser<'a> {
    pub(super) fn new(text: &str, format: &'a TracepointFormat) -> Parsed<Self> {
        let tokens = tokens(text)?.into_iter().peekable();
        Ok(Self { tokens, format, depth: 0, operators: 0 })
    }

    /// The text with its conversions, and their arguments.
    pub(super) fn parse(mut self) -> Parsed<(Vec<Piece>, Vec<Arg>)> {
        let text = self.text()?;
        let mut args = Vec::new();
        while self.take(",") {
            args.push(self.expression()?);
        }
        if self.tokens.next().is_some() {
            return Err("something after the last argument");
        }
        Ok((pieces(&text)?, args))
    }

    fn take(&mut self, op: &str) -> bool {
        self.tokens.next_if(|token| matches!(token, Token::Op(o) if *o == op)).is_some()
    }

    fn expect(&mut self, op: &'static str) -> Parsed<()> {
        if self.take(op) { Ok(()) } else { Err("an operator is missing") }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.tokens.next() {
            Some(Token::Name(name)) => Ok(name),
            _ => Err("a name is missing"),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        match self.tokens.next() {
            Some(Token::Text(text)) => Ok(self.with_following(text)),
            _ => Err("a text is missing"),
        }
    }

    /// A text with those that follow it.
    fn with_following(&mut self, mut text: String) -> String {
        while let Some(Token::Text(more)) = self.tokens.next_if(|t| matches!(t, Token::Text(_))) {
            text.push_str(&more);
        }
        text
    }

    fn expression(&mut self) -> Parsed<Arg> {
        if self.depth == 0 {
            self.operators = 0;
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("too deep");
        }
        let condition = self.binary(0)?;
        let arg = if self.take("?") {
            let yes = self.expression()?;
            self.expect(":")?;
            let no = self.expression()?;
            let types = yes.integer_type(self.format).zip(no.integer_type(self.format));
            Arg::Choice(types.map(|(a, b)| a.common(b)), Box::new([condition, yes, no]))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(arg)
    }

    /// Operators of at least this precedence.
    fn binary(&mut self, least: usize) -> Parsed<Arg> {
        let mut left = self.unary()?;
        loop {
            let Some(Token::Op(op)) = self.tokens.peek() else { return Ok(left) };
            let Some((op, precedence)) = Binary::of(op).filter(|(_, p)| *p >= least) else {
                return Ok(left);
            };
            self.tokens.next();
            let right = self.binary(precedence + 1)?;
            let of = op.operands(self.type_of(&left), self.type_of(&right));
            left = Arg::Binary(op, of, Box::new([left, right]));
            self.count_operator()?;
        }
    }

    /// The type of an operand. Those that are no integers have no value.
    fn type_of(&self, arg: &Arg) -> Type {
        arg.integer_type(self.format).unwrap_or(Type::LONG)
    }

    /// Each operator of a chain is one level of the tree.
    fn count_operator(&mut self) -> Parsed<()> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS { Err("too many operators") } else { Ok(()) }
    }

    fn unary(&mut self) -> Parsed<Arg> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("too deep");
        }
        let ops = [("-", Unary::Minus), ("~", Unary::Not), ("!", Unary::IsZero)];
        let found = ops.into_iter().find(|(op, _)| self.take(op));
        let arg = match found {
            Some((_, op)) => {
                let arg = self.unary()?;
                Arg::Unary(op, self.type_of(&arg).promoted(), Box::new(arg))
            }
            // The sign, and what a field's address is for: the field itself.
            None if self.take("+") || self.take("&") || self.take("*") => self.unary()?,
            None => self.postfix()?,
        };
        self.depth -= 1;
        Ok(arg)
    }

    fn postfix(&mut self) -> Parsed<Arg> {
        let mut arg = self.primary()?;
        while self.take("[") {
            let index = self.expression()?;
            self.expect("]")?;
            arg = Arg::Index(Box::new([arg, index]));
            self.count_operator()?;
        }
        Ok(arg)
    }

    fn primary(&mut self) -> Parsed<Arg> {
        match self.tokens.next().ok_or("the end of the format")? {
            Token::Number(number, of) => Ok(Arg::Number(number, of)),
            Token::Text(text) => Ok(Arg::Text(self.with_following(text))),
            Token::Op("(") => {
                if let Some(cast) = self.cast()? {
                    return Ok(cast);
                }
                let arg = self.expression()?;
                self.expect(")")?;
                Ok(arg)
            }
            Token::Name(name) if name == "REC" => {
                self.expect("->")?;
                Ok(Arg::Field(self.field()?))
            }
            Token::Name(name) if self.take("(") => {
                let arg = self.call(&name)?;
                self.expect(")")?;
                Ok(arg)
            }
            _ => Err("not an expression"),
        }
    }

    /// The index of a field that is named next.
    fn field(&mut self) -> Parsed<usize> {
        let name = self.name()?;
        self.format.position(&name).ok_or("no such field")
    }

    /// A cast after its opening parenthesis, if it is one.
    fn cast(&mut self) -> Parsed<Option<Arg>> {
        let is_type = |name: &str| {
            let sized = ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"];
            let other = ["void", "const", "struct", "enum", "size_t", "bool", "_Bool", "uint"];
            INTEGERS.contains(&name)
                || sized.contains(&name.trim_start_matches("__"))
                || other.contains(&name)
                || name.ends_with("_t")
        };
        let mut words = Vec::new();
        while let Some(Token::Name(name)) =
            self.tokens.next_if(|t| matches!(t, Token::Name(n) if !words.is_empty() || is_type(n)))
        {
            words.push(name);
        }
        if words.is_empty() {
            return Ok(None);
        }
        let mut is_pointer = false;
        while self.take("*") {
            is_pointer = true;
        }
        self.expect(")")?;
        let inner = self.unary()?;
        Ok(Some(match (is_pointer, words.first().map(String::as_str)) {
            // An array stays what it is.
            (true, _) if inner.integer_type(self.format).is_none() => inner,
            (true, _) => Arg::Cast(Type::UNSIGNED_LONG, Box::new(inner)),
            (false, Some("bool" | "_Bool")) => {
                let zero = Arg::Number(0, Type::INT);
                Arg::Binary(Binary::NotEqual, self.type_of(&inner), Box::new([inner, zero]))
            }
            (false, _) => match named_type(&words) {
                Some(of) => Arg::Cast(of, Box::new(inner)),
                None => inner,
            },
        }))
    }

    fn call(&mut self, name: &str) -> Parsed<Arg> {
        Ok(match name {
            "__get_str"
            | "__get_rel_str"
            | "__get_dynamic_array"
            | "__get_rel_dynamic_array"
            | "__get_bitmask"
            | "__get_cpumask"
            | "__get_rel_bitmask"
            | "__get_rel_cpumask"
            | "__get_sockaddr"
            | "__get_rel_sockaddr" => {
                let field = self.field()?;
                if name.ends_with("mask") { Arg::Bitmask(field) } else { Arg::Field(field) }
            }
            "__get_dynamic_array_len" | "__get_rel_dynamic_array_len" => Arg::Len(self.field()?),
            "__print_flags" | "__print_flags_u64" => {
                let value = self.expression()?;
                self.expect(",")?;
                let delimiter = self.text()?;
                Arg::Flags(Box::new(value), delimiter, self.entries()?)
            }
            "__print_symbolic" | "__print_symbolic_u64" => {
                let value = self.expression()?;
                Arg::Symbolic(Box::new(value), self.entries()?)
            }
            "__print_hex" | "__print_hex_str" => {
                let separator = if name == "__print_hex" { " " } else { "" };
                let bytes = self.expression()?;
                self.expect(",")?;
                Arg::Hex(Box::new([bytes, self.expression()?]), separator)
            }
            "__print_array" => {
                let bytes = self.expression()?;
                self.expect(",")?;
                let count = self.expression()?;
                self.expect(",")?;
                Arg::Array(Box::new([bytes, count, self.expression()?]))
            }
            "sizeof" => {
                let mut words = Vec::new();
                while let Some(Token::Name(name)) =
                    self.tokens.next_if(|t| matches!(t, Token::Name(_)))
                {
                    words.push(name);
                }
                let of = named_type(&words).ok_or("the size of an unknown type")?;
                Arg::Number(of.bytes(), Type::UNSIGNED_LONG)
            }
            "__builtin_expect" => {
                let value = self.expression()?;
                self.expect(",")?;
                self.expression()?;
                Arg::Cast(Type::LONG, Box::new(value))
            }
            _ => return Err("an unknown function"),
        })
    }

    /// `, { value, "text" }, …`, as they end the arguments of a function.
    fn entries(&mut self) -> Parsed<Vec<Entry>> {
        let mut entries = Vec::new();
        while self.take(",") {
            if !self.take("{") {
                // An empty list of the kernel's macros: `, )`.
                break;
            }
            // A constant of the kernel's source that its build did not replace by its number: values
            // that it names are printed as numbers.
            let is_named = self.tokens.next_if(|t| matches!(t, Token::Name(_))).is_some();
            let value = if is_named { None } else { Some(self.expression()?) };
            self.expect(",")?;
            let text = self.expression()?;
            self.expect("}")?;
            match text {
                Arg::Text(text) => {
                    if let Some(value) = value {
                        let value = value.constant().ok_or("not a constant")?;
                        entries.push(Entry { value, text });
                    }
                }
                // The end of a list: `{ -1, NULL }`.
                Arg::Number(0, _) | Arg::Cast(..) if text.constant() == Some(0) => {}
                _ => return Err("a text is missing"),
            }
        }
        Ok(entries)
    }
}

/// A type by its name. `None` for types that keep a value as it is.
fn named_type(words: &[String]) -> Option<Type> {
    let first = words.first()?.trim_start_matches("__");
    match first {
        "size_t" => return Some(Type::UNSIGNED_LONG),
        "ssize_t" | "loff_t" => return Some(Type::LONG),
        "uint" => return Some(Type::UNSIGNED),
        _ => {}
    }
    // `u8`, `s8`, `uint8_t` and `int8_t`.
    let fixed = match first.strip_suffix("_t") {
        Some(name) => name
            .strip_prefix("uint")
            .map(|bits| (bits, false))
            .or_else(|| Some((name.strip_prefix("int")?, true))),
        None => first
            .strip_prefix('u')
            .map(|bits| (bits, false))
            .or_else(|| Some((first.strip_prefix('s')?, true))),
    };
    if let Some((bits @ ("8" | "16" | "32" | "64"), signed)) = fixed {
        return Some(Type::new(bits.parse().ok()?, signed));
    }
    if !words.iter().all(|word| INTEGERS.contains(&word.as_str())) {
        return None;
    }
    let has = |word: &str| words.iter().any(|w| w == word);
    let bits = match () {
        () if has("char") => 8,
        () if has("short") => 16,
        () if has("long") => 64,
        () => 32,
    };
    Some(Type::new(bits, !has("unsigned")))
}

/// Splits a text at its conversions.
fn pieces(text: &str) -> Parsed<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        pieces.push(Piece::Text(before.to_owned()));
        let (piece, after) = conversion(after)?;
        pieces.push(piece);
        rest = after;
    }
    pieces.push(Piece::Text(rest.to_owned()));
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
    Ok(pieces)
}

fn conversion(text: &str) -> Parsed<(Piece, &str)> {
    let mut chars = text.char_indices().peekable();
    let mut spec = Spec::default();
    while let Some((_, c)) = chars.next_if(|(_, c)| "-+ #0".contains(*c)) {
        spec.flags |= match c {
            '-' => Flag::LEFT,
            '+' => Flag::PLUS,
            ' ' => Flag::SPACE,
            '#' => Flag::ALTERNATE,
            _ => Flag::ZERO,
        };
    }
    let mut number = |spec_star: &mut bool| {
        let mut number = None;
        while let Some((_, c)) = chars.next_if(|(_, c)| c.is_ascii_digit() || *c == '*') {
            match c.to_digit(10) {
                Some(digit) => {
                    number = Some((number.unwrap_or(0) * 10 + digit as usize).min(MAX_WIDTH));
                }
                None => *spec_star = true,
            }
        }
        let has_point = chars.next_if(|(_, c)| *c == '.').is_some();
        (number, has_point)
    };
    let has_point;
    (spec.width, has_point) = number(&mut spec.width_from_arg);
    if has_point {
        spec.precision = number(&mut spec.precision_from_arg).0.or(Some(0));
    }
    let mut longs = 0;
    while let Some((_, c)) = chars.next_if(|(_, c)| "hlLqjzt".contains(*c)) {
        match c {
            'h' => longs -= 1,
            'l' => longs += 1,
            _ => longs = 2,
        }
    }
    spec.bits = match longs {
        ..=-2 => 8,
        -1 => 16,
        0 => 32,
        _ => 64,
    };
    let (at, c) = chars.next().ok_or("a conversion at the end")?;
    spec.conversion = c;
    let mut end = at + c.len_utf8();
    match c {
        '%' => return Ok((Piece::Text("%".to_owned()), text.get(end..).unwrap_or(""))),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' | 's' => {}
        'p' => {
            // The kernel skips all of them, also those that it does not know.
            let after = text.get(end..).unwrap_or("");
            let is_end = |c: char| !c.is_ascii_alphanumeric();
            let letters = after.get(..after.find(is_end).unwrap_or(after.len())).unwrap_or("");
            spec.pointer = Pointer::parse(letters).ok_or("an unknown extension of %p")?;
            end += letters.len();
        }
        _ => return Err("an unknown conversion"),
    }
    Ok((Piece::Value(spec), text.get(end..).unwrap_or("")))
}
