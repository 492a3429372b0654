use super::super::go_pull::tests::{pull, serve, server};
use super::*;
use crate::commands::flight::inbox;
use crate::io::test_data;
use crate::run::wait::until;
use crate::timeline::now;

const PID: u32 = u32::MAX;

fn process(pull: Option<Pull>) -> Process {
    let program = GoProgram { name: "x".to_owned(), version: "go1.22".to_owned(), has_pprof: true };
    Process {
        file: (0, 0),
        program: Rc::new(program),
        pull,
        asked: Asked::default(),
        is_settled: true,
        refusal: None,
    }
}

/// The sessions of a process before the present one are parts of a dump, too; also of one that is written after other
/// settings have ended them.
#[test]
fn all_sessions_of_a_process_are_in_a_dump() {
    for (is_running, is_ended) in [(true, false), (false, false), (true, true)] {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_inbox, outbox) = inbox::new().unwrap();
        let mut programs = Programs::new(dir.path(), Vec::new(), &outbox);
        let session = || {
            let (address, server) = server(serve);
            let pull = pull(address, dir.path(), PID, &outbox);
            until("a generation", || pull.shared().last().is_some());
            (pull, server)
        };
        let begin = now().unwrap();
        let mut servers = Vec::new();
        for _ in 0..2 {
            let (pull, server) = session();
            pull.close();
            until("the end", || pull.has_ended());
            programs.ended.push(Ended::new(PID, "x".to_owned(), pull));
            servers.push(server);
        }
        let mut parts = 2;
        if is_running {
            let (pull, server) = session();
            programs.processes.insert(PID, process(Some(pull)));
            servers.push(server);
            parts = 3;
        }
        let cause = trace_flight::Cause::new("signal", "SIGUSR1");
        let window = Window::new(begin, now().unwrap(), cause);
        let (collected, others) = programs.collect(&window);
        assert_eq!(others.pids, [0; 0]);
        let mut programs = Some(programs);
        programs.take_if(|_| is_ended).into_iter().for_each(Programs::close);
        let write = |one: Collected| one.write(&window, out.path(), Instant::now());
        let sources: Vec<Source> = collected.into_iter().map(write).collect();
        let files = sources.iter().map(|source| source.file.clone().unwrap());
        let expected = ["", "-2", "-3"].map(|number| format!("go-{PID}{number}.trace"));
        assert!(files.eq(expected.into_iter().take(parts)), "{sources:?}");
        assert!(sources.windows(2).all(|pair| pair[0].end <= pair[1].start), "{sources:?}");
        for (index, source) in sources.iter().enumerate() {
            let missing = source.missing.as_deref().unwrap_or_default();
            assert_eq!(missing.starts_with("the time before"), index == 0, "{missing}");
            let trace = fs::read(out.path().join(source.file.as_ref().unwrap())).unwrap();
            let mut generations = Generations::new(&trace[..]).unwrap();
            let (first, _) = generations.next_generation().unwrap().unwrap();
            assert_eq!(source.start, Some(first.first));
        }
        programs.into_iter().for_each(Programs::close);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        servers.into_iter().for_each(|server| assert!(server.join().unwrap()));
    }
}

