use super::*;
use crate::commands::flight::inbox;
use crate::run::fake;
use crate::run::threads::refusal::without_threads;
use crate::run::wait::until;
use diag_ipc::message::Request;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

const BUDGET: u64 = 1_000_000;

/// A process that has no socket any more.
const PID: u32 = u32::MAX;

/// The earliest time of what is kept for this long.
fn earliest(keep: Duration) -> Timestamp {
    now().unwrap() - keep
}

/// A runtime that ignores requests to end a session. The streams of its sessions are those of the test.
fn runtime(dir: &Path) -> (Client, Receiver<UnixStream>) {
    let (sessions, started) = channel();
    let client = fake::runtime(dir, move |request, mut stream| {
        if let Request::CollectTracing { .. } = request {
            fake::begin(&mut stream, 7);
            let _ = sessions.send(stream); // the test may have ended
        }
    });
    (client, started)
}

/// Starts a session, whose runtime sends this number of bytes.
fn start(
    runtimes: &Runtimes,
    runtime: &(Client, Receiver<UnixStream>),
    bytes: usize,
) -> (Trace, UnixStream) {
    start_as(true, runtimes, runtime, bytes)
}

/// The same, of a session whose events fire triggers if it `leads`.
fn start_as(
    leads: bool,
    runtimes: &Runtimes,
    (client, sessions): &(Client, Receiver<UnixStream>),
    bytes: usize,
) -> (Trace, UnixStream) {
    let process = Process { pid: PID, name: "x".to_owned() };
    let session = runtimes.start(&process, leads).unwrap().run(|| Ok(Some(client.clone())));
    let trace = session.unwrap().unwrap();
    let mut stream = sessions.recv_timeout(Duration::from_secs(60)).unwrap();
    stream.write_all(&vec![0; bytes]).unwrap();
    until("the bytes", || trace.bytes() == bytes as u64);
    (trace, stream)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some()).collect()
}

#[test]
fn a_session_that_no_other_can_follow_ends_with_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let (trace, mut stream) = start(&runtimes, &runtime(dir.path()), 1_200_000);
    let path = trace.path().to_owned();
    let process = Process { pid: PID, name: "x".to_owned() };
    runtimes.recorded.insert(PID, Recorded::new(process, None, trace));
    let keep = Duration::from_secs(3600);
    // There is no socket for another one.
    runtimes.end_old(BUDGET, earliest(keep));
    let settled = runtimes.settled().recv_timeout(Duration::from_secs(60)).unwrap();
    runtimes.settle(settled);
    runtimes.end_old(BUDGET, earliest(keep));
    assert!(runtimes.recorded[&PID].is_stopped);
    let (name, why) = &runtimes.unrecorded.named[&PID];
    assert!(name == "x" && why.contains("no other session can be started: "), "{why}");
    // It continues, and is read without a place in the file.
    stream.write_all(&vec![0; 4_000_000]).unwrap();
    assert!(fs::metadata(&path).unwrap().len() <= 1_200_000 + BUDGET / 2);
    drop(stream);
    until("the end of the session", || runtimes.recorded[&PID].old.has_ended());
    assert!(runtimes.bytes() >= 1_200_000 && files(dir.path()) == [path]);
    // It is more than its share.
    runtimes.end_old(BUDGET, earliest(keep));
    assert!(runtimes.recorded.is_empty() && runtimes.ending.is_empty());
    assert_eq!((runtimes.bytes(), files(dir.path())), (0, Vec::new()));
}

/// As in a storm of forks: it is tried again, and a dump has the reason meanwhile.
#[test]
fn a_session_without_a_thread_is_unrecorded() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    let process = || Process { pid: PID, name: "x".to_owned() };
    without_threads(|| runtimes.begin(process(), true, || Ok(None)));
    assert!(runtimes.starting.is_empty());
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
    let (name, why) = &runtimes.unrecorded.named[&PID];
    assert!(name == "x" && why.starts_with("a thread for a .NET session: "), "{why}");
    runtimes.begin(process(), true, || Ok(None));
    assert!(runtimes.starting.contains_key(&PID));
}

