//! Every workload with every toolchain: gotrace against the reference.

use super::batches;
use super::compare;
use super::footprint;
use super::judge::{Judge, Verdict};
use super::pieces;
use super::reference::{Printed, Reference};
use super::toolchain::{self, Toolchain};
use super::workload::{self, Workload};
use super::{Tools, parallel};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use task_support::{Result, lane, run};

/// The result of one cell of the matrix.
#[derive(Debug)]
pub(crate) struct Cell {
    workload: &'static str,
    minor: u32,
    bytes: u64,
    events: usize,
    /// Tasks and regions, each with a critical path.
    requests: usize,
    accepted: bool,
    problems: Vec<String>,
    kinds: BTreeMap<String, u64>,
}

/// Records and compares all cells; prints the table and the events that occurred.
pub(crate) fn check(tools: &Tools, toolchains: &[Toolchain], only: &[String]) -> Result<usize> {
    let mut work = Vec::new();
    let have_c = run::have("gcc") || run::have("cc");
    if !have_c {
        lane::skip("Go workloads with cgo", &"there is no C compiler")?;
    }
    for workload in workload::ALL {
        for toolchain in toolchains {
            let chosen = only.is_empty() || only.iter().any(|name| name == workload.name);
            if chosen && workload.runs_with(toolchain) && (have_c || !workload.needs_c()) {
                work.push((workload, toolchain.clone()));
            }
        }
    }
    // First the programs, one at a time for each toolchain: several traces need the same one.
    parallel(toolchains.to_vec(), |toolchain| {
        work.iter()
            .filter(|(_, t)| t.version == toolchain.version)
            .try_for_each(|(workload, toolchain)| workload.program(toolchain).map(drop))
    })?;
    let cells = parallel(work, |(workload, toolchain)| cell(tools, &workload, &toolchain))?;
    print_table(&cells, toolchains);
    print_kinds(&cells);
    let mut failed = 0;
    for cell in &cells {
        for problem in &cell.problems {
            failed += 1;
            println!("DIFFERENT: {} by Go 1.{}: {problem}\n", cell.workload, cell.minor);
        }
    }
    let sum = |of: fn(&Cell) -> usize| cells.iter().map(of).sum::<usize>();
    println!(
        "{} traces, {} events, {} critical paths of tasks and regions",
        cells.len(),
        sum(|cell| cell.events),
        sum(|cell| cell.requests),
    );
    Ok(failed)
}

fn cell(tools: &Tools, workload: &Workload, toolchain: &Toolchain) -> Result<Cell> {
    let dir = workload.recorded(toolchain, &tools.variant(), |dir| {
        Reference::ask(&tools.trace_tool, &dir.join("trace"))?.save(dir)
    })?;
    let reference = Reference::load(&dir)?;
    let trace = dir.join("trace");
    let mut problems = compare_file(tools, &trace, &trace, &reference)?;
    if toolchain.version == toolchain::NEWEST && reference.wire.accepted() {
        problems.extend(footprint::compare(tools, &trace)?);
    }
    let paths = pieces::of(&trace)?;
    problems.extend(paths.problems);
    Ok(Cell {
        workload: workload.name,
        minor: toolchain.minor(),
        bytes: fs::metadata(&trace)?.len(),
        events: compare::count(&reference.events.text),
        requests: paths.requests,
        accepted: reference.events.accepted(),
        problems,
        kinds: kinds(&reference.wire),
    })
}

