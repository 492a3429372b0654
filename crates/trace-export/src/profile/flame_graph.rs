//! A flame graph as SVG, without scripts: the tooltip of each box has its full name and share.

use super::Profile;
use std::collections::BTreeMap;
use std::io::{self, Write};

const WIDTH: f64 = 1_200.0;
const ROW: usize = 17;
const MARGIN: usize = 30;
/// Narrower boxes, in pixels, are invisible like everything above them.
const NARROWEST: f64 = 0.2;

/// A frame below others, with the weight of all stacks through it.
#[derive(Default)]
struct Node {
    weight: u64,
    below: BTreeMap<u32, usize>,
}

pub(super) fn write(profile: &Profile, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let nodes = tree(profile);
    let weight = |node: usize| nodes.get(node).map_or(0, |node| node.weight);
    let total = weight(0).max(1) as f64;
    let depth = profile.samples.iter().map(|s| profile.frames_of(s.stack).len()).max();
    let height = MARGIN + (depth.unwrap_or(0) + 1) * ROW;
    let caption = format!("{title}: {} by {}", profile.measure.events, profile.measure.unit.name());
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf7\"/>\n\
         <text x=\"8\" y=\"19\" font-size=\"14\">{}</text>",
        escape(&caption)
    )?;
    // Depth first, without recursion: stacks may be deep.
    let mut todo: Vec<(usize, Option<u32>, f64, usize)> = vec![(0, None, 0.0, 0)];
    while let Some((node, frame, x, level)) = todo.pop() {
        let share = weight(node) as f64 / total;
        let width = share * WIDTH;
        if width < NARROWEST {
            continue;
        }
        let name = frame.map_or("all".into(), |frame| profile.name_of(frame));
        let y = height - (level + 1) * ROW;
        let fitting = ((width - 6.0) / 6.7).max(0.0) as usize;
        let label: String = name.chars().take(fitting).collect();
        writeln!(
            out,
            "<g><title>{} ({}, {:.2} %)</title><rect x=\"{x:.1}\" y=\"{y}\" \
             width=\"{width:.1}\" height=\"{}\" fill=\"{}\" stroke=\"#fffdf7\" \
             stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{}\">{}</text></g>",
            escape(&name),
            profile.measure.unit.show(weight(node)),
            share * 100.0,
            ROW - 1,
            colour(&name),
            x + 3.0,
            y + 12,
            escape(if label.len() > 2 { &label } else { "" }),
        )?;
        let mut x = x;
        for (frame, below) in nodes.get(node).into_iter().flat_map(|node| &node.below) {
            todo.push((*below, Some(*frame), x, level + 1));
            x += weight(*below) as f64 / total * WIDTH;
        }
    }
    writeln!(out, "</svg>")
}

/// The nodes of the graph: node 0 is below all stacks.
fn tree(profile: &Profile) -> Vec<Node> {
    let mut nodes = vec![Node::default()];
    for sample in &profile.samples {
        let weight = profile.value(sample);
        let mut at = 0;
        for frame in
            [None].into_iter().chain(profile.frames_of(sample.stack).iter().rev().map(Some))
        {
            let next = nodes.len();
            if let (Some(frame), Some(node)) = (frame, nodes.get_mut(at)) {
                at = *node.below.entry(*frame).or_insert(next);
            }
            if at == next {
                nodes.push(Node::default());
            }
            if let Some(node) = nodes.get_mut(at) {
                node.weight = node.weight.saturating_add(weight);
            }
        }
    }
    nodes
}

/// A warm colour that is the same for the same name in every file.
fn colour(name: &str) -> String {
    let hash =
        name.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let (green, blue) = (120 + hash % 90, 60 + hash / 90 % 60);
    format!("#f0{green:02x}{blue:02x}")
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