#[test]
fn a_session_that_does_not_end_takes_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let (old, mut stream) = start(&runtimes, &runtime, 600_000);
    let (new, _other) = start(&runtimes, &runtime, 10_000);
    let process = Process { pid: PID, name: "x".to_owned() };
    let mut recorded = Recorded::new(process, None, old);
    let path = new.path().to_owned();
    recorded.new = Some(new);
    runtimes.recorded.insert(PID, recorded);
    // The new one has lasted as long as is kept.
    runtimes.end_old(BUDGET, earliest(Duration::ZERO));
    assert_eq!((runtimes.ending.len(), runtimes.bytes()), (1, 10_000));
    assert_eq!(files(dir.path()), std::slice::from_ref(&path));
    stream.write_all(&vec![0; 4_000_000]).unwrap();
    assert_eq!(runtimes.ending[0].bytes(), 600_000);
    drop(stream);
    until("the end of the session", || {
        runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
        runtimes.ending.is_empty()
    });
    assert_eq!(files(dir.path()), [path]);
}

/// The old session of a process that ends has the time before the new one, too.
#[test]
fn a_process_that_ends_beside_a_new_session_keeps_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let (old, stream) = start(&runtimes, &runtime, 600_000);
    let (new, other) = start(&runtimes, &runtime, 10_000);
    let path = old.path().to_owned();
    let process = Process { pid: PID, name: "x".to_owned() };
    let mut recorded = Recorded::new(process, None, old);
    recorded.new = Some(new);
    runtimes.recorded.insert(PID, recorded);
    let keep = Duration::from_secs(3600);
    runtimes.end_old(BUDGET, earliest(keep));
    assert!(runtimes.recorded[&PID].new.is_some());
    drop((stream, other));
    until("the ends of the sessions", || {
        let recorded = &runtimes.recorded[&PID];
        recorded.old.has_ended() && recorded.new.as_ref().unwrap().has_ended()
    });
    for _ in 0..2 {
        runtimes.end_old(BUDGET, earliest(keep));
        let recorded = &runtimes.recorded[&PID];
        assert!(recorded.new.is_none() && recorded.ended.is_some());
        assert_eq!((runtimes.bytes(), files(dir.path())), (600_000, vec![path.clone()]));
    }
}

/// The processes of a dump of all since this time, and what it lacks of them.
fn lacks(runtimes: &mut Runtimes, start: Timestamp) -> Vec<(u32, Option<String>)> {
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let collected = runtimes.collect(&Window::new(start, Timestamp::MAX, cause));
    let of = |one: &Collected| (one.source.pid.unwrap(), one.source.missing.clone());
    collected.iter().map(of).collect()
}

/// Records a process until its end.
fn record_ended(runtimes: &mut Runtimes, runtime: &(Client, Receiver<UnixStream>), pid: u32) {
    runtimes.budget = BUDGET;
    let (trace, stream) = start(runtimes, runtime, 10_000);
    let process = Process { pid, name: "x".to_owned() };
    runtimes.recorded.insert(pid, Recorded::new(process, None, trace));
    drop(stream);
    until("the end of the session", || runtimes.recorded[&pid].old.has_ended());
    runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
}

/// The begin of a trace is not that of all time.
const BEGIN: &str = "the time before: its recording had not begun";

#[test]
fn a_trace_that_an_earlier_dump_has_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    record_ended(&mut runtimes, &runtime(dir.path()), PID);
    let of = |why: &str| [(PID, Some(why.to_owned()))];
    assert_eq!(lacks(&mut runtimes, Timestamp::MIN), of(BEGIN));
    assert_eq!(lacks(&mut runtimes, Timestamp::MIN), of("it was taken for an earlier dump"));
    // It had ended before.
    assert!(lacks(&mut runtimes, now().unwrap()).is_empty());
    // No dump has its time any more.
    runtimes.end_old(BUDGET, earliest(Duration::ZERO));
    assert!(lacks(&mut runtimes, Timestamp::MIN).is_empty());
}

#[test]
fn the_oldest_traces_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    let runtime = runtime(dir.path());
    let pids = [PID, PID - 1, PID - 2];
    pids.into_iter().for_each(|pid| record_ended(&mut runtimes, &runtime, pid));
    runtimes.end_old(25_000, earliest(Duration::from_secs(3600)));
    assert_eq!((runtimes.bytes(), files(dir.path()).len()), (20_000, 2));
    let lacks = lacks(&mut runtimes, Timestamp::MIN);
    let expected = [(PID, NO_SPACE), (PID - 2, BEGIN), (PID - 1, BEGIN)];
    assert_eq!(lacks, expected.map(|(pid, why)| (pid, Some(why.to_owned()))));
}

