//! `triscope open`: traces in the browser.

use crate::answers::html;
use crate::failure::{Failure, Result};
use crate::io::input::{self, Format, Input};
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::run::loopback::{Content, Loopback, Served};
use crate::run::serve::show;
use crate::run::stop::Listener;
use crate::sources::model::Traces;
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Open traces in the browser
///
/// Serves a page with the traces on a loopback port and opens it. The page shows the timeline and
/// the report, hands the timeline over to the Perfetto UI, and sends nothing anywhere: its content
/// security policy permits only these traces. The address has a secret that other users cannot
/// guess, and ends with the program, when the browser has fetched all traces or with Ctrl-C.
///
/// The page is a file that `cargo xtask web --install` builds from the sources of triscope and
/// installs: a page in $XDG_DATA_HOME/triscope/page.html (~/.local/share without it), or in
/// triscope/page.html of a directory of $XDG_DATA_DIRS. Without a page, and for directories and
/// recordings of perf, whose symbols are in files that a browser cannot read, the report of
/// `triscope report --html` is shown.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope open trace.out
  triscope open server.trace app.nettrace      on one clock
  triscope open --report perf.data             the page of triscope report --html
  triscope open --no-browser trace.out         only print the address")]
pub(crate) struct Args {
    /// Go traces, .NET traces and perf.data recordings of one machine, or a directory that `triscope record
    /// --keep` wrote
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
    /// The page, instead of the one that is installed
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Show the report of `triscope report --html` instead of the page
    #[arg(long, conflicts_with = "page")]
    report: bool,
    /// Only print the address
    #[arg(long)]
    no_browser: bool,
}

/// Where the page is in a directory of data.
const INSTALLED: &str = "triscope/page.html";

/// The rule in the page that forbids connections, and the element for the names of the traces.
const POLICY: &str = "connect-src 'none'";
const NAMES: (&str, &str) = ("<script type=\"application/json\" id=\"served\">", "</script>");

pub(crate) fn run(args: &Args) -> Result {
    args.files.iter().try_for_each(|path| input::check_twice(path, "the browser"))?;
    let server = Loopback::bind(0).map_err(|e| Failure::about("the loopback port", e))?;
    let _listener = Listener::exit();
    let (files, outcome) = match page(args)? {
        Some(path) => (with_traces(&path, &args.files, &server)?, Ok(())),
        None => report(&args.files)?,
    };
    let url = server.url("");
    message!("open {url} (ends when the browser has fetched the traces; Ctrl-C ends it earlier)");
    if !args.no_browser {
        show(&url);
    }
    server.serve(files, None)?;
    outcome
}

/// The page to show. `None` if it is the report, whose reason is printed.
fn page(args: &Args) -> Result<Option<PathBuf>> {
    if args.report || args.page.is_some() {
        return Ok(args.page.clone());
    }
    for path in &args.files {
        if let Some(why) = reason(path)? {
            message!("triscope: {why}: this is the report");
            return Ok(None);
        }
    }
    let installed = data_dirs().into_iter().map(|dir| dir.join(INSTALLED)).find(|p| p.is_file());
    if installed.is_none() {
        message!(
            "triscope: the page is not installed (cargo xtask web --install): this is the report"
        );
    }
    Ok(installed)
}

/// Why the page cannot show a trace as well as the report.
fn reason(path: &Path) -> Result<Option<String>> {
    if path.is_dir() {
        return Ok(Some(format!("{}: the page takes files", path.display())));
    }
    let input = Input::open(path, Progress::bytes())?;
    Ok((input.format == Format::PerfData)
        .then(|| format!("{}: the page cannot read the symbols of programs", input.name)))
}

/// Directories of data, that of the user first.
///
/// Source: XDG Base Directory Specification.
fn data_dirs() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(variable("HOME")?).join(".local/share"));
    let user = variable("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    let all = variable("XDG_DATA_DIRS").unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    user.into_iter().chain(std::env::split_paths(&all)).filter(|dir| dir.is_absolute()).collect()
}

/// The page with the names of the traces, and the traces.
fn with_traces(page: &Path, traces: &[PathBuf], server: &Loopback) -> Result<Vec<Served>> {
    let fail = |path: &Path, error: std::io::Error| Failure::about(path.display(), error);
    let text = fs::read_to_string(page).map_err(|error| fail(page, error))?;
    let names: Vec<_> = traces
        .iter()
        .map(|path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
        .collect();
    let text =
        expanded(&text, &json!(names).to_string(), &server.url("files/")).ok_or_else(|| {
            Failure::about(
                page.display(),
                "is not a page of this version (cargo xtask web builds it)",
            )
        })?;
    let kind = "text/html; charset=utf-8";
    let mut files =
        vec![Served { name: String::new(), kind, content: Content::Text(text.into_bytes()) }];
    for (number, path) in traces.iter().enumerate() {
        let file = File::open(path).map_err(|error| fail(path, error))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Failure::about(path.display(), "is a directory: the page takes files"));
        }
        let kind = "application/octet-stream";
        files.push(Served { name: format!("files/{number}"), kind, content: Content::File(file) });
    }
    Ok(files)
}

/// The page with the names of its traces, which may connect to this address only.
fn expanded(page: &str, names: &str, url: &str) -> Option<String> {
    let (before, rest) = page.split_once(POLICY)?;
    let (between, rest) = rest.split_once(NAMES.0)?;
    let (_, after) = rest.split_once(NAMES.1)?;
    let names = names.replace('<', "\\u003c"); // a name ends no element
    Some(format!("{before}connect-src {url}{between}{}{names}{}{after}", NAMES.0, NAMES.1))
}

/// The report of the traces. An error within a trace is the second result.
fn report(traces: &[PathBuf]) -> Result<(Vec<Served>, Result)> {
    let fail = |error| Failure::about("a temporary file", error);
    // A file without a name: no other user can open it, and it ends with the program.
    let file = tempfile::tempfile().map_err(fail)?;
    let writer = Box::new(file.try_clone().map_err(fail)?);
    let traces = Traces::of(traces.to_vec());
    let outcome = html::write_to(&traces, OutputFile::discarded(), writer)?;
    let content = Content::File(file);
    let kind = "text/html; charset=utf-8";
    Ok((vec![Served { name: String::new(), kind, content }], outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gets_names_and_an_address() {
        let page = "<meta content=\"connect-src 'none'; x\"><script type=\"application/json\" \
                    id=\"served\">[]</script>the rest";
        let names = json!(["</script>", "b"]).to_string();
        assert_eq!(
            expanded(page, &names, "http://127.0.0.1:1/ab/files/").unwrap(),
            "<meta content=\"connect-src http://127.0.0.1:1/ab/files/; x\"><script \
             type=\"application/json\" id=\"served\">[\"\\u003c/script>\",\"b\"]</script>the rest"
        );
        assert_eq!(expanded("<p>another page", "[]", "http://127.0.0.1:1/"), None);
    }
}
