//! System calls with both of their tracepoints: one line with the arguments and the result.

use perf_monitor::{FieldFormat, FieldValue, Timestamp, TracepointFormat};
use std::fmt::Write as _;

/// The prefixes of the tracepoints of a system call.
const ENTER: &str = "sys_enter_";
const EXIT: &str = "sys_exit_";

/// The part of an event in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// None: it is shown by itself.
    None,
    /// The start of a call.
    Enter,
    /// Its end.
    Exit,
    /// The end of a thread, which ends the call that it is in. It is not shown.
    End,
}

impl Role {
    /// The role of a tracepoint among all that are traced. A call is shown as such only if both of
    /// its tracepoints are.
    pub(super) fn of<'a>(
        format: &TracepointFormat,
        mut all: impl Iterator<Item = &'a TracepointFormat>,
    ) -> Self {
        let Some(call) = call_name(format) else { return Self::None };
        let is_enter = format.name().starts_with(ENTER);
        let is_other = |other: &TracepointFormat| {
            call_name(other) == Some(call) && other.name().starts_with(ENTER) != is_enter
        };
        match all.any(is_other) {
            true if is_enter => Self::Enter,
            true => Self::Exit,
            false => Self::None,
        }
    }
}

/// The system call of a tracepoint.
pub(super) fn call_name(format: &TracepointFormat) -> Option<&str> {
    let name = format.name();
    (format.system() == "syscalls").then_some(())?;
    name.strip_prefix(ENTER).or_else(|| name.strip_prefix(EXIT))
}

/// Whether the end of a system call is an event: not if it cannot return, and not if it restores the
/// registers from before a signal, which have no number of a call.
pub(super) fn returns(call: &str) -> bool {
    !matches!(call, "exit" | "exit_group" | "rt_sigreturn" | "sigreturn")
}

/// A call that has started.
pub(super) struct Started {
    /// Its name.
    pub(super) call: String,
    pub(super) at: Timestamp,
    pub(super) cpu: u32,
    /// Its process.
    pub(super) pid: u32,
    /// Its thread.
    pub(super) tid: u32,
    /// By name, in the form of the output.
    pub(super) args: String,
}

/// The arguments of a call: the fields but the number of the call.
pub(super) fn arguments(format: &TracepointFormat) -> impl Iterator<Item = &FieldFormat> {
    format.fields().iter().filter(|field| field.name() != "__syscall_nr")
}

/// The value of an argument. The kernel records all of them as unsigned words, whatever their type.
pub(super) fn argument<'a>(field: &FieldFormat, raw: &'a [u8]) -> Option<FieldValue<'a>> {
    let type_ = field.type_name();
    match (field.value(raw)?, type_.strip_prefix("const ").unwrap_or(type_)) {
        (
            FieldValue::Unsigned(value),
            "int" | "pid_t" | "key_serial_t" | "clockid_t" | "timer_t" | "key_t" | "mqd_t"
            | "rwf_t",
        ) => Some(FieldValue::Signed((value as i32).into())),
        // The kernel ignores the upper half of the word.
        (
            FieldValue::Unsigned(value),
            "unsigned int" | "unsigned" | "u32" | "__u32" | "uint32_t" | "uid_t" | "gid_t"
            | "mode_t" | "qid_t",
        ) => Some(FieldValue::Unsigned((value as u32).into())),
        (FieldValue::Unsigned(value), "umode_t") => {
            Some(FieldValue::Unsigned((value as u16).into()))
        }
        (FieldValue::Unsigned(value), "long" | "off_t" | "loff_t" | "ssize_t") => {
            Some(FieldValue::Signed(value as i64))
        }
        (value, _) => Some(value),
    }
}

/// The arguments as text: `fd: 3, buf: 0x7ffc…`.
pub(super) fn arguments_text(format: &TracepointFormat, raw: &[u8]) -> String {
    let mut text = String::new();
    for field in arguments(format) {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = match argument(field, raw) {
            Some(value) => write!(text, "{comma}{}: {value}", field.name()),
            None => write!(text, "{comma}{}: ?", field.name()),
        };
    }
    text
}

/// The result of a call, with the meaning of an error.
pub(super) fn result_text(value: i64) -> String {
    // MAX_ERRNO in include/linux/err.h.
    let errno = value.checked_neg().and_then(|value| i32::try_from(value).ok());
    let errno = errno.filter(|errno| (1..=4095).contains(errno));
    let Some(errno) = errno else { return value.to_string() };
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("{value} ({text})")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "these are tests")]
mod tests {
    use super::*;

    fn format(name: &str, fields: &str) -> TracepointFormat {
        let common = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n";
        let text = format!("name: {name}\nID: 7\nformat:\n{common}\n{fields}\nprint fmt: \"\"\n");
        TracepointFormat::parse("syscalls", &text).unwrap()
    }

    #[test]
    fn calls_need_both_of_their_tracepoints() {
        let field = "\tfield:int __syscall_nr;\toffset:0;\tsize:4;\tsigned:1;\n";
        let formats =
            ["sys_enter_read", "sys_exit_read", "sys_enter_write"].map(|name| format(name, field));
        let roles = formats.each_ref().map(|format| Role::of(format, formats.iter()));
        assert_eq!(roles, [Role::Enter, Role::Exit, Role::None]);
    }

    #[test]
    fn calls_without_an_event_of_their_end_are_known() {
        assert!(["read", "execve", "rt_sigaction"].into_iter().all(returns));
        assert!(!["exit", "exit_group", "rt_sigreturn", "sigreturn"].into_iter().any(returns));
    }

    #[test]
    fn arguments_have_the_signs_of_their_types() {
        let format = format(
            "sys_enter_openat",
            "\tfield:int __syscall_nr;\toffset:0;\tsize:4;\tsigned:1;\n\
             \tfield:int dfd;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:umode_t mode;\toffset:24;\tsize:8;\tsigned:0;\n",
        );
        let words: [u64; 4] = [0, 0xffff_ff9c, 0x7fff_0000, 420];
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(arguments_text(&format, &raw), "dfd: -100, filename: 0x7fff0000, mode: 420");
        assert_eq!(arguments_text(&format, &raw[..16]), "dfd: -100, filename: ?, mode: ?");
    }

    #[test]
    fn arguments_have_the_sizes_of_their_types() {
        let format = format(
            "sys_enter_x",
            "\tfield:const clockid_t which;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield:unsigned int fd;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:uid_t user;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:umode_t mode;\toffset:24;\tsize:8;\tsigned:0;\n\
             \tfield:size_t count;\toffset:32;\tsize:8;\tsigned:0;\n",
        );
        let raw: Vec<u8> = [u64::MAX - 1; 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text =
            "which: -2, fd: 4294967294, user: 4294967294, mode: 65534, count: 18446744073709551614";
        assert_eq!(arguments_text(&format, &raw), text);
    }

    #[test]
    fn errors_are_named() {
        assert_eq!(result_text(3), "3");
        assert_eq!(result_text(-2), "-2 (No such file or directory)");
        assert_eq!(result_text(-4096), "-4096");
        assert_eq!(result_text(i64::MIN), i64::MIN.to_string());
    }
}
