//! Names of functions as their source has them.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// The name of a symbol as its source has it: of Rust, and with the feature `cpp` of C++. A symbol with
/// a name of more than 64 KiB stays mangled.
pub(crate) fn demangle(symbol: &str) -> Cow<'_, str> {
    let name = match rustc_demangle::try_demangle(symbol) {
        Ok(name) => written(&name),
        #[cfg(feature = "cpp")]
        Err(_) => cpp(symbol),
        #[cfg(not(feature = "cpp"))]
        Err(_) => None,
    };
    name.map_or(Cow::Borrowed(symbol), Cow::Owned)
}

/// The name of a symbol of Rust as its source has it, without its hash. `None` for other symbols, and for a
/// name of more than 64 KiB, which a symbol of a few bytes can have.
///
/// ```
/// let name = trace_symbols::demangle_rust("_RNvC6_123foo3bar");
/// assert_eq!(name.as_deref(), Some("123foo::bar"));
/// assert_eq!(trace_symbols::demangle_rust("_Z3foov"), None);
/// ```
pub fn demangle_rust(symbol: &str) -> Option<String> {
    written(&rustc_demangle::try_demangle(symbol).ok()?)
}

fn written(name: &rustc_demangle::Demangle<'_>) -> Option<String> {
    let mut out = Limited(String::new());
    write!(out, "{name:#}").ok()?;
    Some(out.0)
}

/// The name of a symbol of C++ (Itanium ABI), without parameters, as `c++filt -p` prints it, and with the
/// clones that it leaves out, as `c++filt` prints them.
#[cfg(feature = "cpp")]
fn cpp(symbol: &str) -> Option<String> {
    use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

    /// Longer names stay mangled.
    const MAX_SYMBOL: usize = 1 << 14;
    /// Nested parts of a name.
    const MAX_DEPTH: u32 = 128;

    // Compilers mark copies and parts of functions.
    let (mangled, mut clones) = match symbol.split_once('.') {
        Some((mangled, _)) => (mangled, symbol.get(mangled.len()..).unwrap_or_default()),
        None => (symbol, ""),
    };
    if !mangled.starts_with("_Z") || mangled.len() > MAX_SYMBOL {
        return None;
    }
    let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
    // Thunks have the name of their function behind one or two offsets.
    let (prefix, target) = match mangled.get(..4) {
        Some("_ZTh") => ("non-virtual thunk to ", mangled.splitn(3, '_').nth(2)),
        Some("_ZTv") => ("virtual thunk to ", mangled.splitn(4, '_').nth(3)),
        _ => ("", None),
    };
    let target = target.map_or(Cow::Borrowed(mangled), |name| Cow::Owned(format!("_Z{name}")));
    let parsed = Symbol::new_with_options(&*target, &options).ok()?;
    let mut out = Limited(prefix.to_owned());
    let options = DemangleOptions::new().no_params().no_return_type().recursion_limit(MAX_DEPTH);
    parsed.structured_demangle(&mut out, &options).ok()?;
    let Limited(mut name) = out;
    // Without parameters, the qualifiers behind them have no place.
    let is_conversion = name.contains("operator ");
    while let Some(rest) = [" const", " &", " &&"].iter().find_map(|end| name.strip_suffix(end)) {
        if is_conversion {
            break;
        }
        name.truncate(rest.len());
    }
    let mut out = Limited(name);
    while !clones.is_empty() {
        let (clone, rest) = clones.split_at_checked(clone_len(clones))?;
        write!(out, " [clone {clone}]").ok()?;
        clones = rest;
    }
    Some(out.0)
}

/// Bytes of the first of the suffixes of a symbol, such as `.part.0` of `.part.0.cold`: a word with the
/// numbers behind it, as `d_clone_suffix` of binutils has it. Another text is one suffix.
#[cfg(feature = "cpp")]
fn clone_len(suffixes: &str) -> usize {
    let span = |text: &[u8], is_part: fn(&u8) -> bool| match text {
        [b'.', word @ ..] => match word.iter().take_while(|byte| is_part(byte)).count() {
            0 => 0,
            length => length + 1,
        },
        _ => 0,
    };
    let bytes = suffixes.as_bytes();
    let mut end = span(bytes, |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    loop {
        match span(bytes.get(end..).unwrap_or_default(), u8::is_ascii_digit) {
            0 => break,
            number => end += number,
        }
    }
    if end == 0 { bytes.len() } else { end }
}

/// A text of at most 64 KiB: a short mangled name can stand for one of any length.
struct Limited(String);

impl fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const MAX: usize = 1 << 16;
        if self.0.len().saturating_add(text.len()) > MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_rust_have_no_hash() {
        assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("main"), "main");
    }

    #[test]
    fn long_names_of_rust_stay_mangled() {
        // The binder `FG` has a large number of lifetimes.
        let symbol = "_RMC0FGZZZ_Eu";
        assert!(rustc_demangle::try_demangle(symbol).is_ok());
        assert_eq!(demangle(symbol), symbol);
    }

    #[cfg(feature = "cpp")]
    #[test]
    fn names_of_cpp_are_those_of_binutils() {
        // The output of `c++filt -p`, and the clones of `c++filt`.
        for (symbol, name) in [
            ("_ZN3foo3barEi", "foo::bar"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back",
            ),
            ("_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator()"),
            ("_ZN3foo3barEi.cold", "foo::bar [clone .cold]"),
            ("_ZN3foo3barEi.part.0.cold", "foo::bar [clone .part.0] [clone .cold]"),
            ("_ZN3foo3barEi.isra.0.constprop.1", "foo::bar [clone .isra.0] [clone .constprop.1]"),
            ("_ZN3foo3barEi.lto_priv.0.12.a", "foo::bar [clone .lto_priv.0.12] [clone .a]"),
            // Those that it does not know.
            ("_ZN3foo3barEi.cold.Other.1", "foo::bar [clone .cold] [clone .Other.1]"),
            ("_ZTv0_n24_NSt9strstreamD1Ev", "virtual thunk to std::strstream::~strstream"),
            (
                "_ZThn16_NSdD0Ev",
                "non-virtual thunk to std::basic_iostream<char, std::char_traits<char> >::~basic_iostream",
            ),
            ("_Z", "_Z"),
            ("_start", "_start"),
        ] {
            assert_eq!(demangle(symbol), name);
        }
        // Each `S_` doubles the name.
        let mut bomb = "_Z1f1AI1BE".to_owned();
        for n in 0..60 {
            bomb = format!("{bomb}1CIS{n}_S{n}_E");
        }
        assert!(demangle(&bomb).len() <= 1 << 16);
        let long = format!("_Z{}i", "P".repeat(1 << 14));
        assert_eq!(demangle(&long), long);
        let long = format!("_Z1fv.{}", "p".repeat(1 << 16));
        assert_eq!(demangle(&long), long);
    }

    proptest! {
        #[test]
        fn any_name_has_a_limit(name in "_(Z|R)[A-Za-z0-9_.]{0,80}") {
            prop_assert!(demangle(&name).len() <= 1 << 16);
        }
    }
}
