//! `triscope profile`: programs that know where their time goes, and the formats of the output.

use crate::support::{Running, as_nobody, can, child, is_able, run_in, triscope, users_may_count};
use crate::{needs_root, support};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::sampling::rate;

/// The weight of each stack, outermost frame first.
pub(crate) type Stacks = BTreeMap<Vec<String>, u64>;

pub(crate) fn parsed(folded: &str) -> Stacks {
    let line = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        (stack.split(';').map(str::to_owned).collect(), weight.parse().unwrap())
    };
    folded.lines().map(line).collect()
}

pub(crate) fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}

/// Compiles a C program whose time goes to known functions.
pub(crate) fn compiled(dir: &Path, options: &[&str]) -> Option<PathBuf> {
    compiled_from(dir, "shares", options)
}

/// Compiles one of the C programs in `shares/`.
pub(crate) fn compiled_from(dir: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/shares");
    let source = sources.join(name).with_extension("c");
    let program = dir.join(name);
    let has_compiler = Command::new("cc").arg("--version").output().is_ok();
    can("a C compiler", has_compiler).then(|| {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-pthread", "-D_GNU_SOURCE"])
            .args(options)
            .arg("-o")
            .arg(&program)
            .arg(source);
        assert!(cc.status().unwrap().success());
        program
    })
}

/// Compiles the Rust program whose time goes to known functions.
fn compiled_by_rustc(dir: &Path, flags: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/shares/shares.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let program = dir.join("rust");
    let mut compile = Command::new(rustc);
    compile.args(["--edition=2021", "-O", "-C", flags, "-o"]).arg(&program).arg(source);
    can("rustc", compile.status().is_ok_and(|status| status.success())).then_some(program)
}

pub(crate) const FRAME_POINTERS: [&str; 2] =
    ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"];

/// Compares the shares of three functions in a profile with those that the program printed itself.
fn differences(stacks: &Stacks, printed: &str) -> Option<String> {
    let known: Vec<(&str, u64)> = printed
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(function, nanos)| (function, nanos.parse().unwrap()))
        .collect();
    let of = |function: &str| -> u64 {
        let names =
            [function.to_owned(), format!("main.{function}"), format!("shares::{function}")];
        let has = |frame: &String| names.contains(frame);
        stacks.iter().filter(|(stack, _)| stack.iter().any(has)).map(|(_, weight)| weight).sum()
    };
    let found: Vec<(&str, u64)> = known.iter().map(|(name, _)| (*name, of(name))).collect();
    let share = |all: &[(&str, u64)], n: usize| {
        let sum: u64 = all.iter().map(|(_, weight)| weight).sum();
        all[n].1 as f64 * 100.0 / sum as f64
    };
    assert_eq!(known.len(), 3, "{printed}");
    let is_other = |n: usize| (share(&found, n) - share(&known, n)).abs() >= 3.0;
    (0..3).any(is_other).then(|| format!("{found:?} {known:?} {stacks:?}"))
}

/// Runs a program this number of times longer each time, until the shares agree: an error is how they differ. A
/// sample is a matter of chance, and a hypervisor takes the CPU for longer than a function runs or waits: only a
/// long run has the shares for sure. Wrong names are wrong in each run.
#[track_caller]
pub(crate) fn longer_until_right<T>(mut run: impl FnMut(u32) -> Result<T, String>) -> T {
    let mut difference = String::new();
    for longer in [1, 2, 4, 8] {
        match run(longer) {
            Ok(right) => return right,
            Err(wrong) => difference = wrong,
        }
    }
    panic!("{difference}");
}

/// Makes profiles of a program until one has the shares that the program prints.
#[track_caller]
fn agreeing<T>(
    rounds: u32,
    mut profile: impl FnMut(&str) -> (Stacks, support::Ran, T),
) -> (Stacks, support::Ran, T) {
    longer_until_right(|longer| {
        let (stacks, ran, more) = profile(&(longer * rounds).to_string());
        differences(&stacks, &ran.stdout).map_or(Ok((stacks, ran, more)), Err)
    })
}

/// A profile of a program in the mode `kind`, whose shares are right.
#[track_caller]
fn shares(dir: &Path, options: &[&str], program: [&str; 2], rounds: u32) -> (Stacks, support::Ran) {
    let [program, kind] = program;
    let (stacks, ran, ()) = agreeing(rounds, |rounds| {
        let (stacks, ran) = profile(dir, options, &[program, kind, rounds]);
        (stacks, ran, ())
    });
    (stacks, ran)
}

/// Profiles a program. Returns the stacks and what the program printed.
fn profile(dir: &Path, options: &[&str], program: &[&str]) -> (Stacks, support::Ran) {
    let args = [&["profile", "-o", "x.folded"], options, &["--"], program].concat();
    let ran = run_in(dir, &args);
    ran.is_good();
    assert!(ran.stderr.contains(", 0 lost"), "{}", ran.stderr);
    (parsed(&read(dir, "x.folded")), ran)
}

fn sum(stacks: &Stacks) -> u64 {
    stacks.values().sum()
}

#[test]
fn time_on_the_cpu_is_in_the_functions_that_spend_it() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    shares(dir.path(), &[], [program, "on"], 200);
    // By time, where the weight is one too.
    let (stacks, ran) = shares(dir.path(), &["-e", "cpu-clock"], [program, "on"], 200);
    let nanos: u64 =
        ran.stdout.lines().map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    let found = sum(&stacks) as f64 / nanos as f64;
    assert!((0.9..1.2).contains(&found), "{found}: {stacks:?}");
    // Callers are there, from the start of the program on.
    let (path, _) = stacks.iter().max_by_key(|(_, weight)| **weight).unwrap();
    let place = |name: &str| path.iter().position(|frame| frame == name).unwrap();
    assert!(place("main") < place("sixty") && place("sixty") < place("wait_for"), "{path:?}");
}

/// Without frame pointers only the innermost frame is sure: here it is one function for all.
#[test]
fn without_frame_pointers_the_innermost_function_is_right() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &["-fomit-frame-pointer"]) else { return };
    let program = [program.to_str().unwrap(), "on", "100"];
    let (stacks, _) = profile(dir.path(), &["-e", "cpu-clock:u"], &program);
    let leaf = |name: &str| -> u64 {
        let is_it =
            |(stack, _): &(&Vec<String>, &u64)| stack.last().is_some_and(|leaf| leaf == name);
        stacks.iter().filter(is_it).map(|(_, weight)| weight).sum()
    };
    let share = leaf("wait_for") as f64 / sum(&stacks) as f64;
    assert!(share > 0.9, "{share}: {stacks:?}");
}

/// Samples per second of CPU time of programs that run for a short time.
fn often() -> [&'static str; 2] {
    ["-F", rate(4999).to_string().leak()]
}

