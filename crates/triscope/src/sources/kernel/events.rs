//! Events, CPUs and cgroups as they are named on the command line.

use super::{event, failure, tracefs};
use crate::failure::{Failure, Result};
use perf_monitor::{Error, Event, online_cpus};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use trace_common::{CgroupVersion, Mount};

/// The events of lists such as `cycles:u,sched:sched_*`.
pub(crate) fn events(lists: &[String]) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for text in lists.iter().flat_map(|list| split(list)) {
        if text.contains(['{', '}']) {
            return Err(Failure::about(text, "groups of events are not supported here"));
        }
        events.extend(expanded(text)?);
    }
    Ok(events)
}

/// Events that are scheduled together, or a single one.
#[derive(Clone, Debug)]
pub(crate) struct EventGroup {
    pub(crate) events: Vec<Event>,
    /// `:S`: the first event takes the samples, with the counts of all.
    pub(crate) leader_samples: bool,
}

impl From<Event> for EventGroup {
    fn from(event: Event) -> Self {
        Self { events: vec![event], leader_samples: false }
    }
}

/// As [`events`], with groups such as `{cycles,instructions}:u`: modifiers after a group apply to
/// each of its members.
pub(crate) fn groups(lists: &[String]) -> Result<Vec<EventGroup>> {
    let mut groups = Vec::new();
    for text in lists.iter().flat_map(|list| split(list)) {
        if text.starts_with('{') {
            let (members, leader_samples) = members(text)?;
            let mut events = Vec::new();
            for member in members {
                events.extend(expanded(&member)?);
            }
            groups.push(EventGroup { events, leader_samples });
        } else {
            groups.extend(expanded(text)?.into_iter().map(EventGroup::from));
        }
    }
    Ok(groups)
}

/// The members of a group, with its modifiers in addition to their own, and whether the leader
/// samples.
fn members(group: &str) -> Result<(Vec<String>, bool)> {
    let rest = group.trim_start_matches('{');
    let (list, modifiers) =
        rest.rsplit_once('}').ok_or_else(|| Failure::about(group, "a closing } is missing"))?;
    let modifiers = match modifiers.strip_prefix(':') {
        Some(modifiers) => modifiers,
        None if modifiers.is_empty() => "",
        None => return Err(Failure::about(group, "only :MODIFIERS can follow a group")),
    };
    let leader_samples = modifiers.contains('S');
    let modifiers = modifiers.replace('S', "");
    // A group is pinned or exclusive by its leader.
    let of_members = modifiers.replace(['D', 'e'], "");
    let of = |n| if n == 0 { &modifiers } else { &of_members };
    let members: Vec<String> =
        split(list).into_iter().zip(0..).map(|(event, n)| modified(event, of(n))).collect();
    if members.is_empty() || list.contains(['{', '}']) {
        return Err(Failure::about(group, "a group consists of events"));
    }
    Ok((members, leader_samples))
}

/// An event with those modifiers in addition that are not among its own.
fn modified(event: &str, modifiers: &str) -> String {
    let is_pmu = event.split_once('/').is_some_and(|(pmu, _)| !pmu.contains(':'));
    let own = if is_pmu {
        event.rsplit_once('/').map_or("", |(_, own)| own)
    } else {
        // Otherwise it is the name of a tracepoint.
        let is_modifiers = |last: &&str| last.chars().all(|c| "ukhGHpPSDIWe".contains(c));
        event.rsplit_once(':').map(|(_, last)| last).filter(is_modifiers).unwrap_or_default()
    };
    let modifiers: String = modifiers.chars().filter(|c| !own.contains(*c)).collect();
    let colon = if modifiers.is_empty() || is_pmu || !own.is_empty() { "" } else { ":" };
    format!("{event}{colon}{modifiers}")
}

