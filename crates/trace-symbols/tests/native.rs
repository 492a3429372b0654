//! Native code: functions, lines and inlined calls, beside those of binutils' addr2line.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use trace_symbols::{ObjectFile, Options, Unresolved, build_id};

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles the C program.
fn compile(dir: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/program.c");
    let out = dir.join(name);
    let mut all = vec!["-O2", "-Wl,--build-id", source, "-o", out.to_str().unwrap()];
    all.extend(arguments);
    run("cc", &all);
    out
}

/// The addresses of the code of the functions of the program.
fn addresses(program: &Path) -> Vec<u64> {
    let symbols = run("nm", &["-S", program.to_str().unwrap()]);
    let ranges = symbols.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [start, size, _, "main" | "work" | "compare"] = words[..] else { return None };
        let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
        Some(hex(start)..hex(start) + hex(size))
    });
    ranges.flatten().collect()
}

/// Functions and lines, innermost first.
type Frames = Vec<(String, String, u32)>;

/// The answers of binutils.
fn addr2line(program: &Path, addresses: &[u64]) -> BTreeMap<u64, Frames> {
    let mut arguments = vec!["-a".to_owned(), "-f".into(), "-i".into(), "-C".into(), "-e".into()];
    arguments.push(program.to_str().unwrap().to_owned());
    arguments.extend(addresses.iter().map(|address| format!("{address:#x}")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = run("addr2line", &arguments);
    let mut found: BTreeMap<u64, Frames> = BTreeMap::new();
    let (mut address, mut lines) = (0, output.lines());
    while let Some(line) = lines.next() {
        if let Some(digits) = line.strip_prefix("0x") {
            address = u64::from_str_radix(digits, 16).unwrap();
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let (file, line_number) = place.rsplit_once(':').unwrap();
        let number = line_number.parse().unwrap_or_default();
        found.entry(address).or_default().push((line.to_owned(), file.to_owned(), number));
    }
    found
}

#[cfg(feature = "dwarf")]
fn ours(file: &ObjectFile, address: u64) -> Frames {
    let frames = file.frames(address).unwrap();
    let place = |frame: &trace_symbols::Frame| {
        let file = frame.file.as_deref().unwrap_or("??").to_owned();
        (frame.function.to_string(), file, frame.line)
    };
    frames.iter().map(place).collect()
}

#[cfg(feature = "dwarf")]
#[test]
fn lines_and_inlined_calls_are_those_of_binutils() {
    let dir = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("dwarf5", &["-g", "-gdwarf-5"][..]),
        ("dwarf4", &["-g", "-gdwarf-4", "-no-pie"]),
        ("compressed", &["-g", "-gz=zlib"]),
        #[cfg(feature = "zstd")]
        ("zstd", &["-g"]),
    ] {
        let program = compile(dir.path(), name, arguments);
        if name == "zstd" {
            // Not every compiler does it.
            run("objcopy", &["--compress-debug-sections=zstd", program.to_str().unwrap()]);
            let sections = run("readelf", &["--section-details", program.to_str().unwrap()]);
            assert!(sections.contains("ZSTD"), "{sections}");
        }
        let addresses = addresses(&program);
        let expected = addr2line(&program, &addresses);
        let file = ObjectFile::open(&program, &Options::default()).unwrap();
        let mut inlined = 0;
        for address in &addresses {
            let found = ours(&file, *address);
            inlined += found.len() - 1;
            assert_eq!(found, expected[address], "{name}: {address:#x}");
        }
        println!("{name}: {} addresses, {inlined} inlined calls", addresses.len());
        assert!(addresses.len() > 100 && inlined > 50, "{name}: {inlined}");
    }
}

/// Compressed in another way than this crate reads.
#[cfg(feature = "dwarf")]
#[test]
fn functions_have_names_if_the_debug_sections_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "unreadable", &["-g", "-gz=zlib"]);
    let (addresses, mut bytes) = (addresses(&program), fs::read(&program).unwrap());
    // `Elf64_Chdr`: type, reserved, size, alignment; then zlib's first byte.
    let is_header = |bytes: &[u8]| {
        bytes.starts_with(&[1, 0, 0, 0, 0, 0, 0, 0])
            && matches!(bytes[16..24], [1 | 8, 0, 0, 0, 0, 0, 0, 0])
            && bytes[24] == 0x78
    };
    let headers: Vec<usize> =
        bytes.windows(25).enumerate().filter(|(_, b)| is_header(b)).map(|(at, _)| at).collect();
    assert!(!headers.is_empty());
    headers.into_iter().for_each(|at| bytes[at] = 3);
    fs::write(&program, bytes).unwrap();
    let file = ObjectFile::open(&program, &Options::default()).unwrap();
    let named = addresses.iter().filter(|address| file.frames(**address).is_ok()).count();
    assert_eq!(named, addresses.len());
}

