//! Options with a value for each file.

use crate::failure::{Failure, OneLine, Result};
use crate::run::duration;
use std::path::PathBuf;

/// The values of an option in the form `FILE=VALUE`, or `VALUE` if there is one file.
pub(crate) fn per_file<'a>(
    values: &'a [String],
    option: &str,
    files: &[PathBuf],
) -> Result<Vec<Option<&'a str>>> {
    let mut found = vec![None; files.len()];
    for value in values {
        let of = |file: &PathBuf| value.strip_prefix(file.to_str()?)?.strip_prefix('=');
        let mut is_used = false;
        for (found, file) in found.iter_mut().zip(files) {
            if let Some(value) = of(file) {
                *found = Some(value);
                is_used = true;
            }
        }
        match &mut found[..] {
            _ if is_used => {}
            [single] if !value.contains('=') => *single = Some(value.as_str()),
            _ => return Err(not_one_of(value, option, files)),
        }
    }
    Ok(found)
}

fn not_one_of(value: &str, option: &str, files: &[PathBuf]) -> Failure {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let names = names.join(", ");
    Failure::new(OneLine(&match value.rsplit_once('=') {
        Some((file, _)) => format!("{option}: {file} is none of the traces: {names}"),
        None => format!(
            "{option} {value}: with several traces, pass FILE=VALUE; FILE is one of {names}"
        ),
    }))
    .with_code(2)
}

/// `--offset` for each file, in nanoseconds: the `CLOCK_MONOTONIC` time at which the clock of the
/// trace shows 0.
pub(crate) fn offsets(values: &[String], files: &[PathBuf]) -> Result<Vec<Option<i64>>> {
    let nanos = |text: &str| {
        duration::seconds(text, duration::FINITE).map(duration::nanos).ok_or_else(|| {
            let message = format!("--offset: {text} is not a number of seconds");
            Failure::new(message).with_code(2)
        })
    };
    let values = per_file(values, "--offset", files)?;
    values.into_iter().map(|text| text.map(nanos).transpose()).collect()
}
