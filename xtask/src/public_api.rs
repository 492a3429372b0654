//! `cargo xtask public-api`: the public API of each library, compared with the committed list.
//!
//! The lists are in `docs/public-api/`. A difference is a change that users notice: it is reviewed
//! with the change of the code. A warning in their documentation is an error.

use crate::rust::LIBRARIES;
use lexopt::prelude::*;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use task_support::{Result, lane, run, target_dir, workspace};

pub(crate) const OPTIONS: &str = "\
[--write] [CRATE...]

  --write   write the lists instead of comparing
  CRATE     only these crates (default: every library)";

/// The command that accepts a change, as failures print it.
const UPDATE: &str = "cargo xtask public-api --write";

pub(crate) fn task(args: &[String]) -> Result {
    let (mut write, mut only) = (false, Vec::new());
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("write") => write = true,
            Value(name) => only.push(name.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if let Some(name) = only.iter().find(|name| !LIBRARIES.contains(&name.as_str())) {
        return Err(format!("{name} is none of the libraries: {}", LIBRARIES.join(" ")).into());
    }
    document()?;
    let is_chosen = |name: &&str| only.is_empty() || only.iter().any(|chosen| chosen == name);
    let mut changed = Vec::new();
    for name in LIBRARIES.iter().copied().filter(is_chosen) {
        let json = target_dir().join("doc").join(format!("{}.json", name.replace('-', "_")));
        let format = format_version(&json)?;
        if format != FORMAT {
            let why = format!("rustdoc writes JSON format {format}, and this task reads {FORMAT}");
            return lane::skip("public API of the libraries", &why);
        }
        let items = items(&json)?;
        let path = workspace().join("docs/public-api").join(format!("{name}.txt"));
        if write {
            fs::create_dir_all(path.with_file_name(""))?;
            fs::write(&path, &items)?;
        } else if let Some(difference) = difference(&committed(&path)?, &items) {
            println!("{name}:\n{difference}");
            changed.push(name);
        } else {
            eprintln!("{name}: {} public items, as committed", items.lines().count());
        }
    }
    if changed.is_empty() {
        return Ok(());
    }
    let names = changed.join(" ");
    Err(format!(
        "the public API of {names} is not as committed in docs/public-api. If the change is \
         intended: `{UPDATE} {names}`, and a line in the CHANGELOG.md of each"
    )
    .into())
}

/// The committed list; empty for a new crate.
fn committed(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|e| format!("{}: {e}", path.display()).into()),
    }
}

/// The version of rustdoc's JSON that the crate `public-api` reads: that of Rust 1.95.
const FORMAT: u64 = 57;

fn format_version(json: &Path) -> Result<u64> {
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(json)?)?;
    let version = document["format_version"].as_u64();
    Ok(version.ok_or_else(|| format!("{}: no format version", json.display()))?)
}

/// The public items of a crate with all its features, one a line.
///
/// Without automatic and blanket implementations, which nearly every type has, and without the
/// functions of trait implementations: the trait says which there are.
fn items(json: &Path) -> Result<String> {
    let builder = public_api::Builder::from_rustdoc_json(json);
    let api = builder.omit_blanket_impls(true).omit_auto_trait_impls(true).build()?;
    let lines: Vec<String> = api.items().map(ToString::to_string).collect();
    Ok(without_trait_functions(&lines))
}

fn without_trait_functions(lines: &[String]) -> String {
    let mut kept = String::new();
    let mut implementor = None;
    for line in lines {
        if line.contains("core::marker::StructuralPartialEq for") {
            continue; // a part of deriving PartialEq
        }
        if line.starts_with("impl") {
            implementor = line.split_once(" for ").map(|(_, ty)| without_bounds(ty));
        }
        let function = line.split_once("fn ").map(|(_, function)| function);
        if let (Some(ty), Some(function)) = (implementor, function)
            && function.strip_prefix(ty).is_some_and(|rest| rest.starts_with("::"))
        {
            continue;
        }
        kept += line;
        kept.push('\n');
    }
    kept
}

/// A type without the `where` after it.
fn without_bounds(ty: &str) -> &str {
    ty.split_once(" where ").map_or(ty, |(ty, _)| ty)
}

/// Permits the stable `rustdoc` to write JSON. If all of cargo had this variable, the build scripts of
/// some dependencies would run again, and most packages would be compiled again, now and by the next
/// command without it.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// Documents the libraries as JSON, in `target/doc`. Always all of them: they are compiled with the
/// features that any of them selects of another crate, which some names in the lists depend on.
fn document() -> Result {
    let rustdoc = target_dir().join("public-api/rustdoc");
    fs::create_dir_all(rustdoc.with_file_name(""))?;
    fs::write(&rustdoc, RUSTDOC)?;
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755))?;
    let mut command = run::cargo();
    command.args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"]);
    command.args(LIBRARIES.iter().flat_map(|name| ["--package", name]));
    command.env("RUSTDOC", rustdoc);
    let flags = "-D warnings -Zunstable-options --output-format=json";
    run::run(command.env("RUSTDOCFLAGS", flags))
}

