//! The PDB files of assemblies.

use super::{PortablePdb, assembly};
use crate::error::{Result, Unresolved};
use crate::files::candidates;
use crate::options::Options;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use trace_common::Guid;

/// An assembly of a process, as the runtime's `ModuleLoad` and rundown events report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assembly<'a> {
    /// The path of the assembly (`ModuleILPath`).
    pub path: &'a str,
    /// The path of its PDB file where it was built (`ManagedPdbBuildPath`).
    pub pdb_path: &'a str,
    /// The id of its PDB file (`ManagedPdbSignature`).
    pub signature: Guid,
    /// The process whose files are read first. `None`: only those that this process sees.
    pub process: Option<u32>,
}

/// The PDB files of assemblies, each found and read once.
#[derive(Debug)]
pub struct PdbFiles {
    /// Bytes that are left for files.
    left: u64,
    known: HashMap<Key, Result<PortablePdb>>,
}

type Key = (Box<str>, Guid, Option<u32>);

/// Maximum number of bytes of one file.
const MAX_FILE: u64 = 1 << 28;

/// Maximum number of assemblies that are looked up.
const MAX_ASSEMBLIES: usize = 1 << 16;

impl Default for PdbFiles {
    fn default() -> Self {
        Self::new(&Options::default())
    }
}

impl PdbFiles {
    /// Reads files of at most [`Options::max_bytes`] in all, of which none has more than 256 MiB.
    pub fn new(options: &Options) -> Self {
        Self { left: options.max_bytes, known: HashMap::new() }
    }

    /// The PDB file of an assembly: beside it, where it was built, or in it. It has the assembly's id.
    ///
    /// # Errors
    ///
    /// [`Unresolved::NoPdb`] if there is none; otherwise the first reason why a file that is there cannot be
    /// used, such as [`Unresolved::PdbId`].
    pub fn find(&mut self, assembly: &Assembly<'_>) -> Result<&PortablePdb, &Unresolved> {
        const TOO_MANY: &Unresolved =
            &Unresolved::TooLarge { what: "the table of assemblies", size: MAX_ASSEMBLIES as u64 };
        let key = (assembly.path.into(), assembly.signature, assembly.process);
        if self.known.len() >= MAX_ASSEMBLIES && !self.known.contains_key(&key) {
            return Err(TOO_MANY);
        }
        let left = &mut self.left;
        let known = self.known.entry(key).or_insert_with(|| {
            let found = look_for(assembly, (*left).min(MAX_FILE));
            if let Ok(pdb) = &found {
                *left = left.saturating_sub(pdb.size() as u64);
            }
            found
        });
        known.as_ref()
    }

    /// The assemblies with a PDB file that cannot be used, and why. Those without one are left out.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &Unresolved)> {
        let failed = self.known.iter().filter_map(|((path, ..), known)| {
            let why = known.as_ref().err()?;
            Some((&**path, why))
        });
        failed.filter(|(_, why)| **why != Unresolved::NoPdb)
    }
}

/// Looks for the PDB file of an assembly.
fn look_for(assembly: &Assembly<'_>, max: u64) -> Result<PortablePdb> {
    let mut reason = None;
    // A file that is not there, or not readable, is no reason if another one is there.
    let mut note = |why: Unresolved| match why {
        Unresolved::File(std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {}
        why => {
            reason.get_or_insert(why);
        }
    };
    let check = |pdb: PortablePdb| match pdb.id() {
        found if found == assembly.signature => Ok(pdb),
        found => Err(Unresolved::PdbId { expected: assembly.signature, found }),
    };
    for path in places(assembly) {
        for file in candidates(assembly.process, &path) {
            let found = file.and_then(|file| whole(&file, max));
            match found.and_then(PortablePdb::parse).and_then(check) {
                Ok(pdb) => return Ok(pdb),
                Err(why) => note(why),
            }
        }
    }
    let path = Path::new(assembly.path);
    if path.is_absolute() {
        for file in candidates(assembly.process, path) {
            match file.and_then(|file| assembly::read(&|at, size| part(&file, at, size), max)) {
                Ok(Some(pdb)) => match check(pdb) {
                    Ok(pdb) => return Ok(pdb),
                    Err(why) => note(why),
                },
                Ok(None) => {}
                Err(why) => note(why),
            }
        }
    }
    Err(reason.unwrap_or(Unresolved::NoPdb))
}

/// The paths at which the PDB file of an assembly can be.
fn places(assembly: &Assembly<'_>) -> Vec<PathBuf> {
    let path = Path::new(assembly.path);
    // The build machine may have been another system.
    let name = assembly.pdb_path.rsplit(['/', '\\']).next().unwrap_or_default();
    let beside = [path.with_extension("pdb"), path.with_file_name(name)];
    let mut places: Vec<PathBuf> = Vec::new();
    for place in beside.into_iter().chain([PathBuf::from(assembly.pdb_path)]) {
        let is_pdb = place.extension().is_some_and(|e| e.eq_ignore_ascii_case("pdb"));
        if place.is_absolute() && is_pdb && !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

fn whole(mut file: &File, max: u64) -> Result<Vec<u8>> {
    let size = file.metadata()?.len();
    if size > max {
        return Err(Unresolved::TooLarge { what: "the PDB file", size });
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    Read::by_ref(&mut file).take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes of a file: fewer at its end.
fn part(file: &File, offset: u64, size: usize) -> Result<Vec<u8>> {
    let left = file.metadata()?.len().saturating_sub(offset);
    let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64))? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