/// The old session has ended at its own limit: triggers of the process continue with the new one.
#[test]
fn a_session_beside_one_that_has_ended_fires_triggers() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let (old, stream) = start(&runtimes, &runtime, 10_000);
    let (new, _other) = start_as(false, &runtimes, &runtime, 10_000);
    let process = Process { pid: PID, name: "x".to_owned() };
    let mut recorded = Recorded::new(process, None, old);
    recorded.new = Some(new);
    runtimes.recorded.insert(PID, recorded);
    let mut leads = || {
        runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
        let recorded = &runtimes.recorded[&PID];
        (recorded.old.has_ended(), recorded.new.as_ref().unwrap().leads())
    };
    assert_eq!(leads(), (false, false));
    drop(stream);
    until("the end of the session", || leads().0);
    assert_eq!(leads(), (true, true));
}

/// It begins another one after a pause.
#[test]
fn a_session_that_ended_while_its_process_runs_is_not_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let pid = std::process::id();
    let running = (pid, procfs::start_time(pid));
    for ((pid, started), expected) in
        [(running, Some("the time after: its session had ended")), ((PID, None), None)]
    {
        let (trace, stream) = start(&runtimes, &runtime, 10_000);
        let process = Process { pid, name: "x".to_owned() };
        runtimes.recorded.insert(pid, Recorded::new(process, started, trace));
        drop(stream);
        until("the end of the session", || runtimes.recorded[&pid].old.has_ended());
        runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
        let cause = trace_flight::Cause::new("signal", "SIGUSR1");
        let window = Window::new(now().unwrap(), Timestamp::MAX, cause);
        let collected = runtimes.collect(&window);
        let missing: Vec<_> =
            collected.iter().map(|one| (one.source.pid, one.source.missing.as_deref())).collect();
        assert_eq!(missing, [(Some(pid), expected)]);
    }
}

#[test]
fn a_process_whose_id_another_one_has_is_kept() {
    let (dir, dump) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let pid = std::process::id();
    let started = procfs::start_time(pid);
    let mut streams = Vec::new();
    let mut record = |runtimes: &mut Runtimes, started| {
        let (trace, stream) = start(runtimes, &runtime, 10_000);
        streams.push(stream);
        let process = Process { pid, name: "x".to_owned() };
        runtimes.recorded.insert(pid, Recorded::new(process, started, trace));
    };
    let keep = Duration::from_secs(3600);
    // Before this process, another one had its id.
    record(&mut runtimes, Some(0));
    runtimes.end_old(BUDGET, earliest(keep));
    assert_eq!((runtimes.recorded.len(), runtimes.replaced.len()), (0, 1));
    record(&mut runtimes, started);
    runtimes.end_old(BUDGET, earliest(keep));
    assert_eq!((runtimes.recorded.len(), runtimes.replaced.len()), (1, 1));
    assert_eq!((runtimes.bytes(), files(dir.path()).len()), (20_000, 2));
    // There is no space for both.
    let path = runtimes.replaced[0].old.path().to_owned();
    runtimes.end_old(15_000, earliest(keep));
    assert_eq!((runtimes.recorded.len(), runtimes.replaced.len()), (1, 0));
    assert!(runtimes.bytes() == 10_000 && !path.exists());
    runtimes.recorded.clear();
    record(&mut runtimes, Some(0));
    runtimes.end_old(BUDGET, earliest(keep));
    record(&mut runtimes, started);
    streams.clear();
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
    let collected = runtimes.collect(&window).into_iter();
    let sources = collected.map(|one| one.write(&window, dump.path(), Instant::now()));
    let written: Vec<_> = sources.filter_map(|source| source.file).collect();
    assert_eq!(written, [format!("dotnet-{pid}.nettrace"), format!("dotnet-{pid}-2.nettrace")]);
    assert_eq!(files(dump.path()).len(), 2);
}

#[test]
fn a_process_has_no_session_of_another_one_with_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let (sessions, streams) = channel();
    let (ends, ended) = channel();
    let mut begun = 0;
    // The test may have ended.
    let client = fake::runtime(dir.path(), move |request, mut stream| match request {
        Request::CollectTracing { .. } => {
            begun += 1;
            fake::begin(&mut stream, begun);
            let _ = sessions.send(stream);
        }
        Request::StopTracing { session } => drop(ends.send(session)),
        other => panic!("{other:?}"),
    });
    let runtime = (client, streams);
    let pid = std::process::id();
    let process = || Process { pid, name: "x".to_owned() };
    let ended = || ended.recv_timeout(Duration::from_secs(60)).unwrap();
    let (old, _first) = start(&runtimes, &runtime, 10_000);
    let (new, _second) = start(&runtimes, &runtime, 10_000);
    let path = old.path().to_owned();
    // Before this process, another one had its id.
    runtimes.recorded.insert(pid, Recorded::new(process(), Some(0), old));
    let result = Ok(Some(Begun::new(new)));
    let started = procfs::start_time(pid);
    runtimes.settle(Settled { process: process(), started, result });
    assert!(runtimes.recorded[&pid].new.is_none());
    assert_eq!((ended(), files(dir.path())), (2, vec![path]));
    // Its id can be reused between the look at its start and the request.
    let (new, _third) = start(&runtimes, &runtime, 10_000);
    let result = Ok(Some(Begun::new(new)));
    runtimes.settle(Settled { process: process(), started: Some(0), result });
    assert!(runtimes.recorded[&pid].new.is_none());
    assert_eq!(ended(), 3);
    // Also the first one may be that of the other process.
    runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
    assert_eq!((runtimes.replaced.len(), ended()), (1, 1));
}

