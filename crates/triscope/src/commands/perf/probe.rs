//! `triscope perf probe`.
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets of the help are no links")]

use crate::failure::{Failure, OneLine, Result};
use crate::io::regular;
use crate::io::stdout::Output;
use crate::sources::kernel::{failure, tracefs};
use perf_monitor::probe::{self, ElfFile, Probe, ProbeBuilder, ProbeDefinition};
use perf_monitor::{Error, Tracefs};
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Add, list and delete probes of the kernel and of programs
///
/// PROBE is [[GROUP:]EVENT=]FUNCTION[+OFFSET|%return] [[NAME=]ARGUMENT]..., as one word of the shell:
/// quote it. ARGUMENT is a fetch argument of the kernel: $argN, $retval, $comm, %REGISTER, @SYMBOL,
/// +OFFSET(ARGUMENT), with an optional type such as :s32, :x64, :string or :ustring. In programs,
/// $argN is the register of argument N. Rust functions can be written as crate::module::function.
///
/// The probes stay until they are deleted, and any program can use them by the printed name.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf probe 'do_sys_openat2 path=+0($arg2):ustring'
  triscope perf probe 'do_sys_openat2%return fd=$retval:s32'
  triscope perf probe -x /bin/bash 'readline%return line=+0($retval):string'
  triscope perf probe -x ./server 'server::handle id=$arg1'
  triscope perf probe -x /usr/lib/libc.so.6 'sdt_libc:setjmp'
  triscope perf probe --list
  triscope perf probe --del 'probe:do_sys_*'

Needs root. Lines and variables of the source are not understood: debug information is not read.")]
pub(crate) struct Args {
    /// Probes to add
    #[arg(value_name = "PROBE")]
    probe: Vec<String>,
    /// Add a probe; can be repeated
    #[arg(short, long, value_name = "PROBE")]
    add: Vec<String>,
    /// Delete the probes whose [GROUP:]EVENT matches; * and ? are wildcards; can be repeated
    #[arg(short, long, value_name = "EVENT")]
    del: Vec<String>,
    /// List the probes, or those whose [GROUP:]EVENT matches
    #[arg(short, long, value_name = "EVENT", num_args = 0..=1, default_missing_value = "*")]
    list: Option<String>,
    /// Probe the program or library FILE instead of the kernel
    #[arg(short = 'x', long, value_name = "FILE")]
    exec: Option<PathBuf>,
    /// Look up FILE in the mount namespace of process PID
    #[arg(long, value_name = "PID", requires = "exec")]
    in_process: Option<u32>,
    /// Add the probe with another name if its name exists
    #[arg(short, long)]
    force: bool,
    /// Print what would be added, without adding it
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON, one object per line, with --list
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let to_add: Vec<&String> = args.add.iter().chain(&args.probe).collect();
    if to_add.is_empty() && args.del.is_empty() && args.list.is_none() {
        let what = "nothing to do: pass a PROBE to add, --del EVENT or --list";
        return Err(Failure::new(what).with_code(2));
    }
    let tracefs = tracefs().map_err(failure)?;
    let mut out = Output::new();
    for pattern in &args.del {
        delete(&tracefs, pattern, &mut out)?;
    }
    if !to_add.is_empty() {
        add(args, &to_add, &tracefs, &mut out)?;
    }
    if let Some(pattern) = &args.list {
        list(&tracefs, pattern, args.json, &mut out)?;
    }
    out.finish()
}

fn add(args: &Args, texts: &[&String], tracefs: &Tracefs, out: &mut Output) -> Result {
    let file = args.exec.as_deref();
    let builders = texts
        .iter()
        .map(|text| {
            let mut builder = Probe::parse(text, file)?.tracefs(tracefs).perf_names();
            if let Some(pid) = args.in_process {
                builder = builder.in_process(pid);
            }
            Ok(builder)
        })
        .collect::<perf_monitor::Result<Vec<_>>>()
        .map_err(failure)?;
    if args.dry_run {
        for builder in &builders {
            for definition in builder.definitions().map_err(failure)? {
                let _ = writeln!(out.buffer, "{definition}");
            }
        }
        return out.write();
    }
    let mut last = None;
    for builder in builders {
        let event = create(builder, args.force).map_err(failure)?.keep();
        let _ = writeln!(out.buffer, "Added new event: {event}");
        out.write()?;
        last = Some(event);
    }
    if let Some(event) = last {
        message!(
            "Use it in all perf tools, such as: triscope perf trace -e {event} -a --seconds 10"
        );
    }
    Ok(())
}

