//! `cargo xtask package`: all steps of a release, except publishing.
//!
//! Each published crate is packed, unpacked into a separate workspace, and built and tested there,
//! which finds files missing from the package, and tests that need a file of another one. The packages
//! have unit tests and examples of the documentation: `cargo xtask ci` runs these without optimization
//! only here.

use crate::{again, rust};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, run, workspace};

/// The number of packages that a user compiles with all features, without proc macros and their
/// dependencies.
///
/// A change that increases it states the reason here.
const MOST_DEPENDENCIES: &[(&str, usize)] = &[
    ("trace-common", 12),
    ("perf-sys", 12),
    ("gotrace", 12),
    // object and memchr read ELF files.
    ("go-flight", 14),
    ("nettrace", 12),
    // tokio (8 packages with it) is optional.
    ("diag-ipc", 18),
    // object, memchr and rustc-demangle resolve the functions of programs.
    ("perf-monitor", 17),
    ("perf-data", 17),
    // addr2line, gimli and flate2 (10 packages with them), cpp_demangle, ruzstd, and lzma-rust2 with sha2
    // (9 packages) are optional.
    ("trace-symbols", 28),
    // gotrace, nettrace and perf-data (14 packages with them) are optional.
    ("trace-timeline", 24),
    // zstd, with the C library and its build: 9 packages.
    ("trace-dataset", 24),
    // serde_json.
    ("trace-flight", 10),
    // gotrace, nettrace and zlib-rs (12 packages with them) are optional.
    ("trace-export", 20),
];

/// The feature of the program in the web page, which is compiled to WebAssembly alone.
const PAGE: &str = "page";

/// Files that every package contains.
const REQUIRED: &[&str] = &["README.md", "CHANGELOG.md"];

/// Files of the workspace that every package contains.
const LICENSES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

pub(crate) fn task(_: &[String]) -> Result {
    let metadata = run::metadata()?;
    let packages: Vec<&Json> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|package| package["publish"].is_null())
        .collect();
    let mut faults = Vec::new();
    for package in &packages {
        faults.extend(metadata_faults(package));
    }
    for (name, most) in MOST_DEPENDENCIES {
        let dependencies = dependencies(name)?;
        if dependencies.len() > *most {
            let list: Vec<&str> = dependencies.iter().map(String::as_str).collect();
            let found = list.len();
            faults.push(format!("{name}: {found} dependencies, not {most}: {}", list.join(" ")));
        }
    }
    let target = PathBuf::from(metadata["target_directory"].as_str().ok_or("no target directory")?);
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let unpacked = pack(&target, &names)?;
    for name in &names {
        for file in REQUIRED {
            let path = unpacked.join(unpacked_name(name)).join(file);
            if !fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() > 0) {
                faults.push(format!("{name}: the package has no {file}"));
            }
        }
        for file in LICENSES {
            // A symbolic link that git has as a text file is packed as the path of its target.
            let packed = fs::read(unpacked.join(unpacked_name(name)).join(file)).ok();
            if packed != Some(fs::read(workspace().join(file))?) {
                faults.push(format!("{name}: the package has no {file}, or another one"));
            }
        }
    }
    if !faults.is_empty() {
        return Err(faults.join("\n").into());
    }
    // The lock file of the repository, so that the tested versions are used.
    fs::copy(workspace().join("Cargo.lock"), unpacked.join("Cargo.lock"))?;
    // The dependencies of the repository are not compiled again.
    let mut test = run::cargo();
    test.args(["test", "--quiet", "--workspace", "--offline", "--features"]);
    test.arg(rust::features(&metadata, &names, PAGE));
    again::strictly(&mut test)?;
    // Unit tests that read traces of the repository run only here. A user's skip them.
    test.env("TRISCOPE_TEST_CRATES", workspace().join("crates"));
    run::run(test.current_dir(&unpacked).env("CARGO_TARGET_DIR", &target))?;
    eprintln!("{} packages build and pass their tests by themselves", names.len());
    Ok(())
}

