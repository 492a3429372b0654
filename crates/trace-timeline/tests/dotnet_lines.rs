//! Files and lines of frames of .NET stacks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

use nettrace::Reader;
use testkit::nettrace::{Written, event, trace, utf16};
use trace_timeline::sources::dotnet::{DotnetLines, DotnetNames, DotnetSource};
use trace_timeline::{EventKind, Tables};

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

/// One file, whose methods have a line for each offset in the IL.
struct Known;

impl DotnetLines for Known {
    fn line(
        &mut self,
        module: &nettrace::Module,
        token: u32,
        il_offset: u32,
        each: &mut dyn FnMut(&str, u32),
    ) {
        if (&*module.path, token) == ("/app/App.dll", 0x0600_0003) {
            each("/src/App.cs", 100 + il_offset);
        }
    }
}

/// A trace with a sample whose stack is in a method at 0x1230, four bytes behind its start.
fn sample(token: u32) -> Vec<u8> {
    let numbers =
        |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let module = [numbers(&[7, 1]), vec![0; 8], utf16("/app/App.dll"), utf16(""), vec![0; 2]];
    let sizes = [0x40, token, 8].map(u32::to_le_bytes).concat();
    let names = ["App", "Main", "void ()"].map(utf16).concat();
    let method = [numbers(&[5, 7, 0x1230]), sizes, names, vec![0; 10]];
    let entries = [0u32, 9, 0, 4].iter().flat_map(|n| n.to_le_bytes()).collect();
    let map = [numbers(&[5, 0]), vec![0, 2, 0], entries, vec![0; 10]];
    let written = |kind, parts: &[Vec<u8>]| event(kind, 10, 1, &[&parts.concat()]);
    let stack = Written { has_stack: true, ..event(4, 20, 1, &[&2u32.to_le_bytes()]) };
    let types = [
        (RUNTIME, 152, 1),
        (RUNTIME, 143, 2),
        (RUNTIME, 190, 1),
        ("Microsoft-DotNETCore-SampleProfiler", 0, 0),
    ];
    trace(&types, &[written(1, &module), written(2, &method), written(3, &map), stack])
}

/// The file and line of the innermost frame of the sample.
fn line(bytes: &[u8], has_lines: bool) -> (String, u32) {
    let mut names = DotnetNames::new();
    Reader::new(bytes).for_each(|event| names.push(&event)).unwrap();
    let mut source = DotnetSource::with_names(0, names);
    if has_lines {
        source = source.with_lines(Known);
    }
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut reader = Reader::new(bytes);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    let stacks = events.iter().filter_map(|event| match event.kind {
        EventKind::Sample { stack, .. } => stack,
        _ => None,
    });
    let [stack] = stacks.collect::<Vec<_>>()[..] else { panic!("{events:?}") };
    let frame = tables.frames(stack)[0];
    assert_eq!(tables.str(frame.function), "App.Main()");
    (tables.str(frame.file).to_string(), frame.line)
}

#[test]
fn frames_have_the_line_of_their_il_offset() {
    // The map has IL offset 9 from 4 on.
    assert_eq!(line(&sample(0x0600_0003), true), ("/src/App.cs".to_owned(), 109));
    let none = (String::new(), 0);
    assert_eq!(line(&sample(0x0600_0004), true), none, "another method");
    assert_eq!(line(&sample(0x0600_0003), false), none);
}
