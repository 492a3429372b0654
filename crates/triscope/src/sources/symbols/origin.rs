//! The machine and the time of a recording, by which its files are found.

use crate::run::procfs;
use perf_data::{ClockReference, Features, MappedFile};
use std::collections::HashMap;
use std::time::SystemTime;
use trace_common::ClockDomain;
use trace_symbols::{BuildId, Module, ModuleKind, PerfMapProblem, Unresolved, build_id};

/// Where the files of a recording are.
pub(super) struct Origin {
    /// Whether the recording is made now: files are those that its processes see.
    pub(super) is_live: bool,
    /// Whether the recording is of this machine: its files have the inodes of the recording.
    is_ours: bool,
    /// Whether the recording is known to be of another machine.
    is_of_other_machine: bool,
    /// That of the records. The perf clock cannot be related to others.
    clock: Option<ClockReference>,
    /// The processes below whose root directories a file was looked for in vain, by its number.
    tried: HashMap<usize, Vec<u32>>,
}

impl Origin {
    /// That of a recording that was made before.
    pub(super) fn new(features: &Features) -> Self {
        let ours = Features::of_this_machine().hostname;
        let is_ours = features.hostname == ours;
        let is_of_other_machine = features.hostname.is_some() && !is_ours;
        let (clock, tried) = (features.clock, HashMap::new());
        Self { is_live: false, is_ours, is_of_other_machine, clock, tried }
    }

    /// That of a recording that is made now.
    pub(super) fn live() -> Self {
        let clock = ClockReference::now(ClockDomain::Monotonic);
        let tried = HashMap::new();
        Self { is_live: true, is_ours: true, is_of_other_machine: false, clock, tried }
    }

    /// The module of a file.
    pub(super) fn module(&self, file: &MappedFile) -> Module {
        let mut module = file.module(self.clock.as_ref());
        if module.kind == ModuleKind::File {
            module.build_id = module.build_id.filter(|id| !self.is_of_another(*id, file));
            module.process = file.process.filter(|_| self.is_live);
        }
        module
    }

    /// The module of a file that was not found, with another process that mapped it. The last one can have
    /// ended, such as a check in a container.
    pub(super) fn elsewhere(&mut self, number: usize, file: &MappedFile) -> Option<Module> {
        if !self.is_live {
            return None;
        }
        let mut module = self.module(file);
        if module.kind != ModuleKind::File {
            return None;
        }
        let all = || file.process.iter().chain(&file.other_processes).copied();
        let tried = self.tried.entry(number).or_default();
        tried.retain(|process| all().any(|other| other == *process));
        module.process = Some(all().find(|process| !tried.contains(process))?);
        tried.extend(module.process);
        Some(module)
    }

    /// Why the description of just-in-time compiled code that is here now is not that of the process which
    /// was recorded.
    pub(super) fn refusal(&self, file: &MappedFile) -> Option<&'static Unresolved> {
        const OTHER_MACHINE: &Unresolved =
            &Unresolved::PerfMapRefused(PerfMapProblem::OtherMachine);
        const OTHER_PROCESS: &Unresolved =
            &Unresolved::PerfMapRefused(PerfMapProblem::OtherProcess);
        let process = file.process.filter(|_| file.is_perf_map && !self.is_live)?;
        if self.is_of_other_machine {
            return Some(OTHER_MACHINE);
        }
        let started = procfs::started(process)?;
        (started > self.mapped_at(file)?).then_some(OTHER_PROCESS)
    }

    /// The wall-clock time of the first mapping of a file.
    pub(super) fn mapped_at(&self, file: &MappedFile) -> Option<SystemTime> {
        self.clock?.realtime_at(file.mapped_at?)
    }

    /// Whether a build id of the list by path is known to be that of a file which replaced the mapped one
    /// before the recorder made the list.
    fn is_of_another(&self, id: BuildId, file: &MappedFile) -> bool {
        let Some(inode) = file.inode.filter(|_| self.is_ours && !self.is_live) else {
            return false;
        };
        let is_unchanged = match build_id::changed(std::process::id(), file.path(), inode) {
            Some(changed) => {
                self.mapped_at(file).is_none_or(|at| build_id::is_unchanged_since(changed, at))
            }
            None => false,
        };
        !is_unchanged && build_id::of_file(file.path()) == Some(id)
    }
}