/// Random addresses of the code of a file, as they come: whether they have a function is not known.
#[cfg(feature = "dwarf")]
fn random_addresses(file: &ObjectFile, count: usize) -> Vec<u64> {
    let mut state = 1;
    let code = file.code().remove(0);
    let size = (code.end - code.start) as usize;
    let positions = std::iter::repeat_with(|| code.start + (random(&mut state) % size) as u64);
    positions.filter_map(|position| file.address_of(position)).take(count).collect()
}

/// The number of addresses whose frames differ, of random ones of a file.
#[cfg(feature = "dwarf")]
#[derive(Debug, Default)]
struct Compared {
    total: usize,
    /// Neither of the two has a function.
    unknown: usize,
    /// Only binutils has one: that of the symbol before, which ends before the address.
    beyond: usize,
    functions: Vec<(u64, Frames, Frames)>,
    lines: Vec<(u64, Frames, Frames)>,
    files: usize,
}

#[cfg(feature = "dwarf")]
fn compared(program: &Path) -> Option<Compared> {
    let file = ObjectFile::open(program, &Options::default()).unwrap();
    let addresses = random_addresses(&file, 1000);
    let expected = addr2line(program, &addresses);
    let has_lines = expected.values().any(|frames| frames.iter().any(|(_, _, line)| *line > 0));
    if !testkit::skip::can(&format!("the debug information of {}", program.display()), has_lines) {
        return None;
    }
    let mut compared = Compared { total: addresses.len(), ..Compared::default() };
    for address in addresses {
        let theirs = expected[&address].clone();
        let is_known = theirs[0].0 != "??";
        if file.frames(address).is_err() {
            compared.unknown += usize::from(!is_known);
            compared.beyond += usize::from(is_known);
            continue;
        }
        let ours = ours(&file, address);
        let lines = |frames: &Frames| frames.iter().map(|frame| frame.2).collect::<Vec<_>>();
        let functions = |frames: &Frames| {
            frames.iter().map(|frame| base(&frame.0).to_owned()).collect::<Vec<_>>()
        };
        let files = |frames: &Frames| {
            let name = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
            let name = |(_, file, line): &(_, String, u32)| (*line > 0).then(|| name(file));
            frames.iter().map(name).collect::<Vec<_>>()
        };
        // Of code in an included file, binutils sometimes reports the name of the including one.
        compared.files += usize::from(files(&ours) != files(&theirs));
        if lines(&ours) != lines(&theirs) {
            compared.lines.push((address, ours, theirs));
        } else if functions(&ours) != functions(&theirs) {
            compared.functions.push((address, ours, theirs));
        }
    }
    println!(
        "{}: {} addresses: {} of no function, {} behind the end of one; {} differ in lines, {} in functions, {} \
         in file names",
        program.display(),
        compared.total,
        compared.unknown,
        compared.beyond,
        compared.lines.len(),
        compared.functions.len(),
        compared.files
    );
    Some(compared)
}

