//! Processes that replace their program, have another root directory, or end; libraries that take the
//! place of others. A name is that of the code at the time, or there is none, with the module and the
//! position in it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use trace_symbols::{
    BuildId, Mapping, Module, ObjectFile, Options, Symbolized, Symbolizer, Timestamp, Unresolved,
    build_id,
};

const fn at(nanos: i64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Compiles the program that copies its input, with another name of its function.
fn compile(out: &Path, name: &str, arguments: &[&str]) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/waits.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wl,--build-id", source, &format!("-DNAME={name}"), "-o"]).arg(out);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The position in a file of a function, and its address in the file.
fn position(file: &Path, name: &str) -> u64 {
    let file = ObjectFile::open(file, &Options::default()).unwrap();
    let is_start = |position: &u64| {
        let frames = file.address_of(*position).and_then(|address| file.frames(address).ok());
        let frame = frames.and_then(|mut frames| frames.pop());
        frame.is_some_and(|frame| &*frame.function == name && frame.offset == Some(0))
    };
    file.code().into_iter().flatten().find(is_start).unwrap()
}

/// A process that copies its input.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut this = Self(child);
        // Its output shows that the program runs, and not this one before `execve(2)`.
        this.copy(b"x");
        this
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(bytes).unwrap();
        self.expect(bytes);
    }

    fn expect(&mut self, bytes: &[u8]) {
        let mut copied = vec![0; bytes.len()];
        self.0.stdout.as_mut().unwrap().read_exact(&mut copied).unwrap();
        assert_eq!(copied, bytes);
    }

    /// The address of a position of a file in its memory.
    fn address(&self, file: &str, position: u64) -> u64 {
        let maps = fs::read(format!("/proc/{}/maps", self.pid())).unwrap();
        let maps = String::from_utf8_lossy(&maps);
        let code = maps.lines().filter(|line| line.ends_with(file) && line.contains(" r-xp "));
        let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        let found = code.into_iter().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            let (start, end, offset) = (hex(start), hex(end), hex(words[2]));
            let at = position.checked_sub(offset)?;
            (at < end - start).then_some(start + at)
        });
        found.unwrap_or_else(|| panic!("{file} {position:#x}:\n{maps}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn name(found: &Symbolized<'_>) -> Result<String, Unresolved> {
    found.frames.map(|frames| frames[0].function.to_string()).map_err(Clone::clone)
}

#[test]
fn a_process_that_replaces_its_program_has_the_functions_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    compile(&second, "second_copy", &[]);
    // A shell that becomes the other program.
    testkit::program::copy("/bin/sh", &first);
    let mut command = Command::new(&first);
    let child = command.arg("-c").arg("echo y; read line; exec \"$0\"").arg(&second);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut process = Process(child);
    process.expect(b"y\n");
    let pid = process.pid();
    let mut symbols = Symbolizer::default();
    symbols.spaces_mut().read_process(pid, at(10)).unwrap();
    let code = ObjectFile::open(&first, &Options::default()).unwrap().code()[0].start;
    let in_first = process.address("/first", code);
    process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    process.copy(b"z");
    symbols.spaces_mut().exec(pid);
    symbols.spaces_mut().read_process(pid, at(20)).unwrap();
    let in_second = process.address("/second", position(&second, "second_copy"));
    let mut module = |address, time| {
        let found = symbols.symbolize(pid, address, at(time));
        let module = found.module.map(|module| module.name.to_string());
        (module, name(&found))
    };
    let path = |path: &Path| Some(path.to_str().unwrap().to_owned());
    assert_eq!(module(in_first, 15).0, path(&first));
    assert_eq!(module(in_second, 25), (path(&second), Ok("second_copy".to_owned())));
    // The address has another meaning at another time, or none.
    assert_ne!(module(in_second, 15).1, Ok("second_copy".to_owned()));
    assert_ne!(module(in_first, 25).0, path(&first));
}

