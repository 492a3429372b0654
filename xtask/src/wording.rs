//! The project's texts use the terms of the field: some words are not among them.

use std::fs;
use std::path::Path;
use task_support::workspace;

/// Words, each with what is written instead.
const REPLACED: [(&str, &str); 9] = [
    ("told", "reported; or name what is known"),
    ("tell", "report; distinguish; show"),
    ("tells", "reports; shows"),
    ("anew", "again; is reset"),
    ("whoever", "the one that"),
    ("so many", "the number, or the limit"),
    ("fn what is", "the name of the thing"),
    ("lent", "returned, passed; borrowed"),
    ("goes on", "continues; resumes"),
];

/// Directories whose texts are not ours, or are generated.
const SKIPPED: [&str; 5] = [".git", "target", "node_modules", "data", "corpus"];

const EXTENSIONS: [&str; 10] = ["rs", "md", "toml", "sql", "js", "html", "py", "go", "cs", "c"];

/// The replaced words in a line. The words of a name with underscores are words, too.
fn replaced(line: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '\'');
    let words: Vec<String> =
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    let text = format!(" {} ", words.join(" "));
    REPLACED.iter().filter(move |(word, _)| text.contains(&format!(" {word} ")))
}

fn check(dir: &Path, faults: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_str().unwrap();
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.contains(&name) {
                check(&path, faults);
            }
            continue;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !extension.is_some_and(|e| EXTENSIONS.contains(&e)) || name == "wording.rs" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in replaced(line) {
                let (path, number) = (path.display(), number + 1);
                faults.push(format!("{path}:{number}: {word:?} ({instead}): {}", line.trim()));
            }
        }
    }
}

#[test]
fn replaced_words_are_found() {
    let found = |line| replaced(line).map(|(word, _)| *word).collect::<Vec<_>>();
    assert_eq!(found("/// It is told, and starts anew."), ["told", "anew"]);
    assert_eq!(found("fn users_are_told_why() {"), ["told"]);
    assert_eq!(found("storytelling, foretold, retells, so  many-sided"), ["so many"]);
    assert_eq!(found("records_that_were_not_lent"), ["lent"]);
    assert_eq!(found("the recorder goes on."), ["goes on"]);
    assert!(found("a teller of manyfold tales, silent or excellent").is_empty());
}

#[test]
fn texts_use_the_words_of_the_field() {
    let mut faults = Vec::new();
    check(&workspace(), &mut faults);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
