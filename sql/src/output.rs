//! Answers as text.

use crate::{Error, one_line};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{Field, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::JsonArray;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use std::fmt::Write as _;
use std::io::{self, Stdout, Write as _};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    Csv,
}

/// The standard output. A table is printed at the end, when its widths are known.
pub(crate) enum Output {
    Table(Text),
    Json(Box<datafusion::arrow::json::Writer<Stdout, JsonArray>>),
    Csv(Box<csv::Writer<Stdout>>, SchemaRef),
}

fn failed(error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, error) => broken(error),
        ArrowError::ExternalError(error) => match error.downcast::<io::Error>() {
            Ok(error) => broken(*error),
            Err(error) => broken(io::Error::other(error)),
        },
        error => broken(io::Error::other(error)),
    }
}

/// The error of a write to the standard output.
pub(crate) fn broken(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::Io("standard output".to_owned(), error),
    }
}

impl Output {
    /// A table takes its memory from the pool.
    pub(crate) fn new(format: Format, schema: SchemaRef, pool: &Arc<dyn MemoryPool>) -> Self {
        match format {
            Format::Table => Self::Table(Text::new(&schema, pool)),
            Format::Json => {
                let builder = WriterBuilder::new().with_explicit_nulls(true);
                Self::Json(Box::new(builder.build(io::stdout())))
            }
            Format::Csv => Self::Csv(Box::new(csv::Writer::new(io::stdout())), schema),
        }
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        match self {
            Self::Table(text) => text.push(batch),
            Self::Json(writer) => writer.write(batch).map_err(failed),
            Self::Csv(writer, _) => writer.write(batch).map_err(failed),
        }
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        match self {
            Self::Table(text) => text.print().map_err(broken),
            Self::Json(mut writer) => {
                writer.finish().map_err(failed)?;
                writeln!(io::stdout()).map_err(broken)
            }
            // The header is written with the first rows.
            Self::Csv(mut writer, schema) => {
                writer.write(&RecordBatch::new_empty(schema)).map_err(failed)
            }
        }
    }
}

struct Column {
    /// Characters.
    width: usize,
    is_numeric: bool,
}

/// A table in memory.
pub(crate) struct Text {
    columns: Vec<Column>,
    /// All cells, by row.
    cells: String,
    /// The end of each cell.
    ends: Vec<usize>,
    memory: MemoryReservation,
}

impl Text {
    fn new(schema: &SchemaRef, pool: &Arc<dyn MemoryPool>) -> Self {
        let column =
            |field: &Arc<Field>| Column { width: 0, is_numeric: field.data_type().is_numeric() };
        let columns = schema.fields().iter().map(column).collect();
        let memory = MemoryConsumer::new("table").register(pool);
        let mut this = Self { columns, cells: String::new(), ends: Vec::new(), memory };
        for (column, field) in schema.fields().iter().enumerate() {
            this.cell(column, field.name());
        }
        this
    }

    /// Adds the next cell of a row.
    fn cell(&mut self, column: usize, text: &str) {
        let text = one_line(text);
        if let Some(Column { width, .. }) = self.columns.get_mut(column) {
            *width = text.chars().count().max(*width);
        }
        self.cells.push_str(&text);
        self.ends.push(self.cells.len());
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let options = FormatOptions::new().with_null("NULL");
        let columns =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        for row in 0..batch.num_rows() {
            for (number, column) in columns.iter().enumerate() {
                self.cell(number, &column.value(row).to_string());
            }
        }
        let bytes = self.cells.capacity() + self.ends.capacity() * size_of::<usize>();
        self.memory.try_resize(bytes).map_err(|_| Error::Table)
    }

    /// Prints two spaces between columns, and numbers to the right.
    fn print(&self) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let mut start = 0;
        for ends in self.ends.chunks(self.columns.len().max(1)) {
            let mut line = String::new();
            for (Column { width, is_numeric }, end) in self.columns.iter().zip(ends) {
                let cell = self.cells.get(start..*end).unwrap_or_default();
                start = *end;
                // A String takes all.
                let _ = match is_numeric {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        out.flush()
    }
}
