//! Managed heaps as graphs: `.gcdump` files, totals by type, differences, paths to roots.
//!
//! A [`HeapGraph`] is built from a heap dump in a trace ([`HeapGraph::from_snapshot`]) or read from
//! a `.gcdump` file ([`HeapGraph::parse`]), the format of `dotnet-gcdump`, PerfView and Visual
//! Studio. [`HeapGraph::write`] writes that format.

mod build;
mod fast;
mod read;
mod totals;
mod write;

pub use read::{GcDumpError, GcDumpErrorKind};
pub use totals::{PathStep, TypeDelta, difference};

use std::time::SystemTime;

/// A heap: objects, their types and references, reachable from one root.
///
/// Nodes with address 0 are not objects: they group roots (`[local vars]`, `[static vars]`, …).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeapGraph {
    /// The first type is that of referenced objects that the heap dump does not contain.
    types: Vec<GraphType>,
    nodes: Vec<Node>,
    /// Indexes of nodes.
    edges: Vec<u32>,
    root: u32,
    /// Where and when the heap was dumped.
    pub info: DumpInfo,
}

/// Where and when a heap was dumped, and by which tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpInfo {
    /// Name of the process.
    pub process_name: Option<String>,
    /// Process id; 0 is unknown.
    pub pid: u32,
    /// Name of the machine.
    pub machine: Option<String>,
    /// Time of the heap dump.
    pub collected: Option<SystemTime>,
    /// Program that wrote the file.
    pub tool: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GraphType {
    name: String,
    module: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Node {
    /// Address of the object; 0 for nodes that group roots.
    address: u64,
    /// Bytes.
    size: u64,
    /// Index of its type.
    kind: u32,
    /// Index of its first reference in [`HeapGraph::edges`].
    first_edge: u32,
    edge_count: u32,
}

impl HeapGraph {
    /// Number of objects.
    pub fn object_count(&self) -> usize {
        self.objects().count()
    }

    /// Number of references, including those from root groups.
    pub fn reference_count(&self) -> usize {
        self.edges.len()
    }

    /// Bytes of all objects.
    pub fn total_size(&self) -> u64 {
        self.objects().fold(0, |sum, node| sum.saturating_add(node.size))
    }

    fn objects(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.address != 0)
    }

    fn children(&self, node: &Node) -> &[u32] {
        let first = node.first_edge as usize;
        self.edges.get(first..first.saturating_add(node.edge_count as usize)).unwrap_or_default()
    }

    fn type_name(&self, node: &Node) -> &str {
        self.types.get(node.kind as usize).map_or("", |t| &t.name)
    }
}