/// Without frame pointers, callers are found by the descriptions of the compiler.
#[test]
fn without_frame_pointers_callers_are_unwound() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &["-O2", "-fomit-frame-pointer"]) else { return };
    let program = program.to_str().unwrap();
    // Not more often: each sample copies 8 KiB.
    let hertz = rate(999).to_string();
    let dwarf = ["-F", &hertz, "--call-graph", "dwarf"];
    let (stacks, _) = shares(dir.path(), &dwarf, [program, "on"], 200);
    let in_main = |(stack, _): &(&Vec<String>, &u64)| stack.contains(&"main".to_owned());
    let share = stacks.iter().filter(in_main).map(|(_, n)| n).sum::<u64>() as f64;
    assert!(share / sum(&stacks) as f64 > 0.9, "{stacks:?}");
    let options = ["--off-cpu", "--call-graph", "dwarf,16384"];
    shares(dir.path(), &options, [program, "sleep"], 30);
    // The recording of perf record is unwound, too.
    let perf =
        ["-q", "-N", "--call-graph", "dwarf", "-F", &hertz, "-e", "cpu-clock", "-o", "theirs.data"];
    let mut command = Command::new("perf");
    if command.arg("--version").output().is_ok() {
        agreeing(60, |rounds| {
            let mut command = Command::new("perf");
            command.current_dir(dir.path()).arg("record").args(perf);
            let ran = testkit::perf::output(command.args([program, "on", rounds])).into();
            run_in(dir.path(), &["convert", "theirs.data", "-o", "x.folded"]).is_good();
            (parsed(&read(dir.path(), "x.folded")), ran, ())
        });
    }
}

/// Whatever the CPU is: a software event has no branch records.
#[test]
fn last_branch_records_need_an_event_that_the_cpu_counts() {
    let dir = tempfile::tempdir().unwrap();
    for (options, why) in [(&["-e", "cpu-clock"][..], "cpu-clock"), (&["--off-cpu"], "fp or dwarf")]
    {
        let args =
            [&["profile", "--call-graph", "lbr", "-o", "x.svg"], options, &["true"]].concat();
        run_in(dir.path(), &args).is_refused(2, &["--call-graph lbr", why]);
        assert!(!dir.path().join("x.svg").exists());
    }
}

/// The kernel walks the stack of user space later: the result is the same. Older kernels refuse it.
#[test]
fn deferred_stacks_are_those_of_frame_pointers() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let deferred = ["--call-graph", "fp,defer"];
    let goroutines = ["profile", "--goroutines", "-o", "x.svg", "--call-graph", "fp,defer", "true"];
    run_in(dir.path(), &goroutines).is_refused(2, &["--call-graph fp"]);
    let on_cpu = [&often()[..], &["-e", "cpu-clock"], &deferred].concat();
    let args = [&["profile", "-o", "x.folded"], &on_cpu[..], &["--", "sleep", "0.01"]].concat();
    let tried = run_in(dir.path(), &args);
    if tried.stderr.contains("defer_callchain") {
        return tried.is_refused(1, &["defer_callchain (Linux 6.19)"]);
    }
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for (options, kind) in
        [(&on_cpu[..], "on"), (&[&["--off-cpu"], &deferred[..]].concat(), "sleep")]
    {
        let (stacks, _) = shares(dir.path(), options, [program, kind], 30);
        let (path, _) = stacks.iter().max_by_key(|(_, weight)| **weight).unwrap();
        let place = |name: &str| path.iter().position(|frame| frame == name).unwrap();
        assert!(place("main") < place("sixty") && place("sixty") < place("wait_for"), "{path:?}");
    }
}

/// A stripped program has the names of its debug file; a Rust program those of its compiler.
#[test]
fn stripped_and_rust_programs_have_their_shares() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let path = program.to_str().unwrap();
    let run = |name: &str, args: &[&str]| {
        Command::new(name).args(args).current_dir(dir.path()).status().is_ok_and(|s| s.success())
    };
    let is_stripped = run("objcopy", &["--only-keep-debug", path, "shares.debug"])
        && run("strip", &[path])
        && run("objcopy", &["--add-gnu-debuglink=shares.debug", path]);
    if can("objcopy and strip (binutils)", is_stripped) {
        shares(dir.path(), &often(), [path, "on"], 60);
    }
    for (call_graph, flags) in [("fp", "force-frame-pointers=yes"), ("dwarf", "opt-level=3")] {
        let Some(program) = compiled_by_rustc(dir.path(), flags) else { return };
        let options = [&often()[..], &["--call-graph", call_graph]].concat();
        shares(dir.path(), &options, [program.to_str().unwrap(), "on"], 400);
    }
}

/// A server that has the debug information of one file.
fn serve(id: String, debug: Vec<u8>) -> String {
    use std::io::{BufRead as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Until the end of the tests.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().and_then(Result::ok).unwrap_or_default();
            let fields = lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            fields.for_each(drop);
            let answer = match request.split(' ').nth(1) {
                Some(path) if path == format!("/buildid/{id}/debuginfo") => {
                    let head =
                        format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", debug.len());
                    [head.as_bytes(), &debug].concat()
                }
                _ => b"HTTP/1.0 404 Not Found\r\n\r\n".to_vec(),
            };
            // The client may have gone.
            let _ = stream.write_all(&answer);
        }
    });
    url
}

/// A stripped program has the names of a server, which is asked with the option only.
#[test]
fn debug_information_of_a_server_is_used_on_request() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let options = [&FRAME_POINTERS[..], &["-g", "-Wl,--build-id"]].concat();
    let Some(program) = compiled(dir.path(), &options) else { return };
    let id = trace_symbols::build_id::of_file(&program).unwrap().to_string();
    let debug = std::fs::read(&program).unwrap();
    let stripped = Command::new("strip").arg(&program).status();
    if !can("strip (binutils)", stripped.is_ok_and(|status| status.success())) {
        return;
    }
    let url = serve(id, debug);
    let profile = |options: &[&str], urls: &str| -> support::Ran {
        let args = ["profile", "-o", "x.folded"];
        let program = ["--", program.to_str().unwrap(), "on", "20"];
        let mut command = triscope(&[&args[..], options, &program].concat());
        let command = command.current_dir(dir.path()).env("DEBUGINFOD_URLS", urls);
        command.env("DEBUGINFOD_CACHE_PATH", dir.path()).output().unwrap().into()
    };
    let has_names = || read(dir.path(), "x.folded").contains("main;sixty;wait_for");
    profile(&[], &url).is_good();
    assert!(!has_names());
    profile(&["--debuginfod"], &url).is_good();
    assert!(has_names(), "{}", read(dir.path(), "x.folded"));
    profile(&["--debuginfod"], "").is_refused(1, &["DEBUGINFOD_URLS"]);
    // The files are in the cache now, but for those that no server has.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = profile(&["--debuginfod"], &format!("http://{nobody}"));
    ran.is_good();
    assert!(has_names());
    let ran = profile(&["--debuginfod"], "https://x");
    ran.is_good();
    assert!(ran.stderr.contains("https://x: not asked"), "{}", ran.stderr);
    assert!(has_names());
}

