//! The files and other memory that contain code.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;
use trace_common::{BuildId, Inode, KernelReference};

/// The kind of memory that contains code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ModuleKind {
    /// The kernel without its modules. Its addresses are those in memory.
    Kernel,
    /// A module of the kernel. Its addresses are those in memory.
    KernelModule,
    /// One function that was added to the running kernel, such as a program of BPF. Its addresses are
    /// offsets in it.
    KernelFunction,
    /// A mapped file: an executable or a library. Its addresses are positions in the file.
    File,
    /// The code that the kernel maps into every process (`vdso(7)`). Its addresses are positions in
    /// the image.
    Vdso,
    /// Memory of one process without a file: code of just-in-time compilers. Its addresses are those
    /// in memory.
    Jit,
}

/// Memory with code, and the facts that identify its contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Module {
    /// The kind.
    pub kind: ModuleKind,
    /// The path as the process sees it; `[kernel.kallsyms]`, `[NAME]` of a kernel module, the name of a
    /// function of the kernel, `[vdso]`, `[jit]`.
    pub name: Box<str>,
    /// The path of a file, if it is no UTF-8 text: the name has U+FFFD in place of what is none. That of any
    /// file is [`path`](Self::path).
    pub raw_path: Option<Box<Path>>,
    /// The build id of the contents. A file with another one is not used.
    pub build_id: Option<BuildId>,
    /// The inode of the file. Without a build id, a file with another one is not used.
    pub inode: Option<Inode>,
    /// The generation of the inode, 0 if it is not known: a file system gives the number of an inode that was
    /// removed to the next file, with another generation. Modules with different ones are different modules.
    /// That of the file is not compared.
    pub generation: u64,
    /// The wall-clock time of the mapping. Without a build id, a file that was changed later is not used.
    pub mapped_at: Option<SystemTime>,
    /// A process that has it mapped: the file is looked for in the root directory of the process
    /// first. Of [`ModuleKind::Jit`] the process whose memory it is.
    pub process: Option<u32>,
    /// Of the kernel and its modules: where they were in memory when the addresses were recorded. Without it,
    /// they are where they are now.
    pub reference: Option<KernelReference>,
}

impl Module {
    /// The name of the kernel without its modules, as perf(1) has it.
    pub const KERNEL: &str = "[kernel.kallsyms]";

    /// The name of the vdso of 32-bit processes, as perf(1) has it: below 4 GiB. The kernel gives it the one
    /// that others have.
    pub const VDSO_32: &str = "[vdso32]";

    const fn new(kind: ModuleKind, name: Box<str>, build_id: Option<BuildId>) -> Self {
        Self {
            kind,
            name,
            raw_path: None,
            build_id,
            inode: None,
            generation: 0,
            mapped_at: None,
            process: None,
            reference: None,
        }
    }

    /// The kernel with this build id; without one the running kernel.
    pub fn kernel(build_id: Option<BuildId>) -> Self {
        Self::new(ModuleKind::Kernel, Self::KERNEL.into(), build_id)
    }

    /// A module of the kernel. The name is that of `/proc/modules`, with or without brackets.
    pub fn kernel_module(name: &str, build_id: Option<BuildId>) -> Self {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        Self::new(ModuleKind::KernelModule, format!("[{name}]").into(), build_id)
    }

    /// A function that was added to the running kernel, such as a program of BPF: a recording has its name
    /// (`PERF_RECORD_KSYMBOL`).
    pub fn kernel_function(name: &str) -> Self {
        Self::new(ModuleKind::KernelFunction, name.into(), None)
    }

    /// A mapped file. The path can be any, also one that is no UTF-8 text.
    pub fn file(path: impl AsRef<Path>, build_id: Option<BuildId>) -> Self {
        let path = path.as_ref();
        let name = path.to_string_lossy();
        let raw_path = matches!(name, Cow::Owned(_)).then(|| path.into());
        Self { raw_path, ..Self::new(ModuleKind::File, name.into(), build_id) }
    }

    /// The code that the kernel maps into every process.
    pub fn vdso() -> Self {
        Self::new(ModuleKind::Vdso, "[vdso]".into(), None)
    }

    /// Memory of a process without a file.
    pub fn jit(process: u32) -> Self {
        let process = Some(process);
        Self { process, ..Self::new(ModuleKind::Jit, "[jit]".into(), None) }
    }

