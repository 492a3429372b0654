//! Files and lines of .NET methods, from the PDB files of their assemblies.

use nettrace::Module;
use trace_symbols::Unresolved;
use trace_symbols::pdb::{Assembly, Line, PdbFiles};
use trace_timeline::sources::dotnet::{DotnetLines, DotnetSource};

/// The PDB files of assemblies.
#[derive(Default)]
pub(crate) struct Lines {
    files: PdbFiles,
    /// The process of all modules.
    process: Option<u32>,
}

/// A source of .NET events whose stacks have files and lines. The files of its process are read first.
pub(crate) fn with_lines(source: DotnetSource, process: Option<u32>) -> DotnetSource {
    source.with_lines(Lines::of_process(process))
}

impl Lines {
    /// The files as a process sees them. `None`: as this one does.
    pub(crate) fn of_process(process: Option<u32>) -> Self {
        Self { process, ..Self::default() }
    }

    /// The line of an offset in the IL of a method.
    pub(super) fn find(
        &mut self,
        process: Option<u32>,
        module: &Module,
        token: u32,
        il_offset: u32,
    ) -> Option<Line> {
        let assembly = Assembly {
            path: &module.path,
            pdb_path: &module.pdb_path,
            signature: module.pdb_signature.filter(|id| !id.is_empty())?,
            process,
        };
        self.files.find(&assembly).ok()?.line(token, il_offset).ok()?
    }

    /// The assemblies whose PDB file cannot be used, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&str, &Unresolved)> {
        self.files.problems()
    }

    /// Prints the assemblies whose PDB file is not used.
    pub(crate) fn print_problems(&self) {
        print_problems(self.problems());
    }
}

/// Prints assemblies whose PDB file is not used, and why.
pub(super) fn print_problems<'a>(problems: impl Iterator<Item = (&'a str, &'a Unresolved)>) {
    for (assembly, why) in problems {
        let assembly = crate::failure::OneLine(assembly);
        message!("triscope: {assembly}: its methods have no lines: {why}");
    }
}

impl DotnetLines for Lines {
    fn line(
        &mut self,
        module: &Module,
        token: u32,
        il_offset: u32,
        each: &mut dyn FnMut(&str, u32),
    ) {
        if let Some(line) = self.find(self.process, module, token, il_offset) {
            each(&line.file, line.line);
        }
    }
}