/// The shares of functions by the profiler of the Go runtime, in the same run.
#[test]
fn go_shares_are_those_of_runtime_pprof() {
    needs_root!(beside others);
    let Some(mut go) = support::go() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/shares/main.go");
    let program = dir.path().join("shares");
    assert!(go.args(["build", "-o"]).arg(&program).arg(&source).status().unwrap().success());
    // 100 samples per second of CPU time, of 33 seconds; fewer where a hypervisor delays its timer. Of a
    // quarter without optimization: the same code, where the bound on the shares is wider.
    let (rounds, least) =
        if cfg!(debug_assertions) { (["600", "1200"], 600) } else { (["2400", "4800"], 2500) };
    let mut runs = rounds.into_iter().map(|rounds| {
        let program = [program.to_str().unwrap(), "on", rounds, "theirs.pb.gz"];
        let (ours, ran) = profile(dir.path(), &often(), &program);
        (ours, ran, of_pprof(&unpacked(dir.path(), "theirs.pb.gz")))
    });
    let is_enough = |(.., theirs): &(_, _, Stacks)| sum(theirs) > least;
    let (ours, ran, theirs) = runs.find(is_enough).expect("more samples of theirs");
    let count = sum(&theirs) as f64;
    for function in ["sixty", "thirty", "ten"].map(|name| format!("main.{name}")) {
        let share = |stacks: &Stacks| {
            let has = |(stack, _): &(&Vec<String>, &u64)| stack.contains(&function);
            let part: u64 = stacks.iter().filter(has).map(|(_, weight)| weight).sum();
            part as f64 / sum(stacks) as f64
        };
        let (ours, theirs) = (share(&ours), share(&theirs));
        // Three standard errors of the few samples of theirs: at most 5 points in all, 8 without
        // optimization.
        let allowed = 0.02 + 3.0 * (0.25 / count).sqrt();
        assert!((ours - theirs).abs() < allowed, "{function}: {ours} {theirs}: {}", ran.stdout);
    }
}

/// A number of a message.
fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return value;
        }
    }
}

/// The number of a field, with its number and its bytes.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, u64, &'a [u8])> {
    if bytes.is_empty() {
        return None;
    }
    let key = varint(bytes);
    match key & 7 {
        0 => Some((key >> 3, varint(bytes), &[])),
        2 => {
            let length = usize::try_from(varint(bytes)).unwrap();
            let (part, rest) = bytes.split_at(length);
            *bytes = rest;
            Some((key >> 3, 0, part))
        }
        other => panic!("wire type {other}"),
    }
}

/// All numbers of a field, packed or not.
fn numbers(mut message: &[u8], wanted: u64) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some((number, value, mut packed)) = field(&mut message) {
        match number == wanted {
            true if packed.is_empty() => found.push(value),
            true => {
                while !packed.is_empty() {
                    found.push(varint(&mut packed));
                }
            }
            false => {}
        }
    }
    found
}

/// The stacks of a profile of pprof, outermost function first, with the first value of their samples.
fn of_pprof(mut bytes: &[u8]) -> Stacks {
    let (mut samples, mut texts) = (Vec::new(), Vec::new());
    let (mut locations, mut functions) = (BTreeMap::new(), BTreeMap::new());
    while let Some((number, _, message)) = field(&mut bytes) {
        match number {
            2 => samples.push(message),
            4 => {
                let mut lines = message;
                let mut of = Vec::new();
                while let Some((number, _, line)) = field(&mut lines) {
                    if number == 4 {
                        of.push(numbers(line, 1)[0]);
                    }
                }
                locations.insert(numbers(message, 1)[0], of);
            }
            5 => drop(functions.insert(numbers(message, 1)[0], numbers(message, 2)[0])),
            6 => texts.push(String::from_utf8(message.to_vec()).unwrap()),
            _ => {}
        }
    }
    let mut stacks = Stacks::new();
    for sample in samples {
        let of = numbers(sample, 1).into_iter().flat_map(|location| locations[&location].clone());
        let name = |function| texts[usize::try_from(functions[&function]).unwrap()].clone();
        let mut stack: Vec<String> = of.map(name).collect();
        stack.reverse();
        *stacks.entry(stack).or_default() += numbers(sample, 2)[0];
    }
    stacks
}

/// The addresses of a function in a profile of pprof, after a check of the mappings, and the time with the
/// duration.
fn addresses_in_pprof(mut bytes: &[u8], function: &str) -> (Vec<u64>, [u64; 2]) {
    let [mut locations, mut mappings, mut functions, mut texts] = [const { Vec::new() }; 4];
    let mut span = [0; 2];
    while let Some((number, value, message)) = field(&mut bytes) {
        match number {
            3 => mappings.push(message),
            4 => locations.push(message),
            5 => functions.push(message),
            6 => texts.push(message),
            9 | 10 => span[usize::try_from(number).unwrap() - 9] = value,
            _ => {}
        }
    }
    let first = |message, wanted| numbers(message, wanted).first().copied().unwrap_or(0);
    let index = |number| usize::try_from(number).unwrap();
    let mut found = Vec::new();
    for location in locations {
        let (mapping, address) = (first(location, 2), first(location, 3));
        let mapping = mappings.iter().find(|message| mapping > 0 && first(message, 1) == mapping);
        if let Some(mapping) = mapping {
            let [start, limit] = [2, 3].map(|number| first(mapping, number));
            let path = String::from_utf8_lossy(texts[index(first(mapping, 5))]);
            assert!((start..limit).contains(&address), "{path} {start:x} {limit:x} {address:x}");
        }
        let mut rest = location;
        while let Some((number, _, line)) = field(&mut rest) {
            let of = functions.iter().find(|of| number == 4 && first(of, 1) == first(line, 1));
            if of.is_some_and(|of| texts[index(first(of, 2))] == function.as_bytes()) {
                found.push(address);
            }
        }
    }
    (found, span)
}

