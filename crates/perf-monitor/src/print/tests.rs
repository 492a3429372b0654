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

/// Fields of each size and sign.
const INTEGERS: &str = "\
name: t
ID: 1
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:unsigned long ul;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long high;\toffset:16;\tsize:8;\tsigned:0;
\tfield:s64 s64;\toffset:24;\tsize:8;\tsigned:1;
\tfield:u32 u32;\toffset:32;\tsize:4;\tsigned:0;
\tfield:int s32;\toffset:36;\tsize:4;\tsigned:1;
\tfield:u32 list[2];\toffset:40;\tsize:8;\tsigned:0;
\tfield:s16 words[2];\toffset:48;\tsize:4;\tsigned:1;
\tfield:u16 u16;\toffset:52;\tsize:2;\tsigned:0;
\tfield:u8 u8;\toffset:54;\tsize:1;\tsigned:0;
\tfield:s8 s8;\toffset:55;\tsize:1;\tsigned:1;

print fmt: ";

/// Values of the fields of [`INTEGERS`].
fn integers() -> Vec<u8> {
    let mut raw = vec![0; 8];
    raw.extend(0x1234u64.to_le_bytes());
    raw.extend((u64::MAX - 1).to_le_bytes());
    raw.extend((-1_000_000_000_000i64).to_le_bytes());
    raw.extend((u32::MAX - 1).to_le_bytes());
    raw.extend((-3i32).to_le_bytes());
    [0, u32::MAX].iter().for_each(|n| raw.extend(n.to_le_bytes()));
    [7i16, -7].iter().for_each(|n| raw.extend(n.to_le_bytes()));
    raw.extend(60_000u16.to_le_bytes());
    raw.push(200);
    raw.extend((-100i8).to_le_bytes());
    raw
}

fn with_integers(text: &str) -> PrintFormat {
    let format = TracepointFormat::parse("s", &format!("{INTEGERS}{text}\n")).unwrap();
    PrintFormat::new(&format).unwrap()
}

