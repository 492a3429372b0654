//! Plots as SVG, without scripts.

use super::page::escape;
use std::fmt::Write as _;

/// The scale of the horizontal axis of a [`Plot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scale {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal ratios. Values below 1 are at 1.
    Logarithmic,
}

/// The form of a [`Plot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Form {
    /// A line through the points of each series.
    Lines,
    /// The series on top of each other. Each value holds up to the next point, the last one up to
    /// [`Plot::end`].
    Areas,
    /// A column for each value, up to the next point; the last one up to [`Plot::end`].
    Columns,
}

/// Some series of values over a common axis.
///
/// ```
/// use trace_export::html::{Form, Plot, Scale};
///
/// let mut plot = Plot::new("utilization", Form::Lines, Scale::Logarithmic);
/// plot.x_text = |nanos| format!("{} ms", nanos / 1e6);
/// plot.add("minimum", [(1e6, 0.2), (1e7, 0.8)]);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The form.
    pub form: Form,
    /// The scale of the horizontal axis. The vertical one is linear, and begins at 0.
    pub scale: Scale,
    /// The end of the horizontal axis; that of the last point if it is less.
    pub end: f64,
    /// The end of the vertical axis; the largest value if that is more.
    pub top: f64,
    /// A value of the horizontal axis as text.
    pub x_text: fn(f64) -> String,
    /// A value of the vertical axis as text.
    pub y_text: fn(f64) -> String,
    series: Vec<(String, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;

impl Plot {
    /// Makes a plot without series.
    pub fn new(title: &str, form: Form, scale: Scale) -> Self {
        let text: fn(f64) -> String = |value| format!("{value}");
        let title = title.to_owned();
        let (x_text, y_text, series) = (text, text, Vec::new());
        Self { title, form, scale, end: f64::MIN, top: 0.0, x_text, y_text, series }
    }

    /// Adds a series: points in ascending order of the horizontal axis. Values that are no numbers
    /// are left out.
    pub fn add(&mut self, name: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        self.series.push((name.to_owned(), points.collect()));
    }

    /// The plot as an element `figure`.
    pub(super) fn html(&self) -> String {
        let Self { title, form, .. } = self;
        let mut out = format!("<figure><figcaption>{}</figcaption>\n", escape(title));
        let Some(axes) = Axes::of(self) else {
            out.push_str("<p class=\"dim\">no data</p></figure>\n");
            return out;
        };
        let _ = writeln!(
            out,
            "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">"
        );
        axes.draw(self, &mut out);
        match form {
            Form::Lines => self.lines(&axes, &mut out),
            Form::Areas => self.areas(&axes, &mut out),
            Form::Columns => self.columns(&axes, &mut out),
        }
        out.push_str("</svg>\n");
        if self.series.len() > 1 {
            out.push_str("<div class=\"legend\">");
            for (number, (name, _)) in self.series.iter().enumerate() {
                let (color, name) = (color(number), escape(name));
                let _ = write!(out, "<span><i class=\"{color}\"></i>{name}</span>");
            }
            out.push_str("</div>\n");
        }
        out.push_str("</figure>\n");
        out
    }

    fn lines(&self, axes: &Axes, out: &mut String) {
        for (number, (name, points)) in self.series.iter().enumerate() {
            let _ = write!(out, "<polyline class=\"line {}\" points=\"", color(number));
            for (x, y) in points {
                let _ = write!(out, "{:.1},{:.1} ", axes.x(*x), axes.y(*y));
            }
            let _ = writeln!(out, "\"><title>{}</title></polyline>", escape(name));
        }
    }

    fn areas(&self, axes: &Axes, out: &mut String) {
        let mut below: Vec<f64> = Vec::new();
        for (number, (name, points)) in self.series.iter().enumerate() {
            below.resize(points.len().max(below.len()), 0.0);
            let ends = points.iter().skip(1).map(|(x, _)| *x).chain([axes.right]);
            let (mut upper, mut lower) = (String::new(), Vec::new());
            for (((x, y), end), base) in points.iter().zip(ends).zip(&mut below) {
                let (from, to) = (axes.x(*x), axes.x(end));
                let bottom = axes.y(*base);
                *base += y;
                let top = axes.y(*base);
                let _ = write!(upper, "{from:.1},{top:.1} {to:.1},{top:.1} ");
                lower.push(format!("{to:.1},{bottom:.1} {from:.1},{bottom:.1} "));
            }
            lower.reverse();
            let (color, name) = (color(number), escape(name));
            let lower = lower.concat();
            let _ = writeln!(
                out,
                "<polygon class=\"area {color}\" points=\"{upper}{lower}\"><title>{name}</title></polygon>"
            );
        }
    }

    fn columns(&self, axes: &Axes, out: &mut String) {
        for (number, (_, points)) in self.series.iter().enumerate() {
            let ends = points.iter().skip(1).map(|(x, _)| *x).chain([axes.right]);
            for ((x, y), end) in points.iter().zip(ends).filter(|((_, y), _)| *y > 0.0) {
                let (from, to, top) = (axes.x(*x), axes.x(end), axes.y(*y));
                // The smallest values are still visible.
                let height = (HEIGHT - BOTTOM - top).max(1.0);
                let (width, top) = ((to - from - 1.0).max(1.0), HEIGHT - BOTTOM - height);
                let color = color(number);
                let text = format!("{}: {}", (self.x_text)(*x), (self.y_text)(*y));
                let _ = writeln!(
                    out,
                    "<rect class=\"column {color}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                     height=\"{height:.1}\"><title>{}</title></rect>",
                    escape(&text)
                );
            }
        }
    }
}

const fn color(number: usize) -> &'static str {
    match number % 4 {
        0 => "c0",
        1 => "c1",
        2 => "c2",
        _ => "c3",
    }
}

