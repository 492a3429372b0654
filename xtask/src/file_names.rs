//! Git on Windows checks out every file of the repository.

use std::process::Command;
use task_support::workspace;

/// Names of devices, in any directory and with any extension.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// The same, with a digit from 1 to 9.
const PORTS: [&str; 2] = ["com", "lpt"];

/// Characters that are in no name, besides `/` and control characters.
const REFUSED: &[char] = &['<', '>', ':', '"', '|', '?', '*', '\\'];

/// Why Windows has no file or directory of this name.
fn fault(name: &str) -> Option<&'static str> {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let is_port = PORTS.iter().any(|port| {
        let number = stem.strip_prefix(port);
        number.is_some_and(|number| matches!(number.as_bytes(), [b'1'..=b'9']))
    });
    if is_port || DEVICES.contains(&&*stem) {
        return Some("the name of a device");
    }
    if name.contains(REFUSED) || name.contains(char::is_control) {
        return Some("a character that names cannot have");
    }
    name.ends_with(['.', ' ']).then_some("a dot or space at the end")
}

#[test]
fn names_that_windows_refuses_are_found() {
    for name in ["con", "Aux.rs", "nul.tar.gz", "prn .txt", "com1", "LPT9.md"] {
        assert_eq!(fault(name), Some("the name of a device"), "{name}");
    }
    for name in ["a:b", "what?.rs", "a\\b", "*", "a\nb", "<x>", "\"", "a|b"] {
        assert_eq!(fault(name), Some("a character that names cannot have"), "{name}");
    }
    for name in ["a.", "a "] {
        assert_eq!(fault(name), Some("a dot or space at the end"), "{name}");
    }
    for name in
        ["console.rs", "com.rs", "com0", "com10", "lpt", ".gitignore", "a b", "null.rs", "ü"]
    {
        assert_eq!(fault(name), None, "{name}");
    }
}

#[test]
fn all_files_can_be_checked_out_on_windows() {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
        eprintln!("skipped: this is no clone of the repository, or there is no git");
        return;
    };
    let files = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<&str> = files.split_terminator('\0').collect();
    assert!(files.contains(&"Cargo.toml"));
    let faults: Vec<String> = files
        .iter()
        .filter_map(|file| Some(format!("{file}: {}", file.split('/').find_map(fault)?)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