#[test]
fn integers_have_the_types_of_c() {
    // The values are the output of a C program, compiled with `gcc -fwrapv` for x86-64, in which
    // `REC` points to a structure with these fields: `printf("%lld\n", (long long)(EXPRESSION))`.
    let mut wrong = Vec::new();
    for (expression, expected) in [
        ("(unsigned long)(void *)(REC->ul) >= (unsigned long)-4095", 0),
        ("(unsigned long)(void *)(REC->high) >= (unsigned long)-4095", 1),
        ("REC->ul >= -9ULL", 0),
        ("REC->high >= -9ULL", 1),
        ("REC->high > 5", 1),
        ("REC->high / 2", 9_223_372_036_854_775_807),
        ("REC->high % 10", 4),
        ("REC->high >> 4", 1_152_921_504_606_846_975),
        ("REC->s64 >> 4", -62_500_000_000),
        ("REC->s64 / 2", -500_000_000_000),
        ("REC->s64 % 10", 0),
        ("REC->s64 < REC->ul", 0),
        ("REC->s64 < 5", 1),
        ("REC->s32 < 5", 1),
        ("REC->s32 < 5U", 0),
        ("REC->s32 < REC->u32", 1),
        ("REC->s32 < REC->ul", 0),
        ("REC->s32 < REC->s64", 0),
        ("REC->u32 < REC->s64", 0),
        ("REC->u32 > -1", 0),
        ("REC->u32 > -1L", 1),
        ("REC->s32 / 2", -1),
        ("REC->s32 / 2U", 2_147_483_646),
        ("REC->s32 % 7", -3),
        ("REC->s32 % 7U", 1),
        ("REC->s32 >> 28", -1),
        ("REC->u32 >> 28", 15),
        ("(u32)REC->s32 >> 28", 15),
        ("REC->u8 < -1", 0),
        ("REC->u8 > REC->s8", 1),
        ("REC->s8 < 0", 1),
        ("REC->u8 - 255 - 1", -56),
        ("REC->u16 * REC->u16", -694_967_296),
        ("~REC->u8", -201),
        ("~REC->u16 >> 4", -3751),
        ("~REC->u32", 1),
        ("~REC->u32 >> 4", 0),
        ("~0 == 0xffffffff", 1),
        ("~0 == 0xffffffffL", 0),
        ("~0UL == -1", 1),
        ("~0U == -1", 1),
        ("-REC->u32", 2),
        ("-REC->u8", -200),
        ("-REC->u32 / 2", 1),
        ("-1 < 0U", 0),
        ("-1 < 0L", 1),
        ("-1 < 0UL", 0),
        ("-1L < 0U", 1),
        ("-1 / 2U", 2_147_483_647),
        ("-1 / 2UL", 9_223_372_036_854_775_807),
        ("-1 % 10UL", 5),
        ("1 << 31", -2_147_483_648),
        ("1U << 31", 2_147_483_648),
        ("1L << 31", 2_147_483_648),
        ("1 << 31 < 0", 1),
        ("1U << 31 < 0", 0),
        ("REC->u8 << 24", -939_524_096),
        ("REC->u8 << 24 < 0", 1),
        ("REC->u32 << 4", 4_294_967_264),
        ("REC->ul << 4", 74_560),
        ("1 << REC->u8 % 8", 1),
        ("REC->u32 + 1", 4_294_967_295),
        ("REC->u32 + 1L", 4_294_967_295),
        ("REC->u32 * 2", 4_294_967_292),
        ("REC->s32 - REC->u32", 4_294_967_295),
        ("REC->u8 - REC->u16", -59_800),
        ("0x7fffffff", 2_147_483_647),
        ("0x80000000 > -1", 0),
        ("2147483648 > -1", 1),
        ("0x80000000L > -1", 1),
        ("0xffffffffffffffff > -1", 0),
        ("4294967295 == -1", 0),
        ("4294967295U == -1", 1),
        ("0x100000000 >> 4", 268_435_456),
        ("(u8)REC->s32", 253),
        ("(s8)REC->u8", -56),
        ("(s8)REC->u8 < 0", 1),
        ("(u16)REC->s32 > -1", 1),
        ("(unsigned short)-1 == -1", 0),
        ("(unsigned int)-1 == -1", 1),
        ("(int)REC->u32 < 0", 1),
        ("(long)REC->s32 < 0", 1),
        ("(unsigned long)REC->s32 > 5", 1),
        ("(u64)REC->u32 - 5000000000", -705_032_706),
        ("(s64)REC->high < 0", 1),
        ("(uint64_t)REC->s8 > 5", 1),
        ("(int32_t)REC->high", -2),
        ("(uint32_t)REC->s64", 727_379_968),
        ("(size_t)-1 > 5", 1),
        ("(_Bool)REC->s32 + (_Bool)0", 1),
        ("(_Bool)256", 1),
        ("sizeof(int) - 5 > 0", 1),
        ("sizeof(u8) - 2", -1),
        ("(REC->u32 ? -1 : 0U) / 2", 2_147_483_647),
        ("(REC->u32 ? -1 : 0) / 2", 0),
        ("(REC->u32 ? -1 : 0L) / 2", 0),
        ("(0 ? 0UL : -1) / 2", 9_223_372_036_854_775_807),
        ("REC->s32 ? REC->s32 : REC->ul", -3),
        ("REC->u32 == -2", 1),
        ("REC->u32 == 0xfffffffe", 1),
        ("REC->s32 == REC->u32 - 1", 1),
        ("REC->s32 != -3", 0),
        ("!REC->high - 1", -1),
        ("!REC->u32 < -1", 0),
        ("REC->s32 & 0xffffffff", 4_294_967_293),
        ("REC->s32 & 0xffffffffUL", 4_294_967_293),
        ("REC->s32 | REC->ul", -3),
        ("REC->s32 ^ REC->u32", 3),
        ("REC->u8 & REC->s8", 136),
        ("(REC->s32 & ~3) / 4", -1),
        ("REC->u8 >= REC->u16 || REC->u32 <= REC->s32", 0),
        ("REC->high && REC->s64", 1),
        ("__builtin_expect(REC->u32, 1) < -1", 0),
        ("__builtin_expect(-1, 0) < 0U", 1),
        ("'a' - 'b' < 0", 1),
        ("((REC->u32 >> 20) & ((1U << 12) - 1)) - 4096 > 0", 1),
        ("REC->list[1] > -1", 0),
        ("REC->list[0] - 1", 4_294_967_295),
        ("REC->words[1] / 2", -3),
        ("REC->words[1] < 0", 1),
    ] {
        let format = with_integers(&format!("\"%lld\", {expression}"));
        let printed = format.display(&integers(), &|_| None).to_string();
        if printed != i64::to_string(&expected) {
            wrong.push(format!("{expression} is {expected}, not {printed}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn addresses_and_trees_of_the_kernel_are_compared_as_unsigned() {
    // mmap:vm_unmapped_area, with the addresses of an ordinary mapping and of an error.
    let text = |field: &str| {
        let is_error = format!(
            "__builtin_expect(!!((unsigned long)(void *)({field}) >= (unsigned long)-4095), 0)"
        );
        format!("\"addr=0x%lx err=%ld\", {is_error} ? 0 : {field}, {is_error} ? {field} : 0")
    };
    let print = |text: &str| with_integers(text).display(&integers(), &|_| None).to_string();
    assert_eq!(print(&text("REC->ul")), "addr=0x1234 err=0");
    assert_eq!(print(&text("REC->high")), "addr=0x0 err=-2");
    // btrfs:*, with a subvolume and a tree of the file system.
    let text = |field: &str| {
        format!(
            "\"root=%llu(%s)\", {field}, (({field} >= -9ULL) || ({field} >= 1ULL && {field} <= \
             8ULL)) ? __print_symbolic({field}, {{ 1ULL, \"ROOT_TREE\" }}, {{ -2ULL, \"HIGH\" }}) : \
             \"-\""
        )
    };
    assert_eq!(print(&text("REC->ul")), "root=4660(-)");
    assert_eq!(print(&text("REC->high")), "root=18446744073709551614(HIGH)");
}

/// A socket address: family, port, and the rest.
fn socket(family: u16, port: u16, rest: &[u8]) -> Vec<u8> {
    [&family.to_le_bytes()[..], &port.to_be_bytes(), rest].concat()
}

#[test]
fn pointers_are_printed_as_the_kernel_does() {
    let print = |conversion: &str, bytes: &[u8]| {
        let text = format!(
            "name: t\nID: 1\nformat:\n\tfield:u8 n;\toffset:0;\tsize:1;\tsigned:0;\n\
             \tfield:__data_loc u8[] d;\toffset:4;\tsize:4;\tsigned:0;\n\n\
             print fmt: \"[{conversion}]\", {}__get_dynamic_array(d)\n",
            if conversion.contains('*') { "REC->n, " } else { "" },
        );
        let format = TracepointFormat::parse("s", &text).unwrap();
        // The number for `*`.
        let mut raw = vec![13, 0, 0, 0];
        raw.extend((8u32 | (bytes.len() as u32) << 16).to_le_bytes());
        raw.extend(bytes);
        PrintFormat::new(&format).unwrap().display(&raw, &|_| None).to_string()
    };
    let v4 = socket(2, 9, &[127, 0, 0, 1]);
    let mut address = [0; 16];
    (address[0], address[1], address[15]) = (0x20, 0x01, 0xab);
    let v6 = socket(10, 443, &[&[0xf0, 0, 0, 1], &address[..], &7u32.to_le_bytes()].concat());
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 1, 2, 3, 4]);
    let count: Vec<u8> = (0xa0..0xb0).collect();
    for (conversion, bytes, expected) in [
        ("%pI4", &[1, 2, 30, 255][..], "1.2.30.255"),
        ("%pi4", &[1, 2, 30, 255], "001.002.030.255"),
        ("%pI4h", &[1, 2, 30, 255], "255.30.2.1"),
        ("%pI4n", &[1, 2, 30, 255], "1.2.30.255"),
        ("%12pI4", &[1, 2, 30, 255], "  1.2.30.255"),
        ("%pI6", &address, "2001:0000:0000:0000:0000:0000:0000:00ab"),
        ("%pi6", &address, "200100000000000000000000000000ab"),
        ("%pI6c", &address, "2001::ab"),
        ("%pI6c", &mapped, "::ffff:1.2.3.4"),
        ("%pIS", &v4, "127.0.0.1"),
        ("%pISpc", &v4, "127.0.0.1:9"),
        ("%piSp", &v4, "127.000.000.001:9"),
        ("%pISpfsh", &v4, "1.0.0.127:9"),
        ("%pISc", &v6, "2001::ab"),
        ("%pISpc", &v6, "[2001::ab]:443"),
        ("%pISpfsc", &v6, "[2001::ab]:443/1%7"),
        ("%piSp", &v6, "[200100000000000000000000000000ab]:443"),
        ("%pISsf", &v6, "[2001:0000:0000:0000:0000:0000:0000:00ab]/1%7"),
        ("%pISpc", &socket(1, 0, &[]), "(einval)"),
        ("%pM", &count, "a0:a1:a2:a3:a4:a5"),
        ("%pMR", &count, "a5:a4:a3:a2:a1:a0"),
        ("%pMF", &count, "a0-a1-a2-a3-a4-a5"),
        ("%pm", &count, "a0a1a2a3a4a5"),
        ("%pmR", &count, "a5a4a3a2a1a0"),
        ("%pU", &count, "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"),
        ("%pUb", &count, "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"),
        ("%pUB", &count, "A0A1A2A3-A4A5-A6A7-A8A9-AAABACADAEAF"),
        ("%pUl", &count, "a3a2a1a0-a5a4-a7a6-a8a9-aaabacadaeaf"),
        ("%pUL", &count, "A3A2A1A0-A5A4-A7A6-A8A9-AAABACADAEAF"),
        ("%4ph", &count, "a0 a1 a2 a3"),
        ("%4phC", &count, "a0:a1:a2:a3"),
        ("%4phD", &count, "a0-a1-a2-a3"),
        ("%*phN", &count, "a0a1a2a3a4a5a6a7a8a9aaabac"),
        ("%*pb", &[0xff, 0xff], "1fff"),
        ("%40pb", &[1, 0, 0, 0x80, 0xfe], "fe,80000001"),
        ("%*pbl", &[0b0000_1111, 0xff], "0-3,8-12"),
        ("%4pbl", &[0b0000_1101], "0,2-3"),
        ("%*pbl", &[0, 0], ""),
        // Beyond the end of the data.
        ("%*pbl", &[0], "?"),
        ("%99phC", &count, "?"),
        ("%pI4", &[1, 2, 3], "?"),
        ("%pISpc", &v6[..20], "?"),
        ("%pISs", &v6[..24], "?"),
        ("%pU", &count[..15], "?"),
        ("%pM", &count[..5], "?"),
    ] {
        assert_eq!(print(conversion, bytes), format!("[{expected}]"), "{conversion}");
    }
}

#[test]
fn unknown_extensions_of_pointers_are_errors() {
    // The kernel does not print the letters after `%p`, also if it does not know them.
    for extension in ["e", "d", "a", "GF", "ISx", "I4x", "I5", "I", "hX", "Ux", "S2", "bx", "ISpcS"]
    {
        assert!(format(&format!("\"%p{extension}\", REC->p")).is_err(), "{extension}");
    }
    for extension in ["", "x", "K", "-", " S"] {
        assert!(format(&format!("\"%p{extension}\", REC->p")).is_ok(), "{extension}");
    }
}

#[test]
fn helpers_of_the_kernel_are_known() {
    let entries = r#"{ 1, "A" }, { 2, "B" }, { 4, "C" }"#;
    prints(&format!(r#""%s", __print_flags(3, "|", {entries})"#), "A|B");
    prints(&format!(r#""%s", __print_flags(10, "", {entries})"#), "B0x8");
    let with_zero = format!(r#"{{ 0, "none" }}, {entries}"#);
    prints(&format!(r#""[%s]", __print_flags(0, "|", {with_zero})"#), "[]");
    prints(&format!(r#""%s", __print_flags(1, "|", {with_zero})"#), "A");
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
