//! Packages of several Debian releases and two architectures, without changes to the system's own
//! apt: lists and packages are in the cache.
//!
//! The mirror is that of the system. Packages are unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use task_support::{Result, cache, run};

/// Suites of the main archive and of the security archive that together contain every tested
/// kernel.
const SUITES: &[&str] = &["bookworm", "trixie", "trixie-backports", "sid"];
const SECURITY: &[&str] = &["bullseye-security", "bookworm-security", "trixie-security"];

/// Lists older than this are fetched again.
const LIST_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A private apt configuration.
#[derive(Debug)]
pub(crate) struct Debian {
    config: PathBuf,
}

/// One version of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) arch: String,
    pub(crate) version: String,
}

impl Package {
    /// The version as a component of a path.
    pub(crate) fn file_name(&self) -> String {
        file_name(&self.version)
    }
}

impl Debian {
    /// Creates the private apt, or reuses it, with lists of today.
    pub(crate) fn open() -> Result<Self> {
        for tool in ["apt-get", "dpkg"] {
            if !run::have(tool) {
                return Err(format!("{tool} is needed to get Debian's packages").into());
            }
        }
        let dir = cache::root()?.join("debian/apt");
        for sub in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        // Another check may use the same directory.
        let _lock = cache::lock("debian/.apt.lock", "Debian's package lists")?;
        cache::write(&dir.join("status"), "")?;
        let (main, security) = mirrors()?;
        let line = |uri: &str, suite: &&str| format!("deb {uri} {suite} main\n");
        let list: String = SUITES
            .iter()
            .map(|s| line(&main, s))
            .chain(SECURITY.iter().map(|s| line(&security, s)))
            .collect();
        cache::write(&dir.join("sources.list"), &list)?;
        let config = dir.join("apt.conf");
        let root = dir.display();
        // Snapshots of archives can be older than the expiry date of their lists.
        let text = format!(
            "Dir::State \"{root}/state\";\nDir::State::status \"{root}/status\";\n\
             Dir::Cache \"{root}/cache\";\nDir::Etc::sourcelist \"{root}/sources.list\";\n\
             Dir::Etc::sourceparts \"-\";\nDir::Etc::trustedparts \"/usr/share/keyrings\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures {{\"amd64\";\"arm64\";}};\n\
             APT::Sandbox::User \"root\";\nAcquire::Check-Valid-Until \"false\";\n\
             Acquire::Languages \"none\";\n"
        );
        cache::write(&config, &text)?;
        let this = Self { config };
        let stamp = dir.join("updated");
        let age = fs::metadata(&stamp)
            .and_then(|m| m.modified())
            .ok()
            .and_then(|t| SystemTime::now().duration_since(t).ok());
        if age.is_none_or(|age| age > LIST_MAX_AGE) {
            eprintln!("fetching Debian's package lists");
            // By default, lists that a failure of the network left out are a warning. apt ignores
            // options that it does not know.
            run::output(this.apt("apt-get").args(["update", "-o", "APT::Update::Error-Mode=any"]))?;
            fs::write(&stamp, "")?;
        }
        Ok(this)
    }

    fn apt(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        // Container images disable apt's cache with files that are read after our configuration:
        // each query would then parse all lists again.
        command.args(["-o", "Dir::Cache::pkgcache=pkgcache.bin"]);
        command
    }

    /// The newest version of a package in a series: `6.1` is 6.1.192-2 and not 6.12.
    pub(crate) fn newest(&self, name: &str, arch: &str, series: &str) -> Result<Package> {
        let prefix = format!("{series}.");
        self.newest_of(name, arch, |version, _| version.starts_with(&prefix))?
            .ok_or_else(|| format!("no {name} {prefix}* for {arch}").into())
    }

    /// The newest version of a package in one suite.
    pub(crate) fn newest_from(&self, name: &str, arch: &str, suite: &str) -> Result<Package> {
        let place = format!(" {suite}/");
        self.newest_of(name, arch, |_, source| source.contains(&place))?
            .ok_or_else(|| format!("no {name} in {suite} for {arch}").into())
    }

