//! A process as `/proc` shows it.

use super::Container;
use super::proc::Proc;

/// A process as `/proc` shows it now.
///
/// ```
/// let this = perf_monitor::ProcessInfo::read(std::process::id()).unwrap();
/// println!("{} runs {}", this.parent, this.command_line());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The process id.
    pub pid: u32,
    /// The process id of its parent; 0 for one that the kernel started.
    pub parent: u32,
    /// Its arguments, the first of which names the program; empty for a thread of the kernel. Of
    /// long ones the first [`MAX_ARGUMENTS`](Self::MAX_ARGUMENTS) bytes.
    pub arguments: Vec<String>,
    /// Whether there are more arguments than [`arguments`](Self::arguments) has.
    pub is_truncated: bool,
    /// The path of the executable; `None` for a thread of the kernel, and for a process of another
    /// user without `CAP_SYS_PTRACE`.
    pub executable: Option<String>,
    /// The path of its cgroup.
    pub cgroup: Option<String>,
}

impl ProcessInfo {
    /// Bytes of the arguments that are read.
    pub const MAX_ARGUMENTS: usize = 4096;

    /// Reads what is known of a process. `None` if it does not exist, or has ended and waits for its
    /// parent.
    ///
    /// A process can change its arguments. Needs no privilege, but for the executables of other
    /// users' processes. Sources: `proc_pid_cmdline(5)`, `proc_pid_status(5)`, `proc_pid_exe(5)`,
    /// `proc_pid_cgroup(5)`.
    pub fn read(pid: u32) -> Option<Self> {
        Proc::default().process(pid)
    }

    /// The arguments as one text, those with other characters than names and options have in
    /// quotation marks, as for a POSIX shell. A truncated one ends with `…`.
    pub fn command_line(&self) -> String {
        let mut line = String::new();
        for argument in &self.arguments {
            if !line.is_empty() {
                line.push(' ');
            }
            let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
            if !argument.is_empty() && argument.chars().all(is_plain) {
                line.push_str(argument);
            } else {
                line.push('\'');
                line.push_str(&argument.replace('\'', "'\\''"));
                line.push('\'');
            }
        }
        if self.is_truncated {
            line.push('…');
        }
        line
    }

    /// Its container, according to its cgroup.
    pub fn container(&self) -> Option<Container> {
        Container::of_cgroup(self.cgroup.as_deref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found() {
        let this = ProcessInfo::read(std::process::id()).unwrap();
        assert_eq!(this.pid, std::process::id());
        assert_eq!(this.parent, std::os::unix::process::parent_id());
        let arguments: Vec<String> = std::env::args().collect();
        assert_eq!(this.arguments, arguments);
        let own = std::env::current_exe().unwrap();
        assert_eq!(this.executable, Some(own.display().to_string()));
        assert_eq!(ProcessInfo::read(u32::MAX), None);
    }

    #[test]
    fn long_arguments_are_truncated() {
        let long = "x".repeat(3 * ProcessInfo::MAX_ARGUMENTS);
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read line", "sh", &long])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It has called execve(2) when it prints.
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let info = ProcessInfo::read(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(info.is_truncated);
        let bytes: usize = info.arguments.iter().map(|argument| argument.len() + 1).sum();
        assert_eq!(bytes, ProcessInfo::MAX_ARGUMENTS + 1);
        assert_eq!(info.arguments.first().map(String::as_str), Some("sh"));
        assert!(info.command_line().ends_with("x…"));
    }

    #[test]
    fn command_lines_are_quoted() {
        let line = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            ProcessInfo { arguments, ..ProcessInfo::default() }.command_line()
        };
        assert_eq!(line(&["/bin/a", "--n=1", "x y", ""]), "/bin/a --n=1 'x y' ''");
        assert_eq!(line(&["it's", "a\nb"]), "'it'\\''s' 'a\nb'");
        assert_eq!(line(&[]), "");
    }
}
