//! The layouts of the types of `runtime` that are followed.

use super::layouts::LAYOUTS;
use crate::layout::{Architecture, list};

/// Layouts of one release of Go on one architecture: offsets of fields of `runtime.g` and `runtime.m`,
/// in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The N of Go 1.N.
    pub(crate) minor: u32,
    pub(crate) architecture: Architecture,
    pub(crate) g_stack: usize,
    pub(crate) g_m: usize,
    pub(crate) g_goid: usize,
    pub(crate) g_startpc: usize,
    pub(crate) g_labels: usize,
    pub(crate) m_g0: usize,
    pub(crate) m_procid: usize,
    pub(crate) m_gsignal: usize,
    pub(crate) m_curg: usize,
    pub(crate) m_incgo: usize,
}

impl Layout {
    pub(crate) fn of(minor: u32, architecture: Architecture) -> Option<&'static Self> {
        LAYOUTS.iter().find(|l| l.minor == minor && l.architecture == architecture)
    }

    /// The bytes of a `g` that are read.
    pub(crate) fn g(&self) -> u64 {
        let fields = [self.g_stack + 8, self.g_m, self.g_goid, self.g_startpc, self.g_labels];
        end(&fields)
    }

    /// The bytes of an `m` that are read.
    pub(crate) fn m(&self) -> u64 {
        end(&[self.m_g0, self.m_procid, self.m_gsignal, self.m_curg, self.m_incgo])
    }
}

/// The end of the last word at these offsets.
fn end(words: &[usize]) -> u64 {
    words.iter().max().map_or(0, |last| *last as u64 + 8)
}

/// The releases with known layouts, such as `1.25, 1.26`.
pub(crate) fn known() -> String {
    list(LAYOUTS.iter().map(|layout| layout.minor))
}