    /// The module that a mapping with this name has: of `/proc/PID/maps` or a record of `mmap(2)`.
    /// `None` for memory that has no code.
    pub fn of_mapping(name: &str, process: u32) -> Option<Self> {
        Some(match name {
            "[vdso]" => Self::vdso(),
            Self::VDSO_32 => Self::new(ModuleKind::Vdso, name.into(), None),
            "[vsyscall]" | "[uprobes]" => return None,
            "" | "[heap]" | "[stack]" => Self::jit(process),
            _ if trace_common::is_memory_of_no_file(name) => Self::jit(process),
            _ => Self { process: Some(process), ..Self::file(name, None) }.without_deleted(),
        })
    }

    /// The module that a mapping has whose name can be one that is no text.
    pub(crate) fn of_raw_mapping(name: &[u8], process: u32) -> Option<Self> {
        let text = String::from_utf8_lossy(name);
        let mut module = Self::of_mapping(&text, process)?;
        if module.kind == ModuleKind::File && matches!(text, Cow::Owned(_)) {
            let path = name.strip_suffix(DELETED.as_bytes()).unwrap_or(name);
            module.raw_path = Some(Path::new(OsStr::from_bytes(path)).into());
        }
        Some(module)
    }

    /// The module of a file that was removed, without the ` (deleted)` that the kernel puts behind its path:
    /// another file of the same contents can be there now. Other modules stay as they are.
    #[must_use]
    pub fn without_deleted(mut self) -> Self {
        let name = self.name.strip_suffix(DELETED).map(Box::<str>::from);
        let path = self.raw_path.as_deref().map(|path| path.as_os_str().as_bytes());
        let path = path.and_then(|path| path.strip_suffix(DELETED.as_bytes()));
        let path = path.map(|path| Box::<Path>::from(Path::new(OsStr::from_bytes(path))));
        self.name = name.unwrap_or(self.name);
        self.raw_path = path.or(self.raw_path);
        self
    }

    /// The path of a file, as the process sees it, also if it is no UTF-8 text; of another module its name.
    ///
    /// ```
    /// use std::path::Path;
    /// use trace_symbols::Module;
    ///
    /// assert_eq!(Module::file("/a", None).path(), Path::new("/a"));
    /// ```
    pub fn path(&self) -> &Path {
        self.raw_path.as_deref().unwrap_or_else(|| Path::new(&*self.name))
    }

    /// The module with the inode of its file.
    #[must_use]
    pub fn with_inode(self, inode: Inode) -> Self {
        Self { inode: Some(inode), ..self }
    }

    /// The module with the wall-clock time of its mapping.
    #[must_use]
    pub fn with_mapped_at(self, at: SystemTime) -> Self {
        Self { mapped_at: Some(at), ..self }
    }

    /// The kernel or its module with its place in memory when the addresses were recorded.
    #[must_use]
    pub fn with_reference(self, reference: KernelReference) -> Self {
        Self { reference: Some(reference), ..self }
    }

    /// The facts by which a module is the same as another one.
    pub(crate) fn identity(&self) -> Self {
        let process = self.process.filter(|_| self.kind == ModuleKind::Jit);
        // The same contents are the same file, also in another file system.
        let inode = self.inode.filter(|_| self.build_id.is_none());
        let generation = if inode.is_some() { self.generation } else { 0 };
        Self { process, inode, generation, mapped_at: None, ..self.clone() }
    }
}

/// What the kernel puts behind the path of a file that was removed.
const DELETED: &str = " (deleted)";

/// The number of a [`Module`] in [`AddressSpaces`](crate::AddressSpaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(u32);

impl ModuleId {
    pub(crate) const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The index: numbers are assigned from 0 on.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_files_have_the_path_that_they_had() {
        let raw = |bytes: &[u8]| Box::<Path>::from(Path::new(OsStr::from_bytes(bytes)));
        let module = Module::file(raw(b"/w/\xff (deleted)"), None);
        assert_eq!(&*module.name, "/w/\u{fffd} (deleted)");
        let module = module.without_deleted();
        assert_eq!((&*module.name, &module.raw_path), ("/w/\u{fffd}", &Some(raw(b"/w/\xff"))));
        assert_eq!(module.clone().without_deleted(), module);
    }

    #[test]
    fn any_file_has_its_path() {
        let raw = Path::new(OsStr::from_bytes(b"/w/\xff"));
        assert_eq!(Module::file(raw, None).path(), raw);
        assert_eq!(Module::of_raw_mapping(b"/w/\xff (deleted)", 1).unwrap().path(), raw);
        let plain = Module::file("/w/a", None);
        assert_eq!((plain.path(), plain.raw_path.is_none()), (Path::new("/w/a"), true));
    }
}
