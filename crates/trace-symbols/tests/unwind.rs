//! Stacks from registers and copied stacks, beside those of `perf script` (libunwind).

#![cfg(feature = "unwind")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use perf_data::{Reader, SortedReader};
use perf_monitor::{CpuMode, FileId, Record};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use trace_symbols::{
    AddressSpaces, Architecture, BuildId, Mapping, Module, Options, Registers, StackEnd, Timestamp,
    Unresolved, Unwinder,
};

fn run(command: &mut Command) -> String {
    let output = testkit::perf::output(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Whether perf can sample here.
fn has_perf() -> bool {
    let mut command = Command::new("perf");
    let found = command.args(["record", "-q", "-N", "-e", "cpu-clock", "--call-graph", "dwarf"]);
    let found = found.args(["-o", "/dev/null", "true"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    testkit::skip::can("perf that can sample", found)
}

/// Records the stacks of a program.
fn record(dir: &Path, program: &Path, arguments: &[&str]) -> PathBuf {
    let out = dir.join("perf.data");
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-N", "-e", "cpu-clock", "--call-graph", "dwarf,16384"]);
    command.args(["-F", &testkit::sampling::rate(1999).to_string()]);
    // The build ids of all files, not only of those with samples.
    command.arg("--buildid-mmap");
    run(command.arg("-o").arg(&out).arg(program).args(arguments));
    out
}

/// A thread and a time.
type Sample = (u32, Timestamp);

/// A file, and an address in it that belongs to the function: of a caller, one of the call.
type Place = (String, u64);

/// The stacks that perf prints, of user space.
fn stacks_of_perf(recording: &Path) -> BTreeMap<Sample, Vec<Place>> {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "tid,time,ip,dso", "--ns", "--no-inline", "-i"]).arg(recording);
    let (mut found, mut sample) = (BTreeMap::new(), (0, Timestamp::MIN));
    for line in run(&mut command).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [address, file] if file.starts_with('(') => {
                let address = u64::from_str_radix(address, 16).unwrap();
                let file = file.trim_matches(['(', ')']).to_owned();
                let stack: &mut Vec<Place> = found.entry(sample).or_default();
                // Addresses of the kernel.
                if address < 1 << 63 {
                    stack.push((file, address));
                }
            }
            [thread, time] => {
                let time = time.trim_end_matches(':').replace('.', "");
                sample = (thread.parse().unwrap(), Timestamp::from_nanos(time.parse().unwrap()));
            }
            _ => panic!("{line}"),
        }
    }
    found
}

/// The stacks that this crate finds.
fn our_stacks(recording: &Path) -> BTreeMap<Sample, (Vec<Place>, StackEnd)> {
    let reader = Reader::new(std::fs::File::open(recording).unwrap()).unwrap();
    let mut records = SortedReader::new(reader);
    let mut spaces = AddressSpaces::default();
    let mut unwinder = Unwinder::default();
    let mut stacks = BTreeMap::new();
    let architecture = Architecture::of_this_machine().unwrap();
    while let Some(entry) = records.next_record().unwrap() {
        let at = entry.time().unwrap_or(Timestamp::MIN);
        match entry.decode() {
            Some(Ok(Record::Mmap(map))) if entry.raw.cpu_mode() == CpuMode::User => {
                let name = String::from_utf8_lossy(map.filename);
                let Some(mut module) = Module::of_mapping(&name, map.pid) else { continue };
                module.build_id = match map.file {
                    Some(FileId::BuildId(id)) => BuildId::new(id),
                    _ => None,
                };
                let module = spaces.add_module(module);
                let (start, end) = (map.addr, map.addr + map.len);
                spaces.map(map.pid, at, &Mapping { start, end, offset: map.pgoff, module });
            }
            Some(Ok(Record::Comm(comm))) if comm.by_exec => spaces.exec(comm.pid),
            Some(Ok(Record::Fork(fork))) => spaces.fork(fork.ppid, fork.pid, at),
            Some(Ok(Record::Sample(sample))) => {
                let (Some(registers), Some(stack)) = (sample.regs_user, sample.stack_user) else {
                    continue;
                };
                let registers = Registers::of_sample(architecture, |bit| registers.get(bit));
                let Some(registers) = registers else { continue };
                let process = sample.pid.unwrap();
                let locate = |address| spaces.code_at(process, address, at);
                let mut addresses = Vec::new();
                let end = unwinder.unwind(&registers, stack.copied(), locate, &mut addresses);
                let places = addresses.iter().enumerate().map(|(n, address)| {
                    let place = locate(address - u64::from(n > 0));
                    place.map_or((String::new(), *address), |(location, module)| {
                        (module.name.to_string(), location.address)
                    })
                });
                let sample = (sample.tid.unwrap(), sample.time.unwrap());
                stacks.insert(sample, (places.collect(), end));
            }
            _ => {}
        }
    }
    stacks
}

