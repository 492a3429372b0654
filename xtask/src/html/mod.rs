//! `cargo xtask test-html`: pages of `triscope report --html`, flame graphs, and speedscope with our
//! profiles, in a real browser.

use crate::runtimes;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, lane, run, target_dir, workspace};

const DRIVE: &str = include_str!("drive.js");

const FLAME_GRAPH: &str = include_str!("flame_graph.js");

const SPEEDSCOPE: &str = include_str!("speedscope.js");

/// The version of speedscope, an npm package.
const SPEEDSCOPE_VERSION: &str = "1.25.0";

/// What tests of pages share.
const BROWSER: &str = include_str!("browser.js");

pub(crate) const OPTIONS: &str = "\
[DIR]

  DIR   where the pages and the pictures of them go (default: target/html)";

/// Names of the browser, by distribution.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The Go program of the pages.
const SHOP: &str = "crates/gotrace/tests/data/shop.trace";

/// The name of a hostile program.
const HOSTILE: &str = "</script><img src=x onerror=owned=1><b id=owned>";

pub(crate) fn task(args: &[String]) -> Result {
    let node = match node() {
        Ok(node) => node,
        Err(why) => return lane::skip("HTML pages in a browser", &why),
    };
    let dir = args.first().map_or_else(|| target_dir().join("html"), PathBuf::from);
    std::fs::create_dir_all(&dir)?;
    let pages = pages(&dir)?;
    run::run(node.drive(&dir, DRIVE)?.arg(&dir).args(pages))?;
    let [svg, speedscope, folded] = profiles(&dir)?;
    run::run(node.drive(&dir, FLAME_GRAPH)?.arg(&dir).args([&svg, &folded]))?;
    let viewer = self::speedscope()?;
    run::run(node.drive(&dir, SPEEDSCOPE)?.arg(&dir).args([viewer, speedscope, folded]))
}

/// The page of speedscope.
fn speedscope() -> Result<PathBuf> {
    let entry = cache::entry(&format!("speedscope/{SPEEDSCOPE_VERSION}"), |dir| {
        runtimes::npm("speedscope", SPEEDSCOPE_VERSION, dir).map(|_| ())
    })?;
    Ok(entry.join("package/dist/release"))
}

/// A profile of a Go program as flame graph, file of speedscope and folded stacks.
fn profiles(dir: &Path) -> Result<[PathBuf; 3]> {
    let triscope = run::triscope()?;
    let outputs = ["svg", "speedscope.json", "folded"];
    let outputs = outputs.map(|ending| dir.join("syscall").with_extension(ending));
    for output in &outputs {
        let mut profile = Command::new(&triscope);
        let profile = profile.args(["go", "profile", "syscall"]).arg(workspace().join(SHOP));
        run::run(profile.arg("-o").arg(output))?;
    }
    Ok(outputs)
}

/// Node.js, to drive a browser.
pub(crate) struct Node {
    browser: &'static str,
}

/// Finds a browser and Node.js.
pub(crate) fn node() -> Result<Node> {
    let browser = BROWSERS.into_iter().find(|name| run::have(name));
    let browser = browser.ok_or("Chromium is not installed")?;
    if !run::have("node") {
        return Err("Node.js is not installed".into());
    }
    Ok(Node { browser })
}

impl Node {
    /// A command that runs a script with the browser as its first argument. Its files go to `dir`.
    pub(crate) fn drive(&self, dir: &Path, script: &str) -> Result<Command> {
        let path = dir.join("drive.js");
        std::fs::write(&path, script)?;
        std::fs::write(dir.join("browser.js"), BROWSER)?;
        let mut command = Command::new("node");
        command.arg(path).arg(self.browser);
        Ok(command)
    }
}

/// Two pages of a Go program, one with hostile names, and one with a million intervals, each with
/// its kind.
fn pages(dir: &Path) -> Result<Vec<String>> {
    let page = |kind: &str| dir.join(format!("{kind}.html"));
    let triscope = run::triscope()?;
    let triscope = |command: &[&str], kind: &str| {
        let mut run = Command::new(&triscope);
        run::run(run.args(command).arg(workspace().join(SHOP)).arg("--html").arg(page(kind)))
    };
    triscope(&["report"], "shop")?;
    triscope(&["go", "summary"], "summary")?;
    let synthetic = run::example("synthetic_html")?;
    run::run(Command::new(&synthetic).arg("20000").arg(page("hostile")).arg(HOSTILE))?;
    run::run(Command::new(&synthetic).arg("1000000").arg(page("large")))?;
    let kinds = ["shop", "summary", "hostile", "large"];
    Ok(kinds.map(|kind| format!("{}={kind}", page(kind).display())).to_vec())
}

#[cfg(test)]
mod tests {
    use crate::web::{between, expanded, source};
    use task_support::{Result, workspace};

    /// Each page names its own script and style in its policy, and no others.
    #[test]
    fn policies_name_scripts_and_styles() -> Result {
        let dir = workspace().join("crates/trace-export/src/html");
        let read = |name: &str| std::fs::read_to_string(dir.join(name));
        let (style, document) = (read("style.css")?, read("document.css")?);
        let pages = [
            ("page.html", [("STYLE", style.clone()), ("SCRIPT", read("app.js")?)]),
            ("document.html", [("STYLE", style + &document), ("SCRIPT", String::new())]),
        ];
        for (name, parts) in pages {
            let page = expanded(&read(name)?, &parts);
            for (tag, directive) in [("script", "script-src"), ("style", "style-src")] {
                let (start, end) = (format!("<{tag}>"), format!("</{tag}>"));
                let sources: Vec<String> = between(&page, &start, &end).map(source).collect();
                let policy = format!("{directive} {};", sources.join(" "));
                assert!(page.contains(&policy), "{name} has another {tag}: write {policy}");
            }
        }
        Ok(())
    }
}
