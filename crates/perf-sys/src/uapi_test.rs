//! Compares every number in this crate with the kernel's own header.
//!
//! `PERF_SYS_UAPI` adds headers to those of the system: entries separated by `:`, each `DIR` or
//! `DIR,ASMDIR` of include directories (`cargo xtask test-kernel uapi` sets it to several releases
//! of two architectures).

use crate::*;
use core::mem::offset_of;
use std::format;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{env, fs, println};
use zerocopy::{FromBytes, IntoBytes};

/// Whether `name` is a word of `text`.
fn has_word(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(word) && !text[at + name.len()..].starts_with(word))
}

fn ioctls() -> Vec<(&'static str, u64)> {
    macro_rules! list { ($($n:ident)*) => { Vec::from([$((stringify!($n), $n as u64)),*]) } }
    list!(PERF_EVENT_IOC_ENABLE PERF_EVENT_IOC_DISABLE PERF_EVENT_IOC_REFRESH PERF_EVENT_IOC_RESET
        PERF_EVENT_IOC_PERIOD PERF_EVENT_IOC_SET_OUTPUT PERF_EVENT_IOC_SET_FILTER PERF_EVENT_IOC_ID
        PERF_EVENT_IOC_SET_BPF PERF_EVENT_IOC_PAUSE_OUTPUT PERF_EVENT_IOC_QUERY_BPF
        PERF_EVENT_IOC_MODIFY_ATTRIBUTES)
}

/// Offset and size of every field of the structures that the header contains.
fn fields() -> Vec<(&'static str, &'static str, usize, usize)> {
    let mut out = Vec::new();
    macro_rules! layout {
        ($ty:ident: $($field:ident $(= $c:literal)?)*) => {{
            fn size<T, F>(_: fn(&T) -> &F) -> usize { size_of::<F>() }
            $(
                #[allow(unused_mut, unused_assignments, reason = "the name differs for some only")]
                {
                    let mut c = stringify!($field);
                    $(c = $c;)?
                    out.push((
                        stringify!($ty), c, core::mem::offset_of!($ty, $field),
                        size(|t: &$ty| &t.$field),
                    ));
                }
            )*
        }};
    }
    layout!(perf_event_attr: type_ = "type" size config sample_period sample_type read_format
        wakeup_events bp_type config1 config2 branch_sample_type sample_regs_user sample_stack_user
        clockid sample_regs_intr aux_watermark sample_max_stack __reserved_2 aux_sample_size
        aux_action sig_data config3 config4);
    layout!(perf_event_mmap_page: version compat_version lock index offset time_enabled
        time_running capabilities pmc_width time_shift time_mult time_offset time_zero size
        __reserved_1 time_cycles time_mask __reserved data_head data_tail data_offset data_size
        aux_head aux_tail aux_offset aux_size);
    layout!(perf_event_header: type_ = "type" misc size);
    layout!(perf_ns_link_info: dev ino);
    layout!(perf_branch_entry: from to);
    out
}

struct Header {
    name: String,
    args: Vec<String>,
    text: String,
    regs: String,
    siginfo: String,
}

impl Header {
    fn open(entry: &str) -> Option<Self> {
        let (dir, asm) = entry.split_once(',').map_or((entry, None), |(d, a)| (d, Some(a)));
        let text = fs::read_to_string(Path::new(dir).join("linux/perf_event.h")).ok()?;
        let mut args = Vec::new();
        if let Some(asm) = asm {
            args.extend(["-isystem".to_string(), asm.to_string()]);
        }
        args.extend(["-isystem".to_string(), dir.to_string()]);
        let regs = asm
            .map(|asm| fs::read_to_string(Path::new(asm).join("asm/perf_regs.h")).unwrap())
            .unwrap_or_default();
        let siginfo = fs::read_to_string(Path::new(dir).join("asm-generic/siginfo.h")).ok()?;
        Some(Self { name: entry.to_string(), args, text, regs, siginfo })
    }