/// Compares all stacks of a program. Returns the numbers of frames.
fn compare(name: &str, program: &Path, arguments: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let recording = record(dir.path(), program, arguments);
    let (theirs, ours) = (stacks_of_perf(&recording), our_stacks(&recording));
    let (mut frames, mut equal, mut ends) = (0, 0, BTreeMap::new());
    let mut different = String::new();
    for (sample, (ours, end)) in &ours {
        *ends.entry(format!("{end:?}")).or_insert(0) += 1;
        let theirs = theirs.get(sample).map_or(&[][..], Vec::as_slice);
        frames += theirs.len().max(ours.len());
        let same = theirs.iter().zip(ours).filter(|(theirs, ours)| theirs == ours).count();
        equal += same;
        if same < theirs.len().max(ours.len()) {
            different = format!("{different}{sample:?} {end:?}\n");
            for n in 0..theirs.len().max(ours.len()) {
                let (theirs, ours) = (theirs.get(n), ours.get(n));
                different = format!("{different}    {theirs:x?} {ours:x?}\n");
            }
        }
    }
    println!("{name}: {} samples, {equal} of {frames} frames equal, {ends:?}", ours.len());
    assert!(ours.len() > 100 && equal * 100 >= frames * 99, "{name}:\n{different}");
    if std::env::var_os("SHOW").is_some() {
        println!("{different}");
    }
}

#[test]
fn stacks_of_native_programs_are_those_of_perf() {
    if !has_perf() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let c = |name: &str, arguments: &[&str]| {
        let out = dir.path().join(name);
        let source = data("stacks.c");
        run(Command::new("cc").args(arguments).arg("-pthread").arg(source).arg("-o").arg(&out));
        out
    };
    compare("C", &c("c", &["-O2", "-fomit-frame-pointer"]), &["20000"]);
    let rust = dir.path().join("rust");
    let source = data("stacks.rs");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    run(rustc.args(["-O", "--edition", "2024", "-o"]).arg(&rust).arg(source));
    compare("Rust", &rust, &["40"]);
}

/// A file of 64-bit Arm with this `.eh_frame` at address 0x2000, and code from 0x1000 on.
fn arm_file(eh_frame: &[u8]) -> Vec<u8> {
    arm_file_of(&[(".eh_frame", 0, eh_frame)])
}

/// The same with sections from address 0x2000 on: name, flags, contents.
fn arm_file_of(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let (mut file, mut names, mut table) = (vec![0; 0x2000], vec![0], vec![0; 64]);
    for (name, flags, contents) in sections {
        let (start, size) = (file.len() as u64, contents.len() as u64);
        table.extend([names.len() as u32, 1].map(u32::to_le_bytes).concat());
        table.extend([*flags, start, start, size, 0, 0, 0].map(u64::to_le_bytes).concat());
        names.extend([name.as_bytes(), b"\0"].concat());
        file.extend(*contents);
    }
    // The names.
    let (start, size) = (file.len() as u64, names.len() as u64);
    table.extend([0, 3].map(u32::to_le_bytes).concat());
    table.extend([0, start, start, size, 0, 0, 0].map(u64::to_le_bytes).concat());
    file.extend(names);
    let (headers, count) = (file.len() as u64, sections.len() as u16 + 2);
    file.extend(table);
    // `ELFCLASS64`, `ELFDATA2LSB`, `EV_CURRENT`; `ET_DYN`, `EM_AARCH64`.
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xb7\0\x01\0\0\0".to_vec();
    header.extend([0, 64, headers].map(u64::to_le_bytes).concat());
    header.extend([0, 0, 64, 56, 1, 64, count, count - 1].map(u16::to_le_bytes).concat());
    // All of it is loaded at address 0, to be executed.
    header.extend([1u32, 5].map(u32::to_le_bytes).concat());
    header.extend([0, 0, 0, headers, headers, 0x1000].map(u64::to_le_bytes).concat());
    file[..header.len()].copy_from_slice(&header);
    file
}

