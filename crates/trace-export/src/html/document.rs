//! A page of tables and plots.

use super::page::{self, escape};
use super::plot::Plot;
use std::fmt::Write as _;
use std::io::{self, Write};

/// A self-contained page of headings, tables and plots.
///
/// The file opens from disk in any browser and loads nothing: its content security policy forbids
/// it. Texts are escaped.
///
/// ```
/// use trace_export::html::{Document, Form, Plot, Scale};
///
/// # fn main() -> std::io::Result<()> {
/// let mut document = Document::new("trace.out");
/// document.heading("Latency");
/// let mut plot = Plot::new("latencies by size", Form::Columns, Scale::Logarithmic);
/// plot.add("number", [(1e3, 20.0), (1e4, 5.0)]);
/// document.plots(&[plot]);
/// document.table(&["count", "function"], &["main.main"], |_| vec!["25".into(), "main.main".into()]);
/// let mut page = Vec::new();
/// document.write(&mut page)?;
/// # assert!(page.starts_with(b"<!doctype html>"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Document {
    title: String,
    summary: String,
    body: String,
}

impl Document {
    /// Makes an empty page.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), summary: String::new(), body: String::new() }
    }

    /// Sets the text beside the title.
    pub fn summary(&mut self, text: &str) {
        text.clone_into(&mut self.summary);
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// Adds a paragraph that stands out.
    pub fn warning(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"warning\">{}</p>", escape(text));
    }

    /// Adds plots beside each other, as far as there is room.
    pub fn plots(&mut self, plots: &[Plot]) {
        self.body.push_str("<div class=\"plots\">\n");
        plots.iter().for_each(|plot| self.body.push_str(&plot.html()));
        self.body.push_str("</div>\n");
    }

    /// Adds a table. The last column is text, the others are aligned as numbers.
    pub fn table<T>(&mut self, columns: &[&str], rows: &[T], row: impl Fn(&T) -> Vec<String>) {
        let class =
            |number: usize| if number + 1 == columns.len() { " class=\"text\"" } else { "" };
        self.body.push_str("<table>\n<tr>");
        for (number, column) in columns.iter().enumerate() {
            let _ = write!(self.body, "<th{}>{}</th>", class(number), escape(column));
        }
        self.body.push_str("</tr>\n");
        for each in rows {
            self.body.push_str("<tr class=\"row\">");
            for (number, cell) in row(each).iter().enumerate() {
                let _ = write!(self.body, "<td{}>{}</td>", class(number), escape(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</table>\n");
    }

    /// Adds a line that opens to a list, such as the frames of a stack.
    pub fn details<S: AsRef<str>>(&mut self, line: &str, list: &[S]) {
        let _ =
            write!(self.body, "<details><summary>{}</summary><ol class=\"stack\">", escape(line));
        for item in list {
            let _ = write!(self.body, "<li>{}</li>", escape(item.as_ref()));
        }
        self.body.push_str("</ol></details>\n");
    }

    /// Writes the page; returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<u64> {
        page::write_document(out, &self.title, &self.summary, &self.body)
    }
}
