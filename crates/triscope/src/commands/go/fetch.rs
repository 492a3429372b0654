use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::run::http;
use crate::run::stop::Listener;
use crate::timeline::size;
use gotrace::Version;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Fetch a trace from a running Go program
///
/// The program serves it by net/http/pprof (/debug/pprof/trace, for as many seconds as asked for), or
/// by a handler of its own, such as one that writes a flight recorder. Ctrl-C ends the trace early
/// and keeps it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go fetch http://localhost:6060 -o trace.out                5 seconds
  triscope go fetch 'http://localhost:6060/debug/pprof/trace?seconds=30' -o trace.out
  triscope go fetch http://localhost:8080/flight -o trace.out         a handler of the program
  triscope go fetch http://localhost:6060 -o - | triscope go summary -")]
pub(crate) struct Args {
    /// http://HOST:PORT/PATH?QUERY; without a path, 5 seconds of /debug/pprof/trace
    #[arg(value_name = "URL", value_parser = parse)]
    url: Url,
    /// Where to write it; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// A URL of a server without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    /// As in the header `Host`.
    host: String,
    port: u16,
    /// The path and the query.
    target: String,
}

const DEFAULT: &str = "/debug/pprof/trace?seconds=5";

fn parse(text: &str) -> std::result::Result<Url, String> {
    let rest = match text.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => return Err("only http:// is supported".to_owned()),
        None => return Err("expected http://HOST:PORT/PATH".to_owned()),
    };
    let (authority, target) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if text.chars().any(|c| c.is_control() || c == ' ') || authority.contains('@') {
        return Err("spaces, control characters and user names are not allowed".to_owned());
    }
    // An IPv6 address is in brackets.
    let after_address = authority.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match authority.get(after_address..).and_then(|rest| rest.rfind(':')) {
        Some(at) => authority.split_at(after_address + at),
        None => (authority, ":80"),
    };
    let port = port.trim_start_matches(':').parse().map_err(|e| format!("port: {e}"))?;
    if name.is_empty() {
        return Err("expected http://HOST:PORT/PATH".to_owned());
    }
    let target = if matches!(target, "" | "/") { DEFAULT } else { target };
    Ok(Url { host: authority.to_owned(), port, target: target.to_owned() })
}

impl Url {
    fn address(&self) -> io::Result<SocketAddr> {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => &self.host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = (name, self.port).to_socket_addrs()?;
        addresses.next().ok_or_else(|| io::Error::other("the host has no address"))
    }
}

pub(super) fn run(args: &Args) -> Result {
    let mut output = OutputFile::create(&args.output, &[])?;
    let Url { host, target, .. } = &args.url;
    let name = format!("http://{host}{target}");
    let fail = |error: io::Error| Failure::about(&name, error);
    let address = args.url.address().map_err(fail)?;
    let reply = http::get(address, host, target, None).map_err(fail)?;
    let connection = reply.stream.try_clone().map_err(fail)?;
    let _listener = Listener::stop(move || http::end(&connection))?;
    let mut body = reply.body;
    let mut head = Vec::new();
    (&mut body).take(Version::HEADER_LEN as u64).read_to_end(&mut head).map_err(fail)?;
    if !head.starts_with(b"go 1.") {
        return Err(Failure::about(&name, "the reply is not a Go execution trace"));
    }
    let mut writer = output.writer()?;
    let mut bytes = head.len() as u64;
    writer.write_all(&head).map_err(|error| output.failure(&error))?;
    let copied = io::copy(&mut body, &mut writer);
    bytes += *copied.as_ref().unwrap_or(&0);
    writer.flush().map_err(|error| output.failure(&error))?;
    drop(writer);
    let name = output.name();
    output.complete()?;
    eprintln!("{name}: {}", size(bytes));
    // A program that ends closes the connection in one way or another: what came is kept.
    copied.map(drop).map_err(|error| Failure::about(name, format_args!("cut off: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = |text: &str| parse(text).map(|url| (url.host, url.port, url.target));
        let ok = |host: &str, port, target: &str| Ok((host.to_owned(), port, target.to_owned()));
        assert_eq!(url("http://localhost:6060"), ok("localhost:6060", 6060, DEFAULT));
        assert_eq!(url("http://localhost:6060/"), ok("localhost:6060", 6060, DEFAULT));
        assert_eq!(url("http://a.b/x?y=1"), ok("a.b", 80, "/x?y=1"));
        assert_eq!(url("http://[::1]:80/x"), ok("[::1]:80", 80, "/x"));
        assert_eq!(url("http://[::1]/x"), ok("[::1]", 80, "/x"));
        for bad in [
            "localhost:6060",
            "https://a",
            "http://",
            "http://:80",
            "http://a:b",
            "http://a:99999",
            "http://a/b c",
            "http://a/\r\nX: y",
            "http://user@host/",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
        for (text, address) in
            [("http://127.0.0.1:6060", "127.0.0.1:6060"), ("http://[::1]/x", "[::1]:80")]
        {
            assert_eq!(parse(text).unwrap().address().unwrap().to_string(), address);
        }
    }
}
