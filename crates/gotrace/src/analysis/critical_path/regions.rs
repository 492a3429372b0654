//! The open regions of a goroutine.

use super::super::Name;

/// Open regions, innermost last, up to a limit. More are ignored, with their ends.
#[derive(Debug)]
pub(super) struct Regions<T> {
    open: Vec<(Name, T)>,
    /// The number of open regions that are ignored. They are within the others, so that they end
    /// first.
    ignored: u64,
}

impl<T> Default for Regions<T> {
    fn default() -> Self {
        Self { open: Vec::new(), ignored: 0 }
    }
}

impl<T> Regions<T> {
    /// Whether a region that begins now is to be ignored, which it then is.
    pub(super) fn ignores(&mut self) -> bool {
        let is_full = self.open.len() >= super::Requests::MAX_REGIONS;
        self.ignored += u64::from(is_full);
        is_full
    }

    pub(super) fn begin(&mut self, name: Name, region: T) {
        self.open.push((name, region));
    }

    /// Ends the innermost region with this name; `None` if there is none, or it was ignored.
    pub(super) fn end(&mut self, name: &[u8]) -> Option<(Name, T)> {
        if self.ignored > 0 {
            self.ignored -= 1;
            return None;
        }
        let place = self.open.iter().rposition(|(open, _)| ***open == *name)?;
        Some(self.open.remove(place))
    }

    /// Ends all regions, innermost first.
    pub(super) fn end_all(&mut self) -> impl Iterator<Item = (Name, T)> + use<T> {
        std::mem::take(self).open.into_iter().rev()
    }
}
