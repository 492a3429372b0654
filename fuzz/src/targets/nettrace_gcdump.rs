//! A `.gcdump` file: totals, paths, and writing what was read.

use nettrace::gcdump::HeapGraph;

pub fn target(data: &[u8]) {
    let Ok(graph) = HeapGraph::parse(data) else { return };
    let totals = graph.totals();
    if let Some(largest) = totals.first() {
        graph.paths_to(&largest.name, 3);
    }
    let mut again = Vec::new();
    graph.write(&mut again).expect("a graph from a file fits in a file");
    let again = HeapGraph::parse(&again).expect("a written file is read again");
    assert_eq!(again.totals(), totals);
}
