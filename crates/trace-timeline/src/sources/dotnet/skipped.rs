//! Counts of events that the model does not have.

use hashbrown::HashMap;
use nettrace::Event;

/// Maximum number of kinds of events that are counted separately.
const MAX_KINDS: usize = 1 << 12;

/// Numbers of events by provider and event number, with their names.
#[derive(Debug, Default)]
pub(super) struct Skipped(HashMap<Box<str>, Kinds>);

type Kinds = HashMap<u32, (Box<str>, u64)>;

impl Skipped {
    pub(super) fn add(&mut self, event: &Event<'_>) {
        let Self(providers) = self;
        if !providers.contains_key(event.provider()) {
            if providers.len() >= MAX_KINDS {
                return;
            }
            providers.insert(event.provider().into(), Kinds::new());
        }
        let Some(kinds) = providers.get_mut(event.provider()) else { return };
        if let Some((_, count)) = kinds.get_mut(&event.id()) {
            *count += 1;
        } else if kinds.len() < MAX_KINDS {
            let name = match event.name() {
                "" => format!("event {}", event.id()),
                name => name.to_owned(),
            };
            kinds.insert(event.id(), (name.into(), 1));
        }
    }

    /// Provider, event and number, most frequent first.
    pub(super) fn by_kind(&self) -> Vec<(&str, &str, u64)> {
        let mut kinds: Vec<(&str, &str, u64)> = self
            .0
            .iter()
            .flat_map(|(provider, kinds)| {
                kinds.values().map(move |(event, count)| (&**provider, &**event, *count))
            })
            .collect();
        kinds.sort_by(|a, b| (b.2, a.0, a.1).cmp(&(a.2, b.0, b.1)));
        kinds
    }
}
