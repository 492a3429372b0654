//! A NetTrace or NetPerf stream, in chunks: everything that can be done with it.

use crate::exercise;
use nettrace::Order;

pub fn target(data: &[u8]) {
    let time = exercise::read_everything(data, 997, Order::Time);
    let stream = exercise::read_everything(data, 1 << 16, Order::Stream);
    // Both orders give the same events: what is damaged is damaged in both.
    assert_eq!(time.0, stream.0);
}