#[test]
fn a_process_that_is_added_again_has_no_addresses_of_its_former_program() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    compile(&second, "second_copy", &[]);
    testkit::program::copy("/bin/sh", &first);
    let mut command = Command::new(&first);
    let child = command.arg("-c").arg("echo y; read line; exec \"$0\"").arg(&second);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut process = Process(child);
    process.expect(b"y\n");
    let pid = process.pid();
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    let code = ObjectFile::open(&first, &Options::default()).unwrap().code()[0].start;
    let in_first = process.address("/first", code);
    let is_in = |symbols: &mut Symbolizer, address, file: &Path| {
        let found = symbols.symbolize(pid, address, Timestamp::MAX);
        found.module.is_some_and(|module| Some(&*module.name) == file.to_str())
    };
    assert!(is_in(&mut symbols, in_first, &first));
    process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    process.copy(b"z");
    symbols.add_process(pid).unwrap();
    let in_second = process.address("/second", position(&second, "second_copy"));
    assert!(is_in(&mut symbols, in_second, &second));
    assert!(!is_in(&mut symbols, in_first, &first));
    symbols.remove_process(pid);
    let found = symbols.symbolize(pid, in_second, Timestamp::MAX);
    assert_eq!(name(&found), Err(Unresolved::NotMapped));
}

#[test]
fn a_library_takes_the_place_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let library = |name: &str| {
        let path = dir.path().join(format!("{name}.so"));
        compile(&path, name, &["-shared", "-fPIC"]);
        path
    };
    let mut symbols = Symbolizer::default();
    let mut mapping = |path: &PathBuf| {
        let module = Module::file(path.to_str().unwrap(), build_id::of_file(path));
        let module = symbols.spaces_mut().add_module(module);
        Mapping { start: 0x7000_0000, end: 0x7001_0000, offset: 0, module }
    };
    let (old, new) = (library("old_copy"), library("new_copy"));
    let (was, is) = (mapping(&old), mapping(&new));
    let places = [position(&old, "old_copy"), position(&new, "new_copy")];
    // `dlclose(3)` is not reported: the new mapping replaces the old one.
    symbols.spaces_mut().map(1, at(10), &was);
    symbols.spaces_mut().map(1, at(20), &is);
    symbols.spaces_mut().unmap(1, at(30), was.start, was.end);
    let mut found = |place, time| name(&symbols.symbolize(1, 0x7000_0000 + place, at(time)));
    assert_eq!(found(places[0], 5), Err(Unresolved::NotMapped));
    for _ in 0..2 {
        // Also from the cache.
        assert_eq!(found(places[0], 10), Ok("old_copy".to_owned()));
        assert_eq!(found(places[0], 19), Ok("old_copy".to_owned()));
        assert_eq!(found(places[1], 20), Ok("new_copy".to_owned()));
        assert_eq!(found(places[1], 29), Ok("new_copy".to_owned()));
    }
    assert_eq!(found(places[1], 30), Err(Unresolved::NotMapped));
    // A library that was replaced on the disk, too, has no names.
    fs::remove_file(&old).unwrap();
    fs::copy(&new, &old).unwrap();
    let module = symbols.spaces().locate(1, 0x7000_0000, at(10)).unwrap().module;
    symbols.refresh(module);
    let found = symbols.symbolize(1, 0x7000_0000 + places[0], at(10));
    assert!(matches!(found.frames, Err(Unresolved::BuildId { .. })), "{found:?}");
    let location = found.location.unwrap();
    assert_eq!(
        (&*found.module.unwrap().name, location.address),
        (old.to_str().unwrap(), places[0])
    );
}

