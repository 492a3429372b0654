//! The text of a probe in `kprobe_events` and `uprobe_events`.

use super::usdt::UsdtProbe;
use crate::error::{Error, Result};
use std::fmt;

/// The longest line that the kernel accepts is one page of 4 KiB.
const MAX_LINE: usize = 4000;
/// `MAX_EVENT_NAME_LEN` of the kernel, with the NUL.
pub(super) const MAX_NAME: usize = 63;
/// `MAX_TRACE_ARGS` of the kernel.
const MAX_ARGUMENTS: usize = 128;

/// The probed place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeKind {
    /// An instruction of the kernel.
    Kprobe,
    /// The return of a function of the kernel.
    Kretprobe,
    /// An instruction of a program or library.
    Uprobe,
    /// The return of a function of a program or library.
    Uretprobe,
}

impl ProbeKind {
    /// Whether it is in user space.
    pub const fn is_user(self) -> bool {
        matches!(self, Self::Uprobe | Self::Uretprobe)
    }

    /// Whether it is at the return of a function.
    pub const fn is_return(self) -> bool {
        matches!(self, Self::Kretprobe | Self::Uretprobe)
    }

    /// The file of tracefs that lists and creates such probes.
    pub const fn file(self) -> &'static str {
        if self.is_user() { "uprobe_events" } else { "kprobe_events" }
    }

    pub(super) const fn place(self) -> Place<'static> {
        Place { is_user: self.is_user(), is_return: self.is_return(), usdt: None }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kprobe => "kprobe",
            Self::Kretprobe => "kretprobe",
            Self::Uprobe => "uprobe",
            Self::Uretprobe => "uretprobe",
        })
    }
}

/// Where an argument is fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) is_user: bool,
    pub(super) is_return: bool,
    pub(super) usdt: Option<&'a UsdtProbe>,
}

/// A probe as a line of `kprobe_events` or `uprobe_events`.
///
/// ```
/// use perf_monitor::probe::{ProbeDefinition, ProbeKind};
///
/// let line = "r4:probes/opened do_sys_openat2 fd=$retval:s32";
/// let probe = ProbeDefinition::parse(ProbeKind::Kprobe, line)?;
/// assert_eq!((probe.kind, probe.max_active), (ProbeKind::Kretprobe, 4));
/// assert_eq!((&*probe.group, &*probe.name), ("probes", "opened"));
/// assert_eq!(probe.arguments, [("fd".to_owned(), "$retval:s32".to_owned())]);
/// assert_eq!(probe.to_string(), line);
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeDefinition {
    /// The probed place.
    pub kind: ProbeKind,
    /// The system of its tracepoint.
    pub group: String,
    /// The name of its tracepoint.
    pub name: String,
    /// Symbol and offset or address in the kernel; file and offset in user space, as `FILE:0x123`,
    /// with the offset of a reference counter in parentheses.
    pub location: String,
    /// For the return of functions of the kernel: how many calls may be active at a time; 0 is the
    /// kernel's default.
    pub max_active: u32,
    /// Names and fetch arguments.
    pub arguments: Vec<(String, String)>,
}

impl ProbeDefinition {
    /// Parses a line of the file of `kind`; whether it is a probe at a return is in the line.
    ///
    /// # Errors
    ///
    /// [`Error::ProbeSyntax`].
    pub fn parse(kind: ProbeKind, line: &str) -> Result<Self> {
        let bad = |at, why| refused(line, at, why);
        let mut words = line.split_ascii_whitespace();
        let head = words.next().ok_or_else(|| bad(0, "no probe"))?;
        let (type_, full_name) = head.split_once(':').ok_or_else(|| bad(0, "no name"))?;
        let (is_return, max_active) = match type_.split_at_checked(1) {
            Some(("p", "")) => (false, 0),
            Some(("r", "")) => (true, 0),
            Some(("r", count)) if !kind.is_user() => {
                (true, count.parse().map_err(|_| bad(1, "not a number"))?)
            }
            _ => return Err(bad(0, "neither p nor r")),
        };
        let (group, name) =
            full_name.split_once(['/', '.']).ok_or_else(|| bad(type_.len() + 1, "no group"))?;
        let location = words.next().ok_or_else(|| bad(line.len(), "no location"))?;
        let arguments = words
            .enumerate()
            .map(|(i, word)| match word.split_once('=') {
                Some((name, fetch)) => (name.to_owned(), fetch.to_owned()),
                None => (format!("arg{}", i + 1), word.to_owned()),
            })
            .collect();
        Ok(Self {
            kind: match (kind.is_user(), is_return) {
                (false, false) => ProbeKind::Kprobe,
                (false, true) => ProbeKind::Kretprobe,
                (true, false) => ProbeKind::Uprobe,
                (true, true) => ProbeKind::Uretprobe,
            },
            group: group.to_owned(),
            name: name.to_owned(),
            location: location.to_owned(),
            max_active,
            arguments,
        })
    }

    /// Checks everything that would change the meaning of the line.
    pub(super) fn check(&self) -> Result<()> {
        for name in [&self.group, &self.name] {
            check_identifier(name)?;
        }
        check_word(&self.location)?;
        if self.arguments.len() > MAX_ARGUMENTS {
            return Err(refused(&self.location, 0, "a probe has at most 128 arguments"));
        }
        for (i, (name, fetch)) in self.arguments.iter().enumerate() {
            check_identifier(name)?;
            check_word(fetch)?;
            if self.arguments.iter().take(i).any(|(other, _)| other == name) {
                return Err(refused(name, 0, "two arguments have this name"));
            }
        }
        let line = self.to_string();
        if line.len() > MAX_LINE {
            return Err(refused(&line, MAX_LINE, "the kernel's limit is a line of 4 KiB"));
        }
        Ok(())
    }
}

