use super::*;
use proptest::prelude::*;

const FIELDS: &str = "\
name: t
ID: 1
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int n;\toffset:8;\tsize:4;\tsigned:1;
\tfield:unsigned long p;\toffset:16;\tsize:8;\tsigned:0;
\tfield:char comm[8];\toffset:24;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] text;\toffset:32;\tsize:4;\tsigned:0;
\tfield:u8 bytes[4];\toffset:36;\tsize:4;\tsigned:0;
\tfield:__data_loc u32[] list;\toffset:40;\tsize:4;\tsigned:0;

print fmt: ";

fn raw() -> Vec<u8> {
    let mut raw = vec![1, 0, 0, 0, 5, 0, 0, 0];
    raw.extend((-3i32).to_le_bytes());
    raw.extend([0; 4]);
    raw.extend(0x1234u64.to_le_bytes());
    raw.extend(b"sh\0garba");
    raw.extend((44u32 | 6 << 16).to_le_bytes());
    raw.extend([192, 168, 0, 1]);
    raw.extend((50u32 | 8 << 16).to_le_bytes());
    raw.extend(b"hello\0");
    raw.extend(7u32.to_le_bytes());
    raw.extend(0x1_0000u32.to_le_bytes());
    raw
}

fn format(text: &str) -> Result<PrintFormat> {
    PrintFormat::new(&TracepointFormat::parse("s", &format!("{FIELDS}{text}\n")).unwrap())
}

#[track_caller]
fn prints(text: &str, expected: &str) {
    let names = |address| (address == 0x1234).then(|| "do_it+0x4".to_owned());
    assert_eq!(format(text).unwrap().display(&raw(), &names).to_string(), expected);
}

