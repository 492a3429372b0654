//! The Go client's recordings of .NET 5 against the stacks that it publishes for them.
//!
//! They are not part of this repository: name the folder `nettrace/testdata` of
//! github.com/pyroscope-io/dotnetdiag in the environment variable `DOTNETDIAG_TESTDATA`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::Path;

use nettrace::{Profile, Reader};

/// Stacks of folded lines. An address without a name is `?!?` there.
fn stacks(text: &str) -> BTreeSet<String> {
    let frame = |f: &str| if f.starts_with("?!0x") { "?!?".to_owned() } else { f.to_owned() };
    let stack = |line: &str| {
        let (stack, _) = line.rsplit_once(' ').unwrap();
        stack.split(';').map(frame).collect::<Vec<_>>().join(";")
    };
    text.lines().filter(|l| !l.is_empty()).map(stack).collect()
}

#[test]
fn stacks_are_those_of_the_go_client() {
    let Some(dir) = std::env::var_os("DOTNETDIAG_TESTDATA") else {
        testkit::skip::without("DOTNETDIAG_TESTDATA, the folder of the Go client's test data");
        return;
    };
    for (name, more) in [("single-thread", 0), ("webapp", 3)] {
        let file = |end| Path::new(&dir).join(format!("dotnet-5.0-SampleProfiler-{name}.{end}"));
        let theirs = stacks(&std::fs::read_to_string(file("txt")).unwrap());
        let bytes = std::fs::read(file("golden.nettrace")).unwrap();
        let profile = Profile::read(&mut Reader::new(&bytes[..])).unwrap();
        let ours = stacks(&profile.folded(|_| true));
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{name}: {missing:#?}");
        // It leaves out the stacks of which it measured no time.
        assert_eq!(ours.len() - theirs.len(), more, "{name}");
    }
}