impl fmt::Display for ProbeDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kind.is_return() { "r" } else { "p" })?;
        if self.max_active > 0 {
            write!(f, "{}", self.max_active)?;
        }
        write!(f, ":{}/{} {}", self.group, self.name, self.location)?;
        for (name, fetch) in &self.arguments {
            write!(f, " {name}={fetch}")?;
        }
        Ok(())
    }
}

pub(super) fn refused(text: &str, offset: usize, why: &'static str) -> Error {
    Error::ProbeSyntax { text: text.to_owned(), offset: offset as u64, why }
}

/// One word of a line: white space and `#` would end it.
pub(super) fn check_word(text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(refused(text, 0, "it is empty"));
    }
    match text.find(is_separator) {
        Some(at) => Err(refused(text, at, "white space, # and control characters end a word")),
        None => Ok(()),
    }
}

pub(super) fn is_separator(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == '#'
}

/// A name of a group, event or argument.
pub(super) fn check_identifier(text: &str) -> Result<()> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(refused(text, 0, "names have 1 to 63 characters"));
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(refused(text, 0, "names do not start with a digit"));
    }
    match text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        Some(at) => Err(refused(text, at, "names have letters, digits and _")),
        None => Ok(()),
    }
}

/// The letters, digits and `_` of `text`, at most `max`, as a name.
pub(super) fn identifier(text: &str, max: usize) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut name: String = text
        .trim_start_matches(|c| !is_part(c))
        .chars()
        .map(|c| if is_part(c) { c } else { '_' })
        .take(max)
        .collect();
    name.truncate(name.trim_end_matches('_').len());
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_parse() {
        let line = "p:t_1/a /bin/true:0x0000000000001234(0x10) x=%di arg2=+8(%sp):u8[4]";
        let probe = ProbeDefinition::parse(ProbeKind::Uprobe, line).unwrap();
        assert_eq!(probe.kind, ProbeKind::Uprobe);
        assert_eq!(probe.location, "/bin/true:0x0000000000001234(0x10)");
        assert_eq!(probe.to_string(), line);
        probe.check().unwrap();
        for bad in ["", "p", "p:", "p:a", "p:a/b", "q:a/b c", "rx:a/b c", "p4:a/b c"] {
            assert!(ProbeDefinition::parse(ProbeKind::Kprobe, bad).is_err(), "{bad}");
        }
        assert!(ProbeDefinition::parse(ProbeKind::Uprobe, "r4:a/b /x:0x1").is_err());
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", "1a", "a-b", "a b", "ä", "a/b", &"x".repeat(64)] {
            assert!(check_identifier(bad).is_err(), "{bad}");
        }
        assert_eq!(identifier("main.(*T).Method[int]", 63), "main___T__Method_int");
        assert_eq!(identifier("__x64_sys", 5), "__x64");
        assert_eq!(identifier("+++", 5), "_");
        assert_eq!(identifier("0x10", 5), "_0x10");
    }

    #[test]
    fn too_much_is_refused() {
        let line = "p:a/b c";
        let mut probe = ProbeDefinition::parse(ProbeKind::Kprobe, line).unwrap();
        probe.arguments = vec![("x".into(), "%di".into()), ("x".into(), "%si".into())];
        assert!(probe.check().unwrap_err().to_string().contains("two arguments"));
        probe.arguments = (0..129).map(|i| (format!("a{i}"), "%di".into())).collect();
        assert!(probe.check().unwrap_err().to_string().contains("128"));
        probe.arguments.clear();
        probe.location = "x".repeat(5000);
        assert!(probe.check().unwrap_err().to_string().contains("4 KiB"));
    }

    proptest! {
        #[test]
        fn written_definitions_are_parsed(
            is_user: bool, is_return: bool, max_active in 0u32..9,
            names in proptest::collection::vec("[a-z_][a-z0-9_]{0,9}", 2..6),
            location in "[!-\"$-~]{1,40}", fetch in "[$%@+][!-\"$-~]{1,20}",
        ) {
            let kind = match (is_user, is_return) {
                (false, false) => ProbeKind::Kprobe,
                (false, true) => ProbeKind::Kretprobe,
                (true, false) => ProbeKind::Uprobe,
                (true, true) => ProbeKind::Uretprobe,
            };
            let max_active = if kind == ProbeKind::Kretprobe { max_active } else { 0 };
            let probe = ProbeDefinition {
                kind, group: names[0].clone(), name: names[1].clone(), location, max_active,
                arguments: names[2..].iter().map(|n| (n.clone(), fetch.clone())).collect(),
            };
            let any = if is_user { ProbeKind::Uprobe } else { ProbeKind::Kprobe };
            prop_assert_eq!(&ProbeDefinition::parse(any, &probe.to_string()).unwrap(), &probe);
        }

        #[test]
        fn any_line_parses_or_not(line: String) {
            let _ = ProbeDefinition::parse(ProbeKind::Kprobe, &line);
            let _ = ProbeDefinition::parse(ProbeKind::Uprobe, &line).map(|p| p.check());
        }
    }
}
