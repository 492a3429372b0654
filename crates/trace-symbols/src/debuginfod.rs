//! Debug information of servers by build id: debuginfod(8).

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use trace_common::BuildId;

/// Servers with debug information, and where it is kept.
///
/// The directory is that of elfutils' client: files that it has fetched are used, too, and the other way
/// round.
///
/// Only `http://` is spoken. For a server of `https://`, let `debuginfod-find` or GDB fetch the files
/// into the same directory, or put a proxy in between.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Debuginfod {
    /// URLs of the servers, in the order in which they are asked.
    pub urls: Vec<String>,
    /// The directory with the files: `BUILDID/debuginfo`.
    pub cache: PathBuf,
    /// Maximum size of a file in bytes.
    pub max_bytes: u64,
    /// Maximum time for the connection to a server, all its addresses together, and for each part of
    /// its answer. Neither the look-up of its name nor the whole answer has a limit.
    pub timeout: Duration,
    failed: Failures,
}

/// Files that no server gave for another reason than that none has it. Clones count together.
#[derive(Clone, Debug, Default)]
struct Failures(Arc<AtomicU64>);

impl PartialEq for Failures {
    /// A count is no setting.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Failures {}

/// A file that is fetched, before the number of the process and that of the file in it.
const PART: &str = "debuginfo.";
/// Names for a file that is fetched which may be those of others.
const MAX_PARTS: usize = 1 << 10;
/// Bytes of the header of an answer.
const MAX_HEADER: u64 = 1 << 16;
/// The time for which a file that no server has is not asked for again, as elfutils has it.
const MISS: Duration = Duration::from_secs(600);

impl Debuginfod {
    /// These servers; files of at most 1 GiB; at most 30 seconds without an answer.
    pub fn new(urls: Vec<String>, cache: impl Into<PathBuf>) -> Self {
        let (cache, timeout) = (cache.into(), Duration::from_secs(30));
        Self { urls, cache, max_bytes: 1 << 30, timeout, failed: Failures::default() }
    }

    /// The number of files that could not be fetched or are not those of their build id. Files that no
    /// server has are none of them. Clones of these settings count together.
    pub fn failures(&self) -> u64 {
        self.failed.0.load(Ordering::Relaxed)
    }

