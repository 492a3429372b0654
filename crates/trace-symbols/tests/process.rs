//! Running processes: this one, the kernel, and files that are replaced or hostile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use trace_symbols::{
    BuildId, Inode, Location, Mapping, Module, ObjectFile, Options, PerfMapProblem, Symbolizer,
    Timestamp, Unresolved, build_id,
};

#[inline(never)]
fn a_function_of_this_test() -> u32 {
    std::hint::black_box(7)
}

/// A process that waits for its standard input to close.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path) -> Self {
        Self::spawn(&mut Command::new(program))
    }

    fn spawn(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut this = Self(child);
        // Its output shows that the program runs, and not this one before `execve(2)`.
        std::io::Write::write_all(this.0.stdin.as_mut().unwrap(), b"x").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(this.0.stdout.as_mut().unwrap(), &mut byte).unwrap();
        this
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn functions_of_this_process_have_names() {
    let pid = std::process::id();
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    let address = a_function_of_this_test as fn() -> u32 as usize as u64;
    let found = symbols.symbolize(pid, address, Timestamp::MAX);
    let frames = found.frames.unwrap();
    assert_eq!(&*frames.last().unwrap().function, "process::a_function_of_this_test");
    assert_eq!(frames.last().unwrap().offset, Some(0));
    let own = std::env::current_exe().unwrap();
    assert_eq!(Path::new(&*found.module.unwrap().name), own);
    assert_eq!(a_function_of_this_test(), 7);
    let nothing = symbols.symbolize(pid, 8, Timestamp::MAX);
    assert_eq!(nothing.frames, Err(&Unresolved::NotMapped));
    assert_eq!(
        symbols.add_process(u32::MAX >> 2),
        Err(Unresolved::File(std::io::ErrorKind::NotFound))
    );
}

#[test]
fn the_vdso_has_its_functions() {
    let pid = std::process::id();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vdso");
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    let found = (start..start + 0x2000).find_map(|address| {
        let found = symbols.symbolize(pid, address, Timestamp::MAX);
        found.frames.ok().map(|frames| frames[0].function.to_string())
    });
    assert!(found.as_ref().is_some_and(|name| name.contains("vdso")), "{found:?}");
}

#[test]
fn the_kernel_has_the_names_of_kallsyms() {
    let text = fs::read_to_string("/proc/kallsyms").unwrap();
    let mut symbols = Symbolizer::default();
    let mut names: HashMap<&str, HashSet<&str>> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        names.entry(words[0]).or_default().insert(words[2]);
    }
    let mut checked = 0;
    for line in text.lines().step_by(97) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let address = u64::from_str_radix(words[0], 16).unwrap();
        // Modules, probes and BPF programs can be removed meanwhile.
        if !matches!(words[1], "T" | "t") || words.len() > 3 {
            continue;
        }
        let found = symbols.symbolize_kernel(address, Timestamp::MAX);
        if address == 0 {
            assert_eq!(found.frames, Err(&Unresolved::KernelRestricted));
            testkit::skip::can("addresses of the kernel (kernel.kptr_restrict)", false);
            return;
        }
        let frame = &found.frames.unwrap()[0];
        assert_eq!(frame.offset, Some(0), "{line}");
        // Several names can have one address.
        assert!(names[words[0]].contains(&*frame.symbol), "{line}: {}", frame.symbol);
        checked += 1;
    }
    assert!(checked > 100, "{checked} functions");
    let other = Module::kernel(BuildId::new(&[1; 20]));
    let module = symbols.spaces_mut().add_module(other);
    let found = symbols.resolve(Location { module, address: 0xffff_ffff_8100_0000 });
    if build_id::of_kernel().is_some() {
        assert_eq!(found.frames, Err(&Unresolved::OtherKernel));
    }
}

#[test]
fn functions_that_a_recording_names_need_no_symbols_of_the_kernel() {
    let mut options = Options::default();
    options.kernel = false;
    let mut symbols = Symbolizer::new(options);
    let module = symbols.spaces_mut().add_module(Module::kernel_function("bpf_prog_a"));
    let found = symbols.resolve(Location { module, address: 5 }).frames.unwrap();
    assert_eq!((found.len(), &*found[0].function, found[0].offset), (1, "bpf_prog_a", Some(5)));
    assert_eq!(symbols.problem(module), None);
}