/// A function without its version.
#[cfg(feature = "dwarf")]
fn base(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// A library with a separate debug file: functions, lines and inlined calls of random addresses.
#[cfg(feature = "dwarf")]
#[test]
fn random_addresses_of_the_c_library_are_those_of_binutils() {
    let found = run("cc", &["-print-file-name=libc.so.6"]);
    let Some(compared) = compared(&fs::canonicalize(found.trim()).unwrap()) else { return };
    assert!(compared.lines.len() * 100 <= compared.total, "{:#?}", compared.lines);
    // The function that has the code has several names in the C library: that of the symbol is shown.
    let inlined = |frames: &Frames| -> Vec<String> {
        frames.iter().rev().skip(1).map(|frame| base(&frame.0).to_owned()).collect()
    };
    let differ = |(_, ours, theirs): &&(u64, Frames, Frames)| inlined(ours) != inlined(theirs);
    let different: Vec<_> = compared.functions.iter().filter(differ).collect();
    assert!(different.len() * 100 <= compared.total, "{different:#?}");
    assert!(compared.files * 10 <= compared.total, "{compared:#?}");
    assert!((compared.unknown + compared.beyond) * 10 <= compared.total, "{compared:#?}");
}

/// A program with the standard library. Not this test, which CI compiles without debug information.
#[cfg(feature = "dwarf")]
#[test]
fn random_addresses_of_a_rust_program_are_those_of_binutils() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/stacks.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let out = program.to_str().unwrap();
    run(&rustc, &["-g", "-O", "--edition", "2024", "-o", out, source]);
    let compared = compared(&program).unwrap();
    assert!(compared.lines.len() * 100 <= compared.total, "{:#?}", compared.lines);
    assert!(compared.functions.len() * 100 <= compared.total, "{:#?}", compared.functions);
}

#[test]
fn without_debug_information_functions_have_their_symbols() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "plain", &[]);
    let expected = addr2line(&program, &addresses(&program));
    let file = ObjectFile::open(&program, &Options::default()).unwrap();
    for (address, frames) in &expected {
        let found = file.frames(*address).unwrap();
        assert_eq!((found.len(), &*found[0].function), (1, &*frames[0].0), "{address:#x}");
        assert_eq!((found[0].file.as_ref(), found[0].line), (None, 0));
    }
    let stripped = dir.path().join("stripped");
    run("strip", &["-o", stripped.to_str().unwrap(), program.to_str().unwrap()]);
    let file = ObjectFile::open(&stripped, &Options::default()).unwrap();
    let work = *expected.keys().next().unwrap();
    assert_eq!(file.frames(work), Err(Unresolved::NoSymbols));
}

/// `_init` has no size: the code behind its section is that of the procedure linkage table.
#[test]
fn symbols_without_a_size_end_with_their_section() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "plain", &[]);
    let sections = run("readelf", &["-SW", program.to_str().unwrap()]);
    let range = |name: &str| {
        let line = sections.lines().find(|line| line.contains(&format!(" {name} ")))?;
        let words: Vec<&str> = line.split(']').nth(1)?.split_whitespace().collect();
        let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        Some((hex(words[2]), hex(words[4])))
    };
    let file = ObjectFile::open(&program, &Options::default()).unwrap();
    let name = |at| file.frames(at).map(|mut frames| frames.remove(0).function.to_string());
    let (init, size) = range(".init").unwrap();
    assert_eq!(name(init + size - 1), Ok("_init".to_owned()));
    let (table, size) = range(".plt").unwrap();
    for at in table..table + size {
        assert_eq!(name(at), Err(Unresolved::NoSymbol), "{at:#x}");
    }
}

#[test]
fn separate_debug_files_are_used_if_they_belong_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let whole = compile(dir.path(), "whole", &["-g"]);
    let addresses = addresses(&whole);
    let expected = ObjectFile::open(&whole, &Options::default()).unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let debug = path("program.debug");
    run("objcopy", &["--only-keep-debug", &text(&whole), &text(&debug)]);
    let program = path("program");
    run("strip", &["-o", &text(&program), &text(&whole)]);
    let mut options = Options::default();
    options.debug_directories = vec![path("debug")];
    let frames = |options: &Options| {
        let file = ObjectFile::open(&program, options).unwrap();
        addresses.iter().map(|at| file.frames(*at)).collect::<Vec<_>>()
    };
    let all: Vec<_> = addresses.iter().map(|at| expected.frames(*at)).collect();
    let none = vec![Err(Unresolved::NoSymbols); addresses.len()];
    assert_eq!(frames(&options), none);

    // By its build id.
    let id = build_id::of_file(&whole).unwrap().to_string();
    let of_id = path("debug").join(".build-id").join(&id[..2]);
    fs::create_dir_all(&of_id).unwrap();
    let of_id = of_id.join(format!("{}.debug", &id[2..]));
    fs::copy(&debug, &of_id).unwrap();
    assert_eq!(frames(&options), all);
    // Another file in its place.
    let other = compile(dir.path(), "other", &["-g", "-DOTHER", "-O1"]);
    fs::copy(&other, &of_id).unwrap();
    assert_eq!(frames(&options), none);
    fs::remove_file(&of_id).unwrap();

    // By a link with a CRC.
    run("objcopy", &[&format!("--add-gnu-debuglink={}", text(&debug)), &text(&program)]);
    assert_eq!(frames(&options), all);
    let above = "../".repeat(std::env::current_dir().unwrap().components().count() - 1);
    let relative = format!("{above}{}", &text(&program)[1..]);
    let relative = ObjectFile::open(relative, &options).unwrap();
    assert_eq!(addresses.iter().map(|at| relative.frames(*at)).collect::<Vec<_>>(), all);
    let mut damaged = fs::read(&debug).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&debug, damaged).unwrap();
    assert_eq!(frames(&options), none);
}

