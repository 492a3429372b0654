//! The commands that let a user record more.

use super::{CONFIDENTIALITY, lockdown};
use perf_monitor::{
    Error, KernelFeatures, OpenErrorReason, Tracefs, is_initial_user_namespace, is_privileged,
};
use std::path::Path;

/// Grants this program what `perf_event_paranoid` withholds.
const SETCAP: &str = "sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v triscope)";

/// Capabilities have no effect there, also those of a file.
const LEAVE: &str = "run triscope outside of this user namespace";

/// How this user gets the privilege.
pub(crate) fn privilege() -> &'static str {
    if is_initial_user_namespace() { SETCAP } else { LEAVE }
}

/// Whether this is a level of Debian's kernels at which `CAP_PERFMON` has no effect.
pub(crate) fn is_above_perfmon(paranoid: Option<i64>) -> bool {
    paranoid.is_some_and(|level| level > 2)
}

/// How this user gets the data of tracepoints at a level of `perf_event_paranoid`.
pub(crate) fn tracepoint_privilege(paranoid: Option<i64>) -> String {
    const FOR_ALL: &str = "sudo sysctl kernel.perf_event_paranoid=-1";
    match is_above_perfmon(paranoid) {
        true => format!("{FOR_ALL} (or =2, and {})", privilege()),
        false => format!("{} (or {FOR_ALL})", privilege()),
    }
}

pub(crate) const MOUNT: &str =
    "sudo mount -t tracefs nodev /sys/kernel/tracing -o gid=$(id -g),mode=0750";

/// How a tracefs becomes readable, by a path in it.
pub(crate) fn readable(path: &Path) -> &'static str {
    // Where it is mounted, another mount fails with `EBUSY`. In debugfs, its directory is for root alone.
    match path.starts_with("/sys/kernel/tracing") {
        true => "sudo mount -o remount,gid=$(id -g),mode=0750 /sys/kernel/tracing",
        false => MOUNT,
    }
}

pub(crate) const LOCKED_DOWN: &str = "the kernel is locked down: nobody may read it";

pub(crate) const UNLOCK: &str = "boot with lockdown=integrity, or without lockdown";

/// What this user lacks for the data of tracepoints, of which an error names the first: the privilege,
/// and a tracefs that can be read. The second result are the remedies. Sources: `perf_event_open(2)`,
/// `perf_event_paranoid` of `proc_sys_kernel(5)`, `kernel_lockdown(7)`.
pub(crate) fn missing_for_tracepoints(
    lockdown: Option<&str>,
    features: &KernelFeatures,
    is_privileged: bool,
) -> (Vec<String>, Vec<String>) {
    const DATA_FOR_ALL: i64 = -1;
    let (mut why, mut fixes) = (Vec::new(), Vec::new());
    if lockdown == Some(CONFIDENTIALITY) {
        why.push(LOCKED_DOWN.to_owned());
        return (why, vec![UNLOCK.to_owned()]);
    }
    let is_for_all = features.paranoid.is_some_and(|level| level <= DATA_FOR_ALL);
    if !is_privileged && !is_for_all {
        let capability =
            if is_above_perfmon(features.paranoid) { "CAP_SYS_ADMIN" } else { "CAP_PERFMON" };
        why.push(format!(
            "data of tracepoints needs kernel.perf_event_paranoid -1, or {capability}"
        ));
        fixes.push(tracepoint_privilege(features.paranoid));
    }
    if !features.tracefs_readable {
        why.push("tracefs cannot be read".to_owned());
        let root = features.tracefs.as_ref().map(Tracefs::root);
        fixes.push(root.map_or(MOUNT, readable).to_owned());
    }
    (why, fixes)
}

/// Whether the reason is a privilege that this user lacks.
pub(crate) const fn is_missing(reason: &OpenErrorReason) -> bool {
    matches!(reason, OpenErrorReason::Privilege { .. })
}

/// Whether it is lacking for the kernel's side alone, and an event of user space would open.
pub(crate) const fn is_missing_for_kernel(reason: &OpenErrorReason) -> bool {
    matches!(reason, OpenErrorReason::Privilege { user_space_alone_is_allowed: true, .. })
}

/// Why this user may not record tracepoints, with all the commands that change it: an error names what
/// is missing first.
pub(crate) fn refusal(error: &Error) -> String {
    let (features, lockdown) = (KernelFeatures::probe(), lockdown());
    let (why, fixes) = missing_for_tracepoints(lockdown.as_deref(), &features, is_privileged());
    let is_covered = match error {
        Error::NoTracefs | Error::File { .. } => true,
        other => other.reason().is_some_and(is_missing),
    };
    if fixes.is_empty() || !is_covered {
        return error.to_string();
    }
    format!("{}: {}", why.join("; "), fixes.join(", and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_tracefs_is_remounted() {
        let mut features = KernelFeatures::probe();
        features.tracefs_readable = false;
        for (root, expected) in [
            (Some("/sys/kernel/tracing"), "remount,"),
            (Some("/sys/kernel/debug/tracing"), "-t tracefs"),
            (None, "-t tracefs"),
        ] {
            features.tracefs = root.map(Tracefs::at);
            let (_, fixes) = missing_for_tracepoints(None, &features, true);
            assert_eq!(fixes.len(), 1);
            assert!(fixes[0].contains(expected), "{fixes:?}");
        }
    }

    #[test]
    fn tracepoints_need_privileges_and_tracefs() {
        let mut features = KernelFeatures::probe();
        let mut needs = |level, is_readable, is_privileged, lockdown: Option<&str>| {
            features.paranoid = Some(level);
            features.tracefs_readable = is_readable;
            let (why, fixes) = missing_for_tracepoints(lockdown, &features, is_privileged);
            assert_eq!(why.len(), fixes.len());
            let [why, fixes] = [why, fixes].map(|texts| texts.join(" "));
            // There, the capability alone has no effect.
            assert_eq!(why.contains("CAP_SYS_ADMIN"), level > 2 && why.contains("CAP_"));
            assert!(level <= 2 || !fixes.starts_with(privilege()));
            [fixes.contains(privilege()), fixes.contains("mount"), fixes.contains("boot")]
        };
        for level in -1..=4 {
            for is_readable in [false, true] {
                for is_privileged in [false, true] {
                    for mode in [None, Some("none"), Some("integrity")] {
                        let needs = needs(level, is_readable, is_privileged, mode);
                        assert_eq!(needs, [!is_privileged && level > -1, !is_readable, false]);
                    }
                    let mode = Some("confidentiality");
                    assert_eq!(
                        needs(level, is_readable, is_privileged, mode),
                        [false, false, true]
                    );
                }
            }
        }
    }
}
