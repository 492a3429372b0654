//! The files of modules, if their contents are still those that were mapped.

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::files;
use crate::module::Module;
use crate::options::Options;
use std::fs::File;
use std::path::Path;

/// Opens the file of a module, if its contents are still the same: as the process sees it, then as this
/// process does.
pub(crate) fn open(module: &Module, options: &Options) -> Result<Elf> {
    let path = Path::new(&*module.name);
    if !path.is_absolute() {
        return Err(Unresolved::NotAFile);
    }
    let mut last = None;
    for file in files::candidates(module.process, path) {
        match file.and_then(|file| open_checked(file, module, options)) {
            Ok(elf) => return Ok(elf),
            // The first reason that concerns the contents counts.
            Err(why) => match &last {
                None | Some(Unresolved::File(_)) => last = Some(why),
                Some(_) => {}
            },
        }
    }
    Err(last.unwrap_or(Unresolved::NotAFile))
}

fn open_checked(file: File, module: &Module, options: &Options) -> Result<Elf> {
    match (module.build_id, module.inode) {
        (None, Some(inode)) if !files::is_inode(&file, inode) => return Err(Unresolved::Replaced),
        (None, None) if !options.unverified => return Err(Unresolved::Unverified),
        _ => {}
    }
    let elf = Elf::new(file, options.max_bytes)?;
    match (module.build_id, elf.build_id()) {
        (Some(expected), Some(found)) if expected != found => {
            Err(Unresolved::BuildId { expected, found })
        }
        (Some(_), None) => Err(Unresolved::Replaced),
        _ => Ok(elf),
    }
}
