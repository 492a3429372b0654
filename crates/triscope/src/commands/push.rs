//! `triscope push`: profiles to servers.

use crate::failure::{Failure, OneLine, Result};
use crate::run::http::{self, Url};
use crate::run::serve::encoded;
use crate::sources::profile::{Loaded, load};
use crate::timeline::counted;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trace_common::Cursor;
use trace_export::profile::{Format, Profile};

/// Send profiles to a server of profiles: Pyroscope, or any receiver of OpenTelemetry
///
/// Reads what triscope diff reads: pprof files (.pb.gz), folded stacks, speedscope files, and traces
/// with samples: perf.data, Go and .NET traces. Nothing is sent if one of the files cannot be read.
///
/// Servers with TLS or authentication are reached through an agent on this machine, such as Grafana
/// Alloy or the OpenTelemetry Collector. Profiles of OpenTelemetry are in alpha: their format is that of
/// opentelemetry-proto 1.10, and other versions may refuse or misread it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope push cpu.pb.gz --service shop --pyroscope http://localhost:4040
  triscope push samples.data --service shop --label env=staging --otlp http://localhost:4318")]
#[command(group = clap::ArgGroup::new("server").required(true).multiple(true))]
pub(crate) struct Args {
    /// The profiles; - is standard input
    #[arg(value_name = "PROFILE", required = true)]
    profiles: Vec<PathBuf>,
    /// A server with the HTTP API of Pyroscope; without a path, /ingest
    #[arg(long, value_name = "URL", group = "server", value_parser = pyroscope)]
    pyroscope: Option<Url>,
    /// A receiver of OTLP over HTTP; without a path, /v1development/profiles
    #[arg(long, value_name = "URL", group = "server", value_parser = otlp)]
    otlp: Option<Url>,
    /// The name of the service that was profiled
    #[arg(long, value_name = "NAME", value_parser = name)]
    service: String,
    /// A label of the profiles, such as env=staging; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// The samples to send: a sample type of pprof files, an event of traces [default: the default
    /// of a pprof file, the event with most samples of a trace]
    #[arg(long, value_name = "NAME")]
    samples: Option<String>,
}

/// Time limit for each part of an exchange.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a reply that are read.
const MAX_REPLY: u64 = 64 << 10;

fn pyroscope(text: &str) -> std::result::Result<Url, String> {
    let url = Url::parse(text, "/ingest")?;
    if url.target.contains(['?', '#']) {
        return Err("the query of the URL is that of the profile".to_owned());
    }
    Ok(url)
}

fn otlp(text: &str) -> std::result::Result<Url, String> {
    Url::parse(text, "/v1development/profiles")
}

