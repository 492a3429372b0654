//! `cargo xtask test-html`: pages of `triscope report --html` in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, lane, run, workspace};

const DRIVE: &str = include_str!("drive.js");

pub(crate) const OPTIONS: &str = "\
[DIR]

  DIR   where the pages and the pictures of them go (default: target/html)";

/// Names of the browser, by distribution.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The name of a hostile program.
const HOSTILE: &str = "</script><img src=x onerror=owned=1><b id=owned>";

pub(crate) fn task(args: &[String]) -> Result {
    let Some(browser) = BROWSERS.iter().find(|name| run::have(name)) else {
        return lane::skip("HTML pages in a browser", &"Chromium is not installed");
    };
    if !run::have("node") {
        return lane::skip("HTML pages in a browser", &"Node.js is not installed");
    }
    let dir = args.first().map_or_else(|| workspace().join("target/html"), PathBuf::from);
    std::fs::create_dir_all(&dir)?;
    let pages = pages(&dir)?;
    let script = dir.join("drive.js");
    std::fs::write(&script, DRIVE)?;
    run::run(Command::new("node").arg(&script).arg(browser).arg(&dir).args(pages))
}

/// One page of a Go program, one with hostile names, and one with a million intervals, each with
/// its kind.
fn pages(dir: &Path) -> Result<Vec<String>> {
    let page = |kind: &str| dir.join(format!("{kind}.html"));
    let cargo = |args: &[&str]| -> Command {
        let mut command = run::cargo();
        command.args(["run", "--quiet", "--release"]).args(args);
        command
    };
    let shop = workspace().join("crates/gotrace/tests/data/shop.trace");
    let triscope = ["--package", "triscope", "--", "report"];
    run::run(cargo(&triscope).arg(shop).arg("--html").arg(page("shop")))?;
    let synthetic = ["--package", "trace-export", "--features", "html", "--example"];
    let synthetic = [&synthetic[..], &["synthetic_html", "--"]].concat();
    run::run(cargo(&synthetic).arg("20000").arg(page("hostile")).arg(HOSTILE))?;
    run::run(cargo(&synthetic).arg("1000000").arg(page("large")))?;
    let kinds = ["shop", "hostile", "large"];
    Ok(kinds.map(|kind| format!("{}={kind}", page(kind).display())).to_vec())
}