/// The lines that only one of two lists has, or `None` if the lists are equal.
fn difference(committed: &str, found: &str) -> Option<String> {
    if committed == found {
        return None;
    }
    let (old, new): (HashSet<&str>, HashSet<&str>) =
        (committed.lines().collect(), found.lines().collect());
    let removed = committed.lines().filter(|line| !new.contains(line)).map(|l| format!("- {l}\n"));
    let added = found.lines().filter(|line| !old.contains(line)).map(|l| format!("+ {l}\n"));
    let lines: String = removed.chain(added).collect();
    Some(if lines.is_empty() { "the same items in another order\n".into() } else { lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The types of other libraries of the workspace in the API of a crate which it does not re-export,
    /// neither by name nor with all of their crate: users could not name them without that crate.
    fn unnamed<'a>(name: &str, items: &'a str) -> BTreeSet<&'a str> {
        let of_crate = |name: &str| name.replace('-', "_");
        let is_of_another = |library: &str| {
            LIBRARIES.iter().any(|other| *other != name && of_crate(other) == library)
        };
        let exported: HashSet<&str> = items
            .lines()
            .filter_map(|line| line.strip_prefix("pub use "))
            .filter_map(|path| Some(path.rsplit_once("::")?.1))
            .collect();
        let is_of_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let paths = items.split(|c| !is_of_path(c)).filter(|path| {
            let (first, last) = (path.split("::").next(), path.rsplit("::").next());
            first != last
                && first.is_some_and(|library| {
                    is_of_another(library)
                        && !exported.contains(library)
                        && !last.is_some_and(|ty| exported.contains(ty))
                })
        });
        paths.collect()
    }

    #[test]
    fn types_of_other_crates_are_named_or_found() {
        let items = "\
pub use nettrace::Guid
pub use nettrace::gotrace
pub fn nettrace::id() -> core::option::Option<trace_common::guid::Guid>
impl core::convert::From<trace_common::cursor::ReadError> for nettrace::Error
pub fn nettrace::event(&gotrace::event::Event<'_>, alloc::string::String)
";
        assert_eq!(unnamed("nettrace", items), ["trace_common::cursor::ReadError"].into());
    }

    #[test]
    fn types_of_other_crates_are_reexported() {
        let mut faults = Vec::new();
        for name in LIBRARIES {
            let path = workspace().join("docs/public-api").join(format!("{name}.txt"));
            let items = committed(&path).unwrap();
            faults.extend(unnamed(name, &items).iter().map(|ty| format!("{name}: {ty}")));
        }
        assert!(faults.is_empty(), "not re-exported:\n{}", faults.join("\n"));
    }

    #[test]
    fn difference_lists_removed_and_added_items() {
        let old = "pub fn a::f()\npub fn a::g()\n";
        assert_eq!(difference(old, old), None);
        let new = "pub fn a::f()\npub fn a::g(u8)\n";
        assert_eq!(difference(old, new).as_deref(), Some("- pub fn a::g()\n+ pub fn a::g(u8)\n"));
        assert_eq!(difference("", "x\n").as_deref(), Some("+ x\n"));
        assert!(difference("x\ny\n", "y\nx\n").is_some());
    }

    #[test]
    fn functions_of_trait_implementations_are_left_out() {
        let lines = [
            "pub struct a::B<T>",
            "impl<T> a::B<T>",
            "pub fn a::B<T>::new() -> a::B<T>",
            "impl<T> core::str::FromStr for a::B<T> where T: Copy",
            "pub type a::B<T>::Err = a::Error",
            "pub fn a::B<T>::from_str(&str) -> core::result::Result<a::B<T>, a::Error>",
            "impl core::marker::StructuralPartialEq for a::B<u8>",
            "pub fn a::free()",
        ];
        let kept = without_trait_functions(&lines.map(str::to_owned));
        let expected = [0, 1, 2, 3, 4, 7].map(|line| format!("{}\n", lines[line]));
        assert_eq!(kept, expected.concat());
    }

    #[test]
    fn every_library_has_a_list() {
        for name in LIBRARIES {
            let path = workspace().join("docs/public-api").join(format!("{name}.txt"));
            assert!(!committed(&path).unwrap().is_empty(), "{UPDATE} {name}");
        }
    }
}