#[cfg(feature = "dwarf")]
fn has_dwz() -> bool {
    testkit::skip::can("dwz", Command::new("dwz").arg("--version").output().is_ok())
}

/// Debug information that two programs share is in a third file.
#[cfg(feature = "dwarf")]
#[test]
fn supplementary_debug_files_are_used_or_missed() {
    if !has_dwz() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let program = compile(dir.path(), "program", &["-g", "-gdwarf-4"]);
    compile(dir.path(), "other", &["-g", "-gdwarf-4", "-DOTHER"]);
    let addresses = addresses(&program);
    let open = || ObjectFile::open(&program, &Options::default()).unwrap();
    let file = open();
    let expected: Vec<Frames> = addresses.iter().map(|at| ours(&file, *at)).collect();
    run("dwz", &["-m", &path("shared"), &path("program"), &path("other")]);
    let sections = run("readelf", &["-SW", &path("program")]);
    assert!(sections.contains(".gnu_debugaltlink"), "{sections}");
    let file = open();
    let found: Vec<Frames> = addresses.iter().map(|at| ours(&file, *at)).collect();
    assert_eq!((found, file.problem()), (expected, None));
    fs::remove_file(path("shared")).unwrap();
    let file = open();
    assert!(addresses.iter().all(|at| file.frames(*at).is_ok()));
    assert_eq!(file.problem(), Some(&Unresolved::OtherDebugFile));
}

/// Compiles the C program with 40 other units. Each shares a type with the one of the program.
#[cfg(feature = "dwarf")]
fn compile_units(dir: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/program.c");
    let mut first = format!("#include \"{program}\"\n");
    let mut sources = Vec::new();
    for n in 0..40 {
        // Long names make large line tables.
        let header = format!("{}{n}.h", "shared".repeat(20));
        let names: Vec<String> = (0..30).map(|field| format!("field_{field}")).collect();
        let fields: String = names.iter().map(|field| format!("\tunsigned {field};\n")).collect();
        let sum: String = names.iter().map(|field| format!("\t\t+ part->{field}\n")).collect();
        write(&header, &format!("struct part_{n} {{\n{fields}}};\n"));
        let function = |function: &str, sum: &str| {
            format!(
                "#include \"{header}\"\nunsigned {function}_{n}(struct part_{n} *part)\n\
                 {{\n\treturn 0\n{sum}\t\t;\n}}\n"
            )
        };
        first.push_str(&function("all", &sum));
        let source = function("one", "\t\t+ part->field_0\n");
        sources.push(write(&format!("unit_{n}.c"), &source));
    }
    let first = write("first.c", &first);
    let out = dir.join(name);
    let mut all = vec!["-O1", "-Wl,--build-id", "-o", out.to_str().unwrap(), &first];
    all.extend(sources.iter().map(String::as_str));
    all.extend(arguments);
    run("cc", &all);
    out
}