/// As on a disk that is full for a moment: triggers continue with another session.
#[test]
fn a_session_that_ends_while_its_process_runs_is_followed() {
    let (dir, dump) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut command = std::process::Command::new("sleep");
    command.arg("60").stdin(std::process::Stdio::null()).env("TMPDIR", dir.path());
    let mut child = command.spawn().unwrap();
    let pid = child.id();
    // The kernel lets its starter continue a moment before.
    until("its environment", || procfs::has_port(pid, "TMPDIR", dir.path()));
    let started = procfs::start_time(pid);
    // It has the name of that of the runtime of the process, which is the reason for the request.
    let name = format!("dotnet-diagnostic-{pid}-{}-socket", started.unwrap());
    let _listener = UnixListener::bind(dir.path().join(name)).unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let runtime = runtime(dir.path());
    let process = || Process { pid, name: "x".to_owned() };
    let look = |runtimes: &mut Runtimes, at: Instant| {
        runtimes.look_at(at, &[pid].into(), BUDGET, earliest(Duration::from_secs(3600)));
        (runtimes.recorded.contains_key(&pid), runtimes.starting.contains_key(&pid))
    };
    let end = |runtimes: &mut Runtimes, stream: UnixStream| {
        drop(stream);
        until("the end of the session", || runtimes.recorded[&pid].old.has_ended());
        let before = Instant::now();
        assert_eq!(look(runtimes, before), (true, false), "it is noticed");
        before
    };
    let (first, stream) = start(&runtimes, &runtime, 10_000);
    runtimes.recorded.insert(pid, Recorded::new(process(), started, first));
    end(&mut runtimes, stream);
    assert_eq!(look(&mut runtimes, Instant::now() + PAUSE.0), (false, true), "it is requested");
    // The listener is none of the process.
    let settled = runtimes.settled().recv_timeout(Duration::from_secs(60)).unwrap();
    runtimes.settle(settled);
    let (second, stream) = start(&runtimes, &runtime, 20_000);
    let result = Ok(Some(Begun::new(second)));
    runtimes.settle(Settled { process: process(), started, result });
    let noticed = end(&mut runtimes, stream);
    let early = look(&mut runtimes, noticed + PAUSE.0);
    assert_eq!(early, (true, false), "the next pause is longer");
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
    let collected = runtimes.collect(&window).into_iter();
    let sources = collected.map(|one| one.write(&window, dump.path(), Instant::now()));
    let sources: Vec<Source> = sources.collect();
    let size = |source: &Source| {
        let file = source.file.as_ref().unwrap();
        (file.clone(), fs::metadata(dump.path().join(file)).unwrap().len())
    };
    let (one, other) = (format!("dotnet-{pid}.nettrace"), format!("dotnet-{pid}-2.nettrace"));
    let sizes: Vec<_> = sources.iter().map(size).collect();
    assert_eq!(sizes, [(one, 10_000), (other, 20_000)]);
    assert!(sources[0].end <= sources[1].start, "the first one has nothing of the second one");
    child.kill().unwrap();
    child.wait().unwrap();
    // Nor is one of a process that has ended begun again.
    let (third, stream) = start(&runtimes, &runtime, 10_000);
    runtimes.recorded.insert(pid, Recorded::new(process(), started, third));
    end(&mut runtimes, stream);
    assert_eq!(look(&mut runtimes, Instant::now() + 2 * PAUSE.1), (true, false));
}