/// The addresses are those of the program's symbols, and the time is that of the recording.
#[test]
fn pprof_files_have_addresses_and_the_time() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let options = [&FRAME_POINTERS[..], &["-g", "-no-pie"]].concat();
    let Some(program) = compiled(dir.path(), &options) else { return };
    let program = program.to_str().unwrap();
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(now.unwrap().as_nanos()).unwrap()
    };
    let begin = now();
    for output in ["x.pb.gz", "x.data"] {
        run_in(dir.path(), &["profile", "-o", output, program, "on", "20"]).is_good();
    }
    let end = now();
    run_in(dir.path(), &["convert", "x.data", "-o", "y.pb.gz"]).is_good();
    let symbols = Command::new("nm").args(["-S", program]).output();
    let symbols = symbols.map_or(String::new(), |output| String::from_utf8(output.stdout).unwrap());
    let symbol = symbols.lines().find(|line| line.ends_with(" wait_for"));
    for file in ["x.pb.gz", "y.pb.gz"] {
        let (addresses, [time, duration]) =
            addresses_in_pprof(&unpacked(dir.path(), file), "wait_for");
        assert!(time > begin && duration > 0 && time + duration < end, "{file}: {time} {duration}");
        assert!(!addresses.is_empty(), "{file}");
        if can("nm (binutils)", symbol.is_some()) {
            let mut numbers = symbol.unwrap().split(' ').map(|word| u64::from_str_radix(word, 16));
            let [start, size] = [(); 2].map(|()| numbers.next().unwrap().unwrap());
            let is_inside = |at: &u64| (start..start + size).contains(at);
            assert!(addresses.iter().all(is_inside), "{file}: {addresses:x?} {start:x} {size}");
        }
        let Some(mut go) = support::go() else { continue };
        go.current_dir(dir.path()).args(["tool", "pprof", "-disasm", "wait_for", file]);
        let output = go.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("ROUTINE"), "{file}: {output:?}");
    }
    // The time without samples is a part of it.
    let execs = ["profile", "-e", "sched:sched_process_exec", "-o", "z.pb.gz"];
    run_in(dir.path(), &[&execs[..], &["sh", "-c", "exec sleep 0.3"]].concat()).is_good();
    let (_, [_, duration]) = addresses_in_pprof(&unpacked(dir.path(), "z.pb.gz"), "wait_for");
    assert!(duration >= 300_000_000, "{duration}");
}

#[test]
fn native_functions_have_files_and_lines() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let options = [&FRAME_POINTERS[..], &["-g"]].concat();
    let Some(program) = compiled(dir.path(), &options) else { return };
    let program = program.to_str().unwrap();
    run_in(dir.path(), &["profile", "-o", "x.speedscope.json", program, "on", "8"]).is_good();
    let profile = read(dir.path(), "x.speedscope.json");
    let (_, frame) = profile.split_once(r#""name":"sixty","file":""#).unwrap();
    let (frame, _) = frame.split_once('}').unwrap();
    let (file, line) = frame.split_once(r#"","line":"#).unwrap();
    assert!(file.ends_with("tests/perf/shares/shares.c"), "{file}");
    let source = std::fs::read_to_string(file).unwrap();
    let line: usize = line.parse().unwrap();
    assert!(source.lines().nth(line - 1).unwrap().contains("sixty"), "{line}");
}

#[test]
fn go_functions_have_their_share() {
    needs_root!(beside others);
    let Some(mut go) = support::go() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/shares/main.go");
    let program = dir.path().join("shares");
    for flags in ["", "-s -w"] {
        go.args(["build", "-ldflags", flags, "-o"]).arg(&program).arg(&source);
        assert!(go.status().unwrap().success());
        shares(dir.path(), &often(), [program.to_str().unwrap(), "on"], 400);
        let Some(next) = support::go() else { return };
        go = next;
    }
    // C, called by Go.
    let source = source.with_file_name("cgo.go");
    go.env("CGO_ENABLED", "1").env("CGO_CFLAGS_ALLOW", "-mno-omit-leaf-frame-pointer");
    let built = go.args(["build", "-o"]).arg(&program).arg(source).status();
    if can("a C compiler for cgo", built.is_ok_and(|status| status.success())) {
        shares(dir.path(), &often(), [program.to_str().unwrap(), "on"], 400);
    }
}

/// Samples have the names of their threads and processes, and their cgroup.
#[test]
fn a_cgroup_is_profiled_alone() {
    needs_root!(beside others);
    let Some(group) = support::empty_cgroup() else {
        can("a writable cgroup hierarchy", false);
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let join = format!("echo $$ > {}; exec {} on", group.procs().display(), program.display());
    let name = &group.name[..];
    let [_, hertz] = often();
    let run = |output: &str, rounds: &str| {
        let work = format!("{join} {rounds}");
        let args = ["-a", "-G", name, "-F", hertz, "-o", output, "sh", "-c", &work];
        run_in(dir.path(), &[&["profile"], &args[..]].concat())
    };
    let tried = run("x.folded", "1");
    if tried.stderr.contains("not a cgroup with perf events") {
        can("a cgroup hierarchy with perf events", false);
        return;
    }
    let (stacks, _, ()) = agreeing(40, |rounds| {
        let ran = run("x.folded", rounds);
        ran.is_good();
        (parsed(&read(dir.path(), "x.folded")), ran, ())
    });
    let is_it = |stack: &Vec<String>| stack.contains(&"main".to_owned());
    let inside: u64 = stacks.iter().filter(|(stack, _)| is_it(stack)).map(|(_, n)| n).sum();
    assert!(inside as f64 > 0.9 * sum(&stacks) as f64, "{stacks:?}");

    run("x.pb.gz", "40").is_good();
    let text = unpacked(dir.path(), "x.pb.gz");
    let has = |word: &str| text.windows(word.len()).any(|window| window == word.as_bytes());
    for word in ["cgroup", name, "process", "comm", "shares", "pid", "thread"] {
        assert!(has(word), "{word}");
    }
    let refused = run_in(dir.path(), &["profile", "-G", name, "-o", "x.svg", "true"]);
    refused.is_refused(2, &["--cgroup", "-a"]);
}

#[test]
fn time_off_the_cpu_is_in_the_functions_that_wait() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for kind in ["sleep", "lock"] {
        let (stacks, ran) = shares(dir.path(), &["--off-cpu"], [program, kind], 60);
        // Each wait is there with its time: the program's is a little longer.
        let of = |name: &str| -> u64 {
            let has = |(stack, _): &(&Vec<String>, &u64)| stack.iter().any(|frame| frame == name);
            stacks.iter().filter(has).map(|(_, weight)| weight).sum()
        };
        let line = ran.stdout.lines().find(|line| line.starts_with("sixty")).unwrap();
        let theirs: u64 = line.split_once(' ').unwrap().1.parse().unwrap();
        let ratio = of("sixty") as f64 / theirs as f64;
        assert!((0.9..=1.0).contains(&ratio), "{kind}: {ratio} {stacks:?}");
    }
}

/// The waits of a timeline: the nanoseconds of the slices of each stack.
pub(crate) fn waits_of(timeline: &testkit::perfetto::Timeline) -> Stacks {
    let (mut stacks, mut open) = (Stacks::new(), BTreeMap::new());
    for line in timeline.lines.iter().filter(|line| line.contains("/Off CPU: ")) {
        let (place, event) = line.split_once("/Off CPU: ").unwrap();
        let (at, thread) = place.split_once(' ').unwrap();
        let at: u64 = at.parse().unwrap();
        if event.starts_with("begin ") {
            let (_, stack) = event.split_once(" [").unwrap_or_default();
            let frames = stack.strip_suffix(']').unwrap_or_default().split(" > ");
            let before = open.insert(thread, (at, frames.map(str::to_owned).collect()));
            assert!(before.is_none(), "a thread is away once at a time: {line}");
        } else {
            let (since, stack): (u64, Vec<String>) = open.remove(thread).unwrap();
            *stacks.entry(stack).or_default() += at - since;
        }
    }
    assert!(open.is_empty(), "{open:?}");
    stacks
}

/// Each wait is a slice with its stack, as long as the wait.
#[test]
fn waits_are_slices_of_the_timeline() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for options in [["profile", "--off-cpu"], ["profile", "--wall"], ["record", "--off-cpu"]] {
        agreeing(30, |rounds| {
            let output = ["-o", "x.pftrace", "--", program, "sleep", rounds];
            let ran = run_in(dir.path(), &[&options[..], &output].concat());
            ran.is_good();
            let timeline = std::fs::read(dir.path().join("x.pftrace")).unwrap();
            (waits_of(&testkit::perfetto::Timeline::read(&timeline)), ran, ())
        });
    }
}

