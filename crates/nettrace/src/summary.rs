use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Event;

/// Number of events per type: provider, event id, version.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    counts: Vec<u64>,
    index: BTreeMap<Type, usize>,
    /// The type of the last event and its index in `counts`: events of one type often come in a row.
    last: Option<(Type, usize)>,
}

/// Provider, event id, version.
type Type = (Arc<str>, u32, u32);

impl Summary {
    /// Creates an empty summary.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts an event.
    pub fn push(&mut self, event: &Event<'_>) {
        let metadata = event.metadata();
        let version = event.version();
        // A metadata id can get another meaning within a stream of version 6.
        let is_same =
            |ty: &Type| ty.1 == metadata.event_id && ty.2 == version && *ty.0 == *metadata.provider;
        let place = match &self.last {
            Some((ty, place)) if is_same(ty) => *place,
            _ => {
                let ty: Type = ((&*metadata.provider).into(), metadata.event_id, version);
                let next = self.counts.len();
                let place = *self.index.entry(ty.clone()).or_insert(next);
                if place == next {
                    self.counts.push(0);
                }
                self.last = Some((ty, place));
                place
            }
        };
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
    }

    /// Provider, event id, version and count of each type, in that order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32, u32, u64)> {
        self.index.iter().map(|((provider, id, version), place)| {
            (&**provider, *id, *version, self.counts.get(*place).copied().unwrap_or(0))
        })
    }
}