    /// The newest version that `is_wanted` accepts, by version and source.
    fn newest_of(
        &self,
        name: &str,
        arch: &str,
        is_wanted: impl Fn(&str, &str) -> bool,
    ) -> Result<Option<Package>> {
        let output =
            run::output(self.apt("apt-cache").args(["madison", &format!("{name}:{arch}")]))?;
        let text = String::from_utf8_lossy(&output);
        // Sorted by Debian's version order, newest first.
        let version = text
            .lines()
            .filter_map(|line| {
                let mut columns = line.split('|').skip(1);
                Some((columns.next()?.trim(), columns.next()?))
            })
            .find(|(version, source)| is_wanted(version, source));
        Ok(version.map(|(version, _)| Package {
            name: name.to_owned(),
            arch: arch.to_owned(),
            version: version.to_owned(),
        }))
    }

    /// The dependencies of this package whose names begin with `prefix`, in the version that it
    /// requires, or otherwise the newest of `suite`.
    pub(crate) fn dependencies(
        &self,
        package: &Package,
        prefix: &str,
        suite: &str,
    ) -> Result<Vec<Package>> {
        let id = format!("{}:{}={}", package.name, package.arch, package.version);
        let output = run::output(self.apt("apt-cache").args(["show", &id]))?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let depends = text.lines().filter_map(|line| {
            line.strip_prefix("Depends:").or_else(|| line.strip_prefix("Pre-Depends:"))
        });
        let mut found = Vec::new();
        for item in depends.flat_map(|line| line.split(',')) {
            let item = item.split('|').next().unwrap_or(item).trim();
            let (name, rest) = item.split_once(' ').unwrap_or((item, ""));
            if !name.starts_with(prefix) {
                continue;
            }
            let exact = rest.trim().strip_prefix("(= ").and_then(|v| v.strip_suffix(')'));
            found.push(match exact {
                Some(version) => Package {
                    name: name.to_owned(),
                    arch: package.arch.clone(),
                    version: version.to_owned(),
                },
                None => self.newest_from(name, &package.arch, suite)?,
            });
        }
        Ok(found)
    }

    /// Downloads and unpacks packages into `dir`.
    pub(crate) fn unpack(&self, packages: &[Package], dir: &Path) -> Result {
        let download = dir.join("download");
        fs::create_dir_all(&download)?;
        for package in packages {
            eprintln!("fetching {} {} ({})", package.name, package.version, package.arch);
            let id = format!("{}:{}={}", package.name, package.arch, package.version);
            run::output(self.apt("apt-get").args(["download", "-q", &id]).current_dir(&download))?;
        }
        for entry in fs::read_dir(&download)? {
            run::output(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(dir))?;
        }
        fs::remove_dir_all(&download)?;
        Ok(())
    }
}

/// A version as a component of a path in `PATH`-like lists.
pub(crate) fn file_name(version: &str) -> String {
    version.replace([':', '~'], "-")
}

/// The addresses of the main and the security archive in the system's apt configuration.
fn mirrors() -> Result<(String, String)> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|e| e.path()));
    }
    let text: String = files.iter().filter_map(|f| fs::read_to_string(f).ok()).collect();
    let uris: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .filter(|word| word.contains("://"))
        .collect();
    let find = |end: &str| uris.iter().find(|uri| uri.ends_with(end)).map(|uri| (*uri).to_owned());
    let main = find("/debian").ok_or("the system's apt has no Debian archive")?;
    let security = find("/debian-security").unwrap_or_else(|| format!("{main}-security"));
    Ok((main, security))
}

/// Installs `package` if `file` of it does not exist.
pub(crate) fn ensure_package(file: &Path, package: &str) -> Result {
    if file.exists() {
        return Ok(());
    }
    install(&file.display().to_string(), package)
}

/// Installs `package` if there is no `program`, as root on a Debian.
pub(crate) fn ensure_program(program: &str, package: &str) -> Result {
    if run::have(program) {
        return Ok(());
    }
    install(program, package)
}

fn install(what: &str, package: &str) -> Result {
    if !run::have("apt-get") {
        return Err(format!("{what} is not installed").into());
    }
    eprintln!("installing {package}");
    let install = || {
        run::output(Command::new("apt-get").args([
            "install",
            "--yes",
            "--quiet",
            "--no-install-recommends",
            package,
        ]))
    };
    if install().is_err() {
        run::output(Command::new("apt-get").args(["update", "--quiet"]))?;
        install().map_err(|e| format!("{what} is not installed, and {package} cannot be: {e}"))?;
    }
    Ok(())
}
