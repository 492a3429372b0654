//! `cargo xtask test-kernel`: the tests of perf-monitor on real kernels.
//!
//! On the host's kernel, and in virtual machines (QEMU without KVM) with Debian's cloud kernels,
//! x86-64 and arm64; the latter have a hardware PMU, and with `-icount` one that counts
//! instructions exactly. A lane that cannot run on this machine is skipped with a message, and is
//! an error in CI.

pub(crate) mod flight;
mod initramfs;
mod machine;
mod module;
mod report;
mod toolchain;

use crate::again;
use crate::debian::{Debian, Package, ensure_program};
use crate::turn;
use lexopt::prelude::*;
use machine::{Arch, Machine};
use report::{Outcome, Table};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use task_support::{Result, cache, lane, on_threads, run};

/// The tested kernels: for each series, Debian's newest version.
const X86: &[&str] = &["5.10", "6.1", "6.12", "7"];
const ARM: &[&str] = &["6.1", "6.12", "7"];
/// The name of the kernel of this machine.
const HOST: &str = "host";
const TABLE: &str = "docs/kernel-support.md";

pub(crate) const OPTIONS: &str = "\
[uapi] [--kernel NAME]... [--arch ARCH] [--filter WORD] [--jobs N] [--write]

  uapi            only compare perf-sys with the kernel headers of several releases
  --kernel NAME   only this kernel: host (the running one), 5.10, 6.1, 6.12 or 7
  --arch ARCH     only this architecture: x86_64 or aarch64
  --filter WORD   only tests whose name contains it
  --jobs N        run N virtual machines at a time (default: 2)
  --write         write the results to docs/kernel-support.md instead of comparing with it";

/// The kernels of a run that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernels {
    All,
    /// That of this machine.
    Host,
    /// Those of virtual machines.
    Machines,
}

impl Kernels {
    fn contains(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Host => name == HOST,
            Self::Machines => name != HOST,
        }
    }
}

#[derive(Debug)]
struct Options {
    of: Kernels,
    kernels: Vec<String>,
    arch: Option<Arch>,
    filter: Option<String>,
    jobs: usize,
    write: bool,
    uapi_only: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut this = Self {
            of: Kernels::All,
            kernels: Vec::new(),
            arch: None,
            filter: None,
            jobs: 2,
            write: false,
            uapi_only: false,
        };
        let mut args = lexopt::Parser::from_args(args);
        while let Some(arg) = args.next()? {
            match arg {
                Value(word) if word == "uapi" => this.uapi_only = true,
                Long("kernel") => this.kernels.push(args.value()?.string()?),
                Long("arch") => this.arch = Some(Arch::parse(&args.value()?.string()?)?),
                Long("filter") => this.filter = Some(args.value()?.string()?),
                Long("jobs") => this.jobs = args.value()?.parse()?,
                Long("write") => this.write = true,
                _ => return Err(arg.unexpected().into()),
            }
        }
        Ok(this)
    }

    /// All tests on some kernels.
    fn all_tests(of: Kernels) -> Result<Self> {
        Ok(Self { of, ..Self::parse(&[])? })
    }

    fn wants(&self, kernel: &str, arch: Arch) -> bool {
        self.of.contains(kernel)
            && (self.kernels.is_empty() || self.kernels.iter().any(|k| k == kernel))
            && self.arch.is_none_or(|a| a == arch)
    }

    fn wants_host(&self) -> bool {
        self.wants(HOST, Arch::HOST)
    }

    /// Whether all tests run on all of the kernels, so that the result is whole columns of the table.
    fn is_whole(&self) -> bool {
        self.kernels.is_empty() && self.arch.is_none() && self.filter.is_none()
    }
}

pub(crate) fn task(args: &[String]) -> Result {
    let options = Options::parse(args)?;
    if !options.uapi_only && options.wants_host() {
        command_line(&options)?;
    }
    monitor(&options)
}

/// The tests of perf-monitor on the kernel of this machine.
pub(crate) fn host_kernel() -> Result {
    monitor(&Options::all_tests(Kernels::Host)?)
}

/// The tests of perf-monitor on the kernels of virtual machines, and perf-sys beside the headers.
pub(crate) fn other_kernels() -> Result {
    monitor(&Options::all_tests(Kernels::Machines)?)
}