/// The name of a service: what Pyroscope takes, whose labels follow in braces.
fn name(text: &str) -> std::result::Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    match text.is_empty() || !text.chars().all(is_good) {
        true => Err("letters, digits, '.', '_', '-' and '/' are expected".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn label(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !key.starts_with(is_letter) || !key.chars().all(|c| is_letter(c) || c.is_ascii_digit()) {
        return Err("the key has letters, digits and '_', and begins with no digit".to_owned());
    }
    if value.is_empty() || value.chars().any(|c| "{},=\"".contains(c) || c.is_control()) {
        return Err(
            "the value must not be empty, and has no braces, commas, '=' and quotes".to_owned()
        );
    }
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn run(args: &Args) -> Result {
    let mut loaded = Vec::new();
    for path in &args.profiles {
        let mut read = load(path, args.samples.as_deref())?;
        if read.profile.count() == 0 {
            return Err(Failure::about(path.display(), "the profile is empty"));
        }
        set_time(&mut read.profile, now());
        loaded.push((path, read));
    }
    for (path, profile) in &loaded {
        if let Some(url) = &args.pyroscope {
            push_pprof(args, path, profile, url)?;
        }
        if let Some(url) = &args.otlp {
            push_otlp(args, path, profile, url)?;
        }
    }
    Ok(())
}

/// A profile that does not know when it was ends `now`.
fn set_time(profile: &mut Profile, now: Duration) {
    if let (0, duration) = profile.span() {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        // Not since 1970, which would be a time that is not known.
        let duration = duration.min(now.saturating_sub(1));
        profile.set_span(now - duration, duration);
    }
}

/// Source: "Server HTTP API" in the documentation of Grafana Pyroscope.
fn push_pprof(args: &Args, path: &Path, loaded: &Loaded, url: &Url) -> Result {
    let Loaded { profile, tables, .. } = loaded;
    let fail = |error: std::io::Error| Failure::about(url, error);
    let mut content = Vec::new();
    profile.write(Format::Pprof, &args.service, tables, &mut content).map_err(fail)?;
    let labels: Vec<_> = args.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let name = match labels.is_empty() {
        true => args.service.clone(),
        false => format!("{}{{{}}}", args.service, labels.join(",")),
    };
    let (start, duration) = profile.span();
    let seconds = |nanos| Duration::from_nanos(nanos).as_secs();
    let from = seconds(start);
    // A shorter profile still has a span.
    let until = seconds(start.saturating_add(duration)).max(from + 1);
    let mut to = url.clone();
    to.target = format!(
        "{}?name={}&from={from}&until={until}&format=pprof&spyName=triscope",
        url.target,
        encoded(&name)
    );
    http::post(&to, "application/octet-stream", &content, MAX_REPLY, TIMEOUT).map_err(fail)?;
    sent(path, loaded, url);
    Ok(())
}

/// Source: "OTLP/HTTP" of the specification of OTLP 1.10.
fn push_otlp(args: &Args, path: &Path, loaded: &Loaded, url: &Url) -> Result {
    let Loaded { profile, tables, .. } = loaded;
    let fail = |error: std::io::Error| Failure::about(url, error);
    let mut resource = vec![("service.name", args.service.as_str())];
    resource.extend(args.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let mut content = Vec::new();
    profile.write_otlp(&resource, tables, &mut content).map_err(fail)?;
    let reply =
        http::post(url, "application/x-protobuf", &content, MAX_REPLY, TIMEOUT).map_err(fail)?;
    let partial = partial_success(&reply);
    let (rejected, why) = partial.ok_or_else(|| {
        Failure::about(
            url,
            "the reply is not that of a receiver of OTLP: was it sent to another service?",
        )
    })?;
    if rejected > 0 {
        let rejected = counted(rejected, "profile");
        return Err(Failure::about(url, format_args!("the server rejects {rejected}: {why}")));
    }
    if !why.is_empty() {
        message!("triscope: {url}: {}", OneLine(&why));
    }
    sent(path, loaded, url);
    Ok(())
}

fn sent(path: &Path, loaded: &Loaded, url: &Url) {
    let samples = counted(loaded.profile.count(), "sample");
    let (path, name) = (path.display().to_string(), OneLine(&loaded.name));
    message!("{}: {samples} of {name} sent to {url}", OneLine(&path));
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The number of rejected profiles and the text of an `ExportProfilesServiceResponse`. `None` if it is
/// not one.
fn partial_success(reply: &[u8]) -> Option<(u64, String)> {
    let (mut rejected, mut why) = (0, String::new());
    each_field(reply, &mut |field, value| {
        let Field::Bytes(partial) = value else { return None };
        if field != 1 {
            return Some(());
        }
        each_field(partial, &mut |field, value| {
            match (field, value) {
                (1, Field::Int(number)) => rejected = number,
                (2, Field::Bytes(text)) => why = String::from_utf8_lossy(text).into_owned(),
                (1 | 2, _) => return None,
                _ => {}
            }
            Some(())
        })
    })?;
    Some((rejected, why))
}

enum Field<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

/// Calls `each` with the fields of a message of protobuf. `None` if it is not one.
fn each_field<'a>(
    message: &'a [u8],
    each: &mut impl FnMut(u64, Field<'a>) -> Option<()>,
) -> Option<()> {
    let mut cursor = Cursor::new(message);
    while !cursor.is_empty() {
        let key = cursor.uvarint().ok()?;
        let value = match key & 7 {
            0 => Field::Int(cursor.uvarint().ok()?),
            2 => {
                let len = usize::try_from(cursor.uvarint().ok()?).ok()?;
                Field::Bytes(cursor.sub(len).ok()?.rest())
            }
            _ => return None,
        };
        each(key >> 3, value)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_export::profile::{Measure, Unit};

    #[test]
    fn labels_have_a_key_and_a_value() {
        assert_eq!(label("env=a b/c"), Ok(("env".to_owned(), "a b/c".to_owned())));
        for bad in ["env", "=a", "env=", "1=a", "a-b=c", "a=b,c", "a={b}", "a=\"b\"", "a=b=c"] {
            assert!(label(bad).is_err(), "{bad}");
        }
        assert!(name("shop/a.b-c_d").is_ok());
        for bad in ["", "a b", "a{b=c}"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn profiles_without_a_time_end_now() {
        let measure = Measure {
            events: "samples".into(),
            weight: "samples".into(),
            unit: Unit::Count,
            period: 0,
        };
        let mut profile = Profile::new(measure);
        profile.set_span(0, 2_000_000_000);
        let now = Duration::from_secs(1_800_000_000);
        set_time(&mut profile, now);
        let span = (1_799_999_998_000_000_000, 2_000_000_000);
        assert_eq!(profile.span(), span);
        set_time(&mut profile, now * 2);
        assert_eq!(profile.span(), span, "its time is known");
    }

    #[test]
    fn replies_of_receivers() {
        assert_eq!(partial_success(b""), Some((0, String::new())));
        assert_eq!(partial_success(b"\x0a\x00"), Some((0, String::new())));
        assert_eq!(partial_success(b"\x0a\x06\x08\x01\x12\x02no"), Some((1, "no".to_owned())));
        for bad in [&b"<html>"[..], b"{}", b"\x0a\x06", b"\x08\x01", b"\x0a\x02\x0a\x00"] {
            assert_eq!(partial_success(bad), None, "{bad:?}");
        }
    }
}