/// The part of the plane that a plot shows.
struct Axes {
    scale: Scale,
    left: f64,
    right: f64,
    top: f64,
}

impl Axes {
    fn of(plot: &Plot) -> Option<Self> {
        let xs = || plot.series.iter().flat_map(|(_, points)| points).map(|(x, _)| *x);
        let left = xs().reduce(f64::min)?;
        let right = xs().fold(plot.end, f64::max);
        let mut sums: Vec<f64> = Vec::new();
        for (_, points) in &plot.series {
            sums.resize(points.len().max(sums.len()), 0.0);
            for (sum, (_, y)) in sums.iter_mut().zip(points) {
                *sum = if plot.form == Form::Areas { *sum + y } else { sum.max(*y) };
            }
        }
        let top = sums.into_iter().fold(plot.top, f64::max);
        let right = if right > left { right } else { left + 1.0 };
        let top = if top > 0.0 { top } else { 1.0 };
        Some(Self { scale: plot.scale, left, right, top })
    }

    fn position(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(1.0).log10(),
        }
    }

    fn x(&self, value: f64) -> f64 {
        let (left, right) = (self.position(self.left), self.position(self.right));
        let part = (self.position(value) - left) / (right - left).max(f64::MIN_POSITIVE);
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value / self.top).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, plot: &Plot, out: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for value in steps(0.0, self.top, 4) {
            let (y, text) = (self.y(value), escape(&(plot.y_text)(value)));
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for value in self.ticks() {
            let (x, text) = (self.x(value), escape(&(plot.x_text)(value)));
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{text}</text>",
                HEIGHT - 7.0
            );
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => steps(self.left, self.right, 6),
            Scale::Logarithmic => {
                let powers = (0..20).map(|power| 10_f64.powi(power));
                let ticks: Vec<f64> =
                    powers.filter(|tick| *tick >= self.left && *tick <= self.right).collect();
                if ticks.len() >= 2 { ticks } else { vec![self.left, self.right] }
            }
        }
    }
}

/// Round values from `from` to `to`, about `count` of them.
fn steps(from: f64, to: f64, count: u32) -> Vec<f64> {
    let rough = (to - from) / f64::from(count);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
    if !step.is_normal() {
        return vec![from, to];
    }
    let first = (from / step).ceil();
    (0..=2 * count)
        .map(|number| (first + f64::from(number)) * step)
        .take_while(|value| *value <= to + step / 1e6)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(steps(0.0, 1.0, 4), [0.0, 0.5, 1.0]);
        assert_eq!(steps(3.0, 27.0, 6), [5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(steps(0.0, f64::INFINITY, 4).len(), 2);
    }

    #[test]
    fn plots_of_nothing_and_of_anything() {
        assert!(Plot::new("<i>", Form::Areas, Scale::Linear).html().contains("&lt;i&gt;"));
        for form in [Form::Lines, Form::Areas, Form::Columns] {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let mut plot = Plot::new("x", form, scale);
                plot.add("</svg>", [(f64::NAN, 1.0), (-5.0, 0.0), (0.0, 3.0), (1e300, 1e300)]);
                plot.add("second", [(0.0, f64::INFINITY), (7.0, 1.0)]);
                let html = plot.html();
                assert_eq!(html.matches("</svg>").count(), 1, "{html}");
                assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            }
        }
    }
}
