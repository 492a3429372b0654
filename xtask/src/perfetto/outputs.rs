//! One timeline of every kind that triscope writes, to be checked.

use crate::runtimes;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, lane, run};

/// Recorded traces that are damaged: `convert` exits with 1, and writes what it could read.
const DAMAGED: [&str; 1] = ["t9-killed.nettrace"];

/// Recorded traces of which a timeline shows nothing: `convert` exits with 1, and writes none.
const NOT_SHOWN: [&str; 1] = ["v6-record-trace-pid.nettrace"];

/// Timelines in a directory of the cache, which is removed on drop.
pub(super) struct Outputs {
    dir: PathBuf,
    triscope: PathBuf,
    pub(super) files: Vec<String>,
}

impl Drop for Outputs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Outputs {
    /// Writes them: from recorded Go and .NET traces, from the kernel, and from several sources at
    /// once.
    pub(super) fn make() -> Result<Self> {
        let dir = cache::root()?.join(format!("lint-perfetto-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut this = Self { dir, triscope: run::triscope()?, files: Vec::new() };

        let synthetic = this.file("synthetic");
        run::output(Command::new(run::example("synthetic")?).arg(synthetic))?;

        let go = recorded("gotrace", &[".trace", ".trace.gz"])?;
        let dotnet = recorded("nettrace", &[".nettrace"])?;
        let named = |traces: &[PathBuf], name: &str| {
            let trace = traces.iter().find(|t| t.file_name().is_some_and(|n| n == name)).cloned();
            trace.ok_or_else(|| format!("the recorded trace {name} is missing"))
        };
        for name in DAMAGED.iter().chain(&NOT_SHOWN) {
            named(&dotnet, name)?;
        }
        for trace in go.iter().chain(&dotnet) {
            let name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
            this.convert(&name, &[trace])?;
        }
        let newest_first = [
            &named(&dotnet, "t10-activity.nettrace")?,
            &named(&go, "go1.26-mixed.trace.gz")?,
            &named(&go, "go1.25-mixed.trace.gz")?,
        ];
        this.convert("several", &newest_first)?;
        let (old, new) =
            (named(&go, "go1.21-mixed.trace.gz")?, named(&go, "go1.26-mixed.trace.gz")?);
        let offset = format!("{}=12.5", old.display());
        this.convert_with("offset", &["--offset", &offset], &[&old, &new])?;
        this.record(&named(&go, "shop.trace")?)?;
        Ok(this)
    }

    /// A name for the next timeline.
    fn file(&mut self, name: &str) -> &Path {
        let file = self.dir.join(format!("{name}.pftrace"));
        self.files.push(file.to_string_lossy().into_owned());
        Path::new(self.files.last().map_or("", String::as_str))
    }

    fn convert(&mut self, name: &str, traces: &[&PathBuf]) -> Result {
        self.convert_with(name, &[], traces)
    }

    fn convert_with(&mut self, name: &str, options: &[&str], traces: &[&PathBuf]) -> Result {
        let triscope = self.triscope.clone();
        let output = self.file(name);
        let mut convert = Command::new(triscope);
        convert.arg("convert").args(options).args(traces).arg("-o").arg(output);
        let converted = run::attempt(&mut convert)?;
        let errors = String::from_utf8_lossy(&converted.stderr);
        let status = converted.status;
        let expected = if DAMAGED.contains(&name) {
            (Some(1), true)
        } else if NOT_SHOWN.contains(&name) {
            (Some(1), false)
        } else {
            (Some(0), true)
        };
        if (status.code(), output.exists()) != expected {
            return Err(format!("convert {name}: {status}: {errors}").into());
        }
        if NOT_SHOWN.contains(&name) {
            self.files.pop();
        }
        Ok(())
    }

    /// Live recordings: of the kernel alone, with stacks, with a Go trace and with .NET; and what was
    /// kept of them. (`test-timeline` writes and checks those of the kernel with Go programs.)
    fn record(&mut self, trace: &Path) -> Result {
        let triscope = self.triscope.clone();
        let dir = self.dir.clone();
        let kept = |name: &str| dir.join(format!("kept-{name}"));
        let record = |output: &Path, options: &[&str], command: &[&str]| {
            let mut record = Command::new(&triscope);
            record.env("WORKLOAD_SECONDS", "2").env("TMPDIR", std::env::temp_dir());
            run::attempt(
                record
                    .args(["record", "--sched"])
                    .args(options)
                    .arg("-o")
                    .arg(output)
                    .arg("--")
                    .args(command),
            )
        };
        let kernel = ["sh", "-c", "for i in 1 2 3 4 5; do sleep 0.01; done"];
        let recorded = record(self.file("kernel"), &[], &kernel)?;
        if !recorded.status.success() {
            self.files.pop();
            return lane::skip(
                "timelines of live recordings",
                &String::from_utf8_lossy(&recorded.stderr),
            );
        }
        let copy = dir.join("copy.trace").to_string_lossy().into_owned();
        let raw = kept("go").to_string_lossy().into_owned();
        let stacks = kept("stacks").to_string_lossy().into_owned();
        let trace = trace.to_string_lossy();
        for (name, options, command) in [
            (
                "kernel-and-go",
                &["--go-trace", &copy, "--keep", &raw][..],
                &["cp", &trace, &copy][..],
            ),
            ("kernel-and-stacks", &["-F", "199", "--off-cpu", "--keep", &stacks], &kernel),
        ] {
            let recorded = record(self.file(name), options, command)?;
            if !recorded.status.success() {
                let errors = String::from_utf8_lossy(&recorded.stderr);
                return Err(format!("record {}: {errors}", options.join(" ")).into());
            }
        }
        self.convert("kept-go", &[&kept("go")])?;
        self.convert("kept-stacks", &[&kept("stacks")])?;
        self.convert("perf-data", &[&kept("stacks").join("kernel.perf.data")])?;
        self.profile()?;
        let targets = match runtimes::targets() {
            Ok(targets) => targets,
            Err(why) => return lane::skip("timelines of .NET recordings", &why),
        };
        for version in ["3.1", "9", "10"] {
            let program = targets.join(version).join("run");
            let name = format!("kernel-and-dotnet-{version}");
            let raw = kept(&name).to_string_lossy().into_owned();
            let options = ["--dotnet", "--keep", &raw];
            let recorded = record(self.file(&name), &options, &[&program.to_string_lossy()])?;
            if !recorded.status.success() {
                let errors = String::from_utf8_lossy(&recorded.stderr);
                return Err(format!("record --dotnet {version}: {errors}").into());
            }
            self.convert(&format!("kept-{name}"), &[&kept(&name)])?;
        }
        Ok(())
    }

    /// The samples of a profile, as a timeline.
    fn profile(&mut self) -> Result {
        let mut profile = Command::new(self.triscope.clone());
        profile.args(["profile", "-o"]).arg(self.file("profile")).arg("--");
        run::output(profile.args(["sh", "-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"]))
            .map(drop)
    }
}

/// The recorded traces of a crate.
fn recorded(package: &str, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let dir = task_support::workspace().join("crates").join(package).join("tests/data");
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if endings.iter().any(|ending| name.ends_with(ending)) {
            traces.push(path);
        }
    }
    traces.sort();
    if traces.is_empty() {
        Err(format!("{package} has no recorded traces").into())
    } else {
        Ok(traces)
    }
}
