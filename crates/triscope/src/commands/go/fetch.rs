use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::profile_file::{ProfileFile, title};
use crate::run::http::{self, Url};
use crate::run::stop::Listener;
use crate::sources::profile::of_pprof;
use crate::timeline::size;
use gotrace::Version;
use std::io::{self, Read, Write};
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

const DEFAULT: &str = "/debug/pprof/trace?seconds=5";

/// Bytes of a trace that are in memory at a time.
const CHUNK: usize = 1 << 16;

fn parse(text: &str) -> std::result::Result<Url, String> {
    Url::parse(text, DEFAULT)
}

pub(super) fn run(args: &Args) -> Result {
    let Url { host, target, .. } = &args.url;
    let name = args.url.to_string();
    let profile = Format::of(&args.output);
    if args.samples.is_some() && matches!(profile, None | Some(Format::Pprof)) {
        let what = "--samples selects what is shown: it needs .svg, .folded or .speedscope.json";
        return Err(Failure::new(what).with_code(2));
    }
    let mut output = OutputFile::create(&args.output, &[])?;
    let fail = |error: io::Error| Failure::about(&name, error);
    let addresses = args.url.addresses().map_err(fail)?;
    let stream = http::connect(&addresses, None).map_err(fail)?;
    let connection = stream.try_clone().map_err(fail)?;
    // A program can hold back all of a reply until it ends.
    let _listener = Listener::stop(move || http::end(&connection))?;
    http::send(&stream, host, target).map_err(fail)?;
    let mut body = http::reply(&stream, None).map_err(fail)?;
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
    writer.write_all(&head).map_err(|error| output.failure(&error))?;
    let (mut chunk, mut bytes) = (vec![0; CHUNK], head.len() as u64);
    let received = loop {
        match body.read(&mut chunk) {
            Ok(0) => break Ok(()),
            Ok(size) => {
                // The file that was there before stays if this one cannot be written.
                let written = writer.write_all(chunk.get(..size).unwrap_or_default());
                written.map_err(|error| output.failure(&error))?;
                bytes += size as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    writer.flush().map_err(|error| output.failure(&error))?;
    drop(writer);
    let name = output.name();
    output.complete()?;
    message!("{name}: {}", size(bytes));
    // A program that ends closes the connection in one way or another: what came is kept.
    received.map_err(|error| Failure::about(name, format_args!("truncated: {error}")))
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
            &title(url),
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
    message!("{name}: {}", size(data.len() as u64));
    Ok(())
}