#[test]
fn a_process_that_has_ended_keeps_its_names_while_its_files_exist() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    compile(&program, "ended_copy", &[]);
    let process = Process::start(&mut Command::new(&program));
    let pid = process.pid();
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    let place = position(&program, "ended_copy");
    let address = process.address("/program", place);
    let stack = symbols.spaces().modules().find(|(_, module)| &*module.name == "[jit]");
    assert!(stack.is_none(), "a program without just-in-time compiled code");
    drop(process);
    assert_eq!(symbols.add_process(pid), Err(Unresolved::File(std::io::ErrorKind::NotFound)));
    let found = symbols.symbolize(pid, address, Timestamp::MAX);
    assert_eq!(name(&found), Ok("ended_copy".to_owned()));
    // Code in memory of which nothing is known any more.
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let mapping = Mapping { start: 0x1000, end: 0x2000, offset: 0, module };
    symbols.spaces_mut().map(pid, Timestamp::MIN, &mapping);
    let found = symbols.symbolize(pid, 0x1800, Timestamp::MAX);
    assert_eq!(name(&found), Err(Unresolved::NotAFile));
    assert_eq!(found.location.unwrap().address, 0x1800);
    // The file has gone, too.
    fs::remove_file(&program).unwrap();
    let mut symbols = Symbolizer::new(Options::default());
    let module = Module::file(program.to_str().unwrap(), BuildId::new(&[1]));
    let module = symbols.spaces_mut().add_module(module);
    let mapping = Mapping { start: 0x1000, end: 0x9000, offset: 0, module };
    symbols.spaces_mut().map(pid, Timestamp::MIN, &mapping);
    let found = symbols.symbolize(pid, 0x1010, Timestamp::MAX);
    assert_eq!(name(&found), Err(Unresolved::File(std::io::ErrorKind::NotFound)));
    assert_eq!(found.location.unwrap().address, 0x10);
}

/// Paths have any bytes. The kernel writes a newline as an escape.
#[test]
fn a_file_whose_path_is_no_text_has_names() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join(std::ffi::OsStr::from_bytes(b"a\nb\\040\xff"));
    fs::create_dir(&directory).unwrap();
    for id in ["sha1", "none"] {
        let program = directory.join(format!("program-{id}"));
        compile(&program, "some_copy", &[&format!("-Wl,--build-id={id}")]);
        let process = Process::start(&mut Command::new(&program));
        let place = position(&program, "some_copy");
        let address = process.address(&format!("/program-{id}"), place);
        let mut symbols = Symbolizer::default();
        // A program that was built within the last tick of the kernel can be a later one.
        testkit::wait::until("the program is older than its mapping", || {
            symbols = Symbolizer::default();
            symbols.add_process(process.pid()).unwrap();
            name(&symbols.symbolize(process.pid(), address, Timestamp::MAX)).is_ok()
        });
        let found = symbols.symbolize(process.pid(), address, Timestamp::MAX);
        assert_eq!(name(&found), Ok("some_copy".to_owned()));
        let module = found.module.unwrap();
        assert_eq!(module.build_id.is_some(), id != "none");
        assert_eq!(module.path(), program);
        assert_eq!(*module.name, *String::from_utf8_lossy(&program.into_os_string().into_vec()));
    }
}

