//! A flame graph: colours by the kind of code.

use super::Unit;
use super::origin::Origin;
use super::svg::{Box, NARROWEST, Svg, WIDTH};
use super::view::{Names, View};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A frame below others, with the weight of all stacks through it.
struct Node {
    weight: u64,
    origin: Origin,
    below: BTreeMap<u32, usize>,
}

impl Node {
    const fn new(origin: Origin) -> Self {
        Self { weight: 0, origin, below: BTreeMap::new() }
    }
}

/// The frames of all stacks.
#[derive(Default)]
struct Tree {
    /// The first one is below all stacks.
    nodes: Vec<Node>,
    names: Names,
}

pub(super) fn write(view: &View<'_>, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let tree = Tree::of(view);
    let total = tree.weight(0).max(1) as f64;
    let measure = view.measure();
    let weighed = match measure.unit {
        Unit::Occurrences => &*measure.weight,
        unit => unit.name(),
    };
    let caption = format!("{title}: {} by {weighed}", measure.events);
    let is_there = |origin: &Origin| tree.nodes.iter().any(|node| node.origin == *origin);
    let legend: Vec<(String, &str)> = Origin::ALL
        .into_iter()
        .filter(is_there)
        .map(|origin| (colour(origin, ""), origin.name()))
        .collect();
    let legend: Vec<(&str, &str)> =
        legend.iter().map(|(colour, name)| (&**colour, *name)).collect();
    let drawn = tree.drawn(total);
    let depth = drawn.iter().map(|place| place.level).max().unwrap_or(0);
    let mut svg = Svg::begin(out, &caption, &legend, depth)?;
    for Place { node, frame, x, level } in drawn {
        let name = frame.map_or("all", |frame| tree.names.get(frame));
        let origin = tree.nodes.get(node).map_or(Origin::Other, |node| node.origin);
        let fill = colour(origin, name);
        let share = tree.weight(node) as f64 / total;
        let detail = format!("{}, {:.2} %", measure.unit.show(tree.weight(node)), share * 100.0);
        let width = share * WIDTH;
        svg.frame(&Box { name, detail: &detail, fill: &fill, x, width, level })?;
    }
    svg.end()
}

/// Where a frame is drawn.
struct Place {
    node: usize,
    /// `None` below all stacks.
    frame: Option<u32>,
    x: f64,
    level: usize,
}

impl Tree {
    /// The frames that are wide enough, outer ones first.
    fn drawn(&self, total: f64) -> Vec<Place> {
        let mut drawn = Vec::new();
        // Depth first, without recursion: stacks may be deep.
        let mut todo = vec![Place { node: 0, frame: None, x: 0.0, level: 0 }];
        while let Some(place) = todo.pop() {
            if self.weight(place.node) as f64 / total * WIDTH < NARROWEST {
                continue;
            }
            let mut x = place.x;
            for (frame, node) in self.nodes.get(place.node).into_iter().flat_map(|node| &node.below)
            {
                todo.push(Place { node: *node, frame: Some(*frame), x, level: place.level + 1 });
                x += self.weight(*node) as f64 / total * WIDTH;
            }
            drawn.push(place);
        }
        drawn
    }

    fn of(view: &View<'_>) -> Self {
        let mut tree = Self { nodes: vec![Node::new(Origin::Other)], ..Self::default() };
        for sample in view.samples() {
            let path = tree.names.path(sample, view);
            // A process below the frames is no code.
            let frames = view.frames(sample.stack);
            let processes = path.len().saturating_sub(frames.len());
            let origins = frames.iter().rev().map(|frame| Origin::of(frame, view.tables));
            let origins = std::iter::repeat_n(Origin::Other, processes).chain(origins);
            tree.add(path.iter().copied().zip(origins), view.profile.value(sample));
        }
        tree
    }

    /// Adds a stack, outermost frame first.
    fn add(&mut self, path: impl Iterator<Item = (u32, Origin)>, weight: u64) {
        let mut at = 0;
        for frame in [None].into_iter().chain(path.map(Some)) {
            let next = self.nodes.len();
            if let (Some((name, origin)), Some(node)) = (frame, self.nodes.get_mut(at)) {
                at = *node.below.entry(name).or_insert(next);
                if at == next {
                    self.nodes.push(Node::new(origin));
                }
            }
            if let Some(node) = self.nodes.get_mut(at) {
                node.weight = node.weight.saturating_add(weight);
            }
        }
    }

    fn weight(&self, node: usize) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.weight)
    }
}

/// The colour of a kind of code; a little lighter or darker by the name, the same in every file.
fn colour(origin: Origin, name: &str) -> String {
    let hash =
        name.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let (hue, saturation, lightness) = match origin {
        Origin::Other => (40, 10, 80),
        Origin::Kernel => (24, 85, 68),
        Origin::Native => (50, 85, 66),
        Origin::Go => (190, 60, 68),
        Origin::Dotnet => (275, 60, 78),
    };
    let lighter = if name.is_empty() { 0 } else { hash % 13 };
    format!("hsl({hue},{saturation}%,{}%)", lightness - 6 + lighter)
}
