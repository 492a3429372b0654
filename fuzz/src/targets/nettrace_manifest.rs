//! Payloads of the runtime's own events, which the built-in manifest describes.

use crate::exercise;
use nettrace::{Order, manifest};
use testkit::nettrace::assemble;

pub fn target(data: &[u8]) {
    let Some((which, payload)) = data.split_first_chunk::<2>() else { return };
    let events = manifest::events();
    let event = &events[usize::from(u16::from_le_bytes(*which)) % events.len()];
    let fields = 0u32.to_le_bytes();
    let provider = event.provider.name();
    let stream = assemble::v4(provider, event.id, event.version, &fields, payload);
    let (events, errors) = exercise::read_everything(&stream, stream.len(), Order::Stream);
    assert_eq!((events, errors), (1, 0));
}