/// dwz(1) makes units of what others share, with their line tables.
#[cfg(feature = "dwarf")]
#[test]
fn partial_units_take_no_lines_away() {
    if !has_dwz() {
        return;
    }
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let program = compile_units(dir.path(), "program", &["-g", version]);
        let addresses = addresses(&program);
        let open = |name: &str| ObjectFile::open(path(name), &Options::default()).unwrap();
        let frames = |file: &ObjectFile| -> Vec<Frames> {
            addresses.iter().map(|at| ours(file, *at)).collect()
        };
        let expected = frames(&open("program"));
        assert!(expected.iter().any(|frames| frames.len() > 1), "{version}: inlined calls");
        for copy in ["alone", "other"] {
            fs::copy(&program, path(copy)).unwrap();
        }
        run("dwz", &[&path("alone")]);
        run("dwz", &["-m", &path("shared"), &path("program"), &path("other")]);
        for name in ["alone", "shared"] {
            let entries = run("readelf", &["--debug-dump=info", &path(name)]);
            let partial = entries.matches("(DW_TAG_partial_unit)").count();
            assert!(partial >= 40, "{version} {name}: {partial}");
        }
        for name in ["alone", "program", "other"] {
            let file = open(name);
            let found = (frames(&file), file.problem());
            assert_eq!(found, (expected.clone(), None), "{version} {name}");
        }
        // A damaged shared file leaves the lines of the program.
        let sections = run("readelf", &["-SW", &path("shared")]);
        let line = sections.lines().find(|line| line.contains(" .debug_info ")).unwrap();
        let words: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
        let at = usize::from_str_radix(words[3], 16).unwrap();
        let mut bytes = fs::read(path("shared")).unwrap();
        bytes[at..at + 4].fill(0xff);
        fs::write(path("shared"), bytes).unwrap();
        let file = open("program");
        let found = frames(&file);
        let lines = found.iter().filter(|frames| frames.last().unwrap().2 > 0).count();
        assert!(lines * 2 > addresses.len(), "{version}: {lines}");
        let damaged = Unresolved::Malformed { what: "debug information", offset: 0 };
        assert_eq!(file.problem(), Some(&damaged));
    }
}

#[cfg(feature = "dwarf")]
#[test]
fn split_debug_information_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "split", &["-g", "-gsplit-dwarf"]);
    let file = ObjectFile::open(&program, &Options::default()).unwrap();
    assert_eq!(file.problem(), None);
    assert!(addresses(&program).iter().all(|at| file.frames(*at).is_ok()));
    assert_eq!(file.problem(), Some(&Unresolved::OtherDebugFile));
}

/// A server on the loopback interface. Returns its URL, and in the end the paths that it was asked for.
/// A connection that sends `stop` ends it.
#[cfg(feature = "debuginfod")]
fn serve(
    answer: impl Fn(&str) -> Vec<u8> + Send + 'static,
) -> (String, std::thread::JoinHandle<Vec<String>>) {
    use std::io::{BufRead, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            if request == "stop" {
                return asked;
            }
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let fields = lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            fields.for_each(drop);
            // The client may refuse the rest.
            let _ = stream.write_all(&answer(&path));
            asked.push(path);
        }
    });
    (url, server)
}

