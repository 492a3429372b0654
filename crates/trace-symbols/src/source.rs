//! The files of modules, if their contents are still those that were mapped.

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::files;
use crate::module::Module;
use crate::options::Options;
use std::fs::File;

/// Opens the file of a module, if its contents are still the same: as the process sees it, then as this
/// process does.
pub(crate) fn open(module: &Module, options: &Options) -> Result<Elf> {
    let path = module.path();
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

/// Whether this program has the file of a module without a build id at its path, too. It has not where the
/// process is in a container.
pub(crate) fn is_here(module: &Module, options: &Options) -> bool {
    if module.build_id.is_some() {
        return false;
    }
    files::open(module.path()).and_then(|file| check(&file, module, options)).is_ok()
}

/// Whether the file of a module without a build id was replaced or changed since it was mapped. `was_here` is what
/// [`is_here`] was when it was read: where it was not, the file at the path here shows nothing, and that of a
/// process that has ended cannot be found any more.
pub(crate) fn is_replaced(module: &Module, was_here: bool, options: &Options) -> bool {
    if module.build_id.is_some() {
        return false;
    }
    let in_process = |process| files::find_in_process(process, module.path())?.open();
    let files = module.process.map(in_process).into_iter();
    let files = files.chain(was_here.then(|| files::open(module.path())));
    // One below the root directory of the process is opened, whatever this program has at the path.
    let mut checks = files.flatten().map(|file| check(&file, module, options)).peekable();
    checks.peek().is_some() && checks.all(|found| found == Err(Unresolved::Replaced))
}

fn open_checked(file: File, module: &Module, options: &Options) -> Result<Elf> {
    if module.build_id.is_none() {
        check(&file, module, options)?;
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

/// Whether a file without a build id is the one that was mapped: it has its inode, and was not changed
/// since. A program that is built again can get the inode of the one before.
fn check(file: &File, module: &Module, options: &Options) -> Result<()> {
    let is_inode = module.inode.map(|inode| files::is_inode(file, inode));
    let is_unchanged = module.mapped_at.map(|at| {
        files::changed(file).is_some_and(|changed| files::is_unchanged_since(changed, at))
    });
    match (is_inode, is_unchanged) {
        (Some(false), _) | (_, Some(false)) => Err(Unresolved::Replaced),
        (Some(true), Some(true)) => Ok(()),
        _ if options.unverified => Ok(()),
        _ => Err(Unresolved::Unverified),
    }
}