/// The tests of the program on the kernel of this machine.
pub(crate) fn programs() -> Result {
    command_line(&Options::all_tests(Kernels::Host)?)
}

fn monitor(options: &Options) -> Result {
    let start = Instant::now();
    if options.uapi_only {
        return uapi();
    }
    if options.is_whole()
        && options.of != Kernels::Host
        && let Err(error) = uapi()
    {
        lane::skip("perf-sys beside the kernel's headers", &error)?;
    }
    let path = task_support::workspace().join(TABLE);
    let committed = if options.write { None } else { Some(fs::read_to_string(&path)?) };
    let table = committed.as_deref().map(Table::parse).transpose()?;
    let mut outcomes = Vec::new();
    if options.wants_host() {
        let turn = turn::of_kernel()?;
        let outcome = host(options);
        // Not for the time of the virtual machines.
        drop(turn);
        match outcome {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => lane::skip("the kernel of this machine", &error)?,
        }
        // Before what takes minutes. A test that failed is reported with the others.
        if let Some(table) = table.as_ref().filter(|_| outcomes.iter().all(Outcome::is_good)) {
            require_rows(table, &outcomes, options)?;
        }
    }
    outcomes.extend(machines(options)?);
    if outcomes.is_empty() {
        return Err("nothing ran".into());
    }
    for outcome in &outcomes {
        outcome.print();
    }
    let cpu: f64 = outcomes.iter().filter_map(Outcome::cpu).map(|t| t.as_secs_f64()).sum();
    let machines = if options.of == Kernels::Host {
        String::new()
    } else {
        format!("; the virtual machines took {cpu:.0} s of CPU")
    };
    eprintln!("\n{:.0} s in all{machines}", start.elapsed().as_secs_f64());
    let bad: Vec<&str> =
        outcomes.iter().filter(|o| !o.is_good()).map(|o| o.name.as_str()).collect();
    if !bad.is_empty() {
        return Err(format!("failed on: {}", bad.join(", ")).into());
    }
    let Some(table) = table else {
        if !options.is_whole() {
            return Err("--write needs a whole run".into());
        }
        fs::write(path, report::markdown(&outcomes))?;
        eprintln!("wrote {TABLE}");
        return Ok(());
    };
    require_rows(&table, &outcomes, options)?;
    let mut missing = table.without_outcome(&outcomes);
    missing.retain(|name| options.of.contains(name));
    if options.is_whole() && !missing.is_empty() {
        // Their lanes are skipped on this machine, or the table is older than the list of kernels.
        let why = "their columns are compared with nothing (--write removes those of no kernel)";
        lane::skip(&format!("kernels of {TABLE}: {}", missing.join(", ")), &why)?;
    }
    let broken: Vec<String> =
        outcomes.iter().flat_map(|o| table.broken_promises(o, options.filter.is_some())).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{TABLE} promises more (--write changes it, if that is intended):\n  {}",
        broken.join("\n  ")
    )
    .into())
}

/// Reports the tests without a row in the table, which nothing would miss on a kernel where they no
/// longer work. In a whole run that is an error: it can write the rows.
fn require_rows(table: &Table<'_>, outcomes: &[Outcome], options: &Options) -> Result {
    let tests = table.without_row(outcomes);
    if tests.is_empty() {
        return Ok(());
    }
    let text = format!(
        "{} tests have no row in {TABLE} (`cargo xtask test-kernel --write` adds them):\n  {}",
        tests.len(),
        tests.join("\n  ")
    );
    if options.is_whole() {
        return Err(text.into());
    }
    eprintln!("\n== {text}");
    Ok(())
}

/// Compares perf-sys with the headers of several releases.
fn uapi() -> Result {
    let debian = Debian::open()?;
    let mut entries = Vec::new();
    for (series, arch, triple) in [
        ("5.10", "amd64", "x86_64-linux-gnu"),
        ("6.1", "amd64", "x86_64-linux-gnu"),
        ("6.1", "arm64", "aarch64-linux-gnu"),
        ("6.12", "amd64", "x86_64-linux-gnu"),
        ("6.12", "amd64", "aarch64-linux-gnu"),
        ("7", "amd64", "x86_64-linux-gnu"),
        ("7", "amd64", "aarch64-linux-gnu"),
    ] {
        let package = debian.newest("linux-libc-dev", arch, series)?;
        let key = format!("debian/linux-libc-dev/{}-{arch}", package.file_name());
        let dir = cache::entry(&key, |dir| debian.unpack(std::slice::from_ref(&package), dir))?;
        // From 6.12 one package contains the headers of every architecture.
        let include = dir.join("usr/include");
        entries.push(format!("{},{}", include.display(), include.join(triple).display()));
    }
    eprintln!("comparing perf-sys with the headers of {} kernels", entries.len());
    // The list is separated by colons, which these paths do not contain.
    run::run(
        run::cargo()
            .args(["test", "--quiet", "--package", "perf-sys", "--lib"])
            .env("PERF_SYS_UAPI", entries.join(":")),
    )
}

