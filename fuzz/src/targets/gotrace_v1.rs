//! The ordered reader on format v1.

use crate::go_trace;

pub fn target(data: &[u8]) {
    go_trace::read_all(data, &["11", "19", "21"], |_| false);
}