#[test]
fn wall_clock_time_is_that_on_and_off_the_cpu() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for (kind, rounds) in [("on-wall", 200), ("sleep", 60)] {
        shares(dir.path(), &["--wall"], [program, kind], rounds);
    }
    for (kind, state) in [("on", "on-cpu"), ("sleep", "off-cpu")] {
        let args = ["profile", "--wall", "-o", "x.pb.gz", program, kind, "5"];
        run_in(dir.path(), &args).is_good();
        let text = unpacked(dir.path(), "x.pb.gz");
        let has = |word: &str| text.windows(word.len()).any(|window| window == word.as_bytes());
        for word in ["wall", "nanoseconds", "state", state, "sixty"] {
            assert!(has(word), "{word}");
        }
    }
}

/// The thread that signals a condition is above the wait for it, from the function that signals on.
#[test]
fn waits_have_their_waker() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled_from(dir.path(), "wakers", &[]) else { return };
    let program = [program.to_str().unwrap(), "50"];
    for mode in ["--off-cpu", "--wall"] {
        let options = [mode, "--wakers", "--call-graph", "dwarf"];
        let (stacks, ran) = profile(dir.path(), &options, &program);
        assert!(ran.stderr.contains(" ended by threads"), "{}", ran.stderr);
        let (mut woken, mark) = (0, "[woken by signaller]");
        for stack in stacks.keys() {
            let Some(at) = stack.iter().position(|frame| frame == mark) else { continue };
            let (wait, waker) = stack.split_at(at);
            let has = |part: &[String], name: &str| part.iter().any(|frame| frame == name);
            // `main` sleeps, too: the timer ends it.
            assert!(has(wait, "wait_for_it") && !has(wait, "signal_it"), "{stack:?}");
            let place = |name: &str| waker.iter().position(|frame| frame == name);
            assert!(place("signal_it").unwrap() < place("signaller").unwrap(), "{stack:?}");
            woken += 1;
        }
        assert!(woken > 0, "{stacks:?}");
    }
    let options = ["profile", "--off-cpu", "--wakers", "-o", "x.pb.gz"];
    run_in(dir.path(), &[&options[..], &program].concat()).is_good();
    let text = unpacked(dir.path(), "x.pb.gz");
    for word in ["waker", "waker_thread", "signaller"] {
        assert!(text.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
    }
    let refused = run_in(dir.path(), &["profile", "--wakers", "-o", "x.svg", "true"]);
    refused.is_refused(2, &["--wakers", "--off-cpu"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let output = dir.path().join("x.svg");
    let args = ["profile", "--off-cpu", "--wakers", "-o", output.to_str().unwrap(), "true"];
    let refused: support::Ran = as_nobody(&args).output().unwrap().into();
    refused.is_refused(1, &["--wakers", "tracefs"]);
}

/// The content of a compressed file.
fn unpacked(dir: &Path, name: &str) -> Vec<u8> {
    let file = std::fs::File::open(dir.join(name)).unwrap();
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut content).unwrap();
    content
}

/// The stacks of a file for the Firefox Profiler, with the weights of their samples.
fn of_firefox(file: &serde_json::Value) -> Stacks {
    let shared = &file["shared"];
    let row = |table: &str, column: &str, row: u64| {
        shared[table][column][usize::try_from(row).unwrap()].as_u64()
    };
    let mut stacks = Stacks::new();
    for thread in file["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        let (of, weights) = (&samples["stack"], &samples["weight"]);
        for (stack, weight) in of.as_array().unwrap().iter().zip(weights.as_array().unwrap()) {
            let (mut names, mut stack) = (Vec::new(), stack.as_u64());
            while let Some(at) = stack {
                let function = row("stackTable", "frame", at)
                    .and_then(|frame| row("frameTable", "func", frame))
                    .and_then(|function| row("funcTable", "name", function))
                    .unwrap();
                let name = &shared["stringArray"][usize::try_from(function).unwrap()];
                names.push(name.as_str().unwrap().to_owned());
                stack = row("stackTable", "prefix", at);
            }
            names.reverse();
            *stacks.entry(names).or_default() += (weight.as_f64().unwrap() * 1e6) as u64;
        }
    }
    stacks
}

/// On the CPU by number of samples; waits by their time, with a marker for each.
#[test]
fn the_firefox_profiler_gets_the_same_shares() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for (options, kind, unit) in
        [(&[][..], "on", "samples"), (&["--off-cpu"], "sleep", "tracing-ms")]
    {
        let (_, ran, file) = agreeing(100, |rounds| {
            let args = [&["profile", "-o", "x.json.gz"], options, &["--", program, kind, rounds]];
            let ran = run_in(dir.path(), &args.concat());
            ran.is_good();
            let bytes = std::fs::File::open(dir.path().join("x.json.gz")).unwrap();
            let file: serde_json::Value =
                serde_json::from_reader(flate2::read::GzDecoder::new(bytes)).unwrap();
            (of_firefox(&file), ran, file)
        });
        let thread = &file["threads"][0];
        // The weight of the clock that replaces cycles is a time.
        let unit = if ran.stderr.contains(" of cpu-clock") { "tracing-ms" } else { unit };
        assert_eq!(thread["samples"]["weightType"], unit);
        assert_eq!(thread["name"], "shares");
        let markers = thread["markers"]["length"].as_u64().unwrap();
        assert_eq!(markers > 0, kind == "sleep", "{markers}");
    }
}

/// A runnable thread waits for a CPU, with a frame that says so.
#[test]
fn preempted_threads_are_marked() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    // Two programs on one CPU.
    let script = format!("taskset -c 0 {program} on 40 & taskset -c 0 {program} on 40; wait");
    let (stacks, _) = profile(dir.path(), &["--off-cpu"], &["sh", "-c", &script]);
    let is_marked = |stack: &Vec<String>| {
        stack.last().is_some_and(|leaf| leaf == "[preempted]") && stack.contains(&"sixty".into())
    };
    assert!(stacks.keys().any(is_marked), "{stacks:?}");
}

