use super::*;
use crate::commands::flight::inbox;
use crate::run::threads::refusal::without_threads;
use crate::run::wait::until;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Instant;

/// The begin of a reply, and of a trace.
const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\n\r\ngo 1.22 trace\0\0\0";

/// A server that reads one request, and then does `serve`.
pub(in super::super) fn server<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while request.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        serve(stream)
    });
    (address, thread)
}

/// The trace of the server at this address. It has a minute for its answer: a loaded machine is slow.
pub(in super::super) fn pull(address: SocketAddr, dir: &Path, pid: u32, outbox: &Outbox) -> Pull {
    let headers = Duration::from_secs(60);
    Pull::start_within(headers, Listening::at(address), dir, (pid, "x"), &[], outbox).unwrap()
}

/// A generation without events: the frequency of the clock, which counts nanoseconds, and empty tables.
fn generation(number: u64, time: u64) -> Vec<u8> {
    const BATCH: u64 = 1;
    const STACKS: u64 = 2;
    const STRINGS: u64 = 4;
    const FREQUENCY: u64 = 8;
    let number_of = |value: u64| {
        let mut bytes = Vec::new();
        trace_common::append_uvarint(value, &mut bytes);
        bytes
    };
    let batch = |data: &[u64]| {
        let data: Vec<u8> = data.iter().copied().flat_map(number_of).collect();
        let head = [BATCH, number, 1, time, data.len() as u64].map(number_of).concat();
        [head, data].concat()
    };
    [batch(&[FREQUENCY, 1_000_000_000]), batch(&[STACKS]), batch(&[STRINGS])].concat()
}

/// Sends a trace until the connection is closed. Returns whether that was within a minute.
pub(in super::super) fn serve(mut stream: TcpStream) -> bool {
    let (begun, limit) = (Instant::now(), Duration::from_secs(60));
    stream.write_all(HEAD).unwrap();
    let mut numbers = 1..;
    while begun.elapsed() < limit {
        let bytes = generation(numbers.next().unwrap(), moment());
        // A program has data now and then.
        std::thread::sleep(Duration::from_millis(1));
        if stream.write_all(&bytes).is_err() {
            return true;
        }
    }
    false
}

/// This moment in traces.
fn moment() -> u64 {
    now().unwrap().nanos().try_into().unwrap()
}

#[test]
fn a_program_that_does_not_answer_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let (answer, may_answer) = channel();
    let (address, server) = server(move |stream| {
        may_answer.recv_timeout(Duration::from_secs(60)).unwrap();
        serve(stream)
    });
    // It does not wait for the answer.
    let pull = pull(address, dir.path(), 1, &outbox);
    assert!(!pull.is_accepted() && !pull.has_ended());
    answer.send(()).unwrap();
    until("a generation", || pull.shared().last().is_some());
    assert!(pull.is_accepted() && !pull.has_ended());
    pull.close();
    assert!(server.join().unwrap(), "the connection was closed");
    pull.remove();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_program_that_never_answers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let (address, server) = server(|mut stream| {
        // It ends when the request does.
        let _ = stream.read(&mut [0]);
    });
    let pull = Pull::start(Listening::at(address), dir.path(), (1, "x"), &[], &outbox).unwrap();
    until("the refusal", || pull.has_ended());
    let why = format!("http://{address}/debug/pprof/trace: no reply within 2 s");
    assert_eq!((pull.is_accepted(), pull.shared().failure()), (false, Some(why)));
    drop(pull);
    server.join().unwrap();
}

