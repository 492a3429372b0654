//! The documentation of the repository names what there is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each row of the table *Where is what* has a question, a file and an item in the file.
#[test]
fn the_architecture_names_files_with_their_items() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let (_, section) = text.split_once("## Where is what").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut rows = 0;
    for line in section.lines().filter(|line| line.starts_with("| ") && line.contains("`crates/")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, question, file, item, _] = cells.as_slice() else { panic!("{line}") };
        let source = std::fs::read_to_string(root.join(file));
        let source = source.unwrap_or_else(|error| panic!("{question} {file}: {error}"));
        assert!(source.contains(item), "{question} {file} has no {item}");
        rows += 1;
    }
    assert!(rows >= 16, "{rows} rows");
}

/// The picture of the crates and the table below it have each crate and no others. `testkit` is only for tests.
#[test]
fn the_architecture_shows_all_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let (_, rest) = text.split_once("```text\n").unwrap();
    let (picture, rest) = rest.split_once("```").unwrap();
    let table = rest.split("\n## ").next().unwrap();
    let names = std::fs::read_dir(root.join("crates")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    let words = picture.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let drawn: BTreeSet<&str> = words.filter(|w| names.contains(*w) || w.contains('-')).collect();
    let expected = names.iter().map(String::as_str).filter(|name| *name != "testkit");
    assert_eq!(drawn, expected.collect());
    for name in &names {
        assert!(table.contains(&format!("\n| `{name}` |")), "the table has no {name}");
    }
}

/// Commands share code through the other modules of the program: none imports another.
#[test]
fn commands_do_not_import_each_other() {
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "{files:?}");
    for file in files {
        let inside = file.strip_prefix(&root).unwrap();
        let depth = inside.components().count();
        let command = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let command = command.trim_end_matches(".rs");
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            // `crate::commands::NAME`, or as many `super` as lead out of the command.
            let own = format!("crate::commands::{command}");
            let outside = match file.file_name().is_some_and(|name| name == "mod.rs") {
                true => "super::".repeat(depth - 1),
                false => "super::".repeat(depth),
            };
            // A module inside a file.
            if code.trim() == "use super::*;" {
                continue;
            }
            let imports = (code.contains("crate::commands") && !code.contains(&own))
                || (!outside.is_empty() && code.contains(&outside));
            assert!(!imports, "{}:{}: {line}", inside.display(), number + 1);
        }
    }
}