/// A program takes the place of the one that was mapped: written into its file, or built again.
#[test]
fn a_file_that_was_replaced_has_no_names() {
    for (id, in_place) in [("sha1", true), ("sha1", false), ("none", true), ("none", false)] {
        let dir = tempfile::tempdir().unwrap();
        let (program, other) = (dir.path().join("program"), dir.path().join("other"));
        let id_option = format!("-Wl,--build-id={id}");
        compile(&program, "old_copy", &[&id_option]);
        // Linkers make the build id of the code, without the names.
        compile(&other, "new_copy", &[&id_option, "-O0"]);
        let process = Process::start(&mut Command::new(&program));
        let pid = process.pid();
        let mut symbols = Symbolizer::default();
        let has_id = id != "none";
        let place = position(&program, "old_copy");
        let address = process.address("/program", place);
        // A program that was built within the last tick of the kernel can be a later one.
        testkit::wait::until("the program is older than its mapping", || {
            symbols = Symbolizer::default();
            symbols.add_process(pid).unwrap();
            name(&symbols.symbolize(pid, address, Timestamp::MAX)).is_ok()
        });
        let found = symbols.symbolize(pid, address, Timestamp::MAX);
        assert_eq!(found.module.unwrap().build_id.is_some(), has_id);
        assert_eq!(name(&found), Ok("old_copy".to_owned()), "{id} {in_place}");
        let module = found.location.unwrap().module;
        assert!(!symbols.forget_changed());
        drop(process);
        if !in_place {
            fs::remove_file(&program).unwrap();
        }
        fs::copy(&other, &program).unwrap();
        assert_eq!(symbols.forget_changed(), !has_id);
        if has_id {
            symbols.refresh(module);
        }
        let found = symbols.symbolize(pid, address, Timestamp::MAX);
        let is_refused = match found.frames {
            Err(Unresolved::BuildId { .. }) => has_id,
            Err(Unresolved::Replaced) => !has_id,
            _ => false,
        };
        assert!(is_refused, "{id} {in_place}: {found:?}");
        assert_eq!(found.location.unwrap().address, place);
    }
}

/// A program that is built again can have the inode of the one before: only the time differs.
#[test]
fn an_inode_alone_identifies_no_file() {
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    compile(&program, "some_copy", &["-Wl,--build-id=none"]);
    let place = position(&program, "some_copy");
    let metadata = fs::metadata(&program).unwrap();
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let inode = trace_symbols::Inode { major, minor, inode: metadata.ino() };
    let changed = SystemTime::UNIX_EPOCH
        + Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32);
    let module = || Module::file(program.to_str().unwrap(), None).with_inode(inode);
    let resolve = |module: Module| {
        let mut symbols = Symbolizer::default();
        let module = symbols.spaces_mut().add_module(module);
        name(&symbols.resolve(trace_symbols::Location { module, address: place }))
    };
    assert_eq!(resolve(module()), Err(Unresolved::Unverified));
    let known = Ok("some_copy".to_owned());
    assert_eq!(resolve(module().with_mapped_at(changed + Duration::from_secs(1))), known);
    // A program is run as soon as it is linked.
    assert_eq!(resolve(module().with_mapped_at(changed)), known);
    for earlier in [Duration::from_nanos(1), Duration::from_secs(1)] {
        let at = changed - earlier;
        assert_eq!(resolve(module().with_mapped_at(at)), Err(Unresolved::Replaced));
    }
    // Mapped before and after the change: the code was another one before.
    let mut symbols = Symbolizer::default();
    let times = [changed + Duration::from_secs(1), changed - Duration::from_secs(1)];
    let numbers = times.map(|at| symbols.spaces_mut().add_module(module().with_mapped_at(at)));
    assert_eq!(numbers[0], numbers[1]);
    let location = trace_symbols::Location { module: numbers[0], address: place };
    assert_eq!(name(&symbols.resolve(location)), Err(Unresolved::Replaced));
}

/// Go's linker writes the build id into a section that is in no note segment.
#[test]
fn build_ids_are_found_in_sections_too() {
    const PT_NULL: u32 = 0;
    const PT_NOTE: u32 = 4;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    compile(&program, "some_copy", &[]);
    let expected = build_id::of_file(&program).unwrap();
    let mut bytes = fs::read(&program).unwrap();
    let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let headers = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    let count = usize::from(word(&bytes, 56));
    let mut notes = 0;
    for header in (0..count).map(|index| headers + 56 * index) {
        if bytes[header..header + 4] == PT_NOTE.to_le_bytes() {
            bytes[header..header + 4].copy_from_slice(&PT_NULL.to_le_bytes());
            notes += 1;
        }
    }
    assert!(notes > 0);
    fs::write(&program, &bytes).unwrap();
    assert_eq!(build_id::of_file(&program), Some(expected));
    // Damaged section headers are none.
    fs::write(&program, &bytes[..bytes.len() - 64]).unwrap();
    assert_eq!(build_id::of_file(&program), None);
}