/// All differences between our output for `file` and the reference's for `original` (the same
/// trace, possibly in another form).
pub(crate) fn compare_file(
    tools: &Tools,
    file: &Path,
    original: &Path,
    reference: &Reference,
) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let ours = tools.ours("events", file)?;
    if batches::minor(&fs::read(original)?) < 22 {
        // The order of the tool is random, that of the judge is fixed: see the module `judge`.
        let loose = compare::unordered_within_ticks;
        verdict(&mut problems, "go events", &ours, &reference.events);
        if let Some(d) = compare::difference(&loose(&ours.text), &loose(&reference.events.text)) {
            problems.push(format!("go events, whatever the order in a tick: {d}"));
        } else {
            let mut judge = Judge::start(&tools.judge)?;
            let answer = judge.ask("events", original)?;
            judge.finish()?;
            if (answer.verdict == Verdict::Accepted) != ours.accepted() {
                problems.push(format!("go events: the judge says {:?}", answer.verdict));
            }
            if let Some(d) = compare::difference(&ours.text, &answer.text) {
                problems.push(format!("go events, in order: {d}"));
            }
        }
    } else if reference.events.accepted() && batches::ends_within_generation(&fs::read(original)?) {
        // A known fault of the reference: it accepts a truncated generation as the end of the
        // trace.
        let honest = Printed { exit: Some(1), ..reference.events.clone() };
        same(&mut problems, "go events", &ours, &honest);
    } else {
        same(&mut problems, "go events", &ours, &reference.events);
    }
    same(&mut problems, "go wire", &tools.ours("wire", file)?, &reference.wire);
    Ok(problems)
}

fn same(problems: &mut Vec<String>, what: &str, ours: &Printed, theirs: &Printed) {
    verdict(problems, what, ours, theirs);
    if let Some(difference) = compare::difference(&ours.text, &theirs.text) {
        problems.push(format!("{what}: {difference}"));
    }
}

fn verdict(problems: &mut Vec<String>, what: &str, ours: &Printed, theirs: &Printed) {
    let expected = if theirs.accepted() { Some(0) } else { Some(1) };
    if ours.exit != expected {
        problems.push(format!(
            "{what}: exit code {:?} ({}), the reference has {:?} ({})",
            ours.exit,
            ours.remark.lines().next().unwrap_or_default(),
            theirs.exit,
            theirs.remark
        ));
    }
}

/// Counts the occurrences of each wire event, by name.
fn kinds(wire: &Printed) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for line in wire.text.split(|&b| b == b'\n') {
        if !line.is_empty() && line[0] != b'\t' {
            let name = line.split(|&b| b == b' ').next().unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            match kinds.get_mut(name.as_ref()) {
                Some(n) => *n += 1,
                None => drop(kinds.insert(name.into_owned(), 1)),
            }
        }
    }
    kinds
}

fn print_table(cells: &[Cell], toolchains: &[Toolchain]) {
    println!("\nevents / KiB of each trace (x: refused, by both; !: different)\n");
    print!("{:<12}", "workload");
    for toolchain in toolchains {
        print!(" {:>15}", format!("Go 1.{}", toolchain.minor()));
    }
    println!();
    for workload in workload::ALL {
        let row: Vec<_> = cells.iter().filter(|c| c.workload == workload.name).collect();
        if row.is_empty() {
            continue;
        }
        print!("{:<12}", workload.name);
        for toolchain in toolchains {
            let text = row.iter().find(|c| c.minor == toolchain.minor()).map(|c| {
                let mark = match (c.problems.is_empty(), c.accepted) {
                    (false, _) => "!",
                    (true, false) => "x",
                    (true, true) => "",
                };
                format!("{mark}{} / {}", c.events, c.bytes.div_ceil(1024))
            });
            print!(" {:>15}", text.as_deref().unwrap_or("-"));
        }
        println!();
    }
}

fn print_kinds(cells: &[Cell]) {
    let mut all: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
    for cell in cells {
        for (name, count) in &cell.kinds {
            let entry = all.entry(name).or_insert((0, 0));
            entry.0 += count;
            entry.1 += 1;
        }
    }
    println!("\n{} kinds of wire events (how many, in how many traces):", all.len());
    let list: Vec<_> =
        all.iter().map(|(name, (count, traces))| format!("{name} {count}/{traces}")).collect();
    println!("{}\n", list.join(", "));
}
