//! `triscope convert` of recordings to profiles, with `perf script` as the judge where it is
//! installed.

use crate::needs_root;
use crate::support::run_in;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Samples by innermost function.
type Counts = BTreeMap<String, u64>;

/// The innermost functions that `perf script` prints, and the number of all samples.
fn printed(script: &str) -> (Counts, u64) {
    let (mut counts, mut all) = (Counts::new(), 0);
    for sample in script.split("\n\n").filter(|sample| !sample.trim().is_empty()) {
        all += 1;
        // `address symbol (file)`, below the line of the sample.
        let frame = sample.trim().lines().nth(1).unwrap_or_default().trim();
        let symbol = frame.split_once(' ').map_or("", |(_, rest)| rest);
        let symbol = symbol.rsplit_once(" (").map_or(symbol, |(symbol, _)| symbol);
        *counts.entry(symbol.to_owned()).or_default() += 1;
    }
    (counts, all)
}

fn folded(text: &str) -> (Counts, u64) {
    let (mut counts, mut all) = (Counts::new(), 0);
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        all += count;
        let leaf = stack.rsplit(';').next().unwrap().to_owned();
        *counts.entry(leaf).or_default() += count;
    }
    (counts, all)
}

/// The number of samples whose stack has a function.
fn with(text: &str, function: &str) -> u64 {
    let has = |line: &&str| {
        let (stack, _) = line.rsplit_once(' ').unwrap();
        stack.split(';').any(|frame| frame == function)
    };
    text.lines()
        .filter(has)
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum()
}

fn convert(dir: &Path, options: &[&str]) -> (Counts, u64) {
    let ran = run_in(dir, &[&["convert", "perf.data", "-o", "x.folded"], options].concat());
    ran.is_good();
    folded(&std::fs::read_to_string(dir.join("x.folded")).unwrap())
}

#[test]
fn samples_become_profiles_with_the_numbers_of_perf() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    // A period of one: the weight is the number of samples.
    let events = ["-e", "page-faults,sched:sched_process_exit", "-c", "1", "-g"];
    let work = ["sh", "-c", "for i in 1 2 3 4; do true | cat; done"];
    let record = [&["perf", "record", "-o", "perf.data"][..], &events, &["--"], &work].concat();
    run_in(dir.path(), &record).is_good();

    let (ours, all) = convert(dir.path(), &["--samples", "page-faults"]);
    let stacks = std::fs::read_to_string(dir.path().join("x.folded")).unwrap();
    let script = run_in(dir.path(), &["perf", "script", "-i", "perf.data"]);
    script.is_good();
    let of_event = |event: &str, text: &str| {
        let is_it = |sample: &&str| sample.lines().next().is_some_and(|line| line.contains(event));
        text.trim().split("\n\n").filter(is_it).collect::<Vec<_>>().join("\n\n")
    };
    assert_eq!(printed(&of_event("page-faults", &script.stdout)).1, all);
    // Eight children, and the shell.
    let (_, exits) = convert(dir.path(), &["--samples", "sched:sched_process_exit"]);
    assert_eq!(exits, 9);

    if testkit::perf::is_installed() {
        let args = ["script", "--no-inline", "-i", "perf.data", "-F", "event,ip,sym,dso"];
        let output = testkit::perf::output(Command::new("perf").current_dir(dir.path()).args(args));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let script = String::from_utf8(output.stdout).unwrap();
        let (theirs, samples) = printed(&of_event("page-faults", &script));
        assert_eq!(samples, all);
        // perf invents symbols of procedure linkage tables, and of its own vDSO.
        let is_compared = |name: &&String| !name.contains("@plt") && !name.contains("[unknown]");
        let mut compared = 0;
        for (name, count) in theirs.iter().filter(|(name, _)| is_compared(name)) {
            // Calls that are inlined into the function are above it.
            assert!(with(&stacks, name) >= *count, "{name}, {count}: {stacks}");
            compared += u32::from(ours.get(name) == Some(count));
        }
        assert!(compared > 5, "{theirs:?}");
    }
}