/// An entry of `.eh_frame`: the identifier or the distance of the CIE, and the contents.
fn entry(id: u32, contents: &[u8]) -> Vec<u8> {
    let mut contents = contents.to_vec();
    contents.resize(contents.len().next_multiple_of(4), 0);
    let len = contents.len() as u32 + 4;
    [&len.to_le_bytes()[..], &id.to_le_bytes(), &contents].concat()
}

#[test]
fn arm_has_return_addresses_in_a_register_with_signatures() {
    // Version 1, "zR", alignment 4 and -8, return address in x30, absolute addresses; CFA = sp.
    let cie = entry(0, &[1, b'z', b'R', 0, 4, 0x78, 30, 1, 0, 0x0c, 31, 0]);
    let mut eh_frame = cie;
    let mut function = |start: u64, rules: &[u8]| {
        let contents = [&[start, 0x40].map(u64::to_le_bytes).concat()[..], &[0], rules].concat();
        let distance = eh_frame.len() as u32 + 4;
        eh_frame.extend(entry(distance, &contents));
    };
    // After the first instruction: a signed return address, CFA = sp + 32, x29 and x30 at its end.
    let frame = [0x41, 0x2d, 0x0e, 32, 0x9d, 4, 0x9e, 3];
    function(0x1000, &frame);
    function(0x1040, &frame);
    // The outermost function: x30 is undefined.
    function(0x1080, &[0x07, 30]);
    eh_frame.extend([0; 4]);
    let mut spaces = AddressSpaces::default();
    let module = spaces.add_module(Module::file("/arm", None));
    let mapping = Mapping { start: 0, end: 0x4000, offset: 0, module };
    spaces.map(1, Timestamp::MIN, &mapping);
    let mut unwinder = Unwinder::default();
    unwinder.add_image(module, arm_file(&eh_frame)).unwrap();

    const SIGNATURE: u64 = 0x002a_0000_0000_0000;
    const SP: u64 = 0x7fff_0000;
    let mut unwind = |pc: u64, lr: u64, words: &[u64]| {
        let get = |bit| match bit {
            29 => Some(0),
            30 => Some(lr),
            31 => Some(SP),
            32 => Some(pc),
            _ => None,
        };
        let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        let stack = words.iter().copied().flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
        let mut out = Vec::new();
        let locate = |address| spaces.code_at(1, address, Timestamp::MAX);
        let end = unwinder.unwind(&registers, &stack, locate, &mut out);
        (out, end)
    };
    let in_caller = 0x1048 | SIGNATURE;
    let stack = [SP + 32, 0x1090 | SIGNATURE, 0, 0];
    // In the first instruction the return address is in x30; later it is on the stack.
    let all = vec![0x1000, 0x1048, 0x1090];
    assert_eq!(unwind(0x1000, in_caller, &stack), (all.clone(), StackEnd::Outermost));
    let deeper = [&[SP + 32, in_caller, 0, 0][..], &stack].concat();
    let (found, end) = unwind(0x1004, 1, &deeper);
    assert_eq!((&found[1..], end), (&all[1..], StackEnd::Outermost));
    assert_eq!(unwind(0x1080, 0, &[]), (vec![0x1080], StackEnd::Outermost));
    // A copied stack that is too short, and a return address that is not code.
    let short = vec![0x1000, 0x1048];
    assert_eq!(unwind(0x1000, in_caller, &stack[..1]), (short.clone(), StackEnd::Truncated));
    assert_eq!(unwind(0x1000, in_caller, &[SP, 0x9000, 0, 0]), (short, StackEnd::Unknown));
}

