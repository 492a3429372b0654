//! Methods that .NET runtimes compiled, by the file and the address in it that have their code.

use super::lines::Lines;
use nettrace::{IlMap, Method, MethodMap, Module, OptimizationTier};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use trace_symbols::Unresolved;
use trace_symbols::pdb::Line;
use trace_timeline::sources::perf::PerfSource;

/// The methods of processes.
#[derive(Default)]
pub(crate) struct Managed {
    /// By the number of the file in the recording.
    files: HashMap<usize, Codes>,
    lines: Lines,
}

/// The code of the methods in a file.
#[derive(Default)]
struct Codes {
    methods: Vec<Code>,
    /// The indexes of the methods, by their addresses and names.
    known: HashMap<(u64, u64, Arc<str>), usize>,
    /// By their first addresses. They do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Number of pieces that were looked at.
    #[cfg(test)]
    visited: usize,
}

/// The code of a method.
struct Code {
    start: u64,
    end: u64,
    name: Arc<str>,
    source: Source,
}

/// Addresses of which the same is known.
#[derive(Clone, Copy)]
struct Piece {
    end: u64,
    /// Index of the method that had its code there. `None` if several had, one after another: stacks have
    /// no time.
    method: Option<usize>,
}

impl Codes {
    fn insert(&mut self, method: Code) {
        let Code { start, end, .. } = method;
        let key = (start, end, Arc::clone(&method.name));
        // Each list has it again. All of its addresses are in pieces, which a repetition does not change.
        if let Some(known) = self.known.get(&key).and_then(|known| self.methods.get_mut(*known)) {
            known.source.add(method.source);
            return;
        }
        self.split(start);
        self.split(end);
        let before: Vec<(u64, Piece)> =
            self.pieces.range(start..end).map(|(start, piece)| (*start, *piece)).collect();
        #[cfg(test)]
        {
            self.visited += before.len();
        }
        let index = self.methods.len();
        let (mut at, mut has_own) = (start, false);
        for (from, piece) in before {
            self.pieces.remove(&from);
            has_own |= self.put(at, from, Some(index));
            self.put(from, piece.end, None);
            at = piece.end;
        }
        has_own |= self.put(at, end, Some(index));
        self.join(end);
        // Each list has the methods whose addresses others had too: they are not kept.
        if has_own {
            self.known.insert(key, index);
            self.methods.push(method);
        }
    }

    /// Cuts the piece that has this address in its middle.
    fn split(&mut self, at: u64) {
        if let Some((_, piece)) = self.pieces.range_mut(..at).next_back() {
            if piece.end > at {
                let rest = *piece;
                piece.end = at;
                self.pieces.insert(at, rest);
            }
        }
    }

    /// Adds the piece that begins there to the one before it if the same is known of both.
    fn join(&mut self, at: u64) {
        if let Some(piece) = self.pieces.remove(&at) {
            self.put(at, piece.end, piece.method);
        }
    }

    /// Adds a piece, together with the one before it if the same is known of that. Returns whether it has
    /// addresses.
    fn put(&mut self, start: u64, end: u64, method: Option<usize>) -> bool {
        if start >= end {
            return false;
        }
        match self.pieces.range_mut(..start).next_back() {
            Some((_, before)) if before.end == start && before.method == method => before.end = end,
            _ => _ = self.pieces.insert(start, Piece { end, method }),
        }
        true
    }

    /// The only method that had its code at an address.
    fn at(&self, address: u64) -> Option<&Code> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        self.methods.get(piece.method.filter(|_| address < piece.end)?)
    }
}

/// Where the lines of code are.
enum Source {
    Unknown,
    Known(Origin),
    /// Compilations of the same method had their code there, one after another, with other lines.
    Ambiguous,
}

/// The IL of a method.
#[derive(PartialEq)]
struct Origin {
    module: Arc<Module>,
    process: u32,
    token: u32,
    map: IlMap,
}

impl Source {
    /// The same code is described again: a later list has the maps that an earlier one could lack.
    fn add(&mut self, other: Self) {
        match (&*self, other) {
            (_, Self::Unknown) | (Self::Ambiguous, _) => {}
            (Self::Known(known), Self::Known(other)) if *known == other => {}
            (Self::Unknown, other) => *self = other,
            _ => *self = Self::Ambiguous,
        }
    }
}

impl Managed {
    /// The name of code of a runtime that belongs to no method.
    pub(crate) const STUB: &str = "[runtime stub]";

    /// Adds the methods of a process.
    pub(crate) fn add(&mut self, pid: u32, methods: &MethodMap, source: &PerfSource) {
        // Many methods share one. An id can be that of several, one after another.
        let mut modules = HashMap::new();
        for method in methods.methods().iter().filter(|method| method.size > 0) {
            let Some((file, start)) = source.locate(pid, method.start) else { continue };
            let module = methods.module_of(method).map(|module| {
                let shared = modules.entry(std::ptr::from_ref(module));
                &*shared.or_insert_with(|| Arc::new(module.clone()))
            });
            let name = name(method, module.map(|module| &**module));
            let origin = module.zip(method.il_map.as_ref()).map(|(module, map)| Origin {
                module: Arc::clone(module),
                process: pid,
                token: method.token,
                map: map.clone(),
            });
            let source = origin.map_or(Source::Unknown, Source::Known);
            self.insert(file, start, start.saturating_add(method.size.into()), name, source);
        }
    }

