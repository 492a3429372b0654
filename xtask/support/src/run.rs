//! Child processes whose failure names the command.

use crate::Result;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs `command` with its output shown.
///
/// # Errors
/// It cannot be started, or fails.
pub fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|e| format!("{}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", line(command)).into()) }
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// It cannot be started, or fails: with its last lines.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = attempt(command)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    })
    .into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(20)..].join("\n");
    Err(format!("{}: {}\n{tail}", line(command), output.status).into())
}

/// Runs `command` and returns its outcome, success or not.
///
/// # Errors
/// It cannot be started.
pub fn attempt(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", line(command)).into())
}

/// The `cargo` that runs this task, or the one of `PATH`.
#[must_use]
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// What cargo knows of the packages of the workspace.
///
/// # Errors
/// Those of [`output`], and if cargo writes something else than JSON.
pub fn metadata() -> Result<serde_json::Value> {
    let metadata = output(cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    Ok(serde_json::from_slice(&metadata)?)
}

/// Whether `program` can be started.
#[must_use]
pub fn have(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// The programs built by a run of cargo.
#[derive(Debug)]
pub struct Artifacts(Vec<Artifact>);

#[derive(Debug)]
struct Artifact {
    package: PathBuf,
    target: String,
    executable: PathBuf,
}

impl Artifacts {
    /// Runs a `cargo build` or `cargo test --no-run`.
    ///
    /// # Errors
    /// The build fails, or cargo writes something else than a JSON object per line.
    pub fn build(command: &mut Command) -> Result<Self> {
        Self::parse(&output(command.args(["--quiet", "--message-format=json"]))?)
    }

    fn parse(messages: &[u8]) -> Result<Self> {
        let mut artifacts = Vec::new();
        let messages = serde_json::Deserializer::from_slice(messages);
        for message in messages.into_iter::<serde_json::Value>() {
            let message = message.map_err(|e| format!("messages of cargo: {e}"))?;
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            if let (Some(manifest), Some(target), Some(executable)) = (
                text(&message["manifest_path"]),
                text(&message["target"]["name"]),
                text(&message["executable"]),
            ) {
                let package = Path::new(&manifest).parent().unwrap_or(Path::new("")).to_owned();
                artifacts.push(Artifact { package, target, executable: executable.into() });
            }
        }
        Ok(Self(artifacts))
    }

    /// The program of the target `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn executable(&self, name: &str) -> Result<PathBuf> {
        self.find(name, |_| true)
    }

    /// The program of the target `name` of the package in a directory that is called `package`.
    ///
    /// # Errors
    /// There is none.
    pub fn executable_of(&self, package: &str, name: &str) -> Result<PathBuf> {
        self.find(name, |directory| directory.ends_with(package))
    }

    fn find(&self, name: &str, wanted: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        let found = self.0.iter().find(|a| a.target == name && wanted(&a.package));
        Ok(found.ok_or_else(|| format!("cargo built no program {name}"))?.executable.clone())
    }
}

/// Runs a build and returns the program of the target `name`.
///
/// # Errors
/// Those of [`Artifacts::build`] and [`Artifacts::executable`].
pub fn artifact(command: &mut Command, name: &str) -> Result<PathBuf> {
    Artifacts::build(command)?.executable(name)
}

/// `cargo test` of these integration tests.
///
/// No package is selected: `cargo test` without one gives each dependency the features that any
/// package needs. For one package alone it would be compiled again, with fewer.
#[must_use]
pub fn tests(names: &[&str]) -> Command {
    let mut command = cargo();
    command.arg("test").args(names.iter().flat_map(|name| ["--test", name]));
    command
}

/// The tests that passed in a run of `cargo test`.
#[derive(Debug, Default)]
pub struct Passed {
    /// Their number.
    pub count: usize,
    /// The names of those that the harness prints on lines of their own: with `--format=pretty`, and
    /// where no test writes to its standard output.
    pub names: Vec<String>,
}

impl Passed {
    fn add(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ok. ") {
            let count = counts.split_once(" passed").and_then(|(count, _)| count.parse().ok());
            self.count += count.unwrap_or(0);
        }
        let name = line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... ok"));
        self.names.extend(name.map(str::to_owned));
    }
}