    fn compile_and_run(&self, scratch: &Path, source: &str) -> String {
        let (c, exe) = (scratch.join("uapi.c"), scratch.join("uapi"));
        fs::write(&c, source).unwrap();
        let out = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(&self.args)
            .args(["-w", "-o"])
            .arg(&exe)
            .arg(&c)
            .output()
            .expect("a C compiler is needed");
        assert!(out.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&out.stderr));
        let out = Command::new(&exe).output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    }
}

/// Prints everything that the header contains with a C program; returns the names and the output.
fn check(header: &Header, scratch: &Path) -> usize {
    let mut c = String::from(
        "#include <stdio.h>\n#include <string.h>\n#include <stddef.h>\n\
         #include <linux/perf_event.h>\n#include <asm/perf_regs.h>\n\
         #include <asm/siginfo.h>\n\
         #define P(n, v) printf(\"%s %llx\\n\", n, (unsigned long long)(v))\n\
         int main(void) {\n",
    );
    let mut want: Vec<(String, u64)> = Vec::new();
    let mut ask = |name: String, expression: &str, value: u64| {
        c += &format!("P(\"{name}\", {expression});\n");
        want.push((name, value));
    };

    for &(name, value) in TABLE.iter().chain(&ioctls()) {
        // `*_MAX` change with each release: they are compared with the newest header below.
        let moves =
            name.ends_with("_MAX") || name.ends_with("_MAX_SHIFT") || name.ends_with("BITS_MAX");
        let known = has_word(&header.text, name) || has_word(&header.siginfo, name);
        if known && name != "NR_NAMESPACES" && !moves {
            // The 32-bit enums of the contexts are sign-extended, as in their uses.
            ask(name.to_string(), name, value);
        }
    }
    for (ty, field, offset, size) in fields() {
        if has_word(&header.text, field) {
            ask(
                format!("offsetof {ty}.{field}"),
                &format!("offsetof(struct {ty}, {field})"),
                offset as u64,
            );
            ask(
                format!("sizeof {ty}.{field}"),
                &format!("sizeof(((struct {ty}*)0)->{field})"),
                size as u64,
            );
        }
    }
    for (field, offset) in [
        ("si_signo", offset_of!(perf_siginfo, si_signo)),
        ("si_errno", offset_of!(perf_siginfo, si_errno)),
        ("si_code", offset_of!(perf_siginfo, si_code)),
        ("si_addr", offset_of!(perf_siginfo, si_addr)),
        ("si_perf_data", offset_of!(perf_siginfo, si_perf_data)),
        ("si_perf_type", offset_of!(perf_siginfo, si_perf_type)),
        ("si_perf_flags", offset_of!(perf_siginfo, si_perf_flags)),
    ] {
        if has_word(&header.siginfo, field) {
            let name = format!("offsetof siginfo_t.{field}");
            ask(name, &format!("offsetof(siginfo_t, {field})"), offset as u64);
        }
    }
    for (name, size) in [
        ("struct perf_event_mmap_page", size_of::<perf_event_mmap_page>()),
        ("struct perf_event_header", size_of::<perf_event_header>()),
        ("struct perf_ns_link_info", size_of::<perf_ns_link_info>()),
        ("struct perf_branch_entry", size_of::<perf_branch_entry>()),
        ("union perf_mem_data_src", size_of::<perf_mem_data_src>()),
        ("union perf_sample_weight", size_of::<perf_sample_weight>()),
    ] {
        if has_word(&header.text, name) {
            ask(format!("size {name}"), &format!("sizeof({name})"), size as u64);
        }
    }
    let regs = if has_word(&header.regs, "PERF_REG_ARM64_X0") {
        regs::arm64::ALL
    } else if has_word(&header.regs, "PERF_REG_X86_AX") {
        regs::x86::ALL
    } else {
        &[]
    };
    for &(name, bit) in regs {
        if has_word(&header.regs, name) {
            ask(name.to_string(), name, u64::from(bit));
        }
    }
    // Bit fields: set one in C, compare the bytes here.
    let mut bit = |ty: &str, kind: &str, field: &str, at: usize, mask: u64| {
        let c_field = field.strip_suffix('_').unwrap_or(field);
        ask(
            format!("bits {ty}.{field}"),
            &format!(
                "({{ {kind} {ty} x; memset(&x, 0, sizeof x); x.{c_field} = ~0; \
                 unsigned long long w; memcpy(&w, (char*)&x + {at}, 8); w; }})"
            ),
            mask,
        );
    };
    for &(name, set, get) in attr::SETTERS {
        if has_word(&header.text, name) {
            let mut attr = perf_event_attr::default();
            set(&mut attr, true);
            assert!(get(&attr));
            bit("perf_event_attr", "struct", name, 40, attr.flags);
            set(&mut attr, false);
            assert_eq!(attr.flags, 0);
        }
    }
    let mut attr = perf_event_attr::default();
    attr.set_precise_ip(3);
    assert_eq!(attr.precise_ip(), 3);
    bit("perf_event_attr", "struct", "precise_ip", 40, attr.flags);
    // Eight bytes are compared: `aux_sample_size` and then these bits.
    let place = offset_of!(perf_event_attr, aux_sample_size);
    for (name, action) in [
        ("aux_start_paused", perf_event_attr::AUX_START_PAUSED),
        ("aux_pause", perf_event_attr::AUX_PAUSE),
        ("aux_resume", perf_event_attr::AUX_RESUME),
    ] {
        if has_word(&header.text, name) {
            let attr = perf_event_attr { aux_action: action, ..Default::default() };
            let bytes = attr.as_bytes()[place..].first_chunk().unwrap();
            bit("perf_event_attr", "struct", name, place, u64::from_ne_bytes(*bytes));
        }
    }
    for &(name, at, width) in perf_branch_entry::FIELDS {
        let since = match name {
            "spec" => "PERF_BR_SPEC_NA",
            "new_type" | "priv_" => "PERF_BR_PRIV_USER",
            _ => "perf_branch_entry",
        };
        if has_word(&header.text, since) {
            bit("perf_branch_entry", "struct", name, 16, ((1 << width) - 1) << at);
        }
    }
    for &(name, at, width) in perf_mem_data_src::FIELDS {
        if has_word(&header.text, name) {
            bit("perf_mem_data_src", "union", name, 0, ((1 << width) - 1) << at);
        }
    }
    for &(name, at, width) in perf_sample_weight::FIELDS {
        if has_word(&header.text, name) {
            bit("perf_sample_weight", "union", name, 0, ((1 << width) - 1) << at);
        }
    }
    c += "return 0; }\n";

    let answer = header.compile_and_run(scratch, &c);
    let got: Vec<(String, u64)> = answer
        .lines()
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_string(), u64::from_str_radix(value, 16).unwrap())
        })
        .collect();
    let wrong: Vec<_> = want.iter().zip(&got).filter(|(w, g)| w != g).collect();
    assert!(
        wrong.is_empty() && want.len() == got.len(),
        "{}: (ours, header's): {wrong:x?}",
        header.name
    );
    want.len()
}