/// Creates it, with `force` under the next free name.
fn create(builder: ProbeBuilder, force: bool) -> perf_monitor::Result<Probe> {
    const MOST: u32 = 1024;
    let mut result = builder.create();
    for n in 1..MOST {
        let Err(Error::ProbeExists { name }) = &result else { break };
        if !force {
            break;
        }
        let name = name.rsplit_once(':').map_or(name.as_str(), |(_, name)| name);
        let base = if n == 1 { name } else { name.rsplit_once('_').map_or(name, |(base, _)| base) };
        result = builder.clone().name(format!("{base}_{n}")).create();
    }
    result
}

fn delete(tracefs: &Tracefs, pattern: &str, out: &mut Output) -> Result {
    let mut probes = probe::list_matching(tracefs, pattern).map_err(failure)?;
    // An event with several places is one event. Other events can be between them.
    probes.sort_by(|a, b| (&a.group, &a.name).cmp(&(&b.group, &b.name)));
    probes.dedup_by(|a, b| (&a.group, &a.name) == (&b.group, &b.name));
    if probes.is_empty() {
        return Err(Failure::new(format!("no probe matches {pattern:?}")));
    }
    for probe in &probes {
        probe::delete(tracefs, probe).map_err(failure)?;
        let _ = writeln!(out.buffer, "Removed event: {}:{}", probe.group, probe.name);
        out.write()?;
    }
    Ok(())
}

fn list(tracefs: &Tracefs, pattern: &str, as_json: bool, out: &mut Output) -> Result {
    let mut files = HashMap::new();
    for probe in probe::list_matching(tracefs, pattern).map_err(failure)? {
        let place = place(&probe, &mut files);
        let names: Vec<&str> = probe.arguments.iter().map(|(name, _)| name.as_str()).collect();
        if as_json {
            let arguments: serde_json::Map<_, _> =
                probe.arguments.iter().map(|(n, fetch)| (n.clone(), json!(fetch))).collect();
            let object = json!({
                "event": format!("{}:{}", probe.group, probe.name),
                "kind": probe.kind.to_string(),
                "location": probe.location,
                "function": place.function,
                "file": place.file,
                "arguments": arguments,
            });
            let _ = writeln!(out.buffer, "{object}");
        } else {
            let event = format!("{}:{}", probe.group, probe.name);
            let mut on = place.function.as_deref().unwrap_or(&probe.location).to_owned();
            if probe.kind.is_return() {
                on.push_str("%return");
            }
            if let (Some(file), Some(_)) = (&place.file, &place.function) {
                on.push_str(&format!(" in {file}"));
            }
            let with = if names.is_empty() { "" } else { " with " };
            let line = format!("  {event:<20} (on {on}{with}{})", names.join(" "));
            let _ = writeln!(out.buffer, "{}", OneLine(&line));
        }
        out.write_if_full()?;
    }
    Ok(())
}

/// The function of a probe, as far as it is known, and its file.
struct Place {
    function: Option<String>,
    file: Option<String>,
}

fn place(probe: &ProbeDefinition, files: &mut HashMap<String, Option<ElfFile<File>>>) -> Place {
    if !probe.kind.is_user() {
        return Place { function: Some(probe.location.clone()), file: None };
    }
    let Some((file, offset)) = probe.location.rsplit_once(':') else {
        return Place { function: None, file: None };
    };
    // Behind it can be the offset of a semaphore.
    let digits = offset.split('(').next().unwrap_or(offset).trim_start_matches("0x");
    let open = || ElfFile::new(regular::open(Path::new(file)).ok()?, Path::new(file)).ok();
    let elf = files.entry(file.to_owned()).or_insert_with(open);
    let function = u64::from_str_radix(digits, 16)
        .ok()
        .and_then(|offset| elf.as_mut()?.function_at(offset))
        .map(|(name, inside)| if inside == 0 { name } else { format!("{name}+{inside:#x}") });
    Place { function, file: Some(file.to_owned()) }
}
