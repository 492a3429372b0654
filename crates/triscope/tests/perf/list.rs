use crate::needs_root;
use crate::support::{as_nobody, run, users_may_count};

#[test]
fn events_are_listed_for_everyone() {
    let ran: crate::support::Ran = as_nobody(&["perf", "list"]).output().unwrap().into();
    ran.is_good();
    for word in ["context-switches or cs", "page-faults or faults", "mem:ADDRESS"] {
        assert!(ran.stdout.contains(word), "{word}: {}", ran.stdout);
    }
    assert!(!ran.stdout.contains("sched:sched_switch") || ran.stderr.is_empty());
    let some = run(&["perf", "list", "faults"]);
    some.is_good();
    assert!(some.stdout.lines().all(|line| line.contains("faults")), "{}", some.stdout);
    assert!(some.stdout.lines().count() >= 3);
}

#[test]
fn words_between_names_are_not_searched() {
    let ran = run(&["perf", "list", " or "]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""));
    let ran = run(&["perf", "list", "migrations"]);
    ran.is_good();
    assert!(ran.stdout.contains("cpu-migrations or migrations"), "{}", ran.stdout);
}

#[test]
fn a_word_without_a_match_is_an_error() {
    let ran = run(&["perf", "list", "nosuchthing"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""));
    assert!(ran.stderr.contains("no event's name contains \"nosuchthing\""), "{}", ran.stderr);
}

#[test]
fn features_of_this_kernel_are_listed() {
    let ran: crate::support::Ran =
        as_nobody(&["perf", "list", "--features"]).output().unwrap().into();
    if !users_may_count() {
        return ran.is_refused(1, &["perf_event_paranoid"]);
    }
    ran.is_good();
    let line = |name: &str| ran.stdout.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("flags").contains(" inherit "), "{}", ran.stdout);
    assert!(line("privileged").ends_with("no"));
    assert!(line("perf_event_paranoid").ends_with(&crate::support::paranoid().to_string()));
}

#[test]
fn root_needs_no_mounted_tracefs() {
    needs_root!();
    let ran = run(&["perf", "list", "sched:"]);
    ran.is_good();
    assert_eq!(ran.stderr, "");
    assert!(ran.stdout.lines().any(|line| line.starts_with("sched:sched_switch ")));
}
