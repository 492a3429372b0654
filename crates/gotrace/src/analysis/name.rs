//! Names that outlive the tables of their generation.

use crate::table::Table;
use bstr::BStr;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A string of a trace, shared with the table that it came from.
///
/// Strings of a trace are bytes; a `Name` dereferences to [`BStr`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The string `id` of a generation; empty if there is none.
    pub(super) fn of(table: &Table, id: u64) -> Self {
        table.strings.get(id).map_or_else(Self::default, |string| Self(Arc::clone(string)))
    }

    /// The string as bytes.
    pub fn as_bstr(&self) -> &BStr {
        BStr::new(&self.0[..])
    }
}

impl Default for Name {
    fn default() -> Self {
        Self(Arc::from(&b""[..]))
    }
}

impl Deref for Name {
    type Target = BStr;

    fn deref(&self) -> &BStr {
        self.as_bstr()
    }
}

impl From<&BStr> for Name {
    fn from(string: &BStr) -> Self {
        Self(Arc::from(&**string))
    }
}

impl From<&str> for Name {
    fn from(string: &str) -> Self {
        Self(Arc::from(string.as_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_bstr(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_bstr(), f)
    }
}
