//! A flame graph of a difference.

use super::{Change, Difference};
use crate::profile::svg::{Box, NARROWEST, Svg, WIDTH};
use std::io::{self, Write};

/// The colours of shares that have grown and shrunk.
const LEGEND: [(&str, &str); 2] =
    [("#f58a8a", "larger share after"), ("#8a8af5", "smaller share after")];

pub(super) fn write(difference: &Difference, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let totals = difference.totals();
    let frames = frames(difference);
    let depth = frames.iter().map(|frame| frame.level).max().unwrap_or(0);
    let mut svg = Svg::begin(out, title, &LEGEND, depth)?;
    for Frame { name, change, x, width, level } in frames {
        let (before, after) = change.shares(totals);
        let detail = format!(
            "before {:.2} %, {}; after {:.2} %, {}; {:+.2} points",
            before * 100.0,
            difference.unit().show(change.before),
            after * 100.0,
            difference.unit().show(change.after),
            // Not a negative zero.
            (after - before) * 100.0 + 0.0,
        );
        let fill = colour(before, after);
        svg.frame(&Box { name, detail: &detail, fill: &fill, x, width, level })?;
    }
    svg.end()
}

/// A frame that is wide enough.
struct Frame<'a> {
    name: &'a str,
    change: Change,
    x: f64,
    width: f64,
    level: usize,
}

fn frames(difference: &Difference) -> Vec<Frame<'_>> {
    let totals = difference.totals();
    let mut frames = Vec::new();
    // Depth first, without recursion: stacks may be deep.
    let mut todo = vec![(0, "all", 0.0, 0)];
    while let Some((index, name, x, level)) = todo.pop() {
        let Some(node) = difference.nodes.get(index) else { continue };
        let width = width(node.total, totals);
        if width < NARROWEST {
            continue;
        }
        frames.push(Frame { name, change: node.total, x, width, level });
        let mut x = x;
        for (name, below) in &node.below {
            todo.push((*below, difference.names.get(*name), x, level + 1));
            let total =
                difference.nodes.get(*below).map_or_else(Change::default, |node| node.total);
            x += self::width(total, totals);
        }
    }
    frames
}

/// The mean of both shares, in pixels; of one share if the other profile is empty.
fn width(change: Change, totals: Change) -> f64 {
    let (before, after) = change.shares(totals);
    let profiles = [totals.before, totals.after].iter().filter(|total| **total > 0).count();
    (before + after) / profiles.max(1) as f64 * WIDTH
}

/// Red for a share that grows, blue for one that shrinks, by the part of both shares that differs.
fn colour(before: f64, after: f64) -> String {
    let both = before + after;
    let change = if both > 0.0 { (after - before) / both } else { 0.0 };
    // Small changes are visible, too.
    let pale = 235 - (change.abs().sqrt() * 150.0) as u8;
    if change > 0.0 {
        format!("#f5{pale:02x}{pale:02x}")
    } else if change < 0.0 {
        format!("#{pale:02x}{pale:02x}f5")
    } else {
        format!("#{pale:02x}{pale:02x}{pale:02x}")
    }
}