#[test]
fn a_replaced_file_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    testkit::program::copy("/bin/cat", &program);
    let process = Waiting::start(&program);
    let pid = process.0.id();
    let mut before = Symbolizer::default();
    before.add_process(pid).unwrap();
    let name = program.to_str().unwrap();
    assert!(before.spaces().modules().any(|(_, module)| &*module.name == name));
    let expected = build_id::of_file(&program);
    // Another program with the same path.
    fs::remove_file(&program).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let start = start_of(pid, name);
    let found = before.symbolize(pid, start, Timestamp::MAX);
    let is_refused = match found.frames {
        Err(Unresolved::BuildId { expected: id, .. }) => Some(*id) == expected,
        Err(Unresolved::Replaced) => true,
        _ => false,
    };
    assert!(is_refused, "{found:?}");
}

/// The first address of the code of a file.
fn start_of(pid: u32, path: &str) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains(path) && line.contains(" r-xp "));
    u64::from_str_radix(line.unwrap().split('-').next().unwrap(), 16).unwrap()
}

#[test]
fn a_file_without_identity_is_used_on_request_only() {
    let own = std::env::current_exe().unwrap();
    let module = Module::file(own.to_str().unwrap(), None);
    let frames = |options: Options, module: Module| {
        let mut symbols = Symbolizer::new(options);
        let module = symbols.spaces_mut().add_module(module);
        let position = 0x1000;
        symbols.resolve(Location { module, address: position }).frames.err().cloned()
    };
    assert_eq!(frames(Options::default(), module.clone()), Some(Unresolved::Unverified));
    let mut unverified = Options::default();
    unverified.unverified = true;
    assert_ne!(frames(unverified, module.clone()), Some(Unresolved::Unverified));
    let inode = Inode { major: 0, minor: 0, inode: 1 };
    assert_eq!(frames(Options::default(), module.with_inode(inode)), Some(Unresolved::Replaced));
    let missing = Module::file("/nonexistent/file", BuildId::new(&[1]));
    let reason = frames(Options::default(), missing);
    assert_eq!(reason, Some(Unresolved::File(std::io::ErrorKind::NotFound)));
    let special = Module::file("/dev/zero", BuildId::new(&[1]));
    assert_eq!(frames(Options::default(), special), Some(Unresolved::NotAFile));
}

/// Resolves an address of just-in-time compiled code of a process.
fn in_perf_map(pid: u32) -> Result<String, Unresolved> {
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let mapping = Mapping { start: 0x1000, end: 0x2000, offset: 0, module };
    symbols.spaces_mut().map(pid, Timestamp::MIN, &mapping);
    let found = symbols.symbolize(pid, 0x1010, Timestamp::MAX).frames;
    found.map(|frames| frames[0].function.to_string()).map_err(Clone::clone)
}

