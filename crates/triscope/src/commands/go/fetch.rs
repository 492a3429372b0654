use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::profile_file::ProfileFile;
use crate::run::http;
use crate::run::stop::Listener;
use crate::sources::profile::of_pprof;
use crate::timeline::size;
use gotrace::Version;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use trace_export::profile::{Format, ReadLimits};

/// Fetch a trace or a profile from a running Go program
///
/// The program serves it by net/http/pprof (/debug/pprof/trace, for as many seconds as asked for), or
/// by a handler of its own, such as one that writes a flight recorder. Ctrl-C ends the trace early
/// and keeps it.
///
/// With an output of .svg, .pb.gz, .folded or .speedscope.json, the reply is a profile of
/// net/http/pprof: profile (CPU), allocs, heap, block, mutex, goroutine or threadcreate. A .pb.gz
/// is what the program sent.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go fetch http://localhost:6060 -o trace.out                5 seconds
  triscope go fetch 'http://localhost:6060/debug/pprof/trace?seconds=30' -o trace.out
  triscope go fetch http://localhost:8080/flight -o trace.out         a handler of the program
  triscope go fetch http://localhost:6060 -o - | triscope go summary -
  triscope go fetch http://localhost:6060/debug/pprof/allocs -o allocations.svg
  triscope go fetch http://localhost:6060/debug/pprof/heap --samples inuse_objects -o heap.svg
  triscope go fetch 'http://localhost:6060/debug/pprof/profile?seconds=10' -o cpu.pb.gz")]
pub(crate) struct Args {
    /// http://HOST:PORT/PATH?QUERY; without a path, 5 seconds of /debug/pprof/trace
    #[arg(value_name = "URL", value_parser = parse)]
    url: Url,
    /// Where to write it; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The sample type of a profile that is shown [default: that which the program names]
    #[arg(long, value_name = "NAME")]
    samples: Option<String>,
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
    let Url { host, target, .. } = &args.url;
    let name = format!("http://{host}{target}");
    let profile = Format::of(&args.output);
    if args.samples.is_some() && matches!(profile, None | Some(Format::Pprof)) {
        let what = "--samples selects what is shown: it needs .svg, .folded or .speedscope.json";
        return Err(Failure::new(what).with_code(2));
    }
    let mut output = OutputFile::create(&args.output, &[])?;
    let fail = |error: io::Error| Failure::about(&name, error);
    let address = args.url.address().map_err(fail)?;
    let reply = http::get(address, host, target, None).map_err(fail)?;
    let connection = reply.stream.try_clone().map_err(fail)?;
    let _listener = Listener::stop(move || http::end(&connection))?;
    let mut body = reply.body;
    let mut head = Vec::new();
    (&mut body).take(Version::HEADER_LEN as u64).read_to_end(&mut head).map_err(fail)?;
    let is_trace = head.starts_with(b"go 1.");
    match profile {
        Some(_) if is_trace => {
            let what = "the reply is an execution trace: save it under another name, then use \
                        triscope go profile";
            return Err(Failure::about(&name, what));
        }
        Some(format) => {
            drop(output);
            return self::profile(args, format, &name, head, body);
        }
        None if is_trace => {}
        None => {
            let what = "the reply is not a Go execution trace";
            let failure = Failure::about(&name, what);
            return Err(match head.starts_with(&GZIP) {
                true => failure.and("a profile needs a name such as FILE.pb.gz or FILE.svg"),
                false => failure,
            });
        }
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

/// The first bytes of a compressed reply.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Writes a profile of the program. Half a profile has other shares than all of it: it is refused.
fn profile(args: &Args, format: Format, url: &str, head: Vec<u8>, body: impl Read) -> Result {
    let fail = |error: io::Error| Failure::about(url, error);
    let limit = ReadLimits::default().bytes as u64;
    let mut data = head;
    body.take(limit).read_to_end(&mut data).map_err(fail)?;
    let loaded = of_pprof(url, &data, args.samples.as_deref())?;
    if format != Format::Pprof {
        let remark = format!(", by {}", OneLine(&loaded.name));
        return ProfileFile::create(&args.output)?.write(
            &loaded.profile,
            &loaded.tables,
            url,
            &remark,
        );
    }
    let mut output = OutputFile::create(&args.output, &[])?;
    let mut writer = output.writer()?;
    let written = writer.write_all(&data).and_then(|()| writer.flush());
    drop(writer);
    written.map_err(|error| output.failure(&error))?;
    let name = output.name();
    output.complete()?;
    eprintln!("{name}: {}", size(data.len() as u64));
    Ok(())
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