#[cfg(feature = "debuginfod")]
#[test]
fn debug_information_of_servers_is_used_when_asked_and_checked() {
    use std::io::Write;
    use trace_symbols::Debuginfod;

    let dir = tempfile::tempdir().unwrap();
    let whole = compile(dir.path(), "whole", &["-g"]);
    let other = compile(dir.path(), "other", &["-g", "-DOTHER", "-O1"]);
    let addresses = addresses(&whole);
    let stripped = dir.path().join("stripped");
    run("strip", &["-o", stripped.to_str().unwrap(), whole.to_str().unwrap()]);
    let id = build_id::of_file(&whole).unwrap().to_string();
    let bytes = fs::read(&whole).unwrap();
    let size = bytes.len() as u64;
    let path = format!("/buildid/{id}/debuginfo");
    let (debug, wrong) = (bytes.clone(), fs::read(&other).unwrap());
    let found = |body: &[u8], length: usize| {
        let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        [header.as_bytes(), body].concat()
    };
    // Another process, with other servers, is faster.
    let meanwhile = dir.path().join("meanwhile").join(&id).join("debuginfo");
    let (url, server) = serve(move |asked| match asked.strip_suffix(&path) {
        Some("/meanwhile") => {
            fs::write(&meanwhile, &debug).unwrap();
            b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec()
        }
        Some("/good") => found(&debug, debug.len()),
        Some("/wrong") => found(&wrong, wrong.len()),
        Some("/cut") => found(&debug[..debug.len() / 2], debug.len()),
        Some("/endless") => found(&vec![0; debug.len() + 1000], 10),
        Some("/no-http") => b"220 mail\r\n".to_vec(),
        _ => b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(),
    });
    let frames = |options: &Options| {
        let file = ObjectFile::open(&stripped, options).unwrap();
        addresses.iter().map(|at| file.frames(*at)).collect::<Vec<_>>()
    };
    let with = |paths: &[&str], cache: &str, max: u64| {
        let mut options = Options::default();
        let urls = paths.iter().map(|path| format!("{url}/{path}")).collect();
        let mut servers = Debuginfod::new(urls, dir.path().join(cache));
        servers.max_bytes = max;
        options.debuginfod = Some(servers.clone());
        let found = frames(&options);
        (found, servers.failures())
    };
    let whole = ObjectFile::open(&whole, &Options::default()).unwrap();
    let all: Vec<_> = addresses.iter().map(|at| whole.frames(*at)).collect();
    let none = vec![Err(Unresolved::NoSymbols); addresses.len()];
    assert_eq!(frames(&Options::default()), none, "no server is asked by default");
    for (n, bad) in ["wrong", "cut", "endless", "no-http", "missing"].into_iter().enumerate() {
        // That a server does not have it is no failure.
        let failed = (none.clone(), u64::from(bad != "missing"));
        assert_eq!(with(&[bad], &format!("bad{n}"), size), failed, "{bad}");
        assert_eq!(with(&[bad, "good"], &format!("both{n}"), size), (all.clone(), 0), "{bad}");
    }
    let (all, failed, none) = ((all, 0), (none.clone(), 1), (none, 0));
    assert_eq!(with(&["good"], "small", size - 1), failed, "larger than the limit");
    assert_eq!(with(&["good"], "cache", size), all);
    // From the cache, without a server; a file that no server has is not asked for again.
    assert_eq!(with(&[], "cache", size), all);
    assert_eq!(with(&["good"], "bad4", size), none);
    assert_eq!(with(&["meanwhile"], "meanwhile", size), all);
    assert_eq!(with(&[], "meanwhile", size), all);
    let address = url.strip_prefix("http://").unwrap();
    std::net::TcpStream::connect(address).unwrap().write_all(b"stop\n").unwrap();
    let asked = server.join().unwrap();
    assert_eq!(asked.len(), 18, "{asked:?}");
    assert!(asked.iter().all(|path| path.ends_with(&format!("/buildid/{id}/debuginfo"))));
}