    /// The servers of `DEBUGINFOD_URLS` and the directory of `DEBUGINFOD_CACHE_PATH`, else of
    /// `XDG_CACHE_HOME`, else below `HOME`. `None` if one of both is missing.
    pub fn from_env() -> Option<Self> {
        Self::of(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn of(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<Self> {
        let urls = get("DEBUGINFOD_URLS")?.into_string().ok()?;
        let urls: Vec<String> = urls.split_ascii_whitespace().map(str::to_owned).collect();
        let cache = get("DEBUGINFOD_CACHE_PATH").map(PathBuf::from).or_else(|| {
            let home = || Some(PathBuf::from(get("HOME")?).join(".cache"));
            let cache = get("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
            Some(cache.join("debuginfod_client"))
        })?;
        (!urls.is_empty()).then(|| Self::new(urls, cache))
    }

    /// The debug information of the file with a build id. `None` if no server has it, or after a failure,
    /// which is counted.
    pub(crate) fn find(&self, id: BuildId, max: u64) -> Option<Elf> {
        self.ask(id, max).unwrap_or_else(|_| {
            self.failed.0.fetch_add(1, Ordering::Relaxed);
            None
        })
    }

    fn ask(&self, id: BuildId, max: u64) -> Result<Option<Elf>> {
        let directory = self.cache.join(id.to_string());
        let path = directory.join("debuginfo");
        if let Ok(found) = fs::metadata(&path) {
            if found.len() > 0 {
                return checked(&path, id, max).map(Some);
            }
            let age =
                found.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age < MISS) {
                return Ok(None);
            }
        }
        fs::create_dir_all(&directory)?;
        self.remove_abandoned(&directory);
        let mut last = Ok(None);
        for url in &self.urls {
            match self.fetch_into(&directory, url, id, max) {
                Ok(Some(elf)) => return Ok(Some(elf)),
                Ok(None) => {}
                Err(why) => last = Err(why),
            }
        }
        if last.is_ok() && !mark_missing(&path) {
            return checked(&path, id, max).map(Some);
        }
        last
    }

    /// Fetches a file from a server, and puts it into its place. `None` if the server does not have it.
    fn fetch_into(
        &self,
        directory: &Path,
        url: &str,
        id: BuildId,
        max: u64,
    ) -> Result<Option<Elf>> {
        let (part, mut file) = new_part(directory)?;
        let found = self
            .fetch(url, id, &mut file)
            .and_then(|is_found| is_found.then(|| checked(&part, id, max)).transpose());
        // It is open: without a place in the directory it is fetched again the next time.
        let is_file = matches!(found, Ok(Some(_)));
        if !is_file || fs::rename(&part, directory.join("debuginfo")).is_err() {
            let _ = fs::remove_file(&part);
        }
        found
    }

    /// Removes what processes that were killed have fetched of a file. One that is fetched now grows, at the
    /// latest when the time for a part of the answer is over.
    fn remove_abandoned(&self, directory: &Path) {
        let is_part = |name: &OsStr| {
            let numbers = name.to_str().and_then(|name| name.strip_prefix(PART));
            numbers.is_some_and(|all| all.split('.').all(|number| number.parse::<u32>().is_ok()))
        };
        let is_old = |entry: &DirEntry| {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            let age = changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            age.is_some_and(|age| age > MISS.saturating_add(self.timeout))
        };
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if is_part(&entry.file_name()) && is_old(&entry) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Fetches a file. `false` if the server does not have it.
    fn fetch(&self, url: &str, id: BuildId, out: &mut impl Write) -> Result<bool> {
        let rest =
            url.strip_prefix("http://").ok_or(Unresolved::File(io::ErrorKind::Unsupported))?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = path.trim_end_matches('/');
        // Neither a space nor a line end: they would end the line of the request.
        if host.is_empty() || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Unresolved::File(io::ErrorKind::InvalidInput));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        let mut stream = self.connect(&addresses)?;
        stream.set_read_timeout(Some(self.timeout))?;
        stream.set_write_timeout(Some(self.timeout))?;
        // Version 1.0: the answer ends with the connection.
        write!(stream, "GET {path}/buildid/{id}/debuginfo HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
        let mut stream = BufReader::new(stream);
        let (status, length) = header(&mut stream)?;
        match status {
            200 => {}
            404 => return Ok(false),
            _ => return Err(Unresolved::File(io::ErrorKind::Other)),
        }
        if let Some(size) = length.filter(|length| *length > self.max_bytes) {
            return Err(Unresolved::TooLarge { what: "the debug information", size });
        }
        let size = io::copy(&mut stream.take(self.max_bytes.saturating_add(1)), out)?;
        if size > self.max_bytes {
            return Err(Unresolved::TooLarge { what: "the debug information", size });
        }
        if length.is_some_and(|length| length != size) {
            return Err(Unresolved::File(io::ErrorKind::UnexpectedEof));
        }
        Ok(true)
    }

    /// Connects to the first address that accepts. Each has an equal share of the time that is left.
    fn connect(&self, addresses: &[SocketAddr]) -> Result<TcpStream> {
        let start = Instant::now();
        let mut refused = Unresolved::File(io::ErrorKind::NotFound);
        for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
            let time = self.timeout.saturating_sub(start.elapsed()) / others;
            if time.is_zero() {
                return Err(Unresolved::File(io::ErrorKind::TimedOut));
            }
            match TcpStream::connect_timeout(address, time) {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = error.into(),
            }
        }
        Err(refused)
    }
}

/// Makes a file for what is fetched. Others may fetch the same file into the same directory: another thread, or a
/// process of another container with the same number.
fn new_part(directory: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut made: io::Result<_> = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..MAX_PARTS {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{PART}{}.{number}", std::process::id()));
        made = File::create_new(&path).map(|file| (path, file));
        match &made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            _ => break,
        }
    }
    made
}

/// Marks a file as one that no server has: an empty one, which is as old as the last answer. Returns whether
/// there is none. Another process can have fetched it meanwhile from other servers, and use it.
fn mark_missing(path: &Path) -> bool {
    // Without a mark, servers are asked again. That is no failure: they have answered.
    if File::options().write(true).create_new(true).open(path).is_ok() {
        return true;
    }
    if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        return false;
    }
    // The time alone: what another process puts there at this moment stays. Clients of elfutils before 0.186
    // made marks that nobody may open.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let _ = utimensat(CWD, path, &times, AtFlags::empty());
    true
}

/// The status of an answer, and the length of its body.
fn header(stream: &mut impl BufRead) -> Result<(u16, Option<u64>)> {
    let malformed = Unresolved::File(io::ErrorKind::InvalidData);
    let mut text = Vec::new();
    let mut stream = stream.take(MAX_HEADER);
    // An empty line, or the end.
    while stream.read_until(b'\n', &mut text)? > 2 {}
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let status = lines.next().filter(|line| line.starts_with("HTTP/1."));
    let status = status.and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or(malformed)?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok((status, length))
}

/// Opens a file, if it has this build id.
fn checked(path: &Path, expected: BuildId, max: u64) -> Result<Elf> {
    let elf = Elf::open(path, max)?;
    match elf.build_id() {
        Some(found) if found == expected => Ok(elf),
        Some(found) => Err(Unresolved::BuildId { expected, found }),
        None => Err(Unresolved::Replaced),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_environment_has_servers_and_the_directory() {
        let of = |values: &[(&str, &str)]| {
            let get = |name: &str| values.iter().find(|(known, _)| *known == name);
            Debuginfod::of(|name| get(name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[("HOME", "/home/a")]), None);
        assert_eq!(of(&[("DEBUGINFOD_URLS", "http://a http://b")]), None);
        let urls = ("DEBUGINFOD_URLS", "http://a  http://b/c");
        let found = of(&[urls, ("HOME", "/home/a")]).unwrap();
        assert_eq!(found.urls, ["http://a", "http://b/c"]);
        assert_eq!(found.cache, Path::new("/home/a/.cache/debuginfod_client"));
        let found = of(&[urls, ("HOME", "/home/a"), ("XDG_CACHE_HOME", "/x")]).unwrap();
        assert_eq!(found.cache, Path::new("/x/debuginfod_client"));
        let found = of(&[urls, ("XDG_CACHE_HOME", "/x"), ("DEBUGINFOD_CACHE_PATH", "/y")]).unwrap();
        assert_eq!(found.cache, Path::new("/y"));
    }

    #[test]
    fn all_addresses_of_a_server_are_tried() {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = server.local_addr().unwrap();
        // A socket that does not listen keeps its port from those that would.
        let silent = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&silent, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gone = SocketAddr::try_from(getsockname(&silent).unwrap()).unwrap();
        let servers = Debuginfod::new(Vec::new(), "");
        let connect = |addresses: &[SocketAddr]| servers.connect(addresses).map(drop);
        assert_eq!(connect(&[gone, gone, there]), Ok(()));
        assert_eq!(connect(&[gone]), Err(Unresolved::File(io::ErrorKind::ConnectionRefused)));
        assert_eq!(connect(&[]), Err(Unresolved::File(io::ErrorKind::NotFound)));
    }

    #[test]
    fn marks_of_files_that_no_server_has_take_no_file_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("debuginfo");
        let age = || {
            let changed = fs::metadata(&path).unwrap().modified().unwrap();
            SystemTime::now().duration_since(changed).unwrap_or_default()
        };
        assert!(mark_missing(&path));
        // One of an old client, which has expired.
        let expired = SystemTime::now() - 2 * MISS;
        File::options().write(true).open(&path).unwrap().set_modified(expired).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        assert!(age() > MISS);
        assert!(mark_missing(&path) && age() < MISS);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "fetched").unwrap();
        assert!(!mark_missing(&path));
        assert_eq!(fs::read(&path).unwrap(), b"fetched");
        // Where nothing can be written.
        assert!(mark_missing(&path.join("debuginfo")));
    }

    #[test]
    fn parts_of_processes_that_were_killed_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let servers = Debuginfod::new(Vec::new(), dir.path());
        let old = SystemTime::now() - 2 * (MISS + servers.timeout);
        let names = [
            "debuginfo.1.2",
            "debuginfo.1",
            "debuginfo.2",
            "debuginfo",
            "debuginfo.x7",
            "executable",
        ];
        for name in names {
            let file = File::create(dir.path().join(name)).unwrap();
            if name != "debuginfo.2" {
                file.set_modified(old).unwrap();
            }
        }
        servers.remove_abandoned(dir.path());
        let left = names.map(|name| dir.path().join(name).exists());
        assert_eq!(left, [false, false, true, true, true, true]);
    }