/// A child of it has accepted the connection, and continues.
#[test]
fn the_connection_of_a_process_that_has_ended_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let (address, server) = server(serve);
    let mut programs = Programs::new(dir.path(), Vec::new(), &outbox);
    let pull = pull(address, dir.path(), PID, &outbox);
    until("a generation", || pull.shared().last().is_some());
    programs.processes.insert(PID, process(Some(pull)));
    assert_eq!(programs.recorded(), 1);
    until("the end of the trace", || {
        programs.look(&BTreeSet::new(), 1 << 20, now().unwrap());
        programs.ended.is_empty()
    });
    assert_eq!((programs.recorded(), programs.bytes()), (0, 0));
    assert!(server.join().unwrap(), "the connection was closed");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_snapshot_that_is_of_no_use_leaves_no_file() {
    let Some(trace) = test_data::of_repository(test_data::SHOP) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("go-1-2.snapshot");
    let (from, until) = save(&(&path).into(), &trace).unwrap();
    assert!(from < until && fs::read(&path).unwrap() == trace);
    fs::remove_file(&path).unwrap();
    for other in [&b"no trace"[..], b"go 1.26 trace\0\0\0", b""] {
        save(&(&path).into(), other).unwrap_err();
        assert!(!path.exists());
    }
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let why = save(&(&path).into(), &trace).unwrap_err();
    assert!(why.contains("No space left"), "{why}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Each look reads all sockets of the machine.
#[test]
fn a_process_that_does_not_listen_is_looked_at_less_and_less() {
    let begin = Instant::now();
    let mut asked = Asked::default();
    let times = (0..100).filter(|half| asked.looks(begin + Duration::from_millis(500) * *half));
    assert!(times.eq([0, 1, 3, 7, 15, 31, 47, 63, 79, 95]));
}

/// They are in no other budget.
#[test]
fn flight_recorders_in_memory_are_within_the_budget() {
    let until = Instant::now() + Duration::from_secs(3600);
    let mut room = Room { bytes: 1000, snapshots: 3, until };
    room.take(600).unwrap();
    let why = room.take(500).unwrap_err();
    assert!(why.contains("500 bytes: the disk budget has 400 left"), "{why}");
    room.take(400).unwrap();
    assert_eq!((room.bytes, room.snapshots), (0, 1));
    room.take(0).unwrap();
    assert!(room.limits().unwrap_err().contains("of 64 other programs"));
    for (bytes, limit) in [(0, 64 << 20), (100 << 20, 100 << 20), (u64::MAX, 256 << 20)] {
        assert_eq!(Room { bytes, snapshots: 1, until }.limits().unwrap().max_buffer, limit);
    }
}

/// To read the memory of one program can take long: what others send is in the dump.
#[test]
fn flight_recorders_in_memory_have_a_time_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut programs = Programs::new(dir.path(), Vec::new(), &outbox);
    let (address, server) = server(serve);
    let pull = pull(address, dir.path(), PID, &outbox);
    until("a generation", || pull.shared().last().is_some());
    programs.processes.insert(PID, process(Some(pull)));
    let silent = [PID - 2, PID - 1];
    silent.into_iter().for_each(|pid| drop(programs.processes.insert(pid, process(None))));
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, now().unwrap(), cause);
    let (sent, others) = programs.collect(&window);
    assert!(sent.iter().map(|one| one.source.pid).eq([Some(PID)]));
    let missing = |until, read: &mut dyn FnMut(u32, Limits) -> Result<Vec<u8>, String>| {
        let rest = programs.others_by(&window, &others, until, read);
        rest.iter().map(|one| (one.source.pid, one.source.missing.clone())).collect::<Vec<_>>()
    };
    let of_all = |why: &str| silent.map(|pid| (Some(pid), Some(why.to_owned())));
    let late = missing(Instant::now(), &mut |_, _| panic!("no time is left"));
    assert_eq!(late, of_all("no time was left to read its flight recorder"));
    let later = Instant::now() + Duration::from_secs(3600);
    let none = missing(later, &mut |_, _| Err("it has none".to_owned()));
    assert_eq!(none, of_all("it does not listen; it has none"));
    drop(sent);
    programs.close();
    assert!(server.join().unwrap(), "the connection was closed");
}

/// The symbols of a large program take a second.
#[test]
fn an_executable_is_parsed_once() {
    let (own, mut parsed) = (std::process::id(), Parsed::default());
    let why = parsed.open(own).unwrap_err();
    assert!(why.contains("not a Go program"), "{why}");
    assert_eq!(parsed.0.len(), 1);
    parsed.0.values_mut().for_each(|known| *known = Err("as before".to_owned()));
    assert_eq!(parsed.open(own).unwrap_err(), "as before");
}

#[test]
fn an_address_that_refuses_is_asked_less_and_less() {
    let begin = Instant::now();
    let address = |port: u16| Listening::at(([127, 0, 0, 1], port).into());
    let mut asked = Asked::default();
    let mut times = Vec::new();
    for second in 0..2000 {
        let now = begin + Duration::from_secs(second);
        if let Some(Listening { address, .. }) = asked.next(vec![address(1)], now) {
            times.push(second);
            asked.ended(address, End::Failed, now);
        }
    }
    assert_eq!(times, [0, 10, 30, 70, 150, 310, 630, 950, 1270, 1590, 1910]);
    // One that sent a trace is asked soon after its end.
    let now = begin + Duration::from_secs(2000);
    asked.ended(address(1).address, End::Accepted, now);
    assert_eq!(asked.next(vec![address(1)], now), None);
    let later = now + Duration::from_secs(10);
    assert_eq!(asked.next(vec![address(1), address(2)], later), Some(address(1)));
    // Another one is not kept waiting.
    asked.ended(address(1).address, End::Refused, later);
    assert_eq!(asked.next(vec![address(1), address(2)], later), Some(address(2)));
    let never = later + Duration::from_secs(1 << 20);
    assert_eq!(asked.next(vec![address(1)], never), None);
    // The process has begun to listen again.
    assert_eq!(asked.next(Vec::new(), never), None);
    assert_eq!(asked.next(vec![address(1)], never), Some(address(1)));
}