/// Packs the crates and unpacks them as the members of a workspace; returns its directory.
fn pack(target: &Path, names: &[&str]) -> Result<PathBuf> {
    let mut command = run::cargo();
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.args(names.iter().flat_map(|name| ["--package", name]));
    // Otherwise a build of an older commit is unpacked as well.
    let packed = target.join("package");
    if packed.is_dir() {
        fs::remove_dir_all(&packed)?;
    }
    run::output(&mut command)?;
    // The same for each run with this target directory: cargo compiles paths that it has seen only once.
    let dir = target.join("unpacked");
    if dir.is_dir() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let mut manifest = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n");
    manifest += "[patch.crates-io]\n";
    for name in names {
        // With the version, as in the registry's cache: no package finds the files of another one by its name.
        let unpacked = unpacked_name(name);
        let file = packed.join(format!("{unpacked}.crate"));
        // -m: with the time of unpacking.
        run::output(Command::new("tar").arg("-xzmf").arg(&file).arg("-C").arg(&dir))?;
        set_times(&dir.join(&unpacked), &workspace().join("crates").join(name))?;
        manifest += &format!("{name} = {{ path = \"{unpacked}\" }}\n");
    }
    // With other profiles, dependencies would be compiled again.
    let root = fs::read_to_string(workspace().join("Cargo.toml"))?;
    manifest += &format!("\n{DEV_PROFILE}{}", dev_profile(&root)?);
    fs::write(dir.join("Cargo.toml"), manifest)?;
    Ok(dir)
}

/// The table of a manifest with what tests without optimization optimize.
const DEV_PROFILE: &str = "[profile.dev.package]\n";

/// The lines of [`DEV_PROFILE`] in a manifest.
fn dev_profile(manifest: &str) -> Result<&str> {
    let (_, lines) = manifest.split_once(DEV_PROFILE).ok_or("Cargo.toml has no such profile")?;
    Ok(lines.split("\n[").next().unwrap_or(lines))
}

/// The directory in the package of a crate.
fn unpacked_name(name: &str) -> String {
    format!("{name}-{}", env!("CARGO_PKG_VERSION"))
}

/// Gives files the times of their sources, so that cargo compiles again what has changed.
///
/// Packages have a fixed time in their files, by which cargo would take an earlier build of other
/// contents for this one, and the time of unpacking is newer than any build.
fn set_times(unpacked: &Path, source: &Path) -> Result {
    for entry in fs::read_dir(unpacked)? {
        let entry = entry?;
        let source = source.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            set_times(&entry.path(), &source)?;
            continue;
        }
        // Cargo generates some files.
        let Ok(metadata) = fs::metadata(&source) else { continue };
        let mut time = metadata.modified()?;
        if source.ends_with("Cargo.toml") {
            // The manifest inherits from that of the workspace.
            time = time.max(fs::metadata(workspace().join("Cargo.toml"))?.modified()?);
        }
        File::options().write(true).open(entry.path())?.set_modified(time)?;
    }
    Ok(())
}

/// Missing or unwanted fields of the manifest for the registry.
fn metadata_faults(package: &Json) -> Vec<String> {
    let mut faults = Vec::new();
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let list = |key: &str| package[key].as_array().map_or(0, Vec::len);
    for key in ["description", "license", "readme", "rust_version"] {
        if text(key).is_empty() {
            faults.push(format!("no {key}"));
        }
    }
    if text("description").len() > 150 {
        faults.push("a description of more than 150 bytes".to_owned());
    }
    for (key, most) in [("keywords", 5), ("categories", 5)] {
        if !(1..=most).contains(&list(key)) {
            faults.push(format!("{} {key}: 1 to {most} are allowed", list(key)));
        }
    }
    if package["metadata"]["docs"]["rs"]["all-features"] != Json::Bool(true) {
        faults.push("docs.rs is not asked for all features".to_owned());
    }
    faults.into_iter().map(|fault| format!("{}: {fault}", text("name"))).collect()
}

/// The names of all packages that users of the library `name` compile on this target.
fn dependencies(name: &str) -> Result<BTreeSet<String>> {
    let mut tree = run::cargo();
    tree.args(["tree", "--package", name, "--all-features", "--edges", "normal,no-proc-macro"]);
    let text = run::output(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    let text = String::from_utf8(text)?;
    let names = text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    Ok(names.filter(|found| found != name && !found.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_that_the_registry_refuses_is_a_fault() {
        let good = serde_json::json!({
            "name": "x", "description": "A reader", "license": "MIT", "readme": "README.md",
            "rust_version": "1.85", "keywords": ["a"], "categories": ["b"],
            "metadata": {"docs": {"rs": {"all-features": true}}},
        });
        assert_eq!(metadata_faults(&good), [""; 0]);
        let mut bad = good;
        bad["keywords"] = serde_json::json!(["a", "b", "c", "d", "e", "f"]);
        bad["license"] = Json::Null;
        bad["metadata"] = Json::Null;
        assert_eq!(
            metadata_faults(&bad),
            [
                "x: no license",
                "x: 6 keywords: 1 to 5 are allowed",
                "x: docs.rs is not asked for all features"
            ]
        );
    }
}