#[test]
fn every_format_is_written() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for (mode, function) in [(&[][..], "sixty"), (&["--off-cpu"], "sixty"), (&["--wall"], "sixty")]
    {
        for (name, has_names, next_step) in [
            ("x.svg", true, "open it in a browser"),
            ("x.pb.gz", false, "go tool pprof -http=: x.pb.gz"),
            ("x.speedscope.json", true, "https://www.speedscope.app"),
            ("x.folded", true, "https://www.speedscope.app, or"),
            ("x.json.gz", false, "https://profiler.firefox.com"),
            ("x.pftrace", false, "https://ui.perfetto.dev"),
            ("x.html", false, "open it in a browser"),
            ("x.data", false, ""),
        ] {
            let kind = if mode.is_empty() { "on" } else { "sleep" };
            // Names of functions are looked for in those that have them.
            let rounds = if has_names { "8" } else { "2" };
            let args = [&["profile", "-o", name], mode, &[program, kind, rounds]].concat();
            let ran = run_in(dir.path(), &args);
            ran.is_good();
            assert!(ran.stderr.contains(" samples of "), "{name}: {}", ran.stderr);
            assert!(ran.stderr.contains(next_step), "{name}: {}", ran.stderr);
            let bytes = std::fs::read(dir.path().join(name)).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!has_names || text.contains(function), "{name} {mode:?}: {text}");
            let is_named = text.contains("\"name\":\"shares (");
            assert!(!name.contains("speedscope") || is_named, "threads have names: {text}");
        }
    }
    let expected = [
        "shares",
        "x.data",
        "x.folded",
        "x.html",
        "x.json.gz",
        "x.pb.gz",
        "x.pftrace",
        "x.speedscope.json",
        "x.svg",
    ];
    assert_eq!(support::names(dir.path()), expected);
}

/// Both programs have their code at the same addresses.
#[test]
fn a_process_that_replaces_its_program_has_the_functions_of_each() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let build = |function: &str| {
        let define = format!("-DFUNCTION={function}");
        let options = [&FRAME_POINTERS[..], &["-no-pie", "-static", &define]].concat();
        let program = compiled_from(dir.path(), "exec", &options)?;
        let named = dir.path().join(function);
        std::fs::rename(program, &named).unwrap();
        Some(named.to_str().unwrap().to_owned())
    };
    let (Some(first), Some(second)) = (build("before"), build("after")) else { return };
    let weight = |stacks: &Stacks, function: &str| -> u64 {
        let has = |(stack, _): &(&Vec<String>, &u64)| stack.iter().any(|frame| frame == function);
        stacks.iter().filter(has).map(|(_, weight)| weight).sum()
    };
    for options in [&[][..], &["--call-graph", "dwarf"]] {
        let program = [first.as_str(), "100", &second, "100", &first, "1", &second, "1"];
        let (stacks, ran) = profile(dir.path(), options, &program[..]);
        assert!(ran.stdout.is_empty(), "{}", ran.stdout);
        let [before, after] = ["before", "after"].map(|name| weight(&stacks, name));
        // The kernel and the start of the programs have the rest.
        assert!(before + after > sum(&stacks) * 9 / 10, "{stacks:?}");
        let ratio = before as f64 / after as f64;
        assert!((0.5..2.0).contains(&ratio), "{ratio} {stacks:?}");
        // No stack has functions of both.
        let has_both = |stack: &&Vec<String>| {
            ["before", "after"].iter().all(|name| stack.iter().any(|frame| frame == name))
        };
        assert_eq!(stacks.keys().find(has_both), None);
    }
}

#[test]
fn events_are_sampled_by_name() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let child = child("ping-pong 200");
    let child: Vec<&str> = child.iter().map(String::as_str).collect();
    let wakings = ["-e", "sched:sched_waking"];
    let (stacks, _) = profile(dir.path(), &wakings, &child);
    // Each of the two wakes the other one.
    assert!(sum(&stacks) >= 400, "{stacks:?}");
    assert!(stacks.keys().any(|stack| stack.iter().any(|frame| frame == "try_to_wake_up")));
    let (stacks, _) = profile(dir.path(), &["-e", "page-faults", "-c", "1"], &["true"]);
    assert!(sum(&stacks) > 20, "{stacks:?}");
}

/// A running process, with all of its threads, until it ends.
#[test]
fn a_running_process_is_profiled_until_it_ends() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let sleeping = Command::new(program).args(["sleep", "200"]).spawn().unwrap();
    let pid = sleeping.id().to_string();
    let _sleeping = Running(Some(sleeping));
    let ran = run_in(dir.path(), &["profile", "--off-cpu", "-o", "x.folded", "-p", &pid]);
    ran.is_good();
    let stacks = parsed(&read(dir.path(), "x.folded"));
    assert!(stacks.keys().any(|stack| stack.contains(&"sixty".to_owned())), "{stacks:?}");
}

#[test]
fn a_user_without_privileges_profiles_its_own_programs() {
    if !can("perf_event_paranoid of 2 or less", users_may_count()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let output = dir.path().join("x.folded");
    let (output, program) = (output.to_str().unwrap(), program.to_str().unwrap());
    let (_, ran, ()) = agreeing(100, |rounds| {
        let args = ["profile", "-o", output, program, "on", rounds];
        let ran: support::Ran = as_nobody(&args).output().unwrap().into();
        ran.is_good();
        (parsed(&read(dir.path(), "x.folded")), ran, ())
    });
    if support::paranoid() == 2 {
        assert!(ran.stderr.contains("user space only"), "{}", ran.stderr);
        let args = ["profile", "--off-cpu", "-o", output, "true"];
        let ran: support::Ran = as_nobody(&args).output().unwrap().into();
        ran.is_refused(1, &["perf_event_paranoid", "leaves the CPU in the kernel"]);
        let args = ["profile", "-a", "-o", output, "true"];
        let ran: support::Ran = as_nobody(&args).output().unwrap().into();
        ran.is_refused(1, &["cannot record tasks", "perf_event_paranoid"]);
    }
}

/// The recording is what is left, and the message names it.
#[test]
fn the_recording_stays_if_it_cannot_be_converted() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    for file in ["x.pftrace", "x.html"] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("mkdir {file}.partial");
        let ran = run_in(dir.path(), &["profile", "-o", file, "sh", "-c", &script]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        let (summary, why) = ran.stderr.trim_end().rsplit_once('\n').unwrap();
        assert!(summary.contains(" lost"), "{}", ran.stderr);
        let recording = format!("{file}.data");
        let note = format!("; {recording} has the recording");
        assert!(why.contains(file) && why.ends_with(&note), "{}", ran.stderr);
        let partial = format!("{file}.partial");
        assert_eq!(support::names(dir.path()), [&*recording, &*partial]);
        // The next run has a file of its own, and leaves that one.
        let before = std::fs::read(dir.path().join(&recording)).unwrap();
        std::fs::remove_dir(dir.path().join(&partial)).unwrap();
        let ran = run_in(dir.path(), &["profile", "-o", file, "sh", "-c", &script]);
        let next = format!("{file}.2.data");
        assert!(ran.stderr.contains(&format!("; {next} has the recording")), "{}", ran.stderr);
        std::fs::remove_dir(dir.path().join(&partial)).unwrap();
        // What a run that did not end has left, too.
        let cut = format!("{file}.3.data.partial");
        std::fs::write(dir.path().join(&cut), "cut").unwrap();
        run_in(dir.path(), &["profile", "-o", file, "true"]).is_good();
        assert_eq!(support::names(dir.path()), [file, &next, &cut, &recording]);
        assert_eq!(std::fs::read(dir.path().join(&cut)).unwrap(), b"cut");
        assert_eq!(std::fs::read(dir.path().join(&recording)).unwrap(), before);
    }
}