#[test]
fn conversions_are_those_of_printf() {
    prints(
        r#""%d|%5d|%-5d|%05d|%+d", REC->n, REC->n, REC->n, REC->n, 7"#,
        "-3|   -3|-3   |-0003|+7",
    );
    prints(
        r#""%u %x %hx %hhu %llx", REC->n, REC->n, REC->n, REC->n, REC->n"#,
        "4294967293 fffffffd fffd 253 fffffffffffffffd",
    );
    prints(
        r#""%#x %#010x %08lx %.4x %o", 255, 255, REC->p, 10, 8"#,
        "0xff 0x000000ff 00001234 000a 10",
    );
    prints(
        r#""[%s] [%8s] [%-8s] [%.3s] %c%%", REC->comm, REC->comm, REC->comm, __get_str(text), 'x'"#,
        "[sh] [      sh] [sh      ] [hel] x%",
    );
    prints(r#""%*d %.*s", 4, 9, 2, __get_str(text)"#, "   9 he");
    prints(
        r#""%pS %ps %p %pI4", (void *)REC->p, (void *)REC->p, REC->p, REC->bytes"#,
        "do_it+0x4 do_it 0x1234 192.168.0.1",
    );
    prints(
        r#""a" "b\n%zu", sizeof_is_not_here ? 1 : 2"#.replace("sizeof_is_not_here", "0").as_str(),
        "ab\\n2",
    );
}

#[test]
fn expressions_are_those_of_c() {
    for (expression, expected) in [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("1 << 4 | 2", 18),
        ("7 & 3 == 3", 1),
        ("5 > 3 && 0 || !0", 1),
        ("REC->n < 0 ? -1 : 1", -1),
        ("(u8)REC->n", 253),
        ("(unsigned int)REC->n == 0xfffffffdUL", 1),
        ("~0", -1),
        ("REC->bytes[1]", 168),
        ("__get_dynamic_array_len(list)", 8),
        ("((char *)(void *)REC->bytes)[3]", 1),
        ("sizeof(u64) + sizeof(unsigned int)", 12),
        ("(uint)(REC->p >> 4)", 0x123),
        ("0 && 1 / 0", 0),
        ("__builtin_expect(!!(REC->n), 1)", 1),
    ] {
        prints(&format!("\"%lld\", {expression}"), &expected.to_string());
    }
    // Nothing is divided by 0, and nothing panics.
    prints("\"%d %d\", 1 / 0, 0x7fffffffffffffff + 1", "? 0");
}

#[test]
fn helpers_of_the_kernel_are_known() {
    let entries = r#"{ 1, "A" }, { 2, "B" }, { 4, "C" }"#;
    prints(&format!(r#""%s", __print_flags(3, "|", {entries})"#), "A|B");
    prints(&format!(r#""%s", __print_flags(10, "", {entries})"#), "B0x8");
    prints(&format!(r#""%s", __print_flags(0, "|", {{ 0, "none" }}, {entries})"#), "none");
    prints(
        &format!(r#""%s %s", __print_symbolic(2, {entries}), __print_symbolic(9, {entries})"#),
        "B 0x9",
    );
    prints(r#""%s", (REC->n & (1 << 1)) ? __print_flags(4, "|", { (1 << 2), "x" }) : "R""#, "R");
    prints(
        r#""%s", __print_symbolic(1, { NAME, "n" }, { 1, "A" "B" }, { -1, ((void *)0) })"#,
        "AB",
    );
    prints(r#""%s", __print_hex(REC->bytes, 3)"#, "c0 a8 00");
    prints(r#""%s", __print_hex_str(REC->bytes, 9)"#, "c0a80001");
    prints(r#""%s", __print_array(__get_dynamic_array(list), 2, 4)"#, "{0x7,0x10000}");
    prints(r#""%s", __get_bitmask(list)"#, "00010000,00000007");
}

#[test]
fn control_characters_are_escaped() {
    let entries = "{ 1, \"\u{1b}A\" }, { 2, \"\u{9b}B\" }";
    let text = format!(
        "\"\u{1b}[2J%s\\t%s %s|%s %pS %ps\", __print_flags(3, \"\u{7}\", {entries}), \
         __print_symbolic(1, {entries}), \"\u{1b}c\", REC->p, REC->p, REC->p"
    );
    let names = |_| Some("\u{1b}name\r+0x1".to_owned());
    let printed = format(&text).unwrap().display(&raw(), &names).to_string();
    assert_eq!(
        printed,
        "\\u{1b}[2J\\u{1b}A\\u{7}\\u{9b}B\\t\\u{1b}A \\u{1b}c|\\u{1b}name\\r+0x1 \
         \\u{1b}name\\r+0x1 \\u{1b}name\\r",
    );
}

#[test]
fn unknown_print_formats_are_errors() {
    for text in [
        r#""%d", jiffies_to_msecs(REC->n)"#,
        r#""%d", REC->missing"#,
        r#""%d""#,
        r#""%y", 1"#,
        r#""%d", sizeof(struct page)"#,
        "REC->n",
        r#""%d", (1"#,
        r#"""#,
    ] {
        assert!(matches!(format(text), Err(Error::Format { .. })), "{text}");
    }
    let deep = format!("\"%d\", {}1{}", "(".repeat(10_000), ")".repeat(10_000));
    assert!(format(&deep).is_err());
    let deep = format!("\"%d\", {}1", "-".repeat(10_000));
    assert!(format(&deep).is_err());
    let long = |count| format!("\"%d\", 1{}", "+1".repeat(count));
    let print = format(&long(500)).unwrap();
    assert_eq!(print.display(&raw(), &|_| None).to_string(), "501");
    assert!(format(&long(501)).is_err());
    let indices = format!("\"%d\", REC->n{}", "[0]".repeat(10_000));
    assert!(format(&indices).is_err());
}

#[test]
fn short_data_is_shown() {
    let print = format(r#""%d %s %s", REC->n, REC->comm, __get_str(text)"#).unwrap();
    assert_eq!(print.display(&raw()[..12], &|_| None).to_string(), "-3 ? ?");
}

proptest! {
    #[test]
    fn any_format_is_no_panic(text in "[\"%a-zREC>(){},0-9+*/<&|!?: .#-]{0,60}", data: Vec<u8>) {
        if let Ok(print) = format(&format!("\"%d%s\", {text}")) {
            let _ = print.display(&data, &|_| None).to_string();
        }
        if let Ok(print) = format(&format!("\"{text}\", 1, 2, REC->n, REC->comm")) {
            let _ = print.display(&data, &|_| None).to_string();
        }
    }
}