/// A server of something else, or one that refuses, is asked no more; one that cannot send its trace now, again.
#[test]
fn only_a_server_that_will_not_send_its_trace_is_refused() {
    for (reply, is_refused) in [
        ("SSH-2.0-OpenSSH\r\n\r\n", true),
        ("200 200 200\r\n\r\n", true),
        ("HTTP/1.1 404 Not Found\r\n\r\n", true),
        ("HTTP/1.0 400 Bad Request\r\n\r\nto an HTTPS server", true),
        ("HTTP/1.1 401 Unauthorized\r\n\r\n", true),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", true),
        ("HTTP/1.1 408 Request Timeout\r\n\r\n", false),
        ("HTTP/1.1 429 Too Many Requests\r\n\r\n", false),
        ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
        ("HTTP/1.1 500 Internal Server Error\r\n\r\nalready enabled", false),
        ("", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (_inbox, outbox) = inbox::new().unwrap();
        let (address, server) = server(|mut stream| stream.write_all(reply.as_bytes()).unwrap());
        let pull = pull(address, dir.path(), 1, &outbox);
        until("the end", || pull.has_ended());
        assert!(!pull.is_accepted(), "{reply}");
        assert_eq!(pull.shared().is_refused(), is_refused, "{reply}");
        server.join().unwrap();
    }
}

/// What comes after a part that cannot be read is not recorded: a dump names the reason.
#[test]
fn a_trace_that_cannot_be_read_any_more_has_a_failure() {
    let head = |number| [HEAD.to_vec(), generation(number, moment())].concat();
    // Batches of strings: more than the limit of a generation.
    let batch = [&[1, 2, 1, 1, 0x80, 0x80, 4, 4][..], &[0; (64 << 10) - 1]].concat();
    let too_large = limits().max_buffer / batch.len() + 2;
    let cut = &generation(2, 2)[..6];
    for (rest, times, expected) in [
        (&batch[..], too_large, Some("max_buffer")),
        (&[0xff; 100], 1, Some("expected a batch")),
        (&generation(9, 9), 1, Some("found a batch of generation 9 in generation 1")),
        // The program has ended.
        (&[], 1, None),
        (cut, 1, None),
        (&batch[..], 1, None),
        (&batch[..batch.len() / 2], 1, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (_inbox, outbox) = inbox::new().unwrap();
        let (head, rest) = (head(1), rest.to_vec());
        let (address, server) = server(move |mut stream| {
            stream.write_all(&head).unwrap();
            // The reader ends within it.
            let _ = (0..times).try_for_each(|_| stream.write_all(&rest));
        });
        let pull = pull(address, dir.path(), 1, &outbox);
        until("the end", || pull.has_ended());
        assert!(pull.is_accepted());
        let failure = pull.shared().failure();
        let has_failed =
            failure.as_deref().map(|failure| expected.map(|why| failure.contains(why)));
        assert_eq!(has_failed, expected.map(|_| Some(true)), "{failure:?}");
        server.join().unwrap();
        pull.remove();
    }
}

/// A program that is killed does not complete the chunks of its reply.
#[test]
fn the_last_generation_of_a_program_that_was_killed_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let trace = [&HEAD[HEAD.len() - 16..], &generation(1, moment())].concat();
    let size = trace.len();
    let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n");
    let (address, server) = server(move |mut stream| {
        stream.write_all(&[head.as_bytes(), &trace, b"\r\n"].concat()).unwrap();
    });
    let pull = pull(address, dir.path(), 1, &outbox);
    until("the end", || pull.has_ended());
    assert_eq!(pull.shared().failure(), None);
    assert!(pull.is_accepted() && pull.shared().last().is_some());
    server.join().unwrap();
    pull.remove();
}

#[test]
fn generations_of_all_programs_have_one_limit() {
    let memory = Memory::new(10);
    let [one, other] = [(), ()].map(|()| Held::new(&memory));
    one.receive(SHARE + 10).unwrap();
    // Each has its share in any case.
    other.receive(SHARE).unwrap();
    other.release(1);
    other.receive(1).unwrap();
    other.receive(1).unwrap_err();
    // The buffer stays as large as it was.
    one.release(SHARE + 10);
    other.receive(1).unwrap_err();
    drop(one);
    other.receive(1).unwrap();
    assert_eq!(memory.used.load(Ordering::Relaxed), 3);
    drop(other);
    assert_eq!(memory.used.load(Ordering::Relaxed), 0);

    // A batch of strings.
    let batch = [&[1, 2, 1, 1, 0x80, 0x80, 4, 4][..], &[0; (64 << 10) - 1]].concat();
    let large = batch.repeat(SHARE as usize / batch.len() + 2);
    let trace = [&HEAD[HEAD.len() - 16..], &generation(1, 1), &large].concat();
    let (dir, shared) = (tempfile::tempdir().unwrap(), Shared::default());
    let ended = split(&trace[..], &dir.path().into(), 1, &shared, &memory, &mut |_, _| ());
    let why = "the generations of all Go programs need more than 10 bytes of memory";
    assert!(ended.as_ref().unwrap_err().contains(why), "{ended:?}");
    assert_eq!(memory.used.load(Ordering::Relaxed), 0);
}

/// The generations of a trace: their bytes, and how many files there are.
fn received(generations: impl Iterator<Item = (u64, u64)>, budget: Option<u64>) -> (Shared, usize) {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::default();
    shared.lock().budget = budget;
    let header = &HEAD[HEAD.len() - 16..];
    let generations = generations.map(|(number, time)| generation(number, time));
    let trace = std::iter::once(header.to_vec()).chain(generations).collect::<Vec<_>>().concat();
    split(&trace[..], &dir.path().into(), 1, &shared, &Memory::new(0), &mut |_, _| ()).unwrap();
    (shared, fs::read_dir(dir.path()).unwrap().count())
}

/// A body that says when it was read to its end.
struct Body<'a> {
    bytes: &'a [u8],
    ended: std::sync::mpsc::Sender<()>,
}

