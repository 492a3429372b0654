//! Totals, differences and root paths of a heap graph.

use super::HeapGraph;
use crate::analysis::TypeTotal;
use std::collections::{HashMap, VecDeque};

/// The change of the number and size of the objects of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeDelta {
    /// Name of the type.
    pub name: String,
    /// Objects before and after.
    pub count: (u64, u64),
    /// Bytes before and after.
    pub size: (u64, u64),
}

impl TypeDelta {
    /// Change of the number of objects.
    pub fn count_change(&self) -> i64 {
        self.count.1.wrapping_sub(self.count.0) as i64
    }

    /// Change of the size in bytes.
    pub fn size_change(&self) -> i64 {
        self.size.1.wrapping_sub(self.size.0) as i64
    }
}

/// An object or a root group on the path from the root to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStep {
    /// Address of the object; 0 for a group of roots.
    pub address: u64,
    /// Name of its type, or of the group.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

impl HeapGraph {
    /// Objects by type, the largest total first.
    pub fn totals(&self) -> Vec<TypeTotal> {
        let mut by_name: HashMap<&str, (u64, u64)> = HashMap::new();
        for node in self.objects() {
            let total = by_name.entry(self.type_name(node)).or_default();
            total.0 += 1;
            total.1 = total.1.saturating_add(node.size);
        }
        let mut totals: Vec<_> = by_name
            .into_iter()
            .map(|(name, (count, size))| TypeTotal { name: name.to_owned(), count, size })
            .collect();
        totals.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.name.cmp(&b.name)));
        totals
    }

    /// The shortest paths from the root to the `most` largest objects of a type, those that are reachable
    /// first, and of these the largest first. A name without size also selects the large objects of the type, which have their order of size in the
    /// type name (`System.Byte[] (Bytes > 10K)`).
    ///
    /// Each path begins with the root and ends with the object. The path of an unreachable object has
    /// only the object: it was garbage at the time of the heap dump, or its root was not recorded.
    pub fn paths_to(&self, type_name: &str, most: usize) -> Vec<Vec<PathStep>> {
        let mut wanted: Vec<usize> = (0..self.nodes.len())
            .filter(|&i| {
                let is_of_type = |name: &str| name == type_name || without_size(name) == type_name;
                self.nodes.get(i).is_some_and(|n| n.address != 0 && is_of_type(self.type_name(n)))
            })
            .collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let parents = self.shortest_parents();
        wanted.sort_by_key(|&i| {
            let node = self.nodes.get(i).copied().unwrap_or_default();
            let is_unreachable = parents.get(i).copied().flatten().is_none();
            (is_unreachable, std::cmp::Reverse(node.size), node.address)
        });
        wanted.truncate(most);
        wanted.into_iter().map(|index| self.path(&parents, index)).collect()
    }

    /// For each node, its predecessor on the shortest path from the root.
    fn shortest_parents(&self) -> Vec<Option<u32>> {
        let mut parents: Vec<Option<u32>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([self.root]);
        while let Some(index) = queue.pop_front() {
            let Some(node) = self.nodes.get(index as usize) else { continue };
            for &child in self.children(node) {
                if let Some(parent @ None) = parents.get_mut(child as usize) {
                    *parent = Some(index);
                    queue.push_back(child);
                }
            }
        }
        parents
    }

    fn path(&self, parents: &[Option<u32>], index: usize) -> Vec<PathStep> {
        let mut path = Vec::new();
        let mut at = index as u32;
        while let Some(node) = self.nodes.get(at as usize) {
            path.push(PathStep {
                address: node.address,
                name: self.type_name(node).to_owned(),
                size: node.size,
            });
            // That of an unreachable object has no parent either.
            match parents.get(at as usize) {
                Some(&Some(parent)) if at != self.root => at = parent,
                _ => break,
            }
        }
        path.reverse();
        path
    }
}

/// The type of large objects, without their order of size.
fn without_size(name: &str) -> &str {
    let named = name.strip_suffix(')').and_then(|name| name.rsplit_once(" (Bytes > "));
    named.map_or(name, |(name, _)| name)
}

/// The change per type between two heaps, the largest growth first. Unchanged types are omitted.
pub fn difference(before: &[TypeTotal], after: &[TypeTotal]) -> Vec<TypeDelta> {
    let mut by_name: HashMap<&str, TypeDelta> = HashMap::new();
    let empty = |name: &str| TypeDelta { name: name.to_owned(), count: (0, 0), size: (0, 0) };
    for total in before {
        let delta = by_name.entry(&total.name).or_insert_with(|| empty(&total.name));
        (delta.count.0, delta.size.0) = (total.count, total.size);
    }
    for total in after {
        let delta = by_name.entry(&total.name).or_insert_with(|| empty(&total.name));
        (delta.count.1, delta.size.1) = (total.count, total.size);
    }
    let mut deltas: Vec<_> = by_name
        .into_values()
        .filter(|delta| delta.count.0 != delta.count.1 || delta.size.0 != delta.size.1)
        .collect();
    deltas.sort_by(|a, b| b.size_change().cmp(&a.size_change()).then_with(|| a.name.cmp(&b.name)));
    deltas
}