/// An event, or the tracepoints that match a pattern.
fn expanded(text: &str) -> Result<Vec<Event>> {
    // The terms of a PMU are no pattern.
    if text.contains(['*', '?']) && !text.contains('/') {
        matching(text)
    } else {
        Ok(vec![event(text).map_err(failure)?])
    }
}

/// The tracepoints that match `SYSTEM:NAME` with `*` and `?`. Modifiers can follow.
fn matching(text: &str) -> Result<Vec<Event>> {
    let mut parts = text.splitn(3, ':');
    let pattern = [parts.next(), parts.next()].map(Option::unwrap_or_default).join(":");
    let modifiers = parts.next().map_or_else(String::new, |modifiers| format!(":{modifiers}"));
    let tracefs = tracefs().map_err(failure)?;
    let names = tracefs.events().map_err(failure)?;
    let mut events = Vec::new();
    for name in names.iter().filter(|name| is_match(pattern.as_bytes(), name.as_bytes())) {
        match Event::parse_in(&format!("{name}{modifiers}"), &tracefs) {
            Ok(event) => events.push(event),
            // Some of tracefs cannot be opened: `ftrace` has events without an id.
            Err(Error::UnknownEvent { .. }) => {}
            Err(error) => return Err(failure(error)),
        }
    }
    if events.is_empty() {
        return Err(
            Failure::about(text, "no tracepoint matches").and("triscope perf list shows them")
        );
    }
    Ok(events)
}

/// Whether a name matches a pattern with `*` and `?`.
pub(crate) fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    // The last star, and what it has matched so far: only that one needs to be tried again.
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || Some(c) == name.get(n) => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, matched)) => {
                    *matched += 1;
                    (p, n) = (*at + 1, *matched);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}

