use std::fmt;

/// The first byte of a command: the component of the runtime that executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum CommandSet {
    /// Memory dumps.
    Dump = 0x01,
    /// Tracing sessions.
    EventPipe = 0x02,
    /// Profilers.
    Profiler = 0x03,
    /// The process and its runtime.
    Process = 0x04,
    /// Replies.
    Server = 0xff,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $set:ident $id:literal, $since:literal;)*) => {
        /// A command of the protocol.
        ///
        /// Commands are numbered per [`CommandSet`]. Each version of a command has its own number.
        /// A runtime that does not know it replies
        /// [`UnknownCommand`](crate::HResult::UnknownCommand).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Command { $($(#[$doc])* $name,)* }

        impl Command {
            /// All commands, by set and number.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The set of the command.
            pub const fn set(self) -> CommandSet {
                match self { $(Self::$name => CommandSet::$set,)* }
            }

            /// Its number within the set.
            pub const fn id(self) -> u8 {
                match self { $(Self::$name => $id,)* }
            }

            /// Its name in the specification.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The first runtime that supports it.
            pub const fn since(self) -> &'static str {
                match self { $(Self::$name => $since,)* }
            }
        }
    };
}

commands! {
    /// Writes a memory dump.
    CreateCoreDump = Dump 1, ".NET Core 3.1";
    /// `CreateCoreDump` with [`DumpFlags`](super::DumpFlags).
    CreateCoreDump2 = Dump 2, ".NET 6";
    /// `CreateCoreDump2` with an error text.
    CreateCoreDump3 = Dump 3, ".NET 8";
    /// Stops a tracing session.
    StopTracing = EventPipe 1, ".NET Core 3.1";
    /// Starts a tracing session, always with the default rundown.
    CollectTracing = EventPipe 2, ".NET Core 3.1";
    /// `CollectTracing`, with or without rundown.
    CollectTracing2 = EventPipe 3, ".NET Core 3.1";
    /// `CollectTracing2`, with or without stacks.
    CollectTracing3 = EventPipe 4, ".NET 9";
    /// `CollectTracing3` with the keywords of the rundown.
    CollectTracing4 = EventPipe 5, ".NET 9";
    /// `CollectTracing4` with event filters, or a user_events session.
    CollectTracing5 = EventPipe 6, ".NET 10";
    /// `CollectTracing5` with a buffering mode.
    CollectTracing6 = EventPipe 7, ".NET 11";
    /// Attaches a profiler to the running process.
    AttachProfiler = Profiler 1, ".NET Core 3.1";
    /// Sets the profiler that a suspended runtime loads at startup.
    StartupProfiler = Profiler 2, ".NET 6";
    /// Returns process id, command line, operating system and architecture.
    ProcessInfo = Process 0, ".NET 5";
    /// Resumes a runtime that is suspended at startup.
    ResumeRuntime = Process 1, ".NET 5";
    /// Returns the environment variables of the process.
    ProcessEnvironment = Process 2, ".NET 6";
    /// Sets or unsets an environment variable of the process.
    SetEnvironmentVariable = Process 3, ".NET 6";
    /// `ProcessInfo` with the entry assembly and the runtime's version.
    ProcessInfo2 = Process 4, ".NET 6";
    /// Writes `/tmp/perf-PID.map` or a jitdump for perf.
    EnablePerfMap = Process 5, ".NET 8";
    /// Stops writing perf maps.
    DisablePerfMap = Process 6, ".NET 8";
    /// Runs a startup hook.
    ApplyStartupHook = Process 7, ".NET 8";
    /// `ProcessInfo2` with the portable runtime identifier.
    ProcessInfo3 = Process 8, ".NET 8";
}

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident: $($name:ident)*;)*) => {$(
        $(#[$doc])*
        ///
        /// Newer versions compare greater.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $family { $(#[doc = concat!("[`Command::", stringify!($name), "`].")] $name,)* }

        impl $family {
            /// All versions, oldest first.
            pub const ALL: [Self; [$(Command::$name),*].len()] = [$(Self::$name),*];

            /// The command.
            pub const fn command(self) -> Command {
                match self { $(Self::$name => Command::$name,)* }
            }
        }

        impl From<$family> for Command {
            fn from(version: $family) -> Self {
                version.command()
            }
        }

        impl fmt::Display for $family {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.command().fmt(f)
            }
        }
    )*};
}

families! {
    /// A version of the command that writes a memory dump.
    DumpCommand: CreateCoreDump CreateCoreDump2 CreateCoreDump3;
    /// A version of the command that starts a streaming session.
    TracingCommand: CollectTracing CollectTracing2 CollectTracing3 CollectTracing4 CollectTracing5
        CollectTracing6;
    /// A version of the command that starts a user_events session.
    UserEventsCommand: CollectTracing5 CollectTracing6;
    /// A version of the command that describes the process.
    ProcessInfoCommand: ProcessInfo ProcessInfo2 ProcessInfo3;
}

impl Command {
    /// The command with this set and number.
    pub fn from_wire(set: u8, id: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|c| c.set() as u8 == set && c.id() == id)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It came with 6.0 Preview 6. The specification has .NET 7.
    #[test]
    fn runtimes_report_their_version_since_net_6() {
        assert_eq!(Command::ProcessInfo2.since(), ".NET 6");
    }
}