impl Read for Body<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.bytes.read(out)?;
        if len == 0 && !out.is_empty() {
            let _ = self.ended.send(()); // it is read once
        }
        Ok(len)
    }
}

/// The trace of this number of generations, and what a reader of it sees that waits until the connection was read to its
/// end if it `is_slow`.
fn read_beside(count: u64, is_slow: bool) -> (Shared, Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::default();
    let header = &HEAD[HEAD.len() - 16..];
    let generations = (1..=count).map(|n| generation(n, n));
    let trace = std::iter::once(header.to_vec()).chain(generations).collect::<Vec<_>>().concat();
    let (ended, has_ended) = channel();
    let mut read = Vec::new();
    let seen = &mut read;
    let reader = move |mut written: Written| {
        let waited = !is_slow || has_ended.recv_timeout(Duration::from_secs(60)).is_ok();
        assert!(waited, "the connection waits for the reader");
        written.read_to_end(seen).err().map(|error| error.to_string())
    };
    let body = Body { bytes: &trace, ended };
    let failed = receive_by(body, &dir.path().into(), (1, "x"), &shared, Some(reader));
    assert_eq!(failed, None);
    (shared, trace, read)
}

/// The program waits for nothing: what it could not send would fill its memory.
#[test]
fn a_reader_that_is_too_slow_does_not_keep_the_connection_waiting() {
    let (shared, trace, read) = read_beside(QUEUE as u64, true);
    assert_eq!((shared.failure(), read), (None, trace), "as many may wait");
    assert!(!shared.becomes_stuck(Duration::ZERO), "all is written");
    let (before, count) = (overtaken(), 3 * QUEUE as u64);
    let (shared, trace, read) = read_beside(count, true);
    assert_eq!(shared.lock().generations.len() as u64, count, "all are written");
    let failure = shared.failure().unwrap();
    assert_eq!(failure, "triggers do not see it any more: 8 generations waited");
    assert!(trace.starts_with(&read) && !read.is_empty() && read.len() < trace.len());
    assert!(overtaken() > before);
}

#[test]
fn a_reader_without_a_thread_gets_nothing() {
    let (shared, trace, read) = without_threads(|| read_beside(2, false));
    let failure = shared.failure().unwrap();
    let why = "triggers do not see it: a thread for the triggers of a Go trace: ";
    assert!(failure.starts_with(why), "{failure}");
    assert_eq!((shared.lock().generations.len(), read.len()), (2, 0), "of {}", trace.len());
}

#[test]
fn a_trace_that_cannot_be_written_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (_inbox, outbox) = inbox::new().unwrap();
    let (address, server) = server(serve);
    let pull = pull(address, dir.path(), 1, &outbox);
    until("a generation", || pull.shared().last().is_some());
    // As a disk that hangs would: the thread writes when it is looked at.
    until("a thread that writes", || {
        pull.look_for(Duration::ZERO);
        pull.shared().failure().is_some()
    });
    assert!(server.join().unwrap(), "the connection was closed");
    let why = pull.shared().failure().unwrap();
    assert_eq!(why, "its trace could not be written within 0 s");
    pull.remove();
}

#[test]
fn a_trace_without_a_thread_is_an_error() {
    let (dir, listening) = (tempfile::tempdir().unwrap(), SocketAddr::from(([127, 0, 0, 1], 9)));
    let (_inbox, outbox) = inbox::new().unwrap();
    let start = || Pull::start(Listening::at(listening), dir.path(), (1, "x"), &[], &outbox).err();
    let why = without_threads(start).unwrap();
    assert!(why.message().starts_with("a thread for a Go trace: "), "{why:?}");
}

