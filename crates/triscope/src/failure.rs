use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// An error that ends a command early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A message for the user, on one line, and the exit code.
    Message(String, u8),
    /// Only the exit code: the message was already printed, or the reader of the output has gone.
    Quiet(u8),
}

/// The result of a command.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// The exit status that shells report for a process killed by SIGPIPE.
const SIGPIPE: u8 = 128 + 13;

impl Failure {
    /// A failure with this message.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self::Message(message.to_string(), 1)
    }

    /// A failure of the input or output with this name.
    pub(crate) fn about(name: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self::new(format_args!("{name}: {message}"))
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        match self {
            Self::Message(message, _) => Self::Message(message, code),
            Self::Quiet(_) => Self::Quiet(code),
        }
    }

    /// A failure to write to standard output.
    pub(crate) fn output(error: &io::Error) -> Self {
        Self::of_stream("standard output", error)
    }

    /// A failure to write to standard error.
    pub(crate) fn stderr(error: &io::Error) -> Self {
        Self::of_stream("standard error", error)
    }

    fn of_stream(name: &str, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Quiet(SIGPIPE)
        } else {
            Self::about(name, error)
        }
    }

    /// The same failure with a note appended to its message.
    pub(crate) fn and(self, note: impl fmt::Display) -> Self {
        match self {
            Self::Message(message, code) => Self::Message(format!("{message}; {note}"), code),
            Self::Quiet(_) => self,
        }
    }

    /// The message; empty if it was printed before.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Message(message, _) => message,
            Self::Quiet(_) => "",
        }
    }

    /// Prints the message on standard error.
    pub(crate) fn print(&self) {
        if let Self::Message(message, _) = self {
            message!("triscope: {}", OneLine(message));
        }
    }

    /// The same failure, whose message was printed.
    pub(crate) fn printed(self) -> Self {
        let (Self::Message(_, code) | Self::Quiet(code)) = self;
        Self::Quiet(code)
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        self.print();
        let (Self::Message(_, code) | Self::Quiet(code)) = self;
        ExitCode::from(code)
    }
}

/// A path as a word of a POSIX shell.
pub(crate) struct ForShell<'a>(pub(crate) &'a Path);

impl fmt::Display for ForShell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.display().to_string();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            f.write_str(&word)
        } else {
            write!(f, "'{}'", word.replace('\'', "'\\''"))
        }
    }
}

/// Text from a possibly hostile input or file name, escaped for a terminal.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| write_escaped(c, f))
    }
}

/// As [`OneLine`], of any number of lines.
pub(crate) struct Lines<'a>(pub(crate) &'a str);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .chars()
            .try_for_each(|c| if c == '\n' { f.write_char(c) } else { write_escaped(c, f) })
    }
}

fn write_escaped(c: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let text = "a\n\u{1b}[2J\u{9b}\r\n";
        assert_eq!(Lines(text).to_string(), "a\n\\u{1b}[2J\\u{9b}\\r\n");
        assert_eq!(OneLine(text).to_string(), "a\\n\\u{1b}[2J\\u{9b}\\r\\n");
    }

    #[test]
    fn words_of_a_shell_are_quoted() {
        let word = |path: &str| ForShell(Path::new(path)).to_string();
        assert_eq!(word("./a-b/c_1.html"), "./a-b/c_1.html");
        assert_eq!(word("a b"), "'a b'");
        assert_eq!(word("it's"), "'it'\\''s'");
        assert_eq!(word("$HOME"), "'$HOME'");
        assert_eq!(word("é"), "'é'");
        assert_eq!(word(""), "''");
    }
}
