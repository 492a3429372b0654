//! Answers as text.

use crate::{Error, one_line};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::JsonArray;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use std::io::{self, Stdout, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
    Csv,
}

/// The standard output. A table is printed at the end, when its widths are known.
pub(crate) enum Output {
    Table(SchemaRef, Vec<RecordBatch>),
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

fn broken(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::Io("standard output".to_owned(), error),
    }
}

impl Output {
    pub(crate) fn new(format: Format, schema: SchemaRef) -> Self {
        match format {
            Format::Table => Self::Table(schema, Vec::new()),
            Format::Json => {
                let builder = WriterBuilder::new().with_explicit_nulls(true);
                Self::Json(Box::new(builder.build(io::stdout())))
            }
            Format::Csv => Self::Csv(Box::new(csv::Writer::new(io::stdout())), schema),
        }
    }

    pub(crate) fn write(&mut self, batch: RecordBatch) -> Result<(), Error> {
        match self {
            Self::Table(_, batches) => batches.push(batch),
            Self::Json(writer) => writer.write(&batch).map_err(failed)?,
            Self::Csv(writer, _) => writer.write(&batch).map_err(failed)?,
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(), Error> {
        match self {
            Self::Table(schema, batches) => print(&schema, &batches).map_err(failed),
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

/// Columns with two spaces between them, numbers to the right.
fn print(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<(), ArrowError> {
    let options = FormatOptions::new().with_null("NULL");
    let fields = schema.fields();
    let mut rows: Vec<Vec<String>> =
        vec![fields.iter().map(|field| one_line(field.name())).collect()];
    for batch in batches {
        let columns =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells = columns.iter().map(|column| one_line(&column.value(row).to_string()));
            rows.push(cells.collect());
        }
    }
    let mut widths = vec![0; fields.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), field) in row.iter().zip(&widths).zip(fields) {
            match field.data_type().is_numeric() {
                true => line.push_str(&format!("{cell:>width$}  ")),
                false => line.push_str(&format!("{cell:<width$}  ")),
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()?;
    Ok(())
}