/// Records perf-monitor's test data on the kernel of this machine.
pub(crate) fn record_fixtures() -> Result {
    for test in toolchain::host_tests(&[], "perf-monitor", &["kernel"])? {
        let mut command = run::with_tracefs(&test);
        run::run(command.args(["--test-threads=1", "--ignored", "fixtures"]))?;
    }
    Ok(())
}

/// Integration tests of perf-monitor that need root and a tracefs.
const OF_MONITOR: &[&str] = &["kernel", "examples"];

/// Runs the tests on the kernel of this machine, with private tracefs and other mounts.
fn host(options: &Options) -> Result<Outcome> {
    needs_root()?;
    let start = Instant::now();
    let report = tempfile::NamedTempFile::new()?;
    // `perf` verifies the recordings on the host, if it is installed.
    ensure_program("perf", "linux-perf")?;
    let mut text = String::new();
    let mut good = true;
    let mut tests = toolchain::host_tests(&[], "perf-monitor", OF_MONITOR)?;
    tests.extend(toolchain::host_tests(&[], "perf-data", &["perf"])?);
    for test in tests {
        let mut command = strict(&test);
        command.args(&options.filter).env("PERF_TEST_REPORT", report.path());
        let output = run::attempt(&mut command)?;
        text.push_str(&String::from_utf8_lossy(&output.stdout));
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        good &= output.status.success();
    }
    for line in fs::read_to_string(report.path())?.lines() {
        text.push_str(&format!("guest: report\t{line}\n"));
    }
    let version = run::output(Command::new("uname").arg("-r"))?;
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let verdict = good.then_some(()).ok_or("the tests failed".to_owned());
    Ok(Outcome::new(HOST.into(), version, &text, verdict, start.elapsed()))
}

/// A test program of this machine where all that can run must run.
fn strict(test: &Path) -> Command {
    let mut command = run::with_tracefs(test);
    command.arg("--test-threads=1");
    command.env("PERF_TEST_OWN_MOUNTS", "1").env("PERF_TEST_STRICT", "1");
    command
}

/// Runs the tests of perf-monitor on the kernel of this machine, optimized.
pub(crate) fn optimized() -> Result {
    const LANE: &str = "perf-monitor on the kernel of this machine, optimized";
    needs_root()?;
    for test in toolchain::host_tests(&["--release"], "perf-monitor", OF_MONITOR)? {
        let passed = again::program(LANE, || strict(&test))?;
        eprintln!("\n== {LANE}: {passed} passed");
    }
    Ok(())
}

fn needs_root() -> Result {
    if run::output(Command::new("id").arg("-u"))? == b"0\n" {
        Ok(())
    } else {
        Err("needs root".into())
    }
}

