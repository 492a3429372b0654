//! Profiles of the goroutines of one function and of the regions of one type, compared with those
//! that the web server of `go tool trace` gives. It has none of tasks or times.

use super::Tools;
use super::analyses::{printed_samples, sorted};
use super::toolchain::Toolchain;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use task_support::{Result, run};

/// The workloads with regions that are compared.
const WORKLOADS: [&str; 2] = ["shop", "annotations"];

/// The releases whose traces are compared. Those of Go 1.21 begin at a negative time, where the
/// reference leaves out the regions that are open at the start.
const RELEASES: [u32; 2] = [22, 24];

/// Our name of a profile, and its path on the server.
const PROFILES: [(&str, &str); 4] =
    [("net", "io"), ("sync", "block"), ("syscall", "syscall"), ("sched", "sched")];

/// Compares the profiles of each function and region type; returns the number of differences.
pub(crate) fn check(tools: &Tools, toolchains: &[Toolchain]) -> Result<usize> {
    let mut sum = Found::default();
    let mut toolchains = toolchains.to_vec();
    toolchains.retain(|toolchain| RELEASES.contains(&toolchain.minor()));
    let traces = tools.traces(&toolchains, &[], &WORKLOADS.map(str::to_owned));
    for (name, trace) in &traces {
        let found = compare(tools, trace)?;
        for difference in &found.differences {
            println!("DIFFERENT: {name}: {difference}");
        }
        sum.profiles += found.profiles;
        sum.samples += found.samples;
        sum.differences.extend(found.differences);
    }
    let Found { profiles, samples, differences } = sum;
    println!(
        "profiles of functions and regions: {profiles} of {} traces, {samples} samples of the \
         reference, {} differences",
        traces.len(),
        differences.len()
    );
    if samples == 0 { Err("no profile has samples".into()) } else { Ok(differences.len()) }
}

#[derive(Default)]
struct Found {
    profiles: usize,
    samples: usize,
    differences: Vec<String>,
}

fn compare(tools: &Tools, trace: &Path) -> Result<Found> {
    let mut found = Found::default();
    let server = Server::start(&tools.trace_tool, trace)?;
    let names = |command: &str, field: &str| -> Result<Vec<String>> {
        let mut list = Command::new(&tools.triscope);
        list.args(["go", command, "--json"]).arg(trace);
        let rows: Vec<Value> = serde_json::from_slice(&run::output(&mut list)?)?;
        let names = rows.iter().filter_map(|row| row[field].as_str());
        Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    };
    for (option, prefix, parameter, names) in [
        ("--goroutine", "", "name", names("goroutines", "entry")?),
        ("--region", "region", "type", names("regions", "type")?),
    ] {
        for name in names {
            for (kind, path) in PROFILES {
                let query = format!("/{prefix}{path}?raw=1&{parameter}={}", escaped(&name));
                let theirs = sorted(printed_samples(tools, kind, &server.get(&query)?)?);
                let ours = ours(tools, trace, &["go", "profile", kind, option, &name])?;
                found.profiles += 1;
                found.samples += theirs.len();
                if ours != theirs {
                    found.differences.push(format!("{kind} {option} {name}: {ours:?}, {theirs:?}"));
                }
            }
        }
    }
    Ok(found)
}

/// The samples of our profile; none if there is none.
fn ours(tools: &Tools, trace: &Path, args: &[&str]) -> Result<Vec<String>> {
    let profile = tempfile::Builder::new().suffix(".pb.gz").tempfile()?;
    let mut command = Command::new(&tools.triscope);
    let output = run::attempt(command.args(args).arg(trace).arg("-o").arg(profile.path()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return match error.contains("the trace contains no such delay") {
            true => Ok(Vec::new()),
            false => Err(error.into()),
        };
    }
    let kind = args.get(2).copied().unwrap_or_default();
    Ok(sorted(printed_samples(tools, kind, &fs::read(profile.path())?)?))
}

/// `go tool trace` as a web server. It is killed when it is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(trace_tool: &Path, trace: &Path) -> Result<Self> {
        let mut command = Command::new(trace_tool);
        command.arg("-http=127.0.0.1:0").arg(trace).stderr(Stdio::piped()).stdout(Stdio::null());
        command.env("BROWSER", "true"); // the program that is to show the page
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let mut server = Self { child, address: String::new() };
        let mut text = String::new();
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            if let Some((_, address)) = line.split_once("listening on http://") {
                server.address = address.trim_end_matches('/').to_owned();
                return Ok(server);
            }
            text.push_str(&line);
        }
        Err(format!("go tool trace does not serve: {text}").into())
    }

    /// The body of the response to a request.
    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address)?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        let end = response.windows(4).position(|window| window == b"\r\n\r\n");
        let body = response.split_off(end.ok_or("no response")? + 4);
        let head = String::from_utf8_lossy(&response);
        if head.split_whitespace().nth(1) == Some("200") {
            Ok(body)
        } else {
            Err(format!("{path}: {head}{}", String::from_utf8_lossy(&body)).into())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// A name in a query, percent-encoded.
fn escaped(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02x}")).collect()
}