/// Runs tests with their output shown, and returns those that passed: a filter or a list that selects
/// none is no error of `cargo test`.
///
/// # Errors
/// Those of [`run`].
pub fn passed(command: &mut Command) -> Result<Passed> {
    let failure = |e: std::io::Error, command: &Command| format!("{}: {e}", line(command));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| failure(e, command))?;
    let mut passed = Passed::default();
    for text in
        child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).split(b'\n'))
    {
        let text = text.map_err(|e| failure(e, command))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        passed.add(&text);
    }
    let status = child.wait().map_err(|e| failure(e, command))?;
    if status.success() { Ok(passed) } else { Err(format!("{}: {status}", line(command)).into()) }
}

/// Builds the program `triscope`, optimized, and returns its path.
///
/// As [`tests`] do, it reuses what `cargo test --release` has built.
///
/// # Errors
/// Those of [`artifact`].
pub fn triscope() -> Result<PathBuf> {
    // The test selects the features of development dependencies as well.
    let mut command = cargo();
    command.args(["build", "--release", "--bin", "triscope", "--test", "programs"]);
    artifact(&mut command, "triscope")
}

/// Builds an optimized example of a library and returns its path, as [`triscope`] does.
///
/// # Errors
/// Those of [`artifact`].
pub fn example(name: &str) -> Result<PathBuf> {
    artifact(cargo().args(["build", "--release", "--example", name]), name)
}

/// Runs `program` in a separate mount namespace, with tracefs mounted at its usual path.
///
/// Needs root and `unshare` of util-linux. A tracefs that is already mounted there is used.
#[must_use]
pub fn with_tracefs(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT_AND_EXEC, "sh"]).arg(program);
    command
}

// A second mount over the first is refused with EBUSY.
const MOUNT_AND_EXEC: &str = "\
    [ -e /sys/kernel/tracing/events ] || mount -t tracefs nodev /sys/kernel/tracing || exit
    exec \"$@\"";

fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|s| s.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where one is mounted already: a second mount over it is refused.
    #[test]
    fn tracefs_is_mounted_once() {
        let events = with_tracefs(Path::new("ls"));
        // In a mount namespace of the test, mounted there or not.
        for before in ["umount -l", "mount -t tracefs nodev"] {
            let script = format!("{before} /sys/kernel/tracing 2>/dev/null; exec \"$@\"");
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &script, "sh"]).arg(events.get_program());
            command.args(events.get_args()).arg("/sys/kernel/tracing/events");
            let found = match output(&mut command) {
                Ok(found) => String::from_utf8(found).unwrap(),
                Err(error) if error.to_string().contains("not permitted") => {
                    eprintln!("not run: only root may mount a tracefs");
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(found.lines().any(|line| line == "sched"), "{found}");
        }
    }

    #[test]
    fn tests_that_passed_are_counted() {
        let script = "echo 'test a::b ... ok'; echo 'test c ... ignored, why'; \
                      echo 'test result: ok. 2 passed; 0 failed; 1 ignored'; \
                      echo 'test result: ok. 40 passed; 0 failed; 0 ignored'";
        let found = passed(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((found.count, found.names), (42, vec!["a::b".to_owned()]));
        assert!(passed(Command::new("sh").args(["-c", "exit 3"])).is_err());
    }

    #[test]
    fn programs_are_found_by_the_name_of_their_target() {
        // The name of a target can occur in a path of another one.
        let messages = br#"
            {"manifest_path":"/a/Cargo.toml","target":{"name":"lib"},"executable":null}
            {"manifest_path":"/a/Cargo.toml","target":{"name":"x"},"executable":"/a/\"name\":\"y\""}
            {"manifest_path":"/a/Cargo.toml","target":{"name":"y"},"executable":"/a/y"}
            {"manifest_path":"/b/Cargo.toml","target":{"name":"y"},"executable":"/b/y"}
            {"reason":"build-finished","success":true}"#;
        let artifacts = Artifacts::parse(messages).unwrap();
        assert_eq!(artifacts.executable("y").unwrap(), Path::new("/a/y"));
        assert_eq!(artifacts.executable_of("b", "y").unwrap(), Path::new("/b/y"));
        assert!(artifacts.executable_of("c", "y").is_err());
        assert!(artifacts.executable("lib").is_err());
        assert!(Artifacts::parse(b"{\"reason\"").is_err());
    }
}
