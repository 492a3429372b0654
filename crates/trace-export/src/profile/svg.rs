//! Flame graphs as SVG with a script: search, zoom and the keyboard. Without scripts, as in an `img`
//! element, the picture and its tooltips are the same.

use std::io::{self, Write};

pub(super) const WIDTH: f64 = 1_200.0;
/// The script has it, too.
const ROW: usize = 17;
/// Height of what is above the frames: the caption, and the controls with the legend.
const HEAD: usize = 50;
/// Height of the line for the frame under the pointer.
const FOOT: usize = 22;
/// Narrower frames, in pixels, are left out like everything above them.
pub(super) const NARROWEST: f64 = 0.1;

const SCRIPT: &str = include_str!("flame_graph.js");
const STYLE: &str = include_str!("flame_graph.css");

/// A frame of the picture.
pub(super) struct Box<'a> {
    pub(super) name: &'a str,
    /// Its weight and share.
    pub(super) detail: &'a str,
    /// A colour of SVG.
    pub(super) fill: &'a str,
    /// The position and width in pixels.
    pub(super) x: f64,
    pub(super) width: f64,
    /// The number of frames below.
    pub(super) level: usize,
}

/// A picture that is being written.
pub(super) struct Svg<'a> {
    out: &'a mut dyn Write,
    height: usize,
}

impl<'a> Svg<'a> {
    /// Begins a picture of stacks with at most `depth` frames. `legend` has colours and their meaning.
    pub(super) fn begin(
        out: &'a mut dyn Write,
        caption: &str,
        legend: &[(&str, &str)],
        depth: usize,
    ) -> io::Result<Self> {
        let height = HEAD + (depth + 1) * ROW + FOOT;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
             <style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fffdf7\"/>\n\
             <text x=\"8\" y=\"19\" font-size=\"14\">{}</text>",
            escape(caption)
        )?;
        let mut x = WIDTH - 8.0;
        for (colour, meaning) in legend.iter().rev() {
            x -= 7.0 * meaning.len() as f64 + 26.0;
            let (square, text) = (x, x + 15.0);
            writeln!(
                out,
                "<rect x=\"{square}\" y=\"29\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{text}\" y=\"39\">{}</text>",
                escape(meaning)
            )?;
        }
        writeln!(
            out,
            "<text id=\"detail\" x=\"8\" y=\"{}\"> </text>\n<g id=\"frames\">",
            height - 7
        )?;
        Ok(Self { out, height })
    }

    /// Adds a frame.
    pub(super) fn frame(&mut self, frame: &Box<'_>) -> io::Result<()> {
        let &Box { name, detail, fill, x, width, level } = frame;
        let y = self.height - FOOT - (level + 1) * ROW;
        writeln!(
            self.out,
            "<g><title>{} ({})</title><rect x=\"{x:.3}\" y=\"{y}\" width=\"{width:.3}\" \
             height=\"{}\" fill=\"{fill}\"/><text x=\"{:.3}\" y=\"{}\">{}</text></g>",
            escape(name),
            escape(detail),
            ROW - 1,
            x + 3.0,
            y + 12,
            escape(&fitting(name, width)),
        )
    }

    /// Ends the picture.
    pub(super) fn end(self) -> io::Result<()> {
        writeln!(self.out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
    }
}

/// The part of a name that fits into a frame. The script does the same.
fn fitting(name: &str, width: f64) -> String {
    let fitting = ((width - 6.0) / 6.7).max(0.0) as usize;
    let part: String = name.chars().take(fitting).collect();
    if fitting > 2 { part } else { String::new() }
}

/// Text of XML: characters that it cannot have are replaced.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\0'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_has_no_control_characters() {
        assert_eq!(escape("a\u{1}\n<\u{fffe}\">"), "a\u{fffd}\u{fffd}&lt;\u{fffd}&quot;&gt;");
    }

    #[test]
    fn the_script_can_be_in_a_section_of_text() {
        assert!(!SCRIPT.contains("]]>") && !STYLE.contains('<'));
    }
}
