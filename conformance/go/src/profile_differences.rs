//! `triscope diff` compared with `go tool pprof -diff_base`, for profiles that `go tool trace` writes.

use super::toolchain::Toolchain;
use super::{Tools, analyses, parallel};
use gotrace::analysis::ProfileKind;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, run};

/// Profiles that are compared, each with the next one.
const PROFILES: usize = 8;

/// Compares the functions of pairs of profiles; returns the number of differences.
pub(crate) fn check(tools: &Tools, toolchains: &[Toolchain], corpus: &[PathBuf]) -> Result<usize> {
    let dir = tempfile::tempdir()?;
    let mut profiles = Vec::new();
    for (name, path) in tools.traces(toolchains, corpus, &[]) {
        // Damaged and old traces have no profiles.
        let Ok(profile) = analyses::written_profile(tools, ProfileKind::Sync, &path) else {
            continue;
        };
        if profile.len() < 1_000 {
            continue;
        }
        let path = dir.path().join(format!("{}.pb.gz", profiles.len()));
        fs::write(&path, profile)?;
        profiles.push((name, path));
        if profiles.len() == PROFILES {
            break;
        }
    }
    if profiles.len() < PROFILES {
        return Err(format!("{} of {PROFILES} traces with profiles", profiles.len()).into());
    }
    let pairs = profiles.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let compared = parallel(pairs, |((name, before), (other, after))| {
        let (functions, differences) = compare(tools, &before, &after)
            .map_err(|error| format!("difference of {name} and {other}: {error}"))?;
        Ok((format!("{name}, {other}"), functions, differences))
    })?;
    let (mut failed, mut functions) = (0, 0);
    for (names, compared, differences) in compared {
        functions += compared;
        for difference in differences {
            failed += 1;
            println!("DIFFERENT: difference of {names}: {difference}");
        }
    }
    println!(
        "differences of profiles: {} pairs, {functions} functions, {failed} differences",
        PROFILES - 1
    );
    Ok(failed)
}

/// The weights of a function in itself, and with what it calls.
type Weights = [f64; 2];

/// The number of functions that were compared, and what differs.
fn compare(tools: &Tools, before: &Path, after: &Path) -> Result<(usize, Vec<String>)> {
    let mut diff = Command::new(&tools.triscope);
    let ours = run::output(diff.args(["diff", "--json"]).args([before, after]))?;
    let ours: Value = serde_json::from_slice(&ours)?;
    let number = |value: &Value, keys: &[&str]| -> Result<f64> {
        let found = keys.iter().try_fold(value, |value, key| value.get(key));
        found.and_then(Value::as_f64).ok_or_else(|| format!("no {keys:?} in {value}").into())
    };
    let [total_before, total_after] =
        [&["before", "total"], &["after", "total"]].map(|keys| number(&ours, keys));
    let ratio = total_before? / total_after?;
    // Each scaled sample is truncated, and there are at most as many as events.
    let most = number(&ours, &["after", "samples"])?;
    let (mut compared, mut differences) = (0, Vec::new());
    for (option, ratio, tolerance) in [(None, 1.0, 0.0), (Some("-normalize"), ratio, most)] {
        let mut theirs = functions_of_pprof(tools, option, before, after)?;
        for function in ours["functions"].as_array().into_iter().flatten() {
            let name = function["name"].as_str().unwrap_or_default();
            let ours = [("self", "flat"), ("total", "cum")].map(|(key, _)| {
                let before = number(function, &[key, "before"]);
                let after = number(function, &[key, "after"]);
                Ok::<f64, task_support::Error>(after? * ratio - before?)
            });
            let [own, total] = ours;
            let (own, total) = (own?, total?);
            // Functions without a difference are left out.
            let [flat, cum] = theirs.remove(name).unwrap_or_default();
            compared += 1;
            if (own - flat).abs() > tolerance || (total - cum).abs() > tolerance {
                let what = option.unwrap_or("absolute");
                let text = format!("{what} {name}: {own} {total}, not {flat} {cum}");
                differences.push(text);
            }
        }
        differences.extend(theirs.keys().map(|name| format!("{name} is missing")));
    }
    Ok((compared, differences))
}

/// The functions in the text of `go tool pprof -top`: lines `FLAT FLAT% SUM% CUM CUM% NAME`.
fn functions_of_pprof(
    tools: &Tools,
    option: Option<&str>,
    before: &Path,
    after: &Path,
) -> Result<BTreeMap<String, Weights>> {
    let mut pprof = Command::new(&tools.pprof_tool);
    pprof.args(["-top", "-symbolize=none", "-unit=ns", "-nodecount=1000000", "-nodefraction=0"]);
    pprof.args(option).arg("-diff_base").args([before, after]);
    let text = String::from_utf8(run::output(&mut pprof)?)?;
    let (_, rows) = text.split_once("cum%\n").ok_or_else(|| format!("no table in:\n{text}"))?;
    let mut functions = BTreeMap::new();
    for row in rows.lines() {
        let mut cells = row.split_whitespace();
        let mut weight = |skipped| cells.nth(skipped)?.trim_end_matches("ns").parse::<f64>().ok();
        let (Some(flat), Some(cum)) = (weight(0), weight(2)) else {
            return Err(format!("no function: {row}").into());
        };
        // Behind the share of the sum.
        let name = cells.skip(1).collect::<Vec<_>>().join(" ");
        let name = name.trim_end_matches(" (inline)").trim_end_matches(" (partial-inline)");
        functions.insert(name.to_owned(), [flat, cum]);
    }
    Ok(functions)
}
