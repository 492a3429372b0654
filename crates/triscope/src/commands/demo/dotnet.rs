//! The bundled program in .NET.
//!
//! Its assembly is compiled from `Orders.cs`: a .NET runtime has no compiler. `cargo xtask test-record`
//! compiles it again and compares.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ASSEMBLY: &[u8] = include_bytes!("orders.dll");

/// Any version from .NET Core 3.1 on.
const CONFIG: &str = r#"{"runtimeOptions":{"rollForward":"LatestMajor",
    "framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"},
    "configProperties":{"System.Globalization.Invariant":true}}}
"#;

/// The oldest major version with a diagnostic port.
const OLDEST: u32 = 3;

/// The command that starts the program, in this directory. Reports why, if there is none.
pub(super) fn command(dir: &Path) -> Option<Vec<PathBuf>> {
    let host = match host() {
        Ok(host) => host,
        Err(why) => {
            Failure::about("without the program in .NET", why).print();
            return None;
        }
    };
    let assembly = dir.join("orders.dll");
    let written = std::fs::write(&assembly, ASSEMBLY)
        .and_then(|()| std::fs::write(dir.join("orders.runtimeconfig.json"), CONFIG));
    if let Err(error) = written {
        Failure::about("without the program in .NET", error).print();
        return None;
    }
    Some(vec![host, assembly])
}

/// The `dotnet` program, where it has a runtime.
fn host() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/share/dotnet", "/usr/lib/dotnet", "/usr/lib64/dotnet"].map(PathBuf::from);
    let root = std::env::var_os("DOTNET_ROOT").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".dotnet"));
    let dirs = root.into_iter().chain(std::env::split_paths(&path)).chain(home).chain(usual);
    let host = dirs.map(|dir| dir.join("dotnet")).find(|file| file.is_file());
    let host = host.ok_or("dotnet is neither in DOTNET_ROOT nor in the search path")?;
    let list = Command::new(&host).arg("--list-runtimes").stdin(Stdio::null()).output();
    let list = list.map_err(|error| format!("{}: {error}", host.display()))?;
    if has_runtime(&String::from_utf8_lossy(&list.stdout)) {
        Ok(host)
    } else {
        Err(format!("{} has no runtime Microsoft.NETCore.App 3.1 or later", host.display()))
    }
}

/// Whether `dotnet --list-runtimes` has a runtime: `Microsoft.NETCore.App 8.0.1 [DIRECTORY]`.
fn has_runtime(list: &str) -> bool {
    let versions = list.lines().filter_map(|line| line.strip_prefix("Microsoft.NETCore.App "));
    let major = |version: &str| version.split('.').next()?.parse::<u32>().ok();
    versions.filter_map(major).any(|major| major >= OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_listed() {
        assert!(has_runtime(
            "Microsoft.AspNetCore.App 8.0.1 [/a]\nMicrosoft.NETCore.App 8.0.1 [/b]\n"
        ));
        assert!(!has_runtime("Microsoft.NETCore.App 2.1.30 [/b]\n"));
        assert!(!has_runtime("Microsoft.AspNetCore.App 8.0.1 [/a]\n"));
        assert!(!has_runtime(""));
    }
}
