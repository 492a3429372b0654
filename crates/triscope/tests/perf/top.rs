//! `triscope top` of programs that know where their time goes. `tests/top.rs` has the terminal.

use crate::needs_root;
use crate::sampling::{FRAME_POINTERS, compiled, longer_until_right};
use crate::support::{Ran, run_in};
use serde_json::Value;

/// The table is all of the output.
fn table(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap()
}

/// The shares of the three functions in the table, and those that the program printed.
fn shares(ran: &Ran) -> [[f64; 3]; 2] {
    let table = table(ran);
    let total = |name: &str| {
        let functions = table["functions"].as_array().unwrap().iter();
        let of = functions.filter(|function| function["name"] == name);
        of.map(|function| function["total"].as_f64().unwrap()).sum()
    };
    let printed = |name: &str| {
        let line = ran.stderr.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    let share = |of: [f64; 3]| of.map(|value| value / of.iter().sum::<f64>());
    let names = ["sixty", "thirty", "ten"];
    [share(names.map(total)), share(names.map(printed))]
}

#[test]
fn waits_have_their_share_of_the_time() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compiled(dir.path(), &FRAME_POINTERS) else { return };
    let program = program.to_str().unwrap();
    for (mode, kind) in [("--off-cpu", "sleep"), ("--off-cpu", "lock"), ("--wall", "sleep")] {
        let ran = longer_until_right(|longer| {
            let (delay, rounds) = ((600 * longer).to_string(), (60 * longer).to_string());
            let top = ["top", "--json", "--delay", &delay, mode, "--", program, kind, &rounds];
            let ran = run_in(dir.path(), &top);
            ran.is_good();
            let [found, known] = shares(&ran);
            match (0..3).all(|n| (found[n] - known[n]).abs() < 0.03) {
                true => Ok(ran),
                false => Err(format!("{mode} {kind}: {found:?} {known:?}\n{}", ran.stdout)),
            }
        });
        // The function that waits called the kernel.
        let row = &table(&ran)["functions"][0];
        let is_user = row["file"].as_str().is_some_and(|file| !file.starts_with("[kernel"));
        assert!(is_user && row["self"].as_f64() > Some(0.3), "{mode} {kind}: {row}");
    }
}