#[test]
fn one_table_that_cannot_be_read_takes_no_other_away() {
    // `SHF_COMPRESSED`, in a way that is not known.
    let unknown = (".eh_frame", 0x800, &[9; 24][..]);
    let cie = entry(u32::MAX, &[1, 0, 4, 0x78, 30, 0x0c, 31, 0]);
    // The outermost function: x30 is undefined.
    let function = [&[0x1000_u64, 0x40].map(u64::to_le_bytes).concat()[..], &[0x07, 30]].concat();
    let debug_frame = [cie, entry(0, &function)].concat();
    let mut spaces = AddressSpaces::default();
    let module = spaces.add_module(Module::file("/arm", None));
    let mapping = Mapping { start: 0, end: 0x4000, offset: 0, module };
    spaces.map(1, Timestamp::MIN, &mapping);
    let mut unwinder = Unwinder::default();
    let (what, kind) = ("unwind tables", 0x0909_0909);
    let refused = unwinder.add_image(module, arm_file_of(&[unknown]));
    assert_eq!(refused, Err(Unresolved::Compression { what, kind }));
    let both = [unknown, (".debug_frame", 0, &debug_frame[..])];
    unwinder.add_image(module, arm_file_of(&both)).unwrap();
    // By the frame pointer, the caller would be at 8, which is not in the copied stack.
    let get = |bit| match bit {
        30 => Some(0),
        32 => Some(0x1000),
        _ => Some(8),
    };
    let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
    let locate = |address| spaces.code_at(1, address, Timestamp::MAX);
    let end = unwinder.unwind(&registers, &[], locate, &mut Vec::new());
    assert_eq!(end, StackEnd::Outermost);
}

/// The process that has mapped a file last can have ended: another one may still see the file.
#[test]
fn a_file_is_looked_for_again_below_the_root_of_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("arm");
    let mut spaces = AddressSpaces::default();
    let module = Module::file(path.to_str().unwrap(), None);
    let number = spaces.add_module(module.clone());
    spaces.map(1, Timestamp::MIN, &Mapping { start: 0, end: 0x4000, offset: 0, module: number });
    let mut options = Options::default();
    options.unverified = true;
    let mut unwinder = Unwinder::new(options);
    let mut unwind = |spaces: &AddressSpaces| {
        let get = |bit| (bit == 32).then_some(0x1000).or(Some(0));
        let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        let locate = |address| spaces.code_at(1, address, Timestamp::MAX);
        unwinder.unwind(&registers, &[], locate, &mut Vec::new());
        unwinder.problem(number).cloned()
    };
    let missing = Some(Unresolved::File(std::io::ErrorKind::NotFound));
    assert_eq!(unwind(&spaces), missing);
    std::fs::write(&path, arm_file(&[0; 4])).unwrap();
    assert_eq!(unwind(&spaces), missing, "it is not looked for at each address");
    let mut seen = module;
    seen.process = Some(std::process::id());
    assert_eq!(spaces.add_module(seen), number);
    assert_eq!(unwind(&spaces), None);
}

#[test]
fn the_tables_of_all_files_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    (options.unverified, options.max_total_bytes) = (true, 10);
    let (mut spaces, mut unwinder) = (AddressSpaces::default(), Unwinder::new(options));
    let problems = [1_u32, 2].map(|process| {
        let path = dir.path().join(process.to_string());
        std::fs::write(&path, arm_file(&[0; 20])).unwrap();
        let module = spaces.add_module(Module::file(&path, None));
        let mapping = Mapping { start: 0, end: 0x4000, offset: 0, module };
        spaces.map(process, Timestamp::MIN, &mapping);
        let get = |bit| (bit == 32).then_some(0x1000).or(Some(0));
        let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        let locate = |address| spaces.code_at(process, address, Timestamp::MAX);
        unwinder.unwind(&registers, &[], locate, &mut Vec::new());
        unwinder.problem(module).cloned()
    });
    let refused = Unresolved::TooLarge { what: "the sum of all tables", size: 20 };
    assert_eq!(problems, [None, Some(refused)]);
}

/// A program without a build id that is built again can have the inode of the one before.
#[test]
fn tables_of_a_file_that_was_changed_in_place_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("arm");
    std::fs::write(&path, arm_file(&[0; 4])).unwrap();
    let mut spaces = AddressSpaces::default();
    let mapped_at = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mapped_at = mapped_at + std::time::Duration::from_secs(3600);
    let mut options = Options::default();
    options.unverified = true;
    let mut unwinder = Unwinder::new(options);
    let module = spaces.add_module(Module::file(&path, None).with_mapped_at(mapped_at));
    let image = spaces.add_module(Module::file("/image", None));
    let end = 0x4000;
    for (process, module) in [(1, module), (2, image)] {
        let mapping = Mapping { start: 0, end, offset: 0, module };
        spaces.map(process, Timestamp::MIN, &mapping);
    }
    unwinder.add_image(image, arm_file(&[0; 4])).unwrap();
    let unwind = |unwinder: &mut Unwinder, process| {
        let get = |bit| (bit == 32).then_some(0x1000).or(Some(0));
        let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        let locate = |address| spaces.code_at(process, address, Timestamp::MAX);
        unwinder.unwind(&registers, &[], locate, &mut Vec::new());
    };
    unwind(&mut unwinder, 1);
    unwind(&mut unwinder, 2);
    assert_eq!(unwinder.problem(module), None);
    assert!(!unwinder.forget_changed(&spaces));
    // A mapping before the last change: its code is not that of the file.
    let earlier = Module::file(&path, None).with_mapped_at(std::time::UNIX_EPOCH);
    assert_eq!(spaces.add_module(earlier), module);
    assert!(unwinder.forget_changed(&spaces));
    assert!(!unwinder.forget_changed(&spaces), "it is known");
    assert_eq!(unwinder.problem(module), Some(&Unresolved::Replaced));
    assert_eq!(unwinder.problem(image), None);
}

