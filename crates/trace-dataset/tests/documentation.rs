//! `docs/dataset.md` is up to date: `cargo xtask test-dataset --write` regenerates it.

use trace_dataset::{QUESTIONS, markdown};

#[test]
fn the_documentation_has_all_tables_and_questions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dataset.md");
    let text = std::fs::read_to_string(path).unwrap();
    let update = "cargo xtask test-dataset --write";
    assert!(text.contains(&markdown()), "docs/dataset.md has other tables: {update}");
    for question in QUESTIONS {
        let line = format!("| `{}` | {} |\n", question.name, question.about());
        assert!(text.contains(&line), "docs/dataset.md lacks {}: {update}", question.name);
    }
}
