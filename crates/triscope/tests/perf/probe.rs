use crate::needs_root;
use crate::support::{WITH_TRACEFS, as_nobody, child, run};

/// A function of this program, with arguments.
#[inline(never)]
pub(crate) extern "C" fn probed(x: u64, y: u32) -> u64 {
    std::hint::black_box(x + u64::from(y))
}

const PROBED: &str = "perf::probe::probed";

/// The probes of one test, in a group of its own, which are deleted at its end.
struct Group(String);

impl Group {
    fn new(test: &str) -> Self {
        Self(format!("perf_test_{test}_{}", std::process::id()))
    }

    fn definition(&self, rest: &str) -> String {
        format!("{}:{rest}", self.0)
    }

    fn all(&self) -> String {
        format!("{}:*", self.0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = run(&["perf", "probe", "--del", &self.all()]);
    }
}

fn this_program() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn probes_of_a_program_are_added_listed_used_and_deleted() {
    needs_root!();
    let (group, file) = (Group::new("use"), this_program());
    let definition = group.definition(&format!("hit={PROBED} x=$arg1 y=$arg2:u32"));
    let ran = run(&["perf", "probe", "-x", &file, &definition]);
    ran.is_good();
    assert_eq!(ran.stdout, format!("Added new event: {}:hit\n", group.0));
    assert!(ran.stderr.contains("triscope perf trace -e"), "{}", ran.stderr);

    let ran = run(&["perf", "probe", "--list", &group.all()]);
    ran.is_good();
    let line = format!("  {}:hit (on {PROBED} in {file} with x y)\n", group.0);
    assert_eq!(ran.stdout, line);
    let ran = run(&["perf", "probe", "--json", "-l", &group.all()]);
    let object: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&object["function"], &object["kind"]), (&PROBED.into(), &"uprobe".into()));
    assert!(object["arguments"]["y"].as_str().unwrap().ends_with(":u32"), "{object}");

    // It counts, in any program that opens it.
    let event = format!("{}:hit", group.0);
    let role = child("probed 7");
    let mut args = vec!["perf", "stat", "--json", "-e", &event, "--"];
    args.extend(role.iter().map(String::as_str));
    let ran = run(&args);
    ran.is_good();
    let counts: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(counts["events"][0]["count"], 7, "{counts}");
    let mut args = vec!["perf", "trace", "-e", &event, "--"];
    args.extend(role.iter().map(String::as_str));
    let ran = run(&args);
    ran.is_good();
    let hits: Vec<&str> = ran.stdout.lines().filter(|line| line.contains(":hit")).collect();
    assert_eq!(hits.len(), 7, "{}{}", ran.stdout, ran.stderr);
    assert!(hits[3].contains("x=3") && hits[3].contains("y=1000"), "{}", hits[3]);

    let ran = run(&["perf", "probe", "-d", &event]);
    ran.is_good();
    assert_eq!(ran.stdout, format!("Removed event: {event}\n"));
    run(&["perf", "probe", "-d", &event]).is_refused(1, &["no probe matches"]);
}

#[test]
fn an_existing_name_needs_force() {
    needs_root!();
    let (group, file) = (Group::new("force"), this_program());
    let definition = group.definition(&format!("hit={PROBED} $arg1"));
    run(&["perf", "probe", "-x", &file, "-a", &definition]).is_good();
    let ran = run(&["perf", "probe", "-x", &file, "-a", &definition]);
    ran.is_refused(1, &["there is an event", "choose another name"]);
    for n in 1..=2 {
        let ran = run(&["perf", "probe", "-x", &file, "--force", &definition]);
        ran.is_good();
        assert_eq!(ran.stdout, format!("Added new event: {}:hit_{n}\n", group.0));
    }
    let ran = run(&["perf", "probe", "--del", &format!("{}:hit_?", group.0)]);
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
}

#[test]
fn an_event_with_several_places_is_deleted_once() {
    needs_root!();
    let (group, file) = (Group::new("places"), this_program());
    let ran = run(&["perf", "probe", "-n", "-x", &file, PROBED]);
    let (_, offset) = ran.stdout.trim().rsplit_once(":0x").unwrap();
    let offset = u64::from_str_radix(offset, 16).unwrap();
    // Another event is between the places. They are never used.
    let line = |name, n| format!("p:{}/{name} {file}:{:#x}", group.0, offset + n);
    let script = format!(
        "{WITH_TRACEFS}\nfor line; do echo \"$line\" >> /sys/kernel/tracing/uprobe_events; done"
    );
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--mount", "sh", "-ec", &script, "sh"]);
    shell.args([line("one", 0), line("two", 1), line("one", 2)]);
    assert!(shell.status().unwrap().success());
    let ran = run(&["perf", "probe", "--del", &group.all()]);
    ran.is_good();
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.stdout);
}

#[test]
fn a_dry_run_prints_the_lines_for_the_kernel() {
    needs_root!();
    let file = this_program();
    let ran = run(&["perf", "probe", "-n", "-x", &file, &format!("{PROBED}%return $retval")]);
    ran.is_good();
    let line = ran
        .stdout
        .strip_prefix("r:probe_perf/probed__return ")
        .unwrap_or_else(|| panic!("{}", ran.stdout));
    assert!(line.contains(&format!("{file}:0x")) && line.ends_with(" arg1=$retval\n"), "{line}");
    let ran = run(&["perf", "probe", "-n", "do_sys_openat2 path=+0($arg2):ustring"]);
    assert_eq!(ran.stdout, "p:probe/do_sys_openat2 do_sys_openat2 path=+0($arg2):ustring\n");
}

#[test]
fn a_refused_probe_is_explained() {
    needs_root!();
    let file = this_program();
    run(&["perf", "probe"]).is_refused(2, &["nothing to do", "--list"]);
    run(&["perf", "probe", "-x", &file, "perf::probe::probde"])
        .is_refused(1, &["has no function", &format!("did you mean {PROBED}")]);
    run(&["perf", "probe", "-x", &file, &format!("{PROBED} x")])
        .is_refused(1, &["debug information", "at byte 20"]);
    run(&["perf", "probe", "-x", &file, &format!("{PROBED} x=%nosuch")])
        .is_refused(1, &["the kernel refused", "%nosuch"]);
    run(&["perf", "probe", "-x", "/no/such/file", "main"]).is_refused(1, &["/no/such/file"]);
}

#[test]
fn a_missing_privilege_is_named() {
    let ran: crate::support::Ran = as_nobody(&["perf", "probe", "-l"]).output().unwrap().into();
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains("tracefs"), "{}", ran.stderr);
}