/// A description that others share is parsed for each of them: a long one would take as long as all of
/// their bytes.
#[test]
fn shared_descriptions_have_a_limit() {
    let mut spaces = AddressSpaces::default();
    let module = spaces.add_module(Module::file("/arm", None));
    let mapping = Mapping { start: 0, end: 0x4000, offset: 0, module };
    spaces.map(1, Timestamp::MIN, &mapping);
    let end = |marks: usize| {
        // As above, of the frame of a signal (`S`): the return address is in x30.
        let marks = vec![b'S'; marks];
        let cie = [&[1, b'z'][..], &marks, &[b'R', 0, 4, 0x78, 30, 1, 0, 0x0c, 31, 0]];
        let mut eh_frame = entry(0, &cie.concat());
        let distance = eh_frame.len() as u32 + 4;
        let range = [0x1000u64, 0x40].map(u64::to_le_bytes).concat();
        eh_frame.extend(entry(distance, &[&range[..], &[0]].concat()));
        eh_frame.extend([0; 4]);
        let mut unwinder = Unwinder::default();
        unwinder.add_image(module, arm_file(&eh_frame)).unwrap();
        let get = |bit| match bit {
            30 => Some(0),
            32 => Some(0x1000),
            _ => Some(8),
        };
        let registers = Registers::of_sample(Architecture::Aarch64, get).unwrap();
        let locate = |address| spaces.code_at(1, address, Timestamp::MAX);
        unwinder.unwind(&registers, &[], locate, &mut Vec::new())
    };
    assert_eq!(end(100), StackEnd::Outermost);
    // By the frame pointer, which is not in the copied stack.
    assert_ne!(end(5000), StackEnd::Outermost);
}

/// A generator of the same numbers in every run.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) as usize
}

#[test]
fn damaged_tables_do_no_harm() {
    let whole = include_bytes!("data/library.so");
    // Half of the damage is in the descriptions.
    let is_start = |bytes: &[u8]| bytes.starts_with(b"zR\0\x01\x78\x10\x01\x1b");
    let descriptions = whole.windows(8).position(is_start).unwrap();
    let (mut state, mut frames) = (1, 0);
    let mut spaces = AddressSpaces::default();
    let module = spaces.add_module(Module::file("/library", None));
    let mapping = Mapping { start: 0, end: u64::MAX, offset: 0, module };
    spaces.map(1, Timestamp::MIN, &mapping);
    let mut unwinder = Unwinder::default();
    for round in 0..300 {
        let mut damaged = whole.to_vec();
        for n in 0..random(&mut state) % 8 {
            let (start, len) = if n % 2 == 0 { (0, whole.len()) } else { (descriptions, 0x48) };
            damaged[start + random(&mut state) % len] = random(&mut state) as u8;
        }
        if unwinder.add_image(module, damaged).is_err() {
            continue;
        }
        let wild = [0, 8, u64::MAX, u64::MAX - 7, 1 << 63, 0x7fff_0000];
        let stack: Vec<u8> = (0..128).map(|_| random(&mut state) as u8 & 0x13).collect();
        for position in (0x200..0x400).step_by(3) {
            let get = |bit: u32| match bit {
                8 => Some(position),
                7 => Some(wild[round % wild.len()]),
                _ => Some(wild[(round / 6 + bit as usize) % wild.len()]),
            };
            let registers = Registers::of_sample(Architecture::X86_64, get).unwrap();
            let locate = |address| spaces.code_at(1, address, Timestamp::MAX);
            let mut out = Vec::new();
            unwinder.unwind(&registers, &stack, locate, &mut out);
            frames += out.len() - 1;
        }
    }
    assert!(frames > 0);
}
