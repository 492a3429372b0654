//! The machine, its settings and this user.

use crate::run::procfs::is_in_container;
use crate::sources::kernel;
use perf_monitor::{Container, KernelFeatures, is_initial_user_namespace};
use rustix::process::{Resource, geteuid, getrlimit};
use serde_json::{Value, json};
use std::path::Path;

pub(super) struct Machine {
    pub(super) features: KernelFeatures,
    release: String,
    arch: String,
    uid: u32,
    capabilities: Vec<&'static str>,
    pub(super) container: Option<String>,
    pub(super) kptr_restrict: Option<i64>,
    /// The selected mode; `None` if it cannot be read.
    pub(super) lockdown: Option<String>,
    /// Whether a filter of system calls applies to this process.
    seccomp: bool,
    /// In bytes; `None` is unlimited.
    memlock: Option<u64>,
}

/// The capabilities that matter, by number.
const CAPABILITIES: [(u32, &str); 6] = [
    (38, "CAP_PERFMON"),
    (21, "CAP_SYS_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (34, "CAP_SYSLOG"),
    (14, "CAP_IPC_LOCK"),
    (2, "CAP_DAC_READ_SEARCH"),
];

fn number(path: &str) -> Option<i64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A line of `proc_pid_status(5)`.
fn status(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned())
}

fn capabilities() -> Vec<&'static str> {
    let set = status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or(0);
    let held = CAPABILITIES.iter().filter(|(bit, _)| set >> bit & 1 != 0);
    held.map(|(_, name)| *name).collect()
}

/// The container that this process is in, as far as it can be seen from inside.
fn container() -> Option<String> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let named = paths.filter_map(Container::of_cgroup).find(|found| found.kind.is_container());
    if let Some(found) = named {
        let id: String = found.id.chars().take(12).collect();
        return Some(format!("{:?} {id}", found.kind));
    }
    // Files that engines put into the root directory, and the variable of systemd and Podman.
    for (file, engine) in [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")] {
        if Path::new(file).exists() {
            return Some(engine.to_owned());
        }
    }
    if let Some(engine) = std::env::var_os("container") {
        return Some(engine.to_string_lossy().into_owned());
    }
    is_in_container().then(|| "a PID namespace".to_owned())
}

impl Machine {
    pub(super) fn look() -> Self {
        let uname = rustix::system::uname();
        Self {
            features: KernelFeatures::probe(),
            release: uname.release().to_string_lossy().into_owned(),
            arch: uname.machine().to_string_lossy().into_owned(),
            uid: geteuid().as_raw(),
            capabilities: capabilities(),
            container: container(),
            kptr_restrict: number("/proc/sys/kernel/kptr_restrict"),
            lockdown: kernel::lockdown(),
            seccomp: status("Seccomp").is_some_and(|mode| mode != "0"),
            memlock: getrlimit(Resource::Memlock).current,
        }
    }

    /// The setting of `kernel.perf_event_paranoid`, and so on, as text.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let or_unknown = |value: Option<i64>| value.map_or("?".to_owned(), |v| v.to_string());
        let cpus = perf_monitor::online_cpus().len();
        let held = match self.capabilities.as_slice() {
            [] => "no capabilities".to_owned(),
            held if is_initial_user_namespace() => held.join(", "),
            held => format!("{} (of a user namespace: no effect on perf events)", held.join(", ")),
        };
        let tracefs = match (&self.features.tracefs, self.features.tracefs_readable) {
            (None, _) => "not mounted".to_owned(),
            (Some(tracefs), true) => format!("{}, readable", tracefs.root().display()),
            (Some(tracefs), false) => format!("{}, not readable", tracefs.root().display()),
        };
        let mut facts = vec![
            ("triscope", env!("CARGO_PKG_VERSION").to_owned()),
            ("kernel", format!("Linux {}, {}, {cpus} CPUs", self.release, self.arch)),
            ("user", format!("{}, {held}", self.uid)),
            ("container", self.container.clone().unwrap_or_else(|| "no".to_owned())),
            (
                "lockdown",
                self.lockdown.clone().unwrap_or_else(|| "? (securityfs cannot be read)".to_owned()),
            ),
            ("seccomp", if self.seccomp { "a filter applies" } else { "no filter" }.to_owned()),
            ("tracefs", tracefs),
            ("perf_event_paranoid", or_unknown(self.features.paranoid)),
            ("kptr_restrict", or_unknown(self.kptr_restrict)),
            (
                "locked memory",
                format!(
                    "perf_event_mlock_kb {} per CPU, RLIMIT_MEMLOCK {}",
                    or_unknown(self.features.mlock_kb),
                    self.memlock.map_or("unlimited".to_owned(), |b| format!("{} KiB", b >> 10)),
                ),
            ),
        ];
        if let Some(limit) = self.features.open_files {
            facts.push(("open files", limit.to_string()));
        }
        facts
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "triscope": env!("CARGO_PKG_VERSION"),
            "release": self.release,
            "arch": self.arch,
            "cpus": perf_monitor::online_cpus(),
            "uid": self.uid,
            "capabilities": self.capabilities,
            "user_namespace": !is_initial_user_namespace(),
            "container": self.container,
            "lockdown": self.lockdown,
            "seccomp": self.seccomp,
            "tracefs": self.features.tracefs.as_ref().map(|t| t.root().to_owned()),
            "tracefs_readable": self.features.tracefs_readable,
            "perf_event_paranoid": self.features.paranoid,
            "kptr_restrict": self.kptr_restrict,
            "perf_event_mlock_kb": self.features.mlock_kb,
            "memlock_bytes": self.memlock,
            "max_sample_rate": self.features.max_sample_rate,
            "open_files": self.features.open_files,
            "pmus": self.features.pmus,
        })
    }
}