/// Splits at commas outside the `/ /` of a PMU event and the braces of a group.
fn split(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut event, mut terms, mut depth) = (0, 0, false, 0usize);
    for (at, c) in list.char_indices() {
        match c {
            // The path of a uprobe follows a colon.
            '/' => terms = !terms && !list[event..at].contains(':'),
            _ if terms => {}
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !terms && matches!(c, ',' | '{') {
            event = at + 1;
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// CPUs, such as `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<u32>);

impl Cpus {
    /// Refuses a CPU that is not online: nothing would be measured there.
    pub(crate) fn check(&self) -> Result {
        let online = online_cpus();
        match self.0.iter().find(|cpu| !online.contains(cpu)) {
            Some(cpu) => Err(Failure::new(format_args!("CPU {cpu} does not exist, or is offline"))),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let bad = || "expected CPUs: 0, 0-3 or 0,2-3".to_owned();
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u16 = first.trim().parse().map_err(|_| bad())?;
            let last: u16 = last.trim().parse().map_err(|_| bad())?;
            if last < first {
                return Err(bad());
            }
            cpus.extend(u32::from(first)..=u32::from(last));
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

/// A cgroup and its name.
pub(crate) struct Cgroup {
    pub(crate) name: String,
    pub(crate) dir: OwnedFd,
}

/// The cgroup of each of `count` events or groups, as `-G` names them: one for all, or one for each.
/// An empty name is none.
pub(crate) fn cgroups(names: &[String], count: usize) -> Result<Vec<Option<Rc<Cgroup>>>> {
    if names.len() > 1 && names.len() != count {
        let why = format!("--cgroup has {} names for {count} events or groups", names.len());
        return Err(Failure::new(why).with_code(2));
    }
    let open = |name: &String| {
        if name.is_empty() {
            return Ok(None);
        }
        let path = cgroup_dir(name)?;
        let dir = File::open(&path).map_err(|e| Failure::about(path.display(), e))?;
        Ok(Some(Rc::new(Cgroup { name: name.clone(), dir: dir.into() })))
    };
    match names {
        [] => Ok(vec![None; count]),
        [name] => Ok(vec![open(name)?; count]),
        names => names.iter().map(open).collect(),
    }
}

/// The directory of a cgroup: a path, or a name in the hierarchy with perf events.
pub(crate) fn cgroup_dir(name: &str) -> Result<PathBuf> {
    let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut found = vec![PathBuf::from(name)];
    let below = name.trim_start_matches('/');
    found.extend(hierarchies(&mountinfo).iter().map(|point| point.join(below)));
    let is_cgroup = |dir: &PathBuf| dir.join("cgroup.procs").exists();
    found.into_iter().find(is_cgroup).ok_or_else(|| Failure::about(name, "there is no such cgroup"))
}

/// The mounted hierarchies for perf events: that of cgroup v1 takes precedence in the kernel.
fn hierarchies(mountinfo: &[u8]) -> Vec<PathBuf> {
    let of = |version| {
        Mount::all(mountinfo).filter(move |mount| mount.is_hierarchy(version, "perf_event"))
    };
    of(CgroupVersion::One).chain(of(CgroupVersion::Two)).map(|mount| mount.point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_outside_of_terms_and_groups() {
        assert_eq!(
            split("cycles,cpu/event=1,umask=2/u,,{a,b}:S,cs"),
            ["cycles", "cpu/event=1,umask=2/u", "{a,b}:S", "cs"]
        );
        let uprobes = "uprobe:/usr/bin/a:0x10,uprobe:/b:2,msr/tsc/";
        assert_eq!(split(uprobes), ["uprobe:/usr/bin/a:0x10", "uprobe:/b:2", "msr/tsc/"]);
        assert_eq!(split("{uprobe:/a:1,b},c"), ["{uprobe:/a:1,b}", "c"]);
        assert!(split("").is_empty());
    }

    #[test]
    fn modifiers_of_a_group_apply_to_each_member() {
        let members = |group: &str| members(group).ok().map(|(members, _)| members);
        assert_eq!(
            members("{task-clock,cs:u,msr/tsc/,cpu/event=1,umask=2/k,sched:sched_switch}:u"),
            Some(
                [
                    "task-clock:u",
                    "cs:u",
                    "msr/tsc/u",
                    "cpu/event=1,umask=2/ku",
                    "sched:sched_switch:u"
                ]
                .map(str::to_owned)
                .to_vec()
            )
        );
        assert_eq!(members("{cs}"), Some(vec!["cs".to_owned()]));
        let pinned = ["cs:uDe", "faults:u"].map(str::to_owned);
        assert_eq!(members("{cs,faults}:uDe"), Some(pinned.to_vec()), "by its leader");
        let sampled = |group: &str| super::members(group).ok();
        assert_eq!(sampled("{cs}:uS"), Some((vec!["cs:u".to_owned()], true)));
        assert_eq!(sampled("{cs}:u"), Some((vec!["cs:u".to_owned()], false)));
        assert_eq!(sampled("{cs:u}:S"), Some((vec!["cs:u".to_owned()], true)));
        for wrong in ["{cs", "{}", "{cs}u", "{cs,{cs}}"] {
            assert_eq!(members(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn patterns_match() {
        let is_match = |pattern: &str, name: &str| is_match(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in [
            ("sched:*", "sched:sched_switch"),
            ("*:sys_enter", "raw_syscalls:sys_enter"),
            ("a*b*c", "abbbcbc"),
            ("s?hed:*", "sched:"),
            ("*", ""),
        ] {
            assert!(is_match(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("sched:*", "irq:x"), ("a?", "a"), ("a*b", "abc"), ("", "a")] {
            assert!(!is_match(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn cpu_lists_are_strict() {
        let cpus = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(cpus("0-2,8,1"), Ok(vec![0, 1, 2, 8]));
        for bad in ["", "x", "3-1", "1,,2", "-1", "99999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let text = "1 0 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            2 0 0:2 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
            3 0 0:3 / /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,perf_event\n";
        let expected = ["/sys/fs/cgroup/a b", "/sys/fs/cgroup/unified"];
        assert_eq!(hierarchies(text.as_bytes()), expected.map(PathBuf::from));
    }
}