#[test]
fn a_process_in_a_container_has_its_own_files() {
    if !testkit::skip::can("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    compile(&program, "container_copy", &["-static"]);
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    // A file system of its own: its path is the same as that of no file here.
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none \"$1\" && mkdir \"$1/old\" && cp \"$0\" \"$1/contained\" && \
                  cd \"$1\" && pivot_root . old && exec /contained";
    command.args(["--mount", "sh", "-c", script]).arg(&program).arg(&root);
    let process = Process::start(&mut command);
    let pid = process.pid();
    assert!(fs::metadata("/contained").is_err());
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    let place = position(&program, "container_copy");
    let address = process.address("/contained", place);
    let found = symbols.symbolize(pid, address, Timestamp::MAX);
    assert_eq!(&*found.module.unwrap().name, "/contained");
    assert_eq!(name(&found), Ok("container_copy".to_owned()));
    // Its file system ends with it: the place is known, the name is not.
    let module = found.location.unwrap().module;
    drop(process);
    symbols.refresh(module);
    let found = symbols.symbolize(pid, address, Timestamp::MAX);
    assert_eq!(name(&found), Err(Unresolved::File(std::io::ErrorKind::NotFound)));
    assert_eq!(
        (&*found.module.unwrap().name, found.location.unwrap().address),
        ("/contained", place)
    );
}

#[test]
fn the_end_of_a_process_in_a_container_takes_no_names_away() {
    if !testkit::skip::can("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (program, root) = (dir.path().join("program"), dir.path().join("root"));
    compile(&program, "container_copy", &["-Wl,--build-id=none"]);
    fs::create_dir(&root).unwrap();
    // What others have at the path of the program.
    compile(&root.join("contained"), "other_copy", &["-Wl,--build-id=none"]);
    let mut command = Command::new("unshare");
    let script =
        "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/contained\" && exec \"$1/contained\"";
    command.args(["--mount", "sh", "-c", script]).arg(&program).arg(&root);
    let process = Process::start(&mut command);
    let pid = process.pid();
    let address = process.address("/contained", position(&program, "container_copy"));
    let mut symbols = Symbolizer::default();
    // A program that was copied within the last tick of the kernel can be a later one.
    testkit::wait::until("the program is older than its mapping", || {
        symbols = Symbolizer::default();
        symbols.add_process(pid).unwrap();
        name(&symbols.symbolize(pid, address, Timestamp::MAX)).is_ok()
    });
    assert!(!symbols.forget_changed());
    drop(process);
    assert!(!symbols.forget_changed());
    let found = symbols.symbolize(pid, address, Timestamp::MAX);
    assert_eq!(name(&found), Ok("container_copy".to_owned()));
}

#[test]
fn files_that_are_cut_are_errors_or_have_the_right_names() {
    let whole = include_bytes!("data/library.so");
    let file = ObjectFile::parse(whole.to_vec(), &Options::default()).unwrap();
    let names: Vec<_> = (0..whole.len() as u64).map(|at| file.frames(at).ok()).collect();
    assert!(names.iter().flatten().any(|frames| &*frames[0].function == "exported"));
    let mut read = 0;
    for length in 0..whole.len() {
        let Ok(cut) = ObjectFile::parse(whole[..length].to_vec(), &Options::default()) else {
            continue;
        };
        read += 1;
        for (address, expected) in (0..).zip(&names) {
            if let Ok(found) = cut.frames(address) {
                assert_eq!(Some(&found), expected.as_ref(), "{length} {address:#x}");
            }
        }
    }
    // The section headers are at the end: a file without them is none.
    assert_eq!(read, 0);
}