    fn insert(&mut self, file: usize, start: u64, end: u64, name: String, source: Source) {
        let method = Code { start, end, name: name.into(), source };
        self.files.entry(file).or_default().insert(method);
    }

    /// The method at an address of a file, and its line if that is known.
    pub(super) fn at(&mut self, file: usize, address: u64) -> Option<(&str, Option<Line>)> {
        let code = self.files.get(&file)?.at(address)?;
        let line = match &code.source {
            Source::Known(Origin { module, process, token, map }) => {
                let offset = u32::try_from(address - code.start).ok();
                let il = offset.and_then(|offset| map.il_offset(offset));
                il.and_then(|il| self.lines.find(Some(*process), module, *token, il))
            }
            Source::Unknown | Source::Ambiguous => None,
        };
        Some((&code.name, line))
    }

    /// The assemblies whose PDB file cannot be used, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&str, &Unresolved)> {
        self.lines.problems()
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
            managed.insert(3, start, end, name.to_owned(), Source::Unknown);
        }
        let mut at = |address| Some(managed.at(3, address)?.0.to_owned());
        assert_eq!(
            [at(9), at(10), at(19), at(50), at(60)],
            [None, Some("a"), Some("a"), Some("d"), None].map(|name| name.map(str::to_owned))
        );
        // b, both, c.
        assert_eq!(
            [at(20), at(24), at(25), at(29), at(30), at(39), at(40)],
            [Some("b"), Some("b"), None, None, Some("c"), Some("c"), None]
                .map(|name| name.map(str::to_owned))
        );
        assert!(managed.at(4, 10).is_none() && !managed.has(4));
    }

    #[test]
    fn code_within_other_code_has_no_name() {
        // Each address has the name of the only method that had it.
        let methods = [
            (10, 100, "a"),
            (20, 30, "b"),
            (50, 60, "c"),
            (10, 15, "d"),
            (90, 110, "e"),
            (10, 100, "a"),
            (0, 12, "f"),
            (20, 30, "b"),
            (40, 45, "a"),
        ];
        let mut managed = Managed::default();
        for (start, end, name) in methods {
            managed.insert(3, start, end, name.to_owned(), Source::Unknown);
        }
        for address in 0..120 {
            let mut there: Vec<_> =
                methods.iter().filter(|(start, end, _)| (start..end).contains(&&address)).collect();
            there.sort_unstable();
            there.dedup();
            let only = match there[..] {
                [(_, _, name)] => Some(*name),
                _ => None,
            };
            assert_eq!(managed.at(3, address).map(|(name, _)| name), only, "{address}");
        }
    }

    /// `top` reads the list of methods again and again.
    #[test]
    fn lists_that_are_repeated_take_no_memory() {
        let mut managed = Managed::default();
        for _ in 0..10 {
            for (start, end, name) in [(10, 20, "a"), (10, 20, "b"), (15, 18, "c"), (15, 30, "d")] {
                managed.insert(3, start, end, name.to_owned(), Source::Unknown);
            }
        }
        let codes = &managed.files[&3];
        assert_eq!((codes.methods.len(), codes.pieces.len()), (2, 2));
    }

    #[test]
    fn methods_that_are_described_again_are_looked_up() {
        const COUNT: u64 = 1000;
        let mut managed = Managed::default();
        let mut insert = |start, end, name: &str| {
            managed.insert(3, start, end, name.to_owned(), Source::Unknown);
        };
        // Many pieces, of which every other one is that of the first method.
        insert(0, 10 * COUNT, "a");
        for n in 0..COUNT {
            insert(10 * n + 3, 10 * n + 6, "b");
        }
        for _ in 0..COUNT {
            insert(0, 10 * COUNT, "a");
        }
        let codes = &managed.files[&3];
        assert_eq!((codes.methods.len(), codes.pieces.len()), (1, 2 * COUNT as usize + 1));
        assert_eq!(codes.visited, COUNT as usize);
    }

    #[test]
    fn code_with_several_origins_has_no_line() {
        let origin = |token| {
            let module = Arc::new(Module::default());
            Source::Known(Origin { module, process: 1, token, map: IlMap::default() })
        };
        let mut source = Source::Unknown;
        source.add(origin(1));
        source.add(Source::Unknown);
        source.add(origin(1));
        assert!(matches!(&source, Source::Known(known) if known.token == 1));
        source.add(origin(2));
        source.add(origin(2));
        assert!(matches!(source, Source::Ambiguous));
    }
}