#[test]
fn perf_maps_of_the_user_of_the_process_are_used() {
    let process = Waiting::start(Path::new("/bin/cat"));
    let pid = process.0.id();
    let path = format!("/tmp/perf-{pid}.map");
    let _ = fs::remove_file(&path); // of an earlier process with this id
    assert_eq!(in_perf_map(pid), Err(Unresolved::NotAFile));
    let _removed = Removed(&path);
    fs::write(&path, "1000 100 a function\n").unwrap();
    assert_eq!(in_perf_map(pid), Ok("a function".to_owned()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(in_perf_map(pid), Err(Unresolved::PerfMapRefused(PerfMapProblem::Writable)));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    if is_root() {
        chown(&path, Some(12345), None).unwrap();
        let problem = PerfMapProblem::Owner { owner: 12345, user: 0 };
        assert_eq!(in_perf_map(pid), Err(Unresolved::PerfMapRefused(problem)));
    }
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    let not_regular = Err(Unresolved::PerfMapRefused(PerfMapProblem::NotRegular));
    assert_eq!(in_perf_map(pid), not_regular);
    fs::remove_file(&path).unwrap();
    // A pipe without a writer: opening it must not block.
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(in_perf_map(pid), not_regular);
}

/// A just-in-time compiler writes while its process runs.
#[test]
fn perf_maps_that_grow_are_read_again() {
    let process = Waiting::start(Path::new("/bin/cat"));
    let pid = process.0.id();
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let mapping = Mapping { start: 0x1000, end: 0x2000, offset: 0, module };
    symbols.spaces_mut().map(pid, Timestamp::MIN, &mapping);
    let named = |symbols: &mut Symbolizer, address| {
        let found = symbols.symbolize(pid, address, Timestamp::MAX).frames;
        found.ok().map(|frames| frames[0].function.to_string())
    };
    assert_eq!(named(&mut symbols, 0x1010), None);
    assert!(!symbols.forget_incomplete(), "there is no file");
    let path = format!("/tmp/perf-{pid}.map");
    let _removed = Removed(&path);
    for (text, address) in
        [("1000 100 first\n", 0x1010), ("1000 100 first\n1100 100 next\n", 0x1110)]
    {
        assert_eq!(named(&mut symbols, address), None);
        fs::write(&path, text).unwrap();
        assert!(symbols.forget_incomplete());
        assert!(named(&mut symbols, address).is_some());
        // All addresses have names, or nothing has changed.
        assert!(!symbols.forget_incomplete());
        assert_eq!(named(&mut symbols, 0x1f00), None);
        assert!(!symbols.forget_incomplete());
    }
    assert_eq!(named(&mut symbols, 0x1010).unwrap(), "first");
}

/// Also if the process has written its own before.
#[test]
fn a_perf_map_that_was_added_is_kept() {
    let process = Waiting::start(Path::new("/bin/cat"));
    let pid = process.0.id();
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let mapping = Mapping { start: 0x1000, end: 0x2000, offset: 0, module };
    symbols.spaces_mut().map(pid, Timestamp::MIN, &mapping);
    let named = |symbols: &mut Symbolizer, address| {
        let found = symbols.symbolize(pid, address, Timestamp::MAX).frames;
        found.ok().map(|frames| frames[0].function.to_string())
    };
    let path = format!("/tmp/perf-{pid}.map");
    let _removed = Removed(&path);
    fs::write(&path, "1000 100 own\n").unwrap();
    assert_eq!(named(&mut symbols, 0x1010).unwrap(), "own");
    symbols.add_perf_map(pid, b"1000 100 added\n");
    assert_eq!(named(&mut symbols, 0x1010).unwrap(), "added");
    assert_eq!(named(&mut symbols, 0x1110), None);
    fs::write(&path, "1000 100 own\n1100 100 next\n").unwrap();
    assert!(!symbols.forget_incomplete());
    assert_eq!(named(&mut symbols, 0x1010).unwrap(), "added");
}

/// The jitdump file and the perf map of one run of Node.js agree on the code of optimized functions.
#[test]
fn jitdump_files_have_the_names_of_the_perf_map() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Command::new("node");
    let has_node = node.arg("--version").stdout(Stdio::null()).status().is_ok();
    if !testkit::skip::can("Node.js", has_node) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/program.js");
    let mut node = Command::new("node");
    node.current_dir(dir.path()).args(["--perf-prof", "--perf-basic-prof"]).arg(script);
    let process = Waiting::spawn(&mut node);
    let pid = process.0.id();
    let path = format!("/tmp/perf-{pid}.map");
    let _removed = Removed(&path);
    let map = fs::read_to_string(&path).unwrap();
    // The jitdump file alone has to do. It is complete when the process has ended.
    fs::remove_file(&path).unwrap();
    let mut symbols = Symbolizer::default();
    symbols.add_process(pid).unwrap();
    drop(process);
    let mut compared = 0;
    for line in map.lines().filter(|line| line.contains(" JS:*")) {
        let (address, rest) = line.split_once(' ').unwrap();
        let name = rest.split_once(' ').unwrap().1;
        let address = u64::from_str_radix(address, 16).unwrap();
        let found = symbols.symbolize(pid, address, Timestamp::MAX);
        assert_eq!(found.module.unwrap(), &Module::jit(pid), "{line}");
        let frame = &found.frames.unwrap_or_else(|why| panic!("{line}: {why}"))[0];
        assert_eq!((&*frame.symbol, frame.offset), (name, Some(0)), "{line}");
        compared += 1;
        // Nothing was compiled before the process started.
        let before = symbols.symbolize(pid, address, Timestamp::MIN).frames;
        assert_eq!(before, Err(&Unresolved::NoSymbol));
    }
    assert!(compared > 0, "{map}");
}

/// Processes of containers can have the same number there.
#[test]
fn the_jitdump_file_of_another_process_is_not_that_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let path = dir.path().join(format!("jit-{pid}.dump"));
    let mut dump = Vec::new();
    // The header of 40 bytes; the code of a function: its kind, size and time, 8 words.
    [0x4a69_5444_u32, 1, 40, 62, 0, pid].iter().for_each(|n| dump.extend(n.to_le_bytes()));
    dump.extend([0; 16]);
    let name = b"compiled\0";
    [0, 16 + 40 + name.len() as u32].iter().for_each(|n| dump.extend(n.to_le_bytes()));
    let code = [1_u64, 0, 0x1000, 0x1000, 16, 1];
    code.iter().for_each(|n| dump.extend(n.to_le_bytes()));
    dump.extend(name);
    fs::write(&path, dump).unwrap();
    let mut symbols = Symbolizer::default();
    let other = dir.path().join(format!("other/jit-{pid}.dump"));
    for path in [&other, &path] {
        symbols.spaces_mut().add_module(Module::file(path.to_str().unwrap(), None));
    }
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let location = Location { module, address: 0x1004 };
    let frames = symbols.resolve(location).frames.unwrap();
    assert_eq!((&*frames[0].symbol, frames[0].offset), ("compiled", Some(4)));
}