#[test]
fn a_conversion_that_a_signal_ends_leaves_the_recording() {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("x.html");
    assert!(Command::new("mkfifo").arg(&page).status().unwrap().success());
    // A page is longer than a pipe takes, and it is not read to its end.
    let mut reader = std::fs::File::options();
    reader.read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let mut reader = reader.open(&page).unwrap();
    let args = ["profile", "-e", "page-faults", "-c", "1", "-o", "x.html", "true"];
    let mut command = support::with_default_signals(&args);
    let profile = Running::start(command.current_dir(dir.path()));
    testkit::wait::until("the page", || {
        profile.still_runs();
        reader.read(&mut [0]).is_ok()
    });
    // The first one is for the command.
    profile.signal("INT");
    profile.signal("TERM");
    let ran = profile.end();
    assert!(matches!(ran.code, Some(130 | 143)), "{}", ran.stderr);
    let said = "triscope: interrupted; x.html.data has the recording\n";
    assert!(ran.stderr.ends_with(said), "{}", ran.stderr);
    assert_eq!(support::names(dir.path()), ["x.html", "x.html.data"]);
}

#[test]
fn a_command_that_is_not_found_leaves_no_recording() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    for file in ["x.data", "x.html"] {
        let dir = tempfile::tempdir().unwrap();
        let ran = run_in(dir.path(), &["profile", "-o", file, "./no-such-command"]);
        assert_eq!(ran.code, Some(127), "{}", ran.stderr);
        assert_eq!(support::names(dir.path()), [""; 0]);
    }
}

