use std::collections::BTreeMap;

use crate::Event;

/// Number of events per type: provider, event id, version.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    counts: Vec<u64>,
    index: BTreeMap<(Box<str>, u32, u32), usize>,
    /// The metadata id of the last event and its index in `counts`: events of one type often come
    /// in a row.
    last: Option<(u32, u32, usize)>,
}

impl Summary {
    /// Creates an empty summary.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts an event.
    pub fn add(&mut self, event: &Event<'_>) {
        let metadata = event.metadata();
        let version = event.version();
        let place = match self.last {
            Some((id, v, place)) if id == metadata.id && v == version => place,
            _ => {
                let key = (metadata.provider.clone(), metadata.event_id, version);
                let next = self.counts.len();
                let place = *self.index.entry(key).or_insert(next);
                if place == next {
                    self.counts.push(0);
                }
                self.last = Some((metadata.id, version, place));
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
