//! The running machine: its features, clocks and tracepoints.

use crate::error::{Error, Result};
use crate::features::{ClockReference, CpuTopology, Cpus, Features};
use crate::tracing::TracingData;
use perf_monitor::{Pmu, Tracefs};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use trace_common::ClockDomain;

impl ClockReference {
    /// Reads the clocks, so that a moment without a CPU between the readings does not count. `None` for
    /// the perf clock, which cannot be read.
    pub fn now(clock: ClockDomain) -> Option<Self> {
        const READINGS: usize = 5;
        let clock_id = perf_monitor::clock_id(clock)? as u32;
        let reading = |_| {
            let before = perf_monitor::now(clock)?;
            let realtime = perf_monitor::now(ClockDomain::Realtime)?;
            let after = perf_monitor::now(clock)?;
            Some((after.nanos_since(before), realtime, before))
        };
        let (_, realtime, clock) = (0..READINGS).filter_map(reading).min()?;
        Some(Self { clock_id, realtime, clock })
    }
}

impl Features {
    /// Describes the running machine and this program.
    pub fn of_this_machine() -> Self {
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| Some(text.to_string_lossy().into_owned());
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let online = perf_monitor::online_cpus();
        let present = fs::read_to_string("/sys/devices/system/cpu/present").unwrap_or_default();
        let last = present.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<u32>().ok());
        let online_count = online.len() as u32;
        let available = last.map_or(online_count, |last| last.saturating_add(1));
        Self {
            hostname: text(system.nodename()),
            os_release: text(system.release()),
            arch: text(system.machine()),
            cpus: Some(Cpus { available, online: online_count }),
            cpu_desc: cpu_field(&cpuinfo, "model name").map(str::to_owned),
            cpu_id: cpu_id(&cpuinfo),
            total_memory_kib: total_memory(),
            command_line: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            topology: Some(CpuTopology::of_this_machine(available)),
            pmus: pmus(),
            ..Self::default()
        }
    }
}

impl TracingData {
    /// Reads what these tracepoints (system and name) need from the running kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Events`] if a file of tracefs cannot be read.
    pub fn of_this_kernel<'a>(
        tracefs: &Tracefs,
        events: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        let read = |path: &str| read(&tracefs.root().join(path));
        let mut formats = Vec::new();
        for (system, name) in events {
            let format = read(&format!("events/{system}/{name}/format"))?;
            formats.push((system.to_owned(), format));
        }
        Ok(Self {
            long_size: size_of::<std::ffi::c_long>() as u8,
            page_size: rustix::param::page_size() as u32,
            header_page: read("events/header_page")?,
            header_event: read("events/header_event")?,
            events: formats,
            kallsyms: Vec::new(),
            printk_formats: read("printk_formats").unwrap_or_default(),
            saved_cmdlines: read("saved_cmdlines").unwrap_or_default(),
        })
    }
}

/// A file of tracefs. Their size in `stat` is 0, and `header_page` and `header_event` have content
/// for the first read only, however small it is.
fn read(path: &Path) -> Result<Vec<u8>> {
    let whole = || {
        let mut file = File::open(path)?;
        let mut bytes = vec![0; FIRST_READ];
        let len = file.read(&mut bytes)?;
        bytes.truncate(len);
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    whole().map_err(|source| {
        Error::Events(perf_monitor::Error::File { path: path.to_owned(), source })
    })
}

/// The kernel writes these files into a page or two.
const FIRST_READ: usize = 64 << 10;

impl CpuTopology {
    fn of_this_machine(cpus: u32) -> Self {
        let mut this = Self::default();
        let (mut packages, mut cores) = (BTreeSet::new(), BTreeSet::new());
        for cpu in 0..cpus {
            let read = |name: &str| {
                let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
                fs::read_to_string(file).map(|text| text.trim().to_owned()).ok()
            };
            packages.extend(read("core_siblings_list"));
            cores.extend(read("thread_siblings_list"));
            // -1 (in an unsigned number) is what an offline CPU has in perf too.
            let number = |name| read(name).and_then(|n| n.parse().ok()).unwrap_or(u32::MAX);
            this.cpus.push((number("core_id"), number("physical_package_id")));
        }
        this.packages = packages.into_iter().collect();
        this.cores = cores.into_iter().collect();
        this
    }
}

fn cpu_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Vendor, family, model and stepping, as `perf` joins them on x86.
fn cpu_id(cpuinfo: &str) -> Option<String> {
    let parts =
        ["vendor_id", "cpu family", "model", "stepping"].map(|name| cpu_field(cpuinfo, name));
    let [Some(vendor), Some(family), Some(model), Some(stepping)] = parts else { return None };
    Some(format!("{vendor},{family},{model},{stepping}"))
}

fn total_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn pmus() -> Vec<(u32, String)> {
    let names = Pmu::names().unwrap_or_default();
    let opened = names.into_iter().filter_map(|name| Some((Pmu::open(&name).ok()?.type_(), name)));
    opened.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_cpus_and_clocks() {
        let ours = Features::of_this_machine();
        assert!(ours.total_memory_kib.unwrap() > 0);
        assert!(ours.cpus.unwrap().online > 0);
        let clock = ClockReference::now(ClockDomain::Monotonic).unwrap();
        assert!(clock.realtime > clock.clock);
    }
}