    #[test]
    fn each_file_that_is_fetched_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (first, _) = new_part(dir.path()).unwrap();
        let (name, number) = first.to_str().unwrap().rsplit_once('.').unwrap();
        let number: u32 = number.parse().unwrap();
        // Those of a process with the same number in another container.
        let others: Vec<PathBuf> =
            (1..=100).map(|n| PathBuf::from(format!("{name}.{}", number + n))).collect();
        others.iter().for_each(|path| fs::write(path, "other").unwrap());
        let (second, mut file) = new_part(dir.path()).unwrap();
        file.write_all(b"own").unwrap();
        assert!(second != first && !others.contains(&second));
        assert!(others.iter().all(|path| fs::read(path).unwrap() == b"other"));
        assert_eq!(fs::read(&second).unwrap(), b"own");
    }

    #[test]
    fn headers_of_answers_are_read_or_refused() {
        let read = |text: &str| header(&mut text.as_bytes());
        let good = "HTTP/1.1 200 OK\r\nServer: x\r\nCONTENT-LENGTH: 12\r\n\r\nbody";
        assert_eq!(read(good), Ok((200, Some(12))));
        assert_eq!(read("HTTP/1.0 404 Not Found\r\n\r\n"), Ok((404, None)));
        let refused = Err(Unresolved::File(io::ErrorKind::InvalidData));
        assert_eq!(read(""), refused);
        assert_eq!(read("SSH-2.0-x\r\n"), refused);
        assert_eq!(read("HTTP/1.1 abc\r\n\r\n"), refused);
        assert_eq!(header(&mut BufReader::new(io::repeat(b'x'))), refused);
    }

    proptest! {
        #[test]
        fn any_answer_is_no_panic_and_its_header_has_a_limit(
            parts in proptest::collection::vec(prop_oneof![
                "HTTP/1\\.[01] ?[0-9]{0,6} ?".prop_map(String::into_bytes),
                "[Cc]ontent-[Ll]ength ?: ?[0-9]{0,22}".prop_map(String::into_bytes),
                Just(b"\r\n".to_vec()),
                Just(b"\n".to_vec()),
                (1usize..20_000).prop_map(|size| vec![b'x'; size]),
                any::<Vec<u8>>(),
            ], 0..12),
        ) {
            let answer = parts.concat();
            let mut rest = &answer[..];
            let found = header(&mut rest);
            let read = answer.len() - rest.len();
            prop_assert!(read as u64 <= MAX_HEADER);
            // What is after it has no effect.
            prop_assert_eq!(header(&mut &answer[..read]), found);
        }
    }
}
