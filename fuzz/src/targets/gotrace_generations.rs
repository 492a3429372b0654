//! The generations of a trace: consecutive parts of it, and each a trace of its own.

use gotrace::{Generations, Index, Reader};
use std::io::Cursor;

pub fn target(data: &[u8]) {
    // The seeds are traces with a header.
    let data = match data.split_at_checked(16) {
        Some((header, rest))
            if header.starts_with(b"go 1.") && header.ends_with(b" trace\0\0\0") =>
        {
            rest
        }
        _ => data,
    };
    for version in ["22", "23", "25", "26"] {
        let mut trace = format!("go 1.{version} trace\0\0\0").into_bytes();
        trace.extend_from_slice(data);
        let mut generations = Generations::new(&trace[..]).unwrap();
        let (mut end, mut count) = (16, 0);
        while let Ok(Some((span, bytes))) = generations.next_generation() {
            assert_eq!(span.offset, end as u64);
            assert_eq!(bytes, &trace[end..end + span.len as usize]);
            assert!(!bytes.is_empty() && span.first <= span.last);
            end += bytes.len();
            count += 1;
        }
        let index = Index::read(&trace[..]).unwrap();
        assert_eq!(index.generations().len(), count);
        for start in 0..count.min(4) {
            let mut part = Vec::new();
            index.copy(Cursor::new(&trace), start..start + 1, &mut part).unwrap();
            let again = Index::read(&part[..]).unwrap();
            // Up to Go 1.25, the next generation ends one without tables, too.
            let needs_next = again.generations().is_empty() && version != "26";
            assert!(again.generations().len() == 1 || needs_next);
            let mut reader = Reader::new(&part[..]).unwrap();
            while let Ok(Some(_)) = reader.next_event() {}
        }
    }
}