#[test]
fn a_bad_output_is_refused_before_the_command_runs() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(dir.path(), &["profile", "-o", "x.txt", "touch", "ran"]);
    ran.is_refused(2, &["x.txt", ".folded", ".svg", ".pb.gz", ".json.gz", ".pftrace", ".html"]);
    assert!(!dir.path().join("ran").exists());
    let ran = run_in(dir.path(), &["profile", "-o", "x.svg", "-e", "nosuch", "touch", "ran"]);
    ran.is_refused(1, &["nosuch"]);
    assert!(!dir.path().join("ran").exists());
    for file in ["x.svg", "x.json.gz", "x.pftrace", "x.html", "x.data", "x.folded"] {
        for (place, why) in [("missing", "No such file"), (".", "is a directory")] {
            let output = format!("{place}/{file}");
            if place == "." {
                std::fs::create_dir(dir.path().join(file)).unwrap();
            }
            let ran = run_in(dir.path(), &["profile", "-o", &output, "touch", "ran"]);
            ran.is_refused(1, &[&format!("{output}: "), why]);
            assert!(!ran.stderr.contains("partial"), "{}", ran.stderr);
            assert!(!dir.path().join("ran").exists());
        }
    }
    let ran = run_in(dir.path(), &["record", "-o", "missing/x.pftrace", "touch", "ran"]);
    ran.is_refused(1, &["missing/x.pftrace: ", "No such file"]);
    assert!(!dir.path().join("ran").exists());
    let nothing = triscope(&["profile", "-o", "x.svg"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
}

/// Only root could write there.
#[test]
fn a_directory_that_cannot_be_written_is_refused_before_the_command_runs() {
    let dir = crate::record::open_directory();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    let (output, ran) = (closed.join("x.svg"), dir.path().join("ran"));
    let output = output.to_str().unwrap();
    let args = ["profile", "-o", output, "touch", ran.to_str().unwrap()];
    let refused: support::Ran = as_nobody(&args).output().unwrap().into();
    refused.is_refused(1, &[&format!("{output}: "), "Permission denied"]);
    assert!(!ran.exists());
}

#[test]
fn cpus_and_frequencies_that_the_kernel_does_not_have_are_named() {
    for command in [&["profile", "-o", "x.svg"][..], &["top", "--once"]] {
        let run = |options: &[&str]| -> support::Ran {
            triscope(&[command, options, &["true"]].concat()).output().unwrap().into()
        };
        run(&["-F", "99999999999"]).is_refused(2, &["99999999999", "perf_event_max_sample_rate"]);
        run(&["-C", "0,60000"]).is_refused(1, &["CPU 60000 does not exist"]);
    }
    let args = ["record", "-F", "99999999999", "-o", "/dev/null", "true"];
    let ran: support::Ran = triscope(&args).output().unwrap().into();
    ran.is_refused(2, &["99999999999", "perf_event_max_sample_rate"]);
}

/// The frames of each sample, outermost first, by its thread and time.
type Timed = BTreeMap<(u64, u64), Vec<String>>;

/// The samples as `perf script` prints them.
fn of_perf(dir: &Path, file: &str) -> Option<Timed> {
    let args = ["script", "--no-inline", "--ns", "-i", file, "-F", "tid,time,ip,sym"];
    if !testkit::perf::is_installed() {
        return None;
    }
    let output = testkit::perf::output(Command::new("perf").current_dir(dir).args(args));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut samples = Timed::new();
    let script = String::from_utf8(output.stdout).unwrap();
    for sample in script.split("\n\n").filter(|sample| !sample.trim().is_empty()) {
        let mut lines = sample.trim_matches('\n').lines();
        let (tid, time) = lines.next().unwrap().trim().split_once(' ').unwrap();
        let (seconds, nanos) = time.trim().trim_end_matches(':').split_once('.').unwrap();
        let [tid, seconds, nanos]: [u64; 3] =
            [tid, seconds, nanos].map(|number| number.parse().unwrap());
        let frame =
            |line: &str| line.trim().split_once(' ').map_or("", |(_, name)| name).to_owned();
        let mut stack: Vec<String> = lines.map(frame).map(unified).collect();
        stack.reverse();
        samples.insert((tid, seconds * 1_000_000_000 + nanos), stack);
    }
    Some(samples)
}

/// The samples of a timeline.
fn of_timeline(timeline: &testkit::perfetto::Timeline) -> Timed {
    let sample = |line: &String| {
        let (time, sample) = line.split_once(" sample ")?;
        let (ids, stack) = sample.split_once(" [").unwrap_or((sample, ""));
        let (_, tid) = ids.split_once('/').unwrap();
        let frames = stack.strip_suffix(']').unwrap_or_default().split(" > ");
        let frames = frames.map(|frame| unified(frame.to_owned())).collect();
        Some(((tid.parse().unwrap(), time.parse().unwrap()), frames))
    };
    timeline.lines.iter().filter_map(sample).collect()
}

/// Functions without a name are one.
fn unified(frame: String) -> String {
    // perf invents symbols of procedure linkage tables, and takes those of its own vDSO.
    let invented = ["@plt", "__vdso_"].iter().any(|part| frame.contains(part));
    let is_unknown =
        frame.is_empty() || frame.contains("+0x") || frame.starts_with("0x") || invented;
    if is_unknown { "[unknown]".to_owned() } else { frame }
}

/// Each sample of recordings of both programs has the frames that `perf script` prints, in the program and
/// in the kernel.
#[test]
fn stacks_are_those_of_perf() {
    needs_root!(beside others);
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let rust = compiled_by_rustc(dir.path(), "force-frame-pointers=yes");
    // Some hundred samples: one whose frames perf makes up is less than a hundredth of them.
    let programs = [(Some(program), "200"), (rust, "400")];
    for (program, rounds) in programs {
        let Some(program) = program else { continue };
        if !are_those_of_perf(dir.path(), [program.to_str().unwrap(), "on", rounds]) {
            return;
        }
    }
}

/// `false` without perf.
fn are_those_of_perf(dir: &Path, program: [&str; 3]) -> bool {
    let hertz = rate(999).to_string();
    let record = |event| {
        let args = ["profile", "-F", &hertz, "-e", event, "-o", "ours.data"];
        run_in(dir, &[&args[..], &program].concat())
    };
    // Virtual machines may have no hardware counters.
    let event = if record("cycles").code == Some(0) { "cycles" } else { "cpu-clock" };
    if event == "cpu-clock" {
        record(event).is_good();
    }
    let Some(_) = of_perf(dir, "ours.data") else { return false };
    let mut perf = Command::new("perf");
    perf.current_dir(dir).args(["record", "-q", "-N", "-g", "-e", event, "-F", &hertz]);
    let output = testkit::perf::output(perf.args(["-o", "theirs.data"]).args(program));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in ["ours.data", "theirs.data"] {
        run_in(dir, &["convert", file, "-o", "x.pftrace"]).is_good();
        let timeline = std::fs::read(dir.join("x.pftrace")).unwrap();
        let ours = of_timeline(&testkit::perfetto::Timeline::read(&timeline));
        let theirs = of_perf(dir, file).unwrap();
        assert!(ours.keys().eq(theirs.keys()), "{program:?} {file}: {ours:?}\n{theirs:?}");
        let others: Vec<_> =
            theirs.iter().filter(|(sample, stack)| ours[*sample] != **stack).collect();
        let share = others.len() as f64 / theirs.len() as f64;
        let found: Vec<_> = others.iter().map(|(sample, _)| &ours[*sample]).collect();
        assert!(share <= 0.01, "{program:?} {file}: {share}\n{found:?}\n{others:?}");
    }
    true
}

/// In a PID namespace, a program knows its threads by other ids than the kernel's samples.
#[test]
fn goroutines_of_programs_in_containers_are_found_on_stacks_of_the_runtime() {
    needs_root!(beside others);
    let Some(mut go) = support::go() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/allocating/main.go");
    let program = dir.path().join("allocating");
    assert!(go.args(["build", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let command = ["unshare", "--pid", "--fork", "--mount-proc", program.to_str().unwrap()];
    let output = ["profile", "--goroutines", "-o", "x.svg", "--"];
    let ran = run_in(dir.path(), &[&output[..], &command].concat());
    ran.is_good();
    let count = |what: &str| {
        let (before, _) = ran.stderr.split_once(what)?;
        before.rsplit([' ', ',']).next()?.parse::<u64>().ok()
    };
    let all = count(" samples of Go programs").unwrap_or_else(|| panic!("{}", ran.stderr));
    // A half of them, if the ids are mistaken.
    let others = count(" in code that is not Go").unwrap_or(0);
    assert!(all > 100 && others * 10 < all, "{}", ran.stderr);
}

/// Goroutines that live as long as the program cannot be mistaken: other samples have none.
#[test]
fn samples_of_go_programs_have_their_goroutine() {
    needs_root!(beside others);
    let Some(mut go) = support::go() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perf/goroutines/main.go");
    let program = dir.path().join("goroutines");
    assert!(go.args(["build", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let program = program.to_str().unwrap();
    let (stacks, ran) = profile(dir.path(), &["--by", "goroutine"], &[program]);
    let printed: Vec<(&str, &str)> =
        ran.stdout.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(printed.len(), 2, "{}", ran.stdout);
    for (function, number) in printed {
        let function = format!("main.{function}");
        let of = stacks.iter().filter(|(stack, _)| stack.contains(&function));
        let (mut right, mut all) = (0, 0);
        for (stack, weight) in of {
            let goroutine = stack[0].strip_prefix("goroutine ").map(|text| text.split_once(' '));
            if let Some(Some((found, entry))) = goroutine {
                assert_eq!((found, entry), (number, "main.main.func1"), "{stack:?}");
                right += weight;
            }
            all += weight;
        }
        // Only those until it was found first have none.
        assert!(right * 2 > all, "{function}: {right} of {all}: {}", ran.stderr);
    }
    assert!(ran.stderr.contains(" of Go programs with a goroutine"), "{}", ran.stderr);
    run_in(dir.path(), &["profile", "--goroutines", "-o", "x.pb.gz", program]).is_good();
    let mut text = Vec::new();
    let file = std::fs::File::open(dir.path().join("x.pb.gz")).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    for word in ["goroutine", "go_entry", "request", "first", "second"] {
        let has = text.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(has, "{word}");
    }
    let top = ["top", "--by", "goroutine", "--json", "--delay", "600", program];
    let top = run_in(dir.path(), &top);
    top.is_good();
    let table: serde_json::Value = serde_json::from_str(&top.stdout).unwrap();
    // The two lines of the program.
    let printed = top.stderr.lines().filter_map(|line| line.split_once(' '));
    let printed = printed.filter_map(|(function, id)| Some((function, id.parse::<i64>().ok()?)));
    let printed: Vec<_> = printed.collect();
    assert_eq!(printed.len(), 2, "{}", top.stderr);
    for (function, id) in printed {
        let rows = table["goroutines"].as_array().unwrap();
        let row = rows.iter().find(|row| row["id"].as_i64() == Some(id));
        let row = row.unwrap_or_else(|| panic!("{function} {id}: {table}"));
        assert_eq!(row["name"], "main.main.func1", "{table}");
    }
    let refused = run_in(dir.path(), &["profile", "--goroutines", "-o", "x.data", program]);
    assert!(refused.stderr.contains("goroutines are read for profiles"), "{}", refused.stderr);
}