/// Runs all tests of `triscope perf` and `triscope record` on the kernel of this machine, including
/// those that need root.
fn command_line(options: &Options) -> Result {
    const LANE: &str = "triscope perf and record on the kernel of this machine";
    if let Err(why) = needs_root() {
        return lane::skip(LANE, &why);
    }
    ensure_program("perf", "linux-perf")?;
    let _turn = turn::of_kernel()?;
    let start = Instant::now();
    for test in toolchain::host_tests(&[], "triscope", &["perf"])? {
        let passed = again::program(LANE, || {
            let mut command = run::with_tracefs(&test);
            command.args(&options.filter).env("PERF_TEST_STRICT", "1");
            again::waiting(&mut command);
            command
        })?;
        eprintln!("\n== {LANE}: {passed} passed; {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Runs the tests in virtual machines, several at a time.
fn machines(options: &Options) -> Result<Vec<Outcome>> {
    let mut machines = Vec::new();
    for (arch, kernels) in [(Arch::X86, X86), (Arch::Arm, ARM)] {
        let wanted: Vec<&'static str> =
            kernels.iter().copied().filter(|k| options.wants(k, arch)).collect();
        if wanted.is_empty() {
            continue;
        }
        match prepare(arch, &wanted, options) {
            Ok(prepared) => machines.extend(prepared),
            Err(error) => {
                lane::skip(&format!("kernels {} on {arch}", wanted.join(" ")), &error)?;
            }
        }
    }
    let mut outcomes = on_threads(options.jobs, machines, |machine| {
        eprintln!("booting {}", machine.name());
        Ok(machine.run())
    })?;
    outcomes.sort_by_key(Outcome::order);
    Ok(outcomes)
}

/// Shared files of the machines of one architecture.
fn prepare(arch: Arch, kernels: &[&'static str], options: &Options) -> Result<Vec<Machine>> {
    ensure_program(arch.qemu(), arch.qemu_package())?;
    let debian = Debian::open()?;
    let programs = toolchain::guest_programs(arch, &debian)?;
    let mut found = Vec::new();
    for series in kernels {
        let (version, kernel) = kernel(&debian, arch, series)?;
        found.push((*series, version, kernel));
    }
    let for_module = found.iter().find(|(series, ..)| *series == module::SERIES);
    let module = match for_module.filter(|_| arch == Arch::X86) {
        Some((_, version, _)) => match module::build(&debian, version) {
            Ok(module) => Some(module),
            Err(error) => {
                lane::skip("a kernel module with __rel_loc fields", &error)?;
                None
            }
        },
        None => None,
    };
    let image = tempfile::NamedTempFile::with_prefix("guest-")?.into_temp_path();
    let mut files = vec![("tests/kernel", programs.test.as_path())];
    files.extend(module.as_deref().map(|module| ("modules/rel_loc.ko", module)));
    initramfs::write(&image, &programs.init, &files)?;
    let image = std::sync::Arc::new(image);
    let mut machines = Vec::new();
    for (series, version, kernel) in found {
        for icount in arch.icount_modes() {
            machines.push(Machine {
                arch,
                series,
                version: version.clone(),
                kernel: kernel.clone(),
                image: std::sync::Arc::clone(&image),
                icount: *icount,
                module: module.is_some() && series == module::SERIES,
                filter: options.filter.clone(),
                suspends: false,
            });
        }
    }
    Ok(machines)
}

/// The newest cloud kernel of a series: its version and the file to boot.
fn kernel(debian: &Debian, arch: Arch, series: &str) -> Result<(String, PathBuf)> {
    let meta = format!("linux-image-cloud-{}", arch.debian());
    let meta = debian.newest(&meta, arch.debian(), series)?;
    let key = format!("debian/kernel-{arch}/{}", meta.file_name());
    let dir = cache::entry(&key, |dir| {
        let images = debian.dependencies(&meta, "linux-image-", "sid")?;
        debian.unpack(&images, dir)?;
        if find_kernel(dir).is_none() {
            // From 7.x the image is in a separate package.
            let binaries: Vec<Package> = images
                .iter()
                .map(|image| debian.dependencies(image, "linux-binary-", "sid"))
                .collect::<Result<Vec<_>>>()?
                .concat();
            debian.unpack(&binaries, dir)?;
        }
        let found = find_kernel(dir).ok_or("the packages have no vmlinuz")?;
        let kept = dir.join("vmlinuz");
        fs::copy(found, &kept)?;
        // The modules are not needed, and are big.
        for rest in ["lib", "usr", "boot"] {
            let _ = fs::remove_dir_all(dir.join(rest));
        }
        Ok(())
    })?;
    Ok((meta.version, dir.join("vmlinuz")))
}

fn find_kernel(dir: &Path) -> Option<PathBuf> {
    let in_boot = fs::read_dir(dir.join("boot")).into_iter().flatten().flatten();
    let boot = in_boot
        .map(|e| e.path())
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz")));
    boot.or_else(|| {
        let modules = ["usr/lib/modules", "lib/modules"];
        modules.iter().find_map(|m| {
            let versions = fs::read_dir(dir.join(m)).into_iter().flatten().flatten();
            versions.map(|e| e.path().join("vmlinuz")).find(|p| p.is_file())
        })
    })
}
