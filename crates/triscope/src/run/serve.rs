//! Shows a file in the viewer of its format: a page of a web site that fetches it from a loopback
//! port, once, or the browser itself.

use super::loopback::{Content, Loopback, Served};
use super::open_files;
use super::stop::Listener;
use crate::failure::{Failure, OneLine, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A viewer of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// A timeline in the Perfetto UI.
    Perfetto,
    /// A profile in the Firefox Profiler.
    Firefox,
    /// A profile in speedscope.
    Speedscope,
    /// A page or picture that a browser shows without a site.
    Browser,
}

/// The ends of the names of files, with their viewer.
const VIEWERS: [(&str, Viewer); 5] = [
    (".pftrace", Viewer::Perfetto),
    (".speedscope.json", Viewer::Speedscope),
    (".json.gz", Viewer::Firefox),
    (".svg", Viewer::Browser),
    (".html", Viewer::Browser),
];

impl Viewer {
    /// The viewer for a file of this name.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy();
        let found = VIEWERS.into_iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|(_, viewer)| viewer).ok_or_else(|| {
            let endings = VIEWERS.map(|(ending, _)| ending).join(", ");
            Failure::about(path.display(), format!("--open shows files of {endings}")).with_code(2)
        })
    }

    /// The origin of the site, which alone may read the file.
    const fn origin(self) -> &'static str {
        match self {
            Self::Perfetto => "https://ui.perfetto.dev",
            Self::Firefox => "https://profiler.firefox.com",
            Self::Speedscope => "https://www.speedscope.app",
            Self::Browser => "null",
        }
    }

    /// The loopback port, or 0 for any. The content security policy of the Perfetto UI permits one
    /// only; its own `open_trace_in_ui` uses it, too.
    const fn port(self) -> u16 {
        match self {
            Self::Perfetto => 9001,
            _ => 0,
        }
    }

    /// The end of the address of the file, whatever its name.
    const fn name(self) -> &'static str {
        match self {
            Self::Perfetto => "timeline.pftrace",
            Self::Firefox => "profile.json.gz",
            Self::Speedscope => "profile.speedscope.json",
            Self::Browser => "",
        }
    }

    /// The address of the site that shows the file at `url`.
    fn page(self, url: &str) -> String {
        let origin = self.origin();
        match self {
            Self::Perfetto => format!("{origin}/#!/?url={url}"),
            Self::Firefox => format!("{origin}/from-url/{}", encoded(url)),
            Self::Speedscope => format!("{origin}/#profileURL={}", encoded(url)),
            Self::Browser => url.to_owned(),
        }
    }
}

/// Prints the address of the viewer with this file, opens it if there is a desktop, and waits until
/// the file was fetched or a signal comes.
pub(crate) fn open(viewer: Viewer, path: &Path) -> Result {
    if viewer == Viewer::Browser {
        let path = std::path::absolute(path).map_err(|e| Failure::about(path.display(), e))?;
        let url = file_url(&path);
        message!("open {}", OneLine(&url));
        show(&url);
        return Ok(());
    }
    let file = File::open(path).map_err(|e| Failure::about(path.display(), e))?;
    let port = viewer.port();
    let server = Loopback::bind(port)
        .map_err(|e| Failure::about(format!("port {port} of {}", viewer.origin()), e))?;
    let page = viewer.page(&server.url(viewer.name()));
    let _listener = Listener::exit();
    message!("open {page} (Ctrl-C: do not wait for it)");
    show(&page);
    let kind = "application/octet-stream";
    let file = Served { name: viewer.name().to_owned(), kind, content: Content::File(file) };
    server.serve(vec![file], Some(viewer.origin()))
}

/// Opens an address in a browser if there is a desktop: otherwise there is no such program.
pub(crate) fn show(url: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C is for this program: a browser that it starts is not in its group.
    command.process_group(0);
    let _ = open_files::as_before(|| command.spawn());
}

/// A text as a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    encoded_except(text.as_bytes(), b"-._")
}

/// The address of a file with this absolute path.
fn file_url(path: &Path) -> String {
    format!("file://{}", encoded_except(path.as_os_str().as_bytes(), b"-._/"))
}

/// Bytes as a part of an address, in which `kept` and letters and digits are as they are.
fn encoded_except(bytes: &[u8], kept: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || kept.contains(byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}"); // a string does not fail
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_the_file() {
        let url = "http://127.0.0.1:3000/0a/profile.json.gz";
        assert_eq!(
            Viewer::Firefox.page(url),
            "https://profiler.firefox.com/from-url/http%3A%2F%2F127.0.0.1%3A3000%2F0a%2Fprofile.json.gz"
        );
        assert!(
            Viewer::Perfetto
                .page(url)
                .ends_with("/#!/?url=http://127.0.0.1:3000/0a/profile.json.gz")
        );
    }

    #[test]
    fn paths_are_encoded() {
        let url = file_url(Path::new("/tmp/a b/50%#1?.html"));
        assert_eq!(url, "file:///tmp/a%20b/50%25%231%3F.html");
        assert_eq!(file_url(Path::new("/é-_.svg")), "file:///%C3%A9-_.svg");
    }

    #[test]
    fn names_select_viewers() {
        for (name, viewer) in [
            ("x.pftrace", Viewer::Perfetto),
            ("x.json.gz", Viewer::Firefox),
            ("x.speedscope.json", Viewer::Speedscope),
            ("x.svg", Viewer::Browser),
        ] {
            assert_eq!(Viewer::of(Path::new(name)).unwrap(), viewer);
        }
        assert!(Viewer::of(Path::new("x.pb.gz")).is_err());
    }
}
