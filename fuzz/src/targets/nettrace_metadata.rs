//! Metadata of versions 4 and 6, and an event whose payload it describes.

use crate::exercise;
use nettrace::Order;
use testkit::nettrace::assemble;

pub fn target(data: &[u8]) {
    let Some((&split, data)) = data.split_first() else { return };
    let (metadata, payload) = data.split_at(usize::from(split).min(data.len()));
    for stream in
        [assemble::v4("Provider", 1, 0, metadata, payload), assemble::v6(metadata, payload)]
    {
        exercise::read_everything(&stream, stream.len(), Order::Stream);
    }
}
