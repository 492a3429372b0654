//! Processes by name.

use super::procfs::{comm, command_line, is_running};
use std::path::Path;

/// Whether a word of a command line is a program of this name, with or without its directory and
/// extension.
pub(crate) fn is_program(word: &str, name: &str) -> bool {
    let path = Path::new(word);
    path.file_name().is_some_and(|n| n == name) || path.file_stem().is_some_and(|n| n == name)
}

/// The only process that runs and whose main thread or program has this name.
pub(crate) fn process_named(name: &str) -> Result<u32, String> {
    let own = std::process::id();
    let is_named = |pid: &u32| {
        comm(*pid, *pid) == name.as_bytes()
            || command_line(*pid).first().is_some_and(|program| is_program(program, name))
    };
    let named = perf_monitor::processes().into_iter().filter(|pid| *pid != own).filter(is_named);
    only(name, "process", &mut named.filter(|pid| is_running(*pid)))
}

/// The only one of these processes, which have this name.
pub(crate) fn only(
    name: &str,
    what: &str,
    named: &mut dyn Iterator<Item = u32>,
) -> Result<u32, String> {
    match (named.next(), named.next()) {
        (Some(pid), None) => Ok(pid),
        (None, _) => Err(format!("there is no {what} called {name}")),
        (Some(a), Some(b)) => {
            let more = if named.next().is_some() { ", …" } else { "" };
            Err(format!(
                "there is more than one {what} called {name} ({a}, {b}{more}): choose by PID"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::wait;
    use std::process::{Command, Stdio};

    #[test]
    fn programs_have_their_name_without_directory_and_extension() {
        assert!(is_program("/bin/shop", "shop") && is_program("app.dll", "app"));
        assert!(is_program("app.dll", "app.dll") && !is_program("/shop/bin", "shop"));
    }

    #[test]
    fn a_process_that_has_ended_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("t{}", std::process::id());
        let program = dir.path().join(&name);
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let start = |script: &str| {
            let mut command = Command::new(&program);
            command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
        };
        let (mut ended, mut running) = (start("exit"), start("read line"));
        // It is a zombie: nobody has waited for it.
        wait::until("its end", || !is_running(ended.id()));
        // A program that has just been started can still have the name of the one that started it.
        wait::until("its name", || comm(running.id(), running.id()) == name.as_bytes());
        assert_eq!(process_named(&name), Ok(running.id()));
        running.kill().unwrap();
        running.wait().unwrap();
        ended.wait().unwrap();
    }

    #[test]
    fn a_name_stands_for_one_process() {
        let one = |pids: &[u32]| only("a", "process", &mut pids.iter().copied());
        assert_eq!(one(&[7]), Ok(7));
        assert_eq!(one(&[]).unwrap_err(), "there is no process called a");
        let (two, three) = (one(&[1, 2]).unwrap_err(), one(&[1, 2, 3]).unwrap_err());
        assert_eq!(two, "there is more than one process called a (1, 2): choose by PID");
        assert!(three.contains("(1, 2, …)"), "{three}");
    }
}
