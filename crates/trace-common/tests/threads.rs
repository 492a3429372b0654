//! Types are shared between threads.

use trace_common::{BuildId, Cursor, Guid, Histogram, IdMap, Merge, ReadError, Timestamp};

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Timestamp>();
    is_shared::<BuildId>();
    is_shared::<Guid>();
    is_shared::<Cursor<'_>>();
    is_shared::<Histogram>();
    is_shared::<IdMap<u32>>();
    is_shared::<Merge<u32>>();
    is_shared::<ReadError>();
}