/// A dump that waits for its sources has those of the settings before: another trigger ends their sessions.
#[test]
fn a_dump_that_waits_has_the_sources_of_the_settings_before() {
    use crate::commands::flight::sources::{Pending, REPLIES, Wanted, Worker};
    let (dir, dump) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_inbox, outbox) = inbox::new().unwrap();
    let wanted = |triggers: &[&str]| Wanted {
        dotnet: true,
        go: false,
        triggers: triggers.iter().map(|trigger| trigger.parse().unwrap()).collect(),
        command_lines: true,
        bytes: BUDGET,
        keep: Duration::from_secs(3600),
        pid: Some(PID),
    };
    let mut worker = Worker::new(dir.path().into(), wanted(&[]), outbox, Arc::default());
    let runtimes = worker.dotnet.as_mut().unwrap();
    runtimes.budget = BUDGET;
    let (trace, stream) = start(runtimes, &runtime(dir.path()), 10_000);
    let process = Process { pid: PID, name: "x".to_owned() };
    runtimes.recorded.insert(PID, Recorded::new(process.clone(), None, trace));
    // The session that follows has not begun.
    let (client, _listener) = hung(dir.path());
    runtimes.begin(process, false, move || Ok(Some(client)));
    let (reply, collected) = crossbeam_channel::bounded(REPLIES.len());
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
    worker.pending.push_back(Pending { window: window.clone(), reply, until: None });
    worker.reply();
    assert!(collected.is_empty(), "it waits");
    // Settings of other things end nothing.
    worker.change(Wanted { keep: Duration::ZERO, ..wanted(&[]) });
    assert!(collected.is_empty() && worker.pending.len() == 1);
    worker.change(wanted(&["gc-pause=50ms"]));
    assert!(worker.dotnet.as_ref().unwrap().recorded.is_empty());
    drop(stream);
    let written = collected.try_recv().unwrap().into_iter();
    let sources = written.map(|one| one.write(&window, dump.path(), Instant::now()));
    let files: Vec<_> = sources.filter_map(|source| source.file).collect();
    assert_eq!(files, [format!("dotnet-{PID}.nettrace")]);
    assert_eq!(fs::metadata(dump.path().join(&files[0])).unwrap().len(), 10_000);
}

/// A runtime that accepts connections, and never replies.
fn hung(dir: &Path) -> (Client, UnixListener) {
    let path = dir.join("hung");
    let listener = UnixListener::bind(&path).unwrap();
    (Client::new(path), listener)
}

#[test]
fn a_runtime_that_hangs_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let ((client, _listener), (other, _sessions)) = (hung(dir.path()), runtime(dir.path()));
    let process = |pid| Process { pid, name: "x".to_owned() };
    runtimes.begin(process(PID), true, move || Ok(Some(client)));
    runtimes.begin(process(PID - 1), true, move || Ok(Some(other)));
    let settled = runtimes.settled().recv_timeout(Duration::from_secs(60)).unwrap();
    runtimes.settle(settled);
    assert_eq!(runtimes.recorded.keys().collect::<Vec<_>>(), [&(PID - 1)]);
    assert_eq!(runtimes.starting.keys().collect::<Vec<_>>(), [&PID]);
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
    let collected = runtimes.collect(&window);
    let missing = collected.iter().map(|one| (one.source.pid, one.source.missing.as_deref()));
    let begin = Some("the time before: its recording had not begun");
    let expected = [(Some(PID), Some(NO_REPLY)), (Some(PID - 1), begin)];
    assert_eq!(missing.collect::<Vec<_>>(), expected);
    drop(collected);
    // It has not replied yet, and nothing of it is left.
    runtimes.close();
    assert!(!files(dir.path()).iter().any(|path| path.to_string_lossy().contains("4294967295")));
}

#[test]
fn a_session_that_a_runtime_does_not_let_follow_ends_with_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let mut runtimes = Runtimes::new(dir.path(), Vec::new(), true, &outbox);
    runtimes.budget = BUDGET;
    let (trace, _stream) = start(&runtimes, &runtime(dir.path()), 1_200_000);
    let (client, _listener) = hung(dir.path());
    let process = || Process { pid: PID, name: "x".to_owned() };
    runtimes.recorded.insert(PID, Recorded::new(process(), None, trace));
    runtimes.begin(process(), false, move || Ok(Some(client)));
    until("the end of the session", || {
        runtimes.end_old(BUDGET, earliest(Duration::from_secs(3600)));
        runtimes.recorded[&PID].is_stopped
    });
    let (_, why) = &runtimes.unrecorded.named[&PID];
    assert!(why.ends_with(NO_REPLY), "{why}");
    // The one that follows may still begin.
    assert!(runtimes.starting.contains_key(&PID));
}
