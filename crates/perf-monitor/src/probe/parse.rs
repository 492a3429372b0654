//! Probes in the syntax of `perf probe`.

use super::ProbeBuilder;
use super::builder::ProbeLocation;
use super::definition::{self, ProbeKind, refused};
use super::fetch::Fetch;
use crate::error::Result;
use crate::event::number;
use std::path::Path;

/// Parses `[[GROUP:]EVENT=]FUNCTION[+OFFSET|%return] [[NAME=]FETCH]...`.
pub(super) fn parse(text: &str, file: Option<&Path>) -> Result<ProbeBuilder> {
    let mut words = Words { text, at: 0 };
    let (at, point) = words.next().ok_or_else(|| refused(text, 0, "no function"))?;
    let (names, point, point_at) = match point.split_once('=') {
        Some((names, point)) => (Some(names), point, at + names.len() + 1),
        None => (None, point, at),
    };
    let mut builder = location(text, point, point_at, file)?;
    if let Some(names) = names {
        let (group, name) = match names.split_once(':') {
            Some((group, name)) => (Some(group), name),
            None => (None, names),
        };
        for name in group.into_iter().chain([name]) {
            definition::check_identifier(name)?;
        }
        builder = builder.name(name);
        if let Some(group) = group {
            builder = builder.group(group);
        }
    }
    let mut n = 0;
    for (at, word) in words {
        n += 1;
        if matches!(word, "$vars" | "$params") {
            return Err(refused(text, at, "variables need debug information, which is not read"));
        }
        let (name, fetch) = match word.split_once('=') {
            Some((name, fetch)) => (name.to_owned(), fetch),
            None => (format!("arg{n}"), word),
        };
        if !fetch.starts_with(['$', '%', '@', '+', '-', '\\']) {
            return Err(refused(
                text,
                at,
                "not a fetch argument ($argN, $retval, %REGISTER, +OFFSET(ARGUMENT), @SYMBOL): \
                 names of variables need debug information, which is not read",
            ));
        }
        definition::check_identifier(&name)?;
        builder = builder.arg(name, Fetch::raw(fetch));
    }
    Ok(builder)
}

fn location(text: &str, point: &str, at: usize, file: Option<&Path>) -> Result<ProbeBuilder> {
    if let Some((provider, name)) =
        point.trim_start_matches('%').strip_prefix("sdt_").and_then(|sdt| sdt.split_once(':'))
    {
        let file = file.ok_or_else(|| refused(text, at, "a USDT probe needs a file"))?;
        return usdt(text, at, file, provider, name);
    }
    let (point, is_return) = match point.strip_suffix("%return") {
        Some(point) => (point, true),
        None => (point, false),
    };
    if point.is_empty() {
        return Err(refused(text, at, "no function"));
    }
    let line = point.rsplit_once(':').is_some_and(|(_, line)| number(line).is_some());
    if line || point.contains(['@', ';']) {
        return Err(refused(text, at, "lines need debug information, which is not read"));
    }
    let location = ProbeLocation::from(point);
    Ok(match (file, is_return) {
        (None, false) => ProbeBuilder::kernel(ProbeKind::Kprobe, location),
        (None, true) => ProbeBuilder::kernel(ProbeKind::Kretprobe, location),
        (Some(file), false) => ProbeBuilder::user(ProbeKind::Uprobe, file, location),
        (Some(file), true) => ProbeBuilder::user(ProbeKind::Uretprobe, file, location),
    })
}

#[cfg(feature = "symbols")]
fn usdt(_: &str, _: usize, file: &Path, provider: &str, name: &str) -> Result<ProbeBuilder> {
    Ok(ProbeBuilder::usdt(file, provider.to_owned(), name.to_owned()))
}

#[cfg(not(feature = "symbols"))]
fn usdt(text: &str, at: usize, _: &Path, _: &str, _: &str) -> Result<ProbeBuilder> {
    Err(refused(text, at, "this program was built without the feature `symbols` of perf-monitor"))
}

/// Words with their positions. The brackets of a Rust name can contain white space.
struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text.get(self.at..)?;
        let start = self.at + rest.find(|c: char| !c.is_whitespace())?;
        let rest = self.text.get(start..)?;
        let mut depth = 0u32;
        let end = rest.find(|c: char| {
            match c {
                '<' => depth += 1,
                '>' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c.is_whitespace() && depth == 0
        });
        let word = rest.get(..end.unwrap_or(rest.len()))?;
        self.at = start + word.len();
        Some((start, word))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ProbeKind;
    use super::*;
    use proptest::prelude::*;

    /// The lines for the kernel, without reading a file.
    fn lines(text: &str) -> Result<Vec<String>> {
        let builder = parse(text, None)?.perf_names();
        Ok(builder.definitions()?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_syntax_of_perf_is_understood() {
        for (text, line) in [
            ("vfs_read", "p:probe/vfs_read vfs_read"),
            ("vfs_read+0x10", "p:probe/vfs_read vfs_read+16"),
            ("vfs_read%return $retval", "r:probe/vfs_read__return vfs_read arg1=$retval"),
            (
                " mine=vfs_read  count=$arg3:u64 %di",
                "p:probe/mine vfs_read count=$arg3:u64 arg2=%di",
            ),
            ("g:mine=vfs_read", "p:g/mine vfs_read"),
            ("x=0xffffffff81000000", "p:probe/x 0xffffffff81000000"),
            ("xfs:xfs_read", "p:probe/xfs_read xfs:xfs_read"),
        ] {
            assert_eq!(lines(text).unwrap(), [line], "{text}");
        }
    }

    #[test]
    fn expressions_that_need_debug_information_are_refused_with_their_offset() {
        for (text, offset, why) in [
            ("vfs_read:3", 0, "lines need"),
            ("x=vfs_read@fs/read_write.c", 2, "lines need"),
            ("vfs_read count", 9, "names of variables"),
            ("vfs_read  $vars", 10, "variables need"),
            ("", 0, "no function"),
            ("x=%return", 2, "no function"),
            ("%sdt_libc:setjmp", 0, "needs a file"),
        ] {
            match parse(text, None) {
                Err(crate::Error::ProbeSyntax { offset: at, why: found, .. }) => {
                    assert!(at == offset && found.contains(why), "{text}: {found} at {at}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in ["a b=c", "1x=f", "g:h:i=f", "a-b=f"] {
            assert!(parse(text, None).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_rust_contain_spaces_and_colons() {
        let words: Vec<_> = Words { text: "<a::T as b::U>::f  x=%di", at: 0 }.collect();
        assert_eq!(words, [(0, "<a::T as b::U>::f"), (19, "x=%di")]);
        let builder = parse("<a::T as b::U>::f+4", Some(Path::new("/x"))).unwrap();
        assert!(format!("{builder:?}").contains("Uprobe"), "{builder:?}");
        assert!(
            matches!(ProbeKind::Uprobe, kind if format!("{builder:?}").contains(&format!("{kind:?}")))
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            let _ = parse(&text, None).map(|builder| builder.perf_names().definitions());
            let _ = parse(&text, Some(Path::new("/x")));
        }
    }
}
