//! Builds a graph from the events of a heap dump.

use super::{DumpInfo, GraphType, HeapGraph, Node};
use crate::analysis::{HeapRoot, HeapSnapshot, RootKind};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Objects larger than this get a separate type per size, as in `dotnet-gcdump`.
const LARGE: u64 = 1000;

impl HeapGraph {
    /// Builds the graph of a heap dump, with type names as `dotnet-gcdump` writes them:
    /// ``List`1[System.String]`` becomes `List<System.String>`, and the type names of objects of
    /// more than 1000 bytes contain their order of size.
    ///
    /// References to objects that the heap dump does not contain lead to nodes of type `UNDEFINED`.
    pub fn from_snapshot(snapshot: &HeapSnapshot, info: DumpInfo) -> Self {
        let mut builder = Builder::default();
        builder.kind("UNDEFINED", None);
        for node in snapshot.nodes() {
            let kind = builder.type_of(snapshot, node.type_id, node.size);
            let index = builder.node_at(node.address);
            if let Some(place) = builder.heap.nodes.get_mut(index as usize) {
                (place.size, place.kind) = (node.size, kind);
            }
        }
        for node in snapshot.nodes() {
            let index = builder.node_at(node.address);
            let children: Vec<u32> = snapshot
                .edges(node)
                .iter()
                .filter(|&&address| address != 0)
                .map(|&address| builder.node_at(address))
                .collect();
            builder.connect(index, &children);
        }
        builder.roots(snapshot.roots());
        Self { info, ..builder.heap }
    }
}

#[derive(Default)]
struct Builder {
    heap: HeapGraph,
    by_address: HashMap<u64, u32>,
    by_name: HashMap<String, u32>,
    /// Types of the runtime, by id and order of size.
    by_id: HashMap<(u64, u32), u32>,
}

impl Builder {
    fn node_at(&mut self, address: u64) -> u32 {
        let next = self.heap.nodes.len() as u32;
        let index = *self.by_address.entry(address).or_insert(next);
        if index == next {
            self.heap.nodes.push(Node { address, ..Node::default() });
        }
        index
    }

    /// Sets the references of a node. If an address occurs twice, the last one is used.
    fn connect(&mut self, index: u32, children: &[u32]) {
        let first_edge = self.heap.edges.len() as u32;
        self.heap.edges.extend(children);
        if let Some(node) = self.heap.nodes.get_mut(index as usize) {
            (node.first_edge, node.edge_count) = (first_edge, children.len() as u32);
        }
    }

    fn kind(&mut self, name: &str, module: Option<&str>) -> u32 {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        let index = self.heap.types.len() as u32;
        let module = module.map(str::to_owned);
        self.heap.types.push(GraphType { name: name.to_owned(), module });
        self.by_name.insert(name.to_owned(), index);
        index
    }

    fn type_of(&mut self, snapshot: &HeapSnapshot, id: u64, size: u64) -> u32 {
        let order = if size > LARGE { size.ilog10() } else { 0 };
        if let Some(&known) = self.by_id.get(&(id, order)) {
            return known;
        }
        let mut name = match snapshot.type_by_id(id) {
            Some(known) if !known.name.is_empty() => friendly(&known.name),
            _ => format!("UNKNOWN {id:#x}"),
        };
        if order > 0 {
            let (count, unit) = match order {
                0..6 => (10u32.pow(order - 3), "K"),
                _ => (10u32.pow((order - 6).min(2)), "M"),
            };
            let _ = write!(name, " (Bytes > {count}{unit})");
        }
        let index = self.kind(&name, None);
        self.by_id.insert((id, order), index);
        index
    }

    /// The root of the graph and the groups below it.
    fn roots(&mut self, roots: &[HeapRoot]) {
        let mut groups: Vec<(&str, &str, Vec<u32>)> = Vec::new();
        for root in roots.iter().filter(|root| root.address != 0 && !root.is_weak()) {
            let (parent, name) = group(root);
            let mut target = self.node_at(root.address);
            if let RootKind::StaticVar(variable) = &root.kind {
                // A separate node shows the name of the variable.
                let kind = self.kind(&format!("[static var {variable}]"), None);
                let index = self.group_node(kind);
                self.connect(index, &[target]);
                target = index;
            }
            match groups.iter_mut().find(|(_, known, _)| *known == name) {
                Some((_, _, children)) => children.push(target),
                None => groups.push((parent, name, vec![target])),
            }
        }
        let mut top = Vec::new();
        let mut other = Vec::new();
        for (parent, name, children) in groups {
            let kind = self.kind(name, None);
            let index = self.group_node(kind);
            self.connect(index, &children);
            if parent.is_empty() { top.push(index) } else { other.push(index) }
        }
        if !other.is_empty() {
            let kind = self.kind("[other roots]", None);
            let index = self.group_node(kind);
            self.connect(index, &other);
            top.push(index);
        }
        let kind = self.kind("[.NET Roots]", None);
        self.heap.root = self.group_node(kind);
        self.connect(self.heap.root, &top);
    }

    fn group_node(&mut self, kind: u32) -> u32 {
        self.heap.nodes.push(Node { kind, ..Node::default() });
        self.heap.nodes.len() as u32 - 1
    }
}

/// The group of a root and its parent group, by the names that viewers know.
fn group(root: &HeapRoot) -> (&'static str, &'static str) {
    const OTHER: &str = "[other roots]";
    match root.kind {
        RootKind::Stack => ("", "[local vars]"),
        RootKind::StaticVar(_) => ("", "[static vars]"),
        RootKind::Com => ("", "[COM/WinRT Objects]"),
        _ if root.is_ref_counted() => (OTHER, "[COM/WinRT Objects]"),
        RootKind::Finalizer => (OTHER, "[finalizer Handles]"),
        RootKind::Handle if root.is_pinned() => (OTHER, "[pinning Handles]"),
        RootKind::Handle => (OTHER, "[strong Handles]"),
        RootKind::DependentHandle => (OTHER, "[Dependent Handles]"),
        _ => (OTHER, "[other Handles]"),
    }
}

/// The name of a type in C# syntax, to the extent that `dotnet-gcdump` converts it.
fn friendly(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '`' if rest.peek().is_some_and(char::is_ascii_digit) => {
                while rest.next_if(char::is_ascii_digit).is_some() {}
            }
            '[' => {
                // An array has only commas between its brackets.
                let mut ahead = rest.clone();
                let commas = std::iter::from_fn(|| ahead.next_if_eq(&',')).count();
                if ahead.next_if_eq(&']').is_some() {
                    out.push('[');
                    out.extend(std::iter::repeat_n(',', commas));
                    out.push(']');
                    rest = ahead;
                } else {
                    out.push('<');
                }
            }
            ']' => out.push('>'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::friendly;

    #[test]
    fn generic_types_are_named_as_in_c_sharp() {
        for (raw, named) in [
            ("System.Byte[]", "System.Byte[]"),
            ("System.String[,][]", "System.String[,][]"),
            (
                "System.Collections.Generic.List`1[System.String]",
                "System.Collections.Generic.List<System.String>",
            ),
            (
                "Dictionary`2[System.Int32,System.Object[]][]",
                "Dictionary<System.Int32,System.Object[]>[]",
            ),
            ("Odd`Name", "Odd`Name"),
        ] {
            assert_eq!(friendly(raw), named);
        }
    }
}
