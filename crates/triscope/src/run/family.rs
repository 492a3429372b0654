//! A process and its descendants.

use super::procfs;
use std::collections::{BTreeMap, BTreeSet};

/// A process and its descendants, as `/proc` shows them from time to time. A child whose parent ended
/// between two looks is missing; the kernel's records of forks have it.
pub(crate) struct Family {
    /// With their start times: a process id can be reused.
    known: BTreeMap<u32, u64>,
}

impl Family {
    pub(crate) fn new(pid: u32) -> Self {
        Self { known: procfs::start_time(pid).map(|start| (pid, start)).into_iter().collect() }
    }

    /// The members that run now.
    pub(crate) fn look(&mut self) -> BTreeSet<u32> {
        self.known.retain(|pid, start| procfs::start_time(*pid) == Some(*start));
        let mut unexamined: Vec<u32> = self.known.keys().copied().collect();
        while let Some(parent) = unexamined.pop() {
            for child in procfs::children(parent) {
                if let (false, Some(start)) =
                    (self.known.contains_key(&child), procfs::start_time(child))
                {
                    self.known.insert(child, start);
                    unexamined.push(child);
                }
            }
        }
        self.known.keys().copied().collect()
    }
}

/// Looks at known processes in turn: a few at each look.
#[derive(Default)]
pub(crate) struct Turns {
    /// The process that was looked at last.
    last: u32,
}

impl Turns {
    /// The next processes, at most `count`; from the beginning when all had their turn.
    pub(crate) fn next<T>(&mut self, known: &BTreeMap<u32, T>, count: usize) -> Vec<u32> {
        let after = known.range(self.last.saturating_add(1)..);
        let pids: Vec<u32> = after.map(|(pid, _)| *pid).take(count).collect();
        self.last = pids.last().copied().filter(|_| pids.len() == count).unwrap_or_default();
        pids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// A shell, its child, and the child's child, which waits for the end of its input. What a shell
    /// starts with `&` reads from `/dev/null`, so the input is duplicated before that.
    #[test]
    fn orphans_stay_in_the_family() {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "exec 3<&0; sh -c 'sh -c \"echo \\$\\$; read x\" <&3 & echo $!; wait' & wait",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // `wait` closes the input of a child that has it.
        let input = shell.stdin.take();
        let mut family = Family::new(shell.id());
        let mut text = Vec::new();
        let mut output = shell.stdout.take().unwrap();
        while text.iter().filter(|b| **b == b'\n').count() < 2 {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            text.extend(byte);
        }
        let text = String::from_utf8(text).unwrap();
        let grandchild: u32 = text.lines().next().unwrap().parse().unwrap();
        let members = family.look();
        assert!(members.contains(&shell.id()) && members.contains(&grandchild), "{members:?}");
        assert!(!members.contains(&std::process::id()));
        shell.kill().unwrap();
        shell.wait().unwrap();
        let members = family.look();
        assert!(!members.contains(&shell.id()) && members.contains(&grandchild), "{members:?}");
        // The end of the input ends it.
        drop(input);
        output.read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn each_process_has_its_turn() {
        let known: BTreeMap<u32, ()> = [3, 5, 8, 9].map(|pid| (pid, ())).into();
        let mut turns = Turns::default();
        let looks: Vec<_> = (0..4).map(|_| turns.next(&known, 3)).collect();
        assert_eq!(looks, [vec![3, 5, 8], vec![9], vec![3, 5, 8], vec![9]]);
        assert!(turns.next(&BTreeMap::<u32, ()>::new(), 3).is_empty());
    }
}
