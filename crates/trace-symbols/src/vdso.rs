//! The code that the kernel maps into every process.

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::module::Module;
use crate::options::Options;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// The image has two pages.
const MAX: u64 = 1 << 20;

/// Reads the image in the memory of this process: it is the same in all of this class.
pub(crate) fn image(module: &Module, options: &Options) -> Result<Elf> {
    // It is that of the running kernel.
    if !options.kernel && module.build_id.is_none() {
        return Err(Unresolved::Disabled);
    }
    if &*module.name == Module::VDSO_32 && !cfg!(target_pointer_width = "32") {
        return Err(Unresolved::OtherVdso);
    }
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).ok_or(Unresolved::NotAFile)?;
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let range = range.and_then(|(start, end)| Some((hex(start)?, hex(end)?)));
    let Some((start, end)) = range.filter(|(start, end)| start < end && end - start <= MAX) else {
        return Err(Unresolved::NotAFile);
    };
    let mut image = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut image, start)?;
    let file = Elf::from_bytes(image, options.max_bytes)?;
    match (module.build_id, file.build_id()) {
        (Some(expected), Some(found)) if expected != found => {
            Err(Unresolved::BuildId { expected, found })
        }
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_that_of_this_kernel_and_of_this_class() {
        let mut options = Options::default();
        let vdso = Module::vdso();
        // Not every architecture has one.
        if !matches!(image(&vdso, &options), Err(Unresolved::NotAFile)) {
            assert!(image(&vdso, &options).is_ok());
        }
        if cfg!(target_pointer_width = "64") {
            let other = Module::of_mapping(Module::VDSO_32, 1).unwrap();
            assert_eq!(image(&other, &options).unwrap_err(), Unresolved::OtherVdso);
        }
        options.kernel = false;
        assert_eq!(image(&vdso, &options).unwrap_err(), Unresolved::Disabled);
    }
}