#[test]
fn small_generations_are_limited() {
    // Each is counted as the space that its file takes.
    let generations = || (1..=100).map(|n| (n, n));
    let (shared, files) = received(generations(), Some(10 * BLOCK));
    assert_eq!((shared.bytes(), files), (10 * BLOCK, 10));
    // The newest one is kept.
    let (shared, files) = received(generations(), Some(0));
    assert_eq!((shared.bytes(), files), (BLOCK, 1));
    assert_eq!(shared.last(), Some(Timestamp::from_nanos(100)));
    let many = MAX_GENERATIONS as u64 + 10;
    let (shared, files) = received((1..=many).map(|n| (n, n)), None);
    assert_eq!((shared.lock().generations.len(), files), (MAX_GENERATIONS, MAX_GENERATIONS));
}

#[test]
fn generations_of_the_future_are_evicted() {
    let before = now().unwrap();
    let (shared, _) = received([(1, 1 << 61), (2, 1 << 62)].into_iter(), None);
    assert_eq!(shared.lock().generations.len(), 2);
    assert!(shared.last().unwrap() >= before);
    shared.evict(now().unwrap() + Duration::from_nanos(1), u64::MAX);
    assert_eq!((shared.last(), shared.bytes()), (None, 0));
}

/// A moment soon after the start of the machine: later ones would be of the future.
fn milli(number: i64) -> Timestamp {
    Timestamp::from_nanos(number * 1_000_000)
}

fn window(start: Timestamp, end: Timestamp) -> Window {
    Window::new(start, end, trace_flight::Cause::new("signal", "SIGUSR1"))
}

/// Receives a trace with a generation of each of these milliseconds.
fn receive_millis(shared: &Shared, dir: &Path, millis: impl Iterator<Item = u64>) {
    let header = &HEAD[HEAD.len() - 16..];
    let generations = (1..).zip(millis).map(|(n, milli)| generation(n, milli * 1_000_000));
    let trace = std::iter::once(header.to_vec()).chain(generations).collect::<Vec<_>>().concat();
    split(&trace[..], &dir.into(), 1, shared, &Memory::new(0), &mut |_, _| ()).unwrap();
}

#[test]
fn generations_of_a_window_stay_until_its_dump_is_written() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shared = Arc::new(Shared::default());
    receive_millis(&shared, dir.path(), 1..=5);
    let window = window(milli(1), milli(5));
    let part = Part::new(Arc::clone(&shared), &window, true);
    // The dump waits for other sources.
    shared.evict(milli(10), u64::MAX);
    assert_eq!((shared.last(), shared.bytes()), (None, 0));
    let path = out.path().join("out");
    let covered = part.write(&window, &path, Duration::ZERO).unwrap();
    assert_eq!(covered, Some((milli(1), milli(5))));
    assert_eq!(part.gap(&window, milli(1), milli(5)), None);
    let trace = fs::read(path).unwrap();
    let mut generations = Generations::new(&trace[..]).unwrap();
    let mut count = 0;
    while generations.next_generation().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 5);
    drop(part);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_a_part_lacks_has_its_reason() {
    const DISK: &str = "it was removed, as its share of --disk is used up";
    const AGE: &str = "it was removed, as it is older than what is kept";
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let gap = |part: &Part, window: &Window| {
        let path = out.path().join("out");
        let covered = part.write(window, &path, Duration::ZERO).unwrap();
        fs::remove_file(path).unwrap();
        let (from, until) = covered.unwrap();
        part.gap(window, from, until)
    };
    let shared = Arc::new(Shared::default());
    receive_millis(&shared, dir.path(), 1..=6);
    let part = |window: &Window| Part::new(Arc::clone(&shared), window, true);
    let of = |start, end| window(milli(start), milli(end));
    let before = gap(&part(&of(0, 6)), &of(0, 6));
    assert_eq!(before.as_deref(), Some("the time before: its recording had not begun"));
    assert_eq!(gap(&part(&of(1, 6)), &of(1, 6)), None);
    // Nothing happened between two generations.
    let half = Duration::from_micros(500);
    let within = window(milli(2) + half, milli(4) + half);
    assert_eq!(gap(&part(&within), &within), None);
    shared.evict(Timestamp::MIN, 4 * BLOCK);
    assert_eq!(shared.bytes(), 4 * BLOCK);
    let before = gap(&part(&of(1, 6)), &of(1, 6));
    assert_eq!(before, Some(format!("the time before: {DISK}")));
    assert_eq!(gap(&part(&within), &within), None);
    shared.evict(milli(4), u64::MAX);
    let before = gap(&part(&of(1, 6)), &of(1, 6));
    assert_eq!(before, Some(format!("the time before: {AGE}")));
    // What comes before the dump is written, and is removed again.
    let later = of(4, 9);
    let part = part(&later);
    receive_millis(&shared, dir.path(), 7..=9);
    shared.evict(milli(9), u64::MAX);
    let since = gap(&part, &later);
    assert_eq!(since, Some(format!("what came while the dump waited: {AGE}")));
    // What is removed once it was copied is there.
    let last = of(9, 12);
    let copied = Part::new(Arc::clone(&shared), &last, true);
    receive_millis(&shared, dir.path(), 10..=14);
    let path = out.path().join("out");
    let (from, until) = copied.write(&last, &path, Duration::ZERO).unwrap().unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(until, milli(12));
    shared.evict(milli(14), u64::MAX);
    assert_eq!(copied.gap(&last, from, until), None);
    shared.evict(Timestamp::MIN, 0);
    let none = Part::new(Arc::clone(&shared), &later, true);
    let path = out.path().join("out");
    assert_eq!(none.write(&later, &path, Duration::ZERO).unwrap(), None);
    assert_eq!(none.why_none(&later), DISK);
}

