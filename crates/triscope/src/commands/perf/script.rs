use super::Recording;
use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use crate::sources::recording::{SampleOf, State, read};
use crate::sources::symbols::{mode_of, put_place};
use perf_monitor::{CpuMode, PrintFormat, TracepointFormat};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;

#[cfg(test)]
mod tests;

/// Print the samples of a recording, as perf script does
///
/// A line has the thread's name and id, the CPU, the time, the period, the event, and for a tracepoint
/// its text; then the address with its symbol and file, or the call chain in lines of its own.
/// Callers in user space of --call-graph dwarf are found by unwind tables, as far as perf script does;
/// those of --call-graph lbr are not shown, and counted.
/// Addresses of a program or kernel that is not that of the recording have no symbols.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf script                       perf.data
  triscope perf script other.data
  triscope perf record -o - -a -- sleep 1 | triscope perf script -")]
pub(crate) struct Args {
    #[command(flatten)]
    recording: Recording,
    /// Times in nanoseconds
    #[arg(long)]
    ns: bool,
    /// Names of symbols as they are in the file. Otherwise those of Rust and C++ are demangled
    #[arg(long)]
    no_demangle: bool,
}

/// The texts of the tracepoints of a recording, by their numbers.
#[derive(Default)]
struct Tracepoints {
    formats: HashMap<u64, (TracepointFormat, Option<PrintFormat>)>,
    /// Texts of the kernel by their addresses.
    texts: HashMap<u64, String>,
    is_read: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut out = Output::new();
    let mut tracepoints = Tracepoints::default();
    let mut line = String::new();
    let result = read(args.recording.path(), |sample, state| {
        tracepoints.take_from(sample);
        line.clear();
        // Writing to a string does not fail.
        let _ = put(&mut line, args, sample, state, &tracepoints);
        let _ = out.buffer.write_all(line.as_bytes());
        out.write_if_full()
    });
    out.finish().and(result?.outcome())
}

fn put(
    line: &mut String,
    args: &Args,
    of: &SampleOf<'_>,
    state: &State,
    tracepoints: &Tracepoints,
) -> std::fmt::Result {
    let sample = of.sample;
    let comm = of.comm(state);
    let comm = OneLine(&comm);
    match sample.callchain {
        Some(_) => write!(line, "{comm}")?,
        None => write!(line, "{:>16}", comm.to_string())?,
    }
    if let Some(tid) = sample.tid {
        write!(line, " {:>5}", tid as i32)?;
    }
    if let Some(cpu) = sample.cpu {
        write!(line, " [{cpu:03}]")?;
    }
    if let Some(time) = sample.time {
        let nanos = time.nanos();
        let (seconds, nanos) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
        match args.ns {
            true => write!(line, " {seconds:>5}.{nanos:09}:")?,
            false => write!(line, " {seconds:>5}.{:06}:", nanos / 1000)?,
        }
    }
    let attr = of.session.events().get(of.event).map(|event| event.attr).unwrap_or_default();
    let tracepoint = tracepoints.formats.get(&attr.config).filter(|_| attr.type_ == TRACEPOINT);
    if tracepoint.is_none() {
        // Without the field, it is that of the event.
        write!(line, " {:>10}", sample.period.unwrap_or(attr.sample_period))?;
    }
    let width = of.session.events().iter().map(|event| event.name.len()).max().unwrap_or(0);
    write!(line, " {:>width$}:", OneLine(of.event_name()).to_string())?;
    if let Some((format, print)) = tracepoint {
        let raw = sample.raw.unwrap_or_default();
        match print {
            Some(print) => {
                let names = |address| {
                    let of_kernel = || state.symbols.as_ref()?.kernel_name(address);
                    tracepoints.texts.get(&address).cloned().or_else(of_kernel)
                };
                write!(line, " {}", print.display(raw, &names))?;
            }
            None => {
                for field in format.fields() {
                    let name = OneLine(field.name());
                    match field.value(raw) {
                        Some(value) => write!(line, " {name}={value}")?,
                        None => write!(line, " {name}=?")?,
                    }
                }
            }
        }
    }
    let Some(symbols) = &state.symbols else { return line.write_char('\n') };
    let pid = sample.pid.unwrap_or(0);
    match sample.callchain {
        Some(chain) => {
            line.push('\n');
            let frames = chain.frames();
            let mut frames: Vec<(u64, CpuMode)> = frames
                .filter_map(|frame| Some((frame.ip, mode_of(frame.context, of.mode)?)))
                .collect();
            let unwound = state.unwind(sample);
            if unwound.is_none() && attr.exclude_callchain_user() {
                state.count_without_callers();
            }
            let unwound = unwound.unwrap_or_default();
            // A return address is after the call, which can be the end of its function.
            let calls = unwound.iter().skip(1).map(|address| address.wrapping_sub(1));
            frames.extend(
                unwound.first().copied().into_iter().chain(calls).map(|ip| (ip, CpuMode::User)),
            );
            if frames.is_empty() {
                frames.extend(sample.ip.map(|ip| (ip, of.mode)));
            }
            for (ip, mode) in frames {
                let place = symbols.at(pid, ip, mode);
                write!(line, "\t{:>16x}", place.address)?;
                put_place(line, &place, !args.no_demangle)?;
                line.push('\n');
            }
        }
        None if tracepoint.is_none() => {
            if let Some(ip) = sample.ip {
                write!(line, "  {ip:>16x}")?;
                put_place(line, &symbols.at(pid, ip, of.mode), !args.no_demangle)?;
            }
        }
        None => {}
    }
    line.write_char('\n')
}

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;

impl Tracepoints {
    /// Reads the formats of the recording, which are there before the first sample.
    fn take_from(&mut self, sample: &SampleOf<'_>) {
        if std::mem::replace(&mut self.is_read, true) {
            return;
        }
        let Some(tracing) = &sample.session.features().tracing else { return };
        for format in tracing.formats() {
            let print = PrintFormat::new(&format).ok();
            self.formats.insert(format.id(), (format, print));
        }
        // 0xffffffff81234567 : "text"
        for line in String::from_utf8_lossy(&tracing.printk_formats).lines() {
            let Some((address, text)) = line.split_once(" : ") else { continue };
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
            if let Ok(address) = address {
                let text = text.trim_matches('"').replace("\\n", "").replace("\\\"", "\"");
                self.texts.insert(address, text);
            }
        }
    }
}