/// Every `PERF_*` identifier of the newest header must exist here.
fn check_complete(header: &Header) {
    let known = |name: &str| {
        TABLE.iter().chain(&ioctls()).any(|(n, _)| *n == name)
            || matches!(
                name,
                "PERF_EVENT_IOC_"
                    | "PERF_MEM_S"
                    | "PERF_RECORD_MISC_"
                    | "PERF_MEM_"
                    | "PERF_SAMPLE_"
                    | "PERF_RECORD_MISC_USER_"
            )
    };
    let code = without_comments(&header.text);
    let unknown: Vec<&str> = code
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|w| w.starts_with("PERF_") && !known(w))
        .collect();
    assert!(unknown.is_empty(), "{} has constants that perf-sys lacks: {unknown:?}", header.name);
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split("/*").enumerate() {
        out += if i == 0 { part } else { part.split_once("*/").map_or("", |(_, rest)| rest) };
    }
    out
}

#[test]
fn everything_agrees_with_the_kernel_header() {
    let listed = env::var("PERF_SYS_UAPI").unwrap_or_default();
    let system = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .iter()
        .find(|t| Path::new("/usr/include").join(t).join("asm/perf_regs.h").exists())
        .map_or("/usr/include".to_string(), |t| format!("/usr/include,/usr/include/{t}"));
    let mut headers: Vec<Header> = Vec::new();
    for entry in listed.split(':').filter(|e| !e.is_empty()) {
        headers
            .push(Header::open(entry).unwrap_or_else(|| panic!("{entry}: no linux/perf_event.h")));
    }
    headers.extend(Header::open(&system));
    if headers.is_empty() {
        assert!(env::var_os("CI").is_none(), "CI needs the kernel's headers (linux-libc-dev)");
        // The test harness captures `println!`, and a skip that is not shown looks like a pass.
        let text = "SKIPPED\teverything_agrees_with_the_kernel_header\tno linux/perf_event.h\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        return;
    }
    let scratch: PathBuf = env::temp_dir().join(format!("perf-sys-uapi-{}", std::process::id()));
    let _ = fs::remove_dir_all(&scratch); // of an earlier process with this id
    // It fails where another user has made the directory: a program is run from there.
    fs::create_dir(&scratch).unwrap();
    let mut newest: Option<&Header> = None;
    for header in &headers {
        let checked = check(header, &scratch);
        println!("{}: {checked} facts agree", header.name);
        assert!(checked > 400, "{}: only {checked} facts", header.name);
        if has_word(&header.text, "PERF_ATTR_SIZE_VER9") {
            newest = Some(header);
        }
        check_complete(header);
    }
    if let Some(header) = newest {
        // The `*_MAX` and the size of the attribute are those of the newest release.
        let mut c =
            String::from("#include <stdio.h>\n#include <linux/perf_event.h>\nint main(void) {\n");
        let max: Vec<_> = TABLE
            .iter()
            .filter(|(n, _)| {
                n.ends_with("_MAX") || n.ends_with("_MAX_SHIFT") || *n == "NR_NAMESPACES"
            })
            .collect();
        for (name, _) in &max {
            c += &format!("printf(\"%llx\\n\", (unsigned long long)({name}));\n");
        }
        c += "printf(\"%llx\\n\", (unsigned long long)sizeof(struct perf_event_attr)); return 0; }\n";
        let answer = header.compile_and_run(&scratch, &c);
        let mut lines = answer.lines().map(|l| u64::from_str_radix(l, 16).unwrap());
        for (name, value) in max {
            assert_eq!(lines.next(), Some(*value), "{name}");
        }
        assert_eq!(lines.next(), Some(size_of::<perf_event_attr>() as u64));
    }
    fs::remove_dir_all(&scratch).unwrap();
}

#[test]
fn sizes_are_the_documented_ones() {
    assert_eq!(size_of::<perf_event_attr>(), PERF_ATTR_SIZE_VER9 as usize);
    assert_eq!(core::mem::offset_of!(perf_event_mmap_page, data_head), 1024);
    assert_eq!(size_of::<perf_record_mmap2>(), 64);
    assert_eq!(size_of::<perf_record_bpf_event>(), 16);
    assert_eq!(size_of::<perf_record_text_poke>(), 12);
    assert_eq!(size_of::<perf_sample_id>(), 6 * 8);
    let attr = perf_event_attr::new(PERF_TYPE_RAW, 7);
    assert_eq!(perf_event_attr::read_from_bytes(attr.as_bytes()).unwrap(), attr);
}

#[test]
fn ioctls_on_a_file_that_is_no_event_fail() {
    let file = fs::File::open("/proc/self/stat").unwrap();
    assert_eq!(ioctl_enable(&file, 0), Err(Errno::NOTTY));
    assert_eq!(ioctl_id(&file), Err(Errno::NOTTY));
}
