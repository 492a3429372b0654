//! Methods that .NET runtimes compiled, by the file and the address in it that have their code.

use nettrace::{Method, MethodMap, Module, OptimizationTier};
use std::collections::{BTreeMap, HashMap};
use trace_timeline::sources::perf::PerfSource;

/// The methods of processes.
#[derive(Default)]
pub(crate) struct Managed {
    /// By the number of the file in the recording.
    files: HashMap<usize, BTreeMap<u64, Code>>,
}

/// The code of a method.
struct Code {
    end: u64,
    /// `None` if several methods had their code there, one after another: stacks have no time.
    name: Option<Box<str>>,
}

impl Managed {
    /// The name of code of a runtime that belongs to no method.
    pub(crate) const STUB: &str = "[runtime stub]";

    /// Adds the methods of a process.
    pub(crate) fn add(&mut self, pid: u32, methods: &MethodMap, source: &PerfSource) {
        let modules: HashMap<u64, &Module> = methods.modules().collect();
        for method in methods.methods().iter().filter(|method| method.size > 0) {
            let Some((file, start)) = source.locate(pid, method.start) else { continue };
            let name = name(method, modules.get(&method.module_id).copied());
            self.insert(file, start, start.saturating_add(method.size.into()), name);
        }
    }

    fn insert(&mut self, file: usize, start: u64, end: u64, name: String) {
        let code = self.files.entry(file).or_default();
        let before = code.range_mut(..end).rev().take_while(|(_, code)| code.end > start);
        let mut is_clear = true;
        for (other, known) in before {
            if (*other, known.end, known.name.as_deref()) == (start, end, Some(&*name)) {
                return;
            }
            known.name = None;
            is_clear = false;
        }
        let name = Some(name.into()).filter(|_| is_clear);
        code.insert(start, Code { end, name });
    }

    /// The method at an address of a file.
    pub(super) fn at(&self, file: usize, address: u64) -> Option<&str> {
        let (_, code) = self.files.get(&file)?.range(..=address).next_back()?;
        code.name.as_deref().filter(|_| address < code.end)
    }

    /// Whether a file has code of methods.
    pub(super) fn has(&self, file: usize) -> bool {
        self.files.contains_key(&file)
    }
}

/// `Module!Namespace.Type.Method(arguments) [tier]`.
fn name(method: &Method, module: Option<&Module>) -> String {
    let mut name = module.map_or(String::new(), |module| format!("{}!", module.name()));
    name.push_str(&method.to_string());
    let tier = match method.tier() {
        OptimizationTier::MinOptJitted => " [MinOpt]",
        OptimizationTier::Optimized => " [Optimized]",
        OptimizationTier::QuickJitted => " [Tier0]",
        OptimizationTier::OptimizedTier1 => " [Tier1]",
        OptimizationTier::OptimizedTier1Osr => " [Tier1 OSR]",
        OptimizationTier::QuickJittedInstrumented => " [Tier0 instrumented]",
        OptimizationTier::OptimizedTier1Instrumented => " [Tier1 instrumented]",
        _ if method.flags & JITTED == 0 => " [ReadyToRun]",
        _ => "",
    };
    name + tier
}

/// Bit of the flags of methods that were compiled at run time.
const JITTED: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_several_methods_had_has_no_name() {
        let mut managed = Managed::default();
        for (start, end, name) in
            [(10, 20, "a"), (20, 30, "b"), (10, 20, "a"), (25, 40, "c"), (50, 60, "d")]
        {
            managed.insert(3, start, end, name.to_owned());
        }
        let at = |address| managed.at(3, address);
        assert_eq!(
            [at(9), at(10), at(19), at(50), at(60)],
            [None, Some("a"), Some("a"), Some("d"), None]
        );
        // b and c.
        assert_eq!([at(20), at(26), at(39)], [None; 3]);
        assert_eq!((managed.at(4, 10), managed.has(4)), (None, false));
    }
}