/// The program without its symbols, but with those of `.gnu_debugdata`, as GDB's manual makes it.
#[cfg(feature = "xz")]
fn with_mini_debug(dir: &Path, whole: &Path, damage: impl Fn(&mut Vec<u8>)) -> PathBuf {
    let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let whole = whole.to_str().unwrap();
    let names = |arguments: &[&str]| -> Vec<String> {
        let listed = run("nm", arguments);
        listed.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let dynamic = names(&["-D", "--format=posix", "--defined-only", whole]);
    let all = names(&["--format=posix", "--defined-only", whole]);
    let kept: Vec<String> = all.into_iter().filter(|name| !dynamic.contains(name)).collect();
    fs::write(text("keep"), kept.join("\n")).unwrap();
    run("objcopy", &["--only-keep-debug", whole, &text("debug")]);
    let keep = format!("--keep-symbols={}", text("keep"));
    run("objcopy", &["-S", "--remove-section", ".comment", &keep, &text("debug"), &text("mini")]);
    run("xz", &["-f", &text("mini")]);
    let mut packed = fs::read(text("mini.xz")).unwrap();
    damage(&mut packed);
    fs::write(text("mini.xz"), packed).unwrap();
    run("strip", &["--strip-all", "-o", &text("stripped"), whole]);
    let section = format!(".gnu_debugdata={}", text("mini.xz"));
    run("objcopy", &["--add-section", &section, &text("stripped"), &text("with-mini")]);
    dir.join("with-mini")
}

#[cfg(feature = "xz")]
#[test]
fn symbols_in_gnu_debugdata_are_used() {
    if !testkit::skip::can("xz", Command::new("xz").arg("--version").output().is_ok()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Functions that others may call are dynamic symbols, those of this file alone are not.
    let whole = compile(dir.path(), "whole", &["-rdynamic"]);
    let addresses = addresses(&whole);
    let names = |program: &Path| {
        let file = ObjectFile::open(program, &Options::default()).unwrap();
        let name = |at: &u64| file.frames(*at).map(|frames| frames[0].function.to_string());
        addresses.iter().map(name).collect::<Vec<_>>()
    };
    let expected = names(&whole);
    assert!(expected.iter().all(Result::is_ok));
    assert_eq!(names(&with_mini_debug(dir.path(), &whole, |_| {})), expected);
    // Without the section, and with a damaged one, functions of this file alone have no name.
    let exported = names(&dir.path().join("stripped"));
    assert_ne!(exported, expected);
    let damaged = with_mini_debug(dir.path(), &whole, |packed| {
        for byte in &mut packed[64..] {
            *byte ^= 0x5a;
        }
    });
    assert_eq!(names(&damaged), exported);
}

/// A name of C++ with the abbreviations of the ABI, which binutils writes in some places only, and
/// without the parameters that it leaves to some.
#[cfg(feature = "cpp")]
fn comparable(name: &str) -> String {
    let is_special = ["thunk to", "transaction clone"].iter().any(|part| name.contains(part));
    let name = match name.rfind('(') {
        Some(at) if is_special => &name[..at],
        _ => name,
    };
    let mut name = name.replace("> >", ">>").replace("> >", ">>");
    for kind in ["string", "istream", "ostream", "iostream"] {
        let more = if kind == "string" { ", std::allocator<char>" } else { "" };
        let long = format!("std::basic_{kind}<char, std::char_traits<char>{more}>");
        name = name.replace(&long, &format!("std::{kind}"));
        name = name.replace(&format!("std::{kind}::basic_{kind}"), &format!("std::{kind}::{kind}"));
        name = name.replace(&format!("~basic_{kind}"), &format!("~{kind}"));
    }
    name
}

/// The names of C++ in the library of the compiler are those of binutils.
#[cfg(feature = "cpp")]
#[test]
fn names_of_cpp_are_those_of_binutils() {
    let found = run("cc", &["-print-file-name=libstdc++.so.6"]);
    let library = Path::new(found.trim());
    if !testkit::skip::can("the C++ library", library.is_absolute()) {
        return;
    }
    let path = library.to_str().unwrap();
    let symbols = run("nm", &["-D", "--defined-only", "--format=posix", path]);
    let code = symbols.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, "T" | "W", start, _] = words[..] else { return None };
        let name = name.split('@').next()?;
        Some((u64::from_str_radix(start, 16).ok()?, name))
    });
    let code: Vec<(u64, &str)> = code.collect();
    let file = ObjectFile::open(library, &Options::default()).unwrap();
    let frames: Vec<_> = code.iter().map(|(at, _)| file.frames(*at).unwrap().remove(0)).collect();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let mangled: Vec<&str> = frames.iter().map(|frame| &*frame.symbol).collect();
    fs::write(&list, mangled.join("\n")).unwrap();
    let output =
        Command::new("c++filt").arg("-p").stdin(fs::File::open(&list).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = String::from_utf8(output.stdout).unwrap();
    assert_eq!(expected.lines().count(), frames.len());
    let (mut equal, mut different) = (0, Vec::new());
    for (frame, expected) in frames.iter().zip(expected.lines()) {
        let (ours, expected) = (comparable(&frame.function), comparable(expected));
        match ours == expected {
            true => equal += 1,
            false => different.push((expected, ours)),
        }
    }
    println!("{equal} of {} names", frames.len());
    assert!(frames.len() > 1000, "{}", frames.len());
    // A few names have a type that the two write in another way.
    assert!(different.len() * 100 <= frames.len(), "{different:#?}");
}

/// A generator of the same numbers in every run.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) as usize
}

#[test]
fn damaged_programs_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "program", &["-g"]);
    let addresses: Vec<u64> = addresses(&program).into_iter().step_by(10).collect();
    let bytes = fs::read(&program).unwrap();
    let (mut state, mut resolved, mut refused) = (1, 0, 0);
    for _ in 0..500 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random(&mut state) % 20 {
            let at = random(&mut state) % damaged.len();
            damaged[at] = random(&mut state) as u8;
        }
        match ObjectFile::parse(damaged, &Options::default()) {
            Ok(file) => {
                let found = addresses.iter().filter(|address| file.frames(**address).is_ok());
                resolved += found.count();
            }
            Err(_) => refused += 1,
        }
    }
    assert!(resolved > 0 && refused > 0, "{resolved} {refused}");
}
