use crate::failure::{Failure, Result};
use crate::io::stdout::Output;
use crate::sources::kernel::{failure, tracefs};
use perf_monitor::{Event, Hardware, KernelFeatures, Pmu, Software, Target};
use serde_json::json;
use std::io::Write as _;

/// List the events that this machine can count and sample
///
/// Hardware and cache events are listed if they can be opened here; tracepoints if tracefs is
/// readable.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf list              everything
  triscope perf list sched:       tracepoints of the scheduler
  triscope perf list --features   what this kernel can do for this user")]
pub(crate) struct Args {
    /// Only events whose names contain WORD
    #[arg(value_name = "WORD", default_value = "")]
    word: String,
    /// Show the kernel features available to this user instead
    #[arg(long)]
    features: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut out = Output::new();
    let result = if args.features { features(args.json, &mut out) } else { events(args, &mut out) };
    result.and(out.finish())
}

fn events(args: &Args, out: &mut Output) -> Result {
    let mut shown = 0;
    let mut named = |out: &mut Output, names: &[&str], kind: &str| {
        let is_shown = names.iter().any(|name| name.contains(&args.word));
        if let (true, Some((name, aliases))) = (is_shown, names.split_first()) {
            let text = names.join(" or ");
            shown += 1;
            // Writing to a vector does not fail.
            let _ = match args.json {
                true => {
                    let line = json!({ "name": name, "aliases": aliases, "kind": kind });
                    writeln!(out.buffer, "{line}")
                }
                false => writeln!(out.buffer, "{text:<50} {kind}"),
            };
        }
        out.write_if_full()
    };
    let opens = |event: &Event| {
        event.builder().exclude_kernel(true).exclude_hv(true).open(Target::ThisThread).is_ok()
    };
    for (event, names) in Hardware::ALL {
        if opens(&Event::hardware(*event)) {
            named(out, names, "hardware")?;
        }
    }
    for (_, names) in Software::ALL {
        named(out, names, "software")?;
    }
    for event in Event::all_cache().filter(opens) {
        named(out, &[event.name()], "cache")?;
    }
    for name in Pmu::names().unwrap_or_default() {
        let Ok(pmu) = Pmu::open(&name) else { continue };
        for event in pmu.events() {
            named(out, &[&format!("{name}/{event}/")], "PMU")?;
        }
    }
    let mut unreadable = None;
    match tracefs().and_then(|tracefs| tracefs.events()) {
        Ok(tracepoints) => {
            for name in tracepoints {
                named(out, &[&name], "tracepoint")?;
            }
        }
        Err(error) => unreadable = Some(error),
    }
    // The syntax of events is not the name of one.
    if !args.json {
        named(out, &["rNNN"], "raw event number of the CPU's manual, hexadecimal")?;
        named(out, &["mem:ADDRESS[/LENGTH][:r|w|rw|x]"], "breakpoint")?;
        named(out, &["kprobe:SYMBOL[+OFFSET], uprobe:FILE:OFFSET"], "probe")?;
    }
    out.write()?;
    if let Some(error) = unreadable {
        message!("triscope: tracepoints are not listed: {error}");
    }
    if shown == 0 {
        return Err(Failure::new(format!("no event's name contains {:?}", args.word)));
    }
    Ok(())
}

fn features(as_json: bool, out: &mut Output) -> Result {
    let features = KernelFeatures::probe();
    if let Some(errno) = features.refused {
        let plainest = Event::software(Software::Dummy).builder().exclude_kernel(true);
        let error = plainest.exclude_hv(true).open(Target::ThisThread);
        return Err(error
            .map_or_else(failure, |_| Failure::new(format!("events cannot be opened: {errno}"))));
    }
    let number = |n: Option<i64>| n.map_or("unknown".to_owned(), |n| n.to_string());
    let names = |flags: &mut dyn Iterator<Item = &'static str>| {
        flags.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
    };
    let attr = features.attr_size.map_or("unknown".to_owned(), |n| format!("{n} bytes"));
    let tracefs = match &features.tracefs {
        Some(tracefs) if features.tracefs_readable => tracefs.root().display().to_string(),
        Some(tracefs) => format!("{}, not readable", tracefs.root().display()),
        None if tracefs().is_ok() => "not mounted, but of this program's own".to_owned(),
        None => "not mounted".to_owned(),
    };
    let lines = [
        ("kernel", features.version.to_string()),
        ("perf_event_attr", attr),
        ("flags", features.flags.join(" ")),
        ("sample fields", names(&mut features.sample.iter_names().map(|(n, _)| n))),
        ("read formats", names(&mut features.read_format.iter_names().map(|(n, _)| n))),
        ("PMUs", features.pmus.join(" ")),
        ("hardware counters", if features.hardware { "yes" } else { "no" }.to_owned()),
        ("tracefs", tracefs),
        ("privileged", if features.privileged { "yes" } else { "no" }.to_owned()),
        ("perf_event_paranoid", number(features.paranoid)),
        ("perf_event_max_sample_rate", number(features.max_sample_rate)),
        ("perf_event_mlock_kb", number(features.mlock_kb)),
    ];
    if as_json {
        let object = lines.into_iter().map(|(name, text)| (name.to_owned(), text.into()));
        let mut object: serde_json::Map<_, _> = object.collect();
        let values = [
            ("perf_event_attr", json!(features.attr_size)),
            ("hardware counters", json!(features.hardware)),
            ("privileged", json!(features.privileged)),
            ("perf_event_paranoid", json!(features.paranoid)),
            ("perf_event_max_sample_rate", json!(features.max_sample_rate)),
            ("perf_event_mlock_kb", json!(features.mlock_kb)),
        ];
        object.extend(values.map(|(name, value)| (name.to_owned(), value)));
        let _ = writeln!(out.buffer, "{}", serde_json::Value::from(object));
        return Ok(());
    }
    for (name, value) in lines {
        let _ = writeln!(out.buffer, "{name:<27} {value}");
    }
    Ok(())
}
