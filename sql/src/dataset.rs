//! The tables of a dataset.

use crate::Error;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::TableReference;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trace_dataset::{ColumnType, TABLES, Table};
use url::Url;

/// The schema of the files, below the views.
const FILES: &str = "files";

/// The partitions, from the outermost directory on.
const PARTITIONS: [&str; 2] = ["date", "host"];

/// The value of a partition that is not known.
const UNKNOWN: &str = "__HIVE_DEFAULT_PARTITION__";

/// A context with the tables of the dataset at `dir`.
///
/// The columns are those of this version of the schema: a file without one has `NULL`, and no metadata
/// is read before a question needs it. `memory` is the limit in bytes for rows that are ordered, grouped or
/// joined: orders and joins continue in temporary files, the values of exact percentiles cannot.
pub(crate) async fn open(dir: &Path, memory: Option<usize>) -> Result<SessionContext, Error> {
    let fail = |error| Error::Io(dir.display().to_string(), error);
    let dir = dir.canonicalize().map_err(fail)?;
    if !dir.join("recordings").is_dir() {
        let what = "no dataset of triscope export: it has no directory recordings";
        return Err(fail(io::Error::other(what)));
    }
    // The engine keeps paths as texts.
    if dir.to_str().is_none() {
        return Err(fail(io::Error::other("the path is not UTF-8: rename the directory")));
    }
    let mut config = SessionConfig::new().with_information_schema(true);
    let options = config.options_mut();
    // Conditions are evaluated while files are decoded, on the pages that can have matches.
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    let mut runtime = RuntimeEnvBuilder::new();
    if let Some(memory) = memory {
        runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(memory)));
    }
    let context = SessionContext::new_with_config_rt(config, runtime.build_arc()?);
    context.sql(&format!("CREATE SCHEMA {FILES}")).await?;
    for table in TABLES {
        add(&context, table, &dir).await?;
    }
    Ok(context)
}

async fn add(context: &SessionContext, table: &Table, dir: &Path) -> Result<(), Error> {
    let name = table.name;
    let path = dir.join(name);
    // A column with the name of a partition has the same values.
    let columns = table.columns.iter().filter(|column| !PARTITIONS.contains(&column.name));
    let fields = columns.clone().map(|column| {
        let kind = match column.kind {
            ColumnType::Int => DataType::Int64,
            ColumnType::Double => DataType::Float64,
            ColumnType::Bool => DataType::Boolean,
            _ => DataType::Utf8View,
        };
        Field::new(column.name, kind, true)
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let columns: Vec<_> = columns.map(|column| format!("\"{}\"", column.name)).collect();
    let columns = columns.join(", ");
    // A dataset of an older version may lack a table: it is empty.
    if !path.is_dir() {
        let empty = datafusion::datasource::empty::EmptyTable::new(schema);
        context.register_table(TableReference::partial(FILES, name), Arc::new(empty))?;
        let view = format!(
            "CREATE VIEW {name} AS SELECT {columns}, CAST(NULL AS VARCHAR) AS date, \
             CAST(NULL AS VARCHAR) AS host FROM {FILES}.{name}"
        );
        context.sql(&view).await?;
        return Ok(());
    }
    let format = Arc::new(ParquetFormat::default());
    let partitions = PARTITIONS.map(|name| (name.to_owned(), DataType::Utf8));
    let options = ListingOptions::new(format)
        .with_file_extension(".parquet")
        .with_table_partition_cols(partitions.to_vec());
    // A path as a text would be a pattern if it had `[`, `*` or `?`.
    let url = Url::from_directory_path(&path).map_err(|()| {
        Error::Io(path.display().to_string(), io::Error::other("the path has no URL"))
    })?;
    let url = ListingTableUrl::try_new(url, None)?;
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(schema);
    context.register_table(
        TableReference::partial(FILES, name),
        Arc::new(ListingTable::try_new(config)?),
    )?;
    let view = format!(
        "CREATE VIEW {name} AS SELECT {columns}, nullif(date, '{UNKNOWN}') AS date, \
         nullif(host, '{UNKNOWN}') AS host FROM {FILES}.{name}"
    );
    context.sql(&view).await?;
    Ok(())
}

/// Fails if a table of the plan has an empty file, e.g. of a machine that lost power: the engine would
/// leave it out.
pub(crate) fn check(plan: &LogicalPlan, dir: &Path) -> Result<(), Error> {
    let empty = find(plan, dir, |file| Ok(file.metadata()?.len() == 0))?;
    empty.map_or(Ok(()), |path| {
        let error = io::Error::other("the file is empty: export its recording again");
        Err(Error::Io(path.display().to_string(), error))
    })
}

/// A file of the tables of the plan that does not begin and end as Parquet does: the engine does not name
/// it.
pub(crate) fn incomplete(plan: &LogicalPlan, dir: &Path) -> Option<PathBuf> {
    const MAGIC: &[u8; 4] = b"PAR1";
    let is_incomplete = |mut file: File| -> io::Result<bool> {
        let (mut first, mut last) = ([0; 4], [0; 4]);
        file.read_exact(&mut first)?;
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut last)?;
        Ok(&first != MAGIC || &last != MAGIC)
    };
    find(plan, dir, |file| is_incomplete(file).or(Ok(true))).ok()?
}

/// The first file of the tables of the plan that is `wanted`.
fn find(
    plan: &LogicalPlan,
    dir: &Path,
    wanted: impl Fn(File) -> io::Result<bool>,
) -> Result<Option<PathBuf>, Error> {
    let mut tables = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            tables.insert(scan.table_name.table().to_owned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    for table in tables {
        let mut dirs = vec![dir.join(table)];
        while let Some(dir) = dirs.pop() {
            // A table may be missing, and there are tables of the engine.
            let Ok(entries) = dir.read_dir() else { continue };
            for entry in entries {
                let path = entry.map_err(|e| Error::Io(dir.display().to_string(), e))?.path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.extension().is_some_and(|extension| extension == "parquet") {
                    let found = File::open(&path).and_then(&wanted);
                    match found {
                        Ok(true) => return Ok(Some(path)),
                        Ok(false) => {}
                        Err(error) => return Err(Error::Io(path.display().to_string(), error)),
                    }
                }
            }
        }
    }
    Ok(None)
}
