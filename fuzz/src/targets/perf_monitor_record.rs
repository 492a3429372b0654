//! Records of perf events: any bytes, in the layout of any attribute.

use perf_monitor::{Decoder, RawRecord, Record};
use perf_sys::perf_event_attr;

pub fn target(data: &[u8]) {
    let Some((head, records)) = data.split_at_checked(48) else { return };
    let word = |i: usize| u64::from_le_bytes(head[i * 8..i * 8 + 8].try_into().unwrap());
    let mut attr = perf_event_attr::default();
    attr.sample_type = word(0);
    attr.read_format = word(1);
    attr.flags = word(2);
    attr.branch_sample_type = word(3);
    attr.sample_regs_user = word(4);
    attr.sample_regs_intr = word(5);
    let mut decoder = Decoder::new(&attr);
    let _ = decoder.add(1, &attr);
    let mut rest = records;
    while let Some((raw, after)) = RawRecord::split_first(rest, 0) {
        rest = after;
        let Some(layout) = decoder.layout(raw) else {
            assert!(decoder.decode(raw).is_err());
            continue;
        };
        let fast = (layout.time(raw), layout.id(raw), layout.pid_tid(raw), layout.cpu(raw));
        if let Ok(record) = decoder.decode(raw) {
            if let Record::Sample(sample) = &record {
                // What is found without decoding is what decoding finds.
                assert_eq!(fast.0, sample.time);
                assert_eq!(fast.1, sample.identifier.or(sample.id));
                assert_eq!(fast.2, sample.pid.zip(sample.tid));
                assert_eq!(fast.3, sample.cpu);
                if let Some(data) = layout.raw_data(raw) {
                    assert_eq!(Some(data), sample.raw);
                }
                let _ = sample.callchain.map(|c| c.frames().count());
                let _ = sample.branch_stack.map(|b| b.iter().count());
                let _ = sample.read.map(|r| r.iter().count());
            }
            let _ = record.sample_id();
        }
    }
}
