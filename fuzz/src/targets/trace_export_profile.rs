//! Profiles of other tools: pprof files and folded stacks. What is read can be written and compared.

use trace_export::profile::{Difference, Format, Profile, ReadLimits, read_folded, read_pprof};
use trace_timeline::{TableLimits, Tables};

pub fn target(data: &[u8]) {
    let mut limits = ReadLimits::default();
    (limits.bytes, limits.items) = (1 << 20, 1 << 14);
    (limits.frames, limits.depth) = (1 << 14, 1 << 10);
    // Small tables, so that their limits are reached.
    let mut small = TableLimits::default();
    (small.text_bytes, small.frames, small.mappings) = (1 << 12, 1 << 10, 1 << 3);
    let mut tables = Tables::with_limits(small);
    let mut profiles = Vec::new();
    if let Ok(file) = read_pprof(data, &limits, &mut tables) {
        assert!(file.default < file.profiles.len());
        profiles.extend(file.profiles);
    }
    profiles.extend(read_folded(data, &limits, &mut tables));
    for pair in profiles.windows(2) {
        compare(&pair[0], &pair[1], &tables);
    }
    for profile in &profiles {
        compare(profile, profile, &tables);
        let mut out = Vec::new();
        profile.write(Format::Pprof, "", &tables, &mut out).expect("vectors take everything");
        let mut others = Tables::new();
        let read = read_pprof(&out, &ReadLimits::default(), &mut others);
        let weight = read.map(|file| file.profiles[file.default].weight());
        // Values above 63 bits would be negative.
        assert!(weight.is_err() || weight.is_ok_and(|weight| weight == profile.weight()));
    }
}

fn compare(before: &Profile, after: &Profile, tables: &Tables) {
    let Ok(difference) = Difference::new((before, tables), (after, tables)) else { return };
    let totals = difference.totals();
    assert_eq!((totals.before, totals.after), (before.weight(), after.weight()));
    for function in difference.functions() {
        assert!(function.own.before <= function.total.before);
        assert!(function.total.after <= totals.after);
    }
    let mut out = Vec::new();
    difference.write_folded(&mut out).expect("vectors take everything");
    difference.write_flame_graph("", &mut out).expect("vectors take everything");
}
