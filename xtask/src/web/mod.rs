//! `cargo xtask web`: the web page, one file with the program in it. `cargo xtask test-web`: the page
//! in a real browser.

mod encode;
mod test;

pub(crate) use test::{OPTIONS as TEST_OPTIONS, task as test};

use crate::wasm;
use encode::{base64, sha256};
use flate2::{Compression, write::GzEncoder};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use task_support::{Result, run, target_dir, workspace};

/// The most that a server sends, compressed.
const MAX_COMPRESSED: usize = 1_500_000;

pub(crate) const OPTIONS: &str = "\
[--install]

  --install   copy the page to where `triscope open` finds it: $XDG_DATA_HOME/triscope/page.html";

/// `cargo xtask web`: builds the page.
pub(crate) fn task(args: &[String]) -> Result {
    if let Some(other) = args.iter().find(|arg| *arg != "--install") {
        return Err(format!("{other}: the only option is --install").into());
    }
    let path = build()?;
    let page = fs::read(&path)?;
    let compressed = gzip(&page)?.len();
    let size = |bytes: usize| bytes as f64 / 1e6;
    let (whole, sent) = (size(page.len()), size(compressed));
    println!("{}: {whole:.2} MB, {sent:.2} MB compressed", path.display());
    if compressed > MAX_COMPRESSED {
        return Err(format!("more than {MAX_COMPRESSED} bytes, compressed").into());
    }
    if args.iter().any(|arg| arg == "--install") {
        let installed = data_dir()?.join("triscope/page.html");
        fs::create_dir_all(installed.with_file_name(""))?;
        fs::copy(&path, &installed)?;
        println!("{}: triscope open shows it", installed.display());
    }
    Ok(())
}

/// The directory of the user's data (XDG Base Directory Specification).
fn data_dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(variable("HOME")?).join(".local/share"));
    let dir = variable("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    Ok(dir.ok_or("neither XDG_DATA_HOME nor HOME is set")?)
}

/// Builds the page and returns its path.
fn build() -> Result<PathBuf> {
    let program = program()?;
    let page = page(&gzip(&fs::read(program)?)?)?;
    let path = target_dir().join("web/index.html");
    fs::create_dir_all(path.with_file_name(""))?;
    fs::write(&path, page)?;
    Ok(path)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Compiles the program to WebAssembly, with the toolchain of this machine if it has the target, or
/// otherwise with Debian's.
fn program() -> Result<PathBuf> {
    let mut command = run::cargo();
    command.args(["build", "--quiet", "--profile", "web", "--package", "triscope"]);
    command.args(["--bin", "triscope-page", "--features", "page"]);
    let programs = wasm::target(&mut command)?;
    run::run(&mut command)?;
    Ok(programs.join("web/triscope-page.wasm"))
}

/// The page with a compressed program.
fn page(program: &[u8]) -> Result<String> {
    let read = |name: &str| fs::read_to_string(workspace().join("web").join(name));
    let template = read("page.html")?;
    let worker = read("wasi.js")? + read("worker.js")?.trim_start_matches("'use strict';\n");
    let parts = [
        ("PROGRAM", base64(program)),
        ("WORKER", worker),
        ("SCRIPT", read("page.js")?),
        ("STYLE", read("style.css")?),
    ];
    let mut scripts: Vec<String> = Vec::new();
    // Those of the pages that the program writes: they are shown in a frame, and inherit the policy.
    let pages = workspace().join("crates/trace-export/src/html");
    let app = fs::read_to_string(pages.join("app.js"))?;
    let own = expanded(&template, &parts);
    let report = expanded(&fs::read_to_string(pages.join("page.html"))?, &[("SCRIPT", app)]);
    let document = fs::read_to_string(pages.join("document.html"))?;
    for text in [&own, &report, &document] {
        scripts.extend(between(text, "<script>", "</script>").map(source));
    }
    let page = expanded(&own, &[("SCRIPTS", scripts.join(" "))]);
    Ok(page)
}

/// A template with some of its parts.
pub(crate) fn expanded(template: &str, parts: &[(&str, String)]) -> String {
    let mut rest = template;
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once("{{") {
        text.push_str(before);
        let known = after.split_once("}}").and_then(|(name, after)| {
            Some((&parts.iter().find(|(known, _)| *known == name)?.1, after))
        });
        (text, rest) = match known {
            Some((part, after)) => (text + part, after),
            None => (text + "{{", after),
        };
    }
    text + rest
}

/// The texts between a `start` and the next `end`.
pub(crate) fn between<'a>(
    text: &'a str,
    start: &'a str,
    end: &'a str,
) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// A script or style in a content security policy.
pub(crate) fn source(script: &str) -> String {
    format!("'sha256-{}'", base64(&sha256(script.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_expanded_once() {
        let parts = [("A", "{{B}}".to_owned()), ("B", "b".to_owned())];
        assert_eq!(expanded("<{{A}} {{B}} {{C}} {{>", &parts), "<{{B}} b {{C}} {{>");
    }

    #[test]
    fn the_policy_names_every_script() -> Result {
        let page = page(b"program")?;
        let policy =
            between(&page, "http-equiv=\"Content-Security-Policy\" content=\"", "\"").next();
        let policy = policy.ok_or("the page has no policy")?;
        assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'none'"));
        for script in between(&page, "<script>", "</script>") {
            assert!(policy.contains(&source(script)));
        }
        assert_eq!(policy.matches("'sha256-").count(), 3, "{policy}");
        assert!(!page.contains("{{"));
        Ok(())
    }
}