#[test]
fn a_jitdump_file_that_is_not_used_beside_a_perf_map_is_a_problem() {
    let process = Waiting::start(Path::new("/bin/cat"));
    let pid = process.0.id();
    let map = format!("/tmp/perf-{pid}.map");
    let _removed = Removed(&map);
    fs::write(&map, "1000 100 a function\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join(format!("jit-{pid}.dump"));
    let mut symbols = Symbolizer::default();
    symbols.spaces_mut().add_module(Module::file(&dump, None));
    let module = symbols.spaces_mut().add_module(Module::jit(pid));
    let mut problem = || {
        symbols.refresh(module);
        let frames = symbols.resolve(Location { module, address: 0x1010 }).frames.unwrap();
        assert_eq!(&*frames[0].function, "a function");
        symbols.problem(module).cloned()
    };
    assert_eq!(problem(), None, "there is none");
    fs::write(&dump, "something else").unwrap();
    let what = "the jitdump header";
    assert_eq!(problem(), Some(Unresolved::Malformed { what, offset: 0 }));
}

struct Removed<'a>(&'a str);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

#[test]
fn damaged_files_are_errors() {
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    let options = Options::default();
    assert!(ObjectFile::parse(own.clone(), &options).is_ok());
    // In every header, every byte that is wrong is an error or has no effect.
    for at in 0..64 {
        let mut damaged = own.clone();
        damaged[at] ^= 0xff;
        if let Ok(file) = ObjectFile::parse(damaged, &options) {
            let _ = file.frames(0x1000);
        }
    }
    for length in [0, 3, 63, 64, 100, own.len() / 2, own.len() - 1] {
        assert!(ObjectFile::parse(own[..length].to_vec(), &options).is_err(), "{length}");
    }
    let mut small = Options::default();
    small.max_bytes = 100;
    let error = ObjectFile::parse(own, &small).unwrap_err();
    assert!(matches!(error, Unresolved::TooLarge { .. }), "{error:?}");
}
