use super::super::go_pull::tests::{serve, server};
use super::*;
use crate::commands::flight::inbox;
use crate::run::wait::until;

/// A child of it has accepted the connection, and goes on.
#[test]
fn the_connection_of_a_process_that_has_ended_is_closed() {
    const PID: u32 = u32::MAX;
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let (address, server) = server(serve);
    let mut programs = Programs::new(dir.path(), Vec::new(), &outbox);
    let pull = Pull::start(address, dir.path(), (PID, "x"), &[], &outbox);
    until("a generation", || pull.shared().last().is_some());
    let program = GoProgram { name: "x".to_owned(), version: "go1.22".to_owned(), has_pprof: true };
    let process = Process {
        file: (0, 0),
        program: Rc::new(program),
        pull: Some(pull),
        tried: BTreeMap::new(),
        is_settled: true,
        refusal: None,
    };
    programs.processes.insert(PID, process);
    assert_eq!(programs.recorded(), 1);
    until("the end of the trace", || {
        programs.look(&BTreeSet::new(), 1 << 20, Duration::ZERO);
        programs.ended.is_empty()
    });
    assert_eq!((programs.recorded(), programs.bytes()), (0, 0));
    assert!(server.join().unwrap(), "the connection was closed");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