/// As where another program has removed it. A full disk is no such error.
#[test]
fn a_generation_that_cannot_be_read_does_not_keep_the_others() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shared = Arc::new(Shared::default());
    receive_millis(&shared, dir.path(), 1..=3);
    let window = window(milli(1), milli(3));
    let part = || Part::new(Arc::clone(&shared), &window, true);
    let remove = |place: usize| fs::remove_file(&shared.lock().generations[place].path).unwrap();
    let why = "a generation cannot be read: No such file or directory";
    remove(1);
    let (path, some) = (out.path().join("some"), part());
    let covered = some.write(&window, &path, Duration::ZERO).unwrap();
    assert_eq!(covered, Some((milli(1), milli(3))));
    let gap = some.gap(&window, milli(1), milli(3)).unwrap();
    assert!(gap.starts_with(why), "{gap}");
    let header = &HEAD[HEAD.len() - 16..];
    let others = [1, 3].map(|n| generation(n, n * 1_000_000)).concat();
    assert!(fs::read(&path).unwrap() == [header, &others].concat());
    // Without any, there is no trace.
    remove(0);
    remove(2);
    let (path, none) = (out.path().join("none"), part());
    assert_eq!(none.write(&window, &path, Duration::ZERO).unwrap(), None);
    assert!(none.why_none(&window).starts_with(why) && !path.exists());
}

#[test]
fn a_trace_continues_while_a_dump_copies_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("pipe"), dir.path().join("out"));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let shared = Arc::new(Shared::default());
    let [first, last] = [1, 2].map(Timestamp::from_nanos);
    let generation = Generation { path: (&path).into(), first, last, bytes: BLOCK };
    shared.change(|pulled| {
        pulled.push(Arc::new(generation));
        pulled.has_ended = true;
    });
    let cause = trace_flight::Cause::new("signal", "SIGUSR1");
    let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
    let part = Part::new(Arc::clone(&shared), &window, true);
    let copy = {
        let out = out.clone();
        std::thread::spawn(move || part.write(&window, &out, Duration::ZERO).unwrap())
    };
    // The copy has begun when it is open for reading.
    let mut pipe = fs::File::options().write(true).open(&path).unwrap();
    let (done, is_done) = channel();
    let other = Arc::clone(&shared);
    std::thread::spawn(move || {
        other.evict(Timestamp::MAX, 0);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((shared.bytes(), path.exists()), (0, true), "the dump still needs the file");
    pipe.write_all(b"generation").unwrap();
    drop(pipe);
    assert_eq!(copy.join().unwrap(), Some((first, last)));
    assert_eq!((fs::read(out).unwrap().as_slice(), path.exists()), (&b"generation"[..], false));
}
