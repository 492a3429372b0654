//! What a cgroup is: the conventions of container engines and of systemd.

/// What the path of a cgroup says about its tasks.
///
/// | path | is |
/// | --- | --- |
/// | `/docker/ID`, `docker-ID.scope` | `Docker` |
/// | `libpod-ID.scope`, `/libpod_parent/libpod-ID` | `Podman` |
/// | `kubepods…/pod…/ID`, `cri-containerd-ID.scope`, `crio-ID.scope` | `Kubernetes`, `Containerd`, `Crio` |
/// | `/lxc/NAME`, `/lxc.payload.NAME` | `Lxc` |
/// | `machine-NAME.scope` | `Machine` |
/// | `NAME.service`, `NAME.scope` | `Unit` |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Container {
    /// The kind of container.
    pub kind: ContainerKind,
    /// Its id (64 hexadecimal digits) or name; for a unit of systemd its name.
    pub id: String,
    /// The id of its pod, if it is in a Kubernetes pod.
    pub pod: Option<String>,
}

/// The manager of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContainerKind {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, through its Kubernetes interface.
    Containerd,
    /// CRI-O.
    Crio,
    /// A container in a Kubernetes pod, of an engine that the path does not name.
    Kubernetes,
    /// LXC and Incus.
    Lxc,
    /// A machine of systemd (`systemd-nspawn`, virtual machines).
    Machine,
    /// A service or scope of systemd: no container.
    Unit,
}

impl ContainerKind {
    /// Whether it is a container, not a unit of the machine itself.
    pub const fn is_container(self) -> bool {
        !matches!(self, Self::Unit)
    }
}

/// Prefixes of the last part of a path, before an id.
const ENGINES: [(&str, ContainerKind); 5] = [
    ("docker-", ContainerKind::Docker),
    ("libpod-", ContainerKind::Podman),
    ("cri-containerd-", ContainerKind::Containerd),
    ("crio-", ContainerKind::Crio),
    ("containerd-", ContainerKind::Containerd),
];

impl Container {
    /// What the path of a cgroup says. `None` if it says nothing.
    ///
    /// The innermost part that says something counts: a service in a container is in that
    /// container.
    pub fn of_cgroup(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let pod = parts.iter().find_map(|part| pod(part));
        for (at, part) in parts.iter().enumerate().rev() {
            let before = at.checked_sub(1).and_then(|before| parts.get(before)).copied();
            if let Some((kind, id)) = container(part, before, pod.is_some()) {
                return Some(Self { kind, id, pod });
            }
        }
        let unit = parts.iter().rev().find(|p| p.ends_with(".service") || p.ends_with(".scope"))?;
        Some(Self { kind: ContainerKind::Unit, id: (*unit).to_owned(), pod: None })
    }
}

/// The container that a part of a path names.
fn container(part: &str, before: Option<&str>, is_in_pod: bool) -> Option<(ContainerKind, String)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, kind) in ENGINES {
        if let Some(id) = name.strip_prefix(prefix).filter(|id| is_id(id)) {
            return Some((kind, id.to_owned()));
        }
    }
    if let Some(machine) = name.strip_prefix("machine-").filter(|_| name != part) {
        return Some((ContainerKind::Machine, unescape(machine)));
    }
    let lxc =
        part.strip_prefix("lxc.payload.").or(if before == Some("lxc") { Some(part) } else { None });
    if let Some(name) = lxc.filter(|name| !name.is_empty()) {
        return Some((ContainerKind::Lxc, name.to_owned()));
    }
    if is_id(part) && before == Some("docker") {
        return Some((ContainerKind::Docker, part.to_owned()));
    }
    // containerd with the cgroupfs driver: SLICE:cri-containerd:ID.
    if let Some((_, id)) = part.split_once(":cri-containerd:").filter(|(_, id)| is_id(id)) {
        return Some((ContainerKind::Containerd, id.to_owned()));
    }
    (is_in_pod && is_id(part)).then(|| (ContainerKind::Kubernetes, part.to_owned()))
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The id of a pod: `podUID`, or `kubepods-…-podUID.slice` with underscores.
fn pod(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.rsplit_once("-pod") {
        Some((front, uid)) if front.starts_with("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let is_uid = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_uid.then_some(uid)
}

/// Undoes the escapes of systemd's names, such as `\x2d`.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        out.push_str(before);
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                out.push(char::from(code));
                rest = after.get(2..).unwrap_or("");
            }
            None => {
                out.push_str("\\x");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_of_engines_are_known() {
        use ContainerKind::*;
        let id = "0123456789abcdef".repeat(4);
        let uid = "6fbc3f0c-52b6-4f4d-8f2c-0f6f2a0e6d11";
        let slice = uid.replace('-', "_");
        let besteffort = "kubepods-besteffort";
        for (path, kind, expected, pod) in [
            (format!("/docker/{id}"), Docker, id.as_str(), None),
            (format!("/system.slice/docker-{id}.scope"), Docker, &id, None),
            (format!("/docker/{id}/init.scope"), Docker, &id, None),
            (format!("/machine.slice/libpod-{id}.scope/container"), Podman, &id, None),
            (format!("/libpod_parent/libpod-{id}"), Podman, &id, None),
            (format!("/kubepods/burstable/pod{uid}/{id}"), Kubernetes, &id, Some(uid)),
            (
                format!(
                    "/kubepods.slice/{besteffort}.slice/{besteffort}-pod{slice}.slice/cri-containerd-{id}.scope"
                ),
                Containerd,
                &id,
                Some(uid),
            ),
            (
                format!("/kubepods.slice/{besteffort}-pod{slice}.slice/crio-{id}.scope"),
                Crio,
                &id,
                Some(uid),
            ),
            (format!("/{besteffort}-pod{slice}.slice:cri-containerd:{id}"), Containerd, &id, None),
            ("/lxc/web/system.slice/x.service".into(), Lxc, "web", None),
            ("/lxc.payload.web-1/init.scope".into(), Lxc, "web-1", None),
            ("/machine.slice/machine-deb\\x2d12.scope".into(), Machine, "deb-12", None),
            ("/system.slice/ssh.service".into(), Unit, "ssh.service", None),
            ("/user.slice/user-0.slice/session-1.scope".into(), Unit, "session-1.scope", None),
        ] {
            let found = Container::of_cgroup(&path).unwrap();
            let pod = pod.map(str::to_owned);
            assert_eq!(found, Container { kind, id: expected.to_owned(), pod }, "{path}");
        }
        for path in ["/", "", "/user.slice", "/docker/short", "/kubepods/podx/y"] {
            assert_eq!(Container::of_cgroup(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_no_panic(path: String) {
            let _ = Container::of_cgroup(&path);
        }

        #[test]
        fn parts_of_paths_are_no_panic(
            parts in proptest::collection::vec("(pod|kubepods-|docker-|lxc|machine-|\\\\x)?[0-9a-f_-]{0,70}(.scope|.slice)?", 0..6)
        ) {
            let _ = Container::of_cgroup(&parts.join("/"));
        }
    }
}
