//! The configuration of a tracing session, and its six encodings.

use super::TracingCommand;
use super::wire::{
    DecodeError, array, bad, boolean, put_count, put_name, put_string, put_u32s, string, u32s,
};
use crate::RejectedRequest;
use std::fmt;
use std::str::FromStr;
use trace_common::Cursor;

/// The rundown keywords of sessions that do not specify them (`CollectTracing` to
/// `CollectTracing3`).
pub const DEFAULT_RUNDOWN_KEYWORD: u64 = 0x8002_0139;

/// The verbosity of the events of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Only events that are always logged.
    LogAlways = 0,
    /// Also critical events.
    Critical = 1,
    /// Also errors.
    Error = 2,
    /// Also warnings.
    Warning = 3,
    /// Also informational events.
    #[default]
    Informational = 4,
    /// All events.
    Verbose = 5,
}

const LEVELS: [(Level, &str); 6] = [
    (Level::LogAlways, "LogAlways"),
    (Level::Critical, "Critical"),
    (Level::Error, "Error"),
    (Level::Warning, "Warning"),
    (Level::Informational, "Informational"),
    (Level::Verbose, "Verbose"),
];

impl Level {
    /// The level with this number; the runtime accepts 0 to 5.
    pub fn from_number(number: u32) -> Option<Self> {
        LEVELS.get(number as usize).map(|(level, _)| *level)
    }
}

/// Text that is not a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a level is 0 to 5, or one of LogAlways, Critical, Error, Warning, Informational, Verbose")]
pub struct ParseLevelError;

impl FromStr for Level {
    type Err = ParseLevelError;

    /// Parses a number or a name.
    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        match text.parse() {
            Ok(number) => Self::from_number(number),
            Err(_) => LEVELS
                .iter()
                .find(|(_, name)| name.eq_ignore_ascii_case(text))
                .map(|(level, _)| *level),
        }
        .ok_or(ParseLevelError)
    }
}

impl fmt::Display for Level {
    #[expect(clippy::indexing_slicing, reason = "the levels are their indexes")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LEVELS[*self as usize].1)
    }
}

/// A filter by event id, applied after keywords and level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventFilter {
    /// Whether only the events in [`EventFilter::ids`] are written (`true`), or all except these
    /// (`false`).
    pub enable: bool,
    /// Event ids.
    pub ids: Vec<u32>,
}

impl EventFilter {
    /// A filter: only the events with these `ids` if `enable` is set, otherwise all except these.
    pub fn new(enable: bool, ids: impl Into<Vec<u32>>) -> Self {
        Self { enable, ids: ids.into() }
    }
}

/// An event provider to enable.
///
/// Its text form is that of `dotnet-trace`: `Name[:keywords[:level[:arguments]]]` with keywords in
/// hexadecimal (with or without `0x`) and the level as a number or a name. The default level is
/// `Informational`, as in `dotnet-trace`. The default keywords are all of them, except those that make
/// the runtime collect garbage and write its heap (`GCHeapDump` and `GCHeapCollect` of
/// `Microsoft-Windows-DotNETRuntime`). In `dotnet-trace` the default is none, which disables every event
/// that has a keyword.
///
/// ```
/// use diag_ipc::{Level, Provider};
///
/// let provider: Provider = "System.Runtime:0xff:Verbose:EventCounterIntervalSec=1".parse()?;
/// assert_eq!(provider.keywords, 0xff);
/// assert_eq!(provider.level, Level::Verbose);
/// assert_eq!(provider.arguments, "EventCounterIntervalSec=1");
/// # Ok::<(), diag_ipc::ParseProviderError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// Its name.
    pub name: String,
    /// Groups of events to enable: one bit each, defined by the provider.
    pub keywords: u64,
    /// Verbosity.
    pub level: Level,
    /// `key=value` pairs for the provider, separated by `;`. Empty if there are none.
    pub arguments: String,
    /// Filter by event id (needs `CollectTracing5`, .NET 10).
    pub filter: Option<EventFilter>,
}

impl Provider {
    /// A provider with all keywords at [`Level::Verbose`].
    ///
    /// All keywords of `Microsoft-Windows-DotNETRuntime` make the runtime collect garbage and write its
    /// heap when the session starts: set those that are needed.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            keywords: u64::MAX,
            level: Level::Verbose,
            arguments: String::new(),
            filter: None,
        }
    }

    /// Sets the keywords.
    #[must_use]
    pub const fn keywords(mut self, keywords: u64) -> Self {
        self.keywords = keywords;
        self
    }

    /// Sets the level.
    #[must_use]
    pub const fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Sets the arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: impl Into<String>) -> Self {
        self.arguments = arguments.into();
        self
    }

    /// Sets a filter by event id.
    #[must_use]
    pub fn filter(mut self, enable: bool, ids: impl Into<Vec<u32>>) -> Self {
        self.filter = Some(EventFilter::new(enable, ids));
        self
    }

    /// Whether the runtime collects garbage before it replies to the request for a session with this provider.
    pub(crate) fn collects_garbage(&self) -> bool {
        self.name.eq_ignore_ascii_case(RUNTIME) && self.keywords & GC_HEAP_COLLECT != 0
    }

    fn encode(&self, filter: bool, out: &mut Vec<u8>) -> Result<(), RejectedRequest> {
        out.extend(self.keywords.to_le_bytes());
        out.extend((self.level as u32).to_le_bytes());
        put_name(out, &self.name, "the name of a provider")?;
        put_string(out, &self.arguments, "the arguments of a provider")?;
        if filter {
            // An absent filter is encoded as one that disables no event.
            let none = EventFilter::default();
            let filter = self.filter.as_ref().unwrap_or(&none);
            out.push(filter.enable.into());
            put_u32s(out, &filter.ids)?;
        }
        Ok(())
    }

    fn decode(c: &mut Cursor<'_>, filter: bool) -> Result<Self, DecodeError> {
        let keywords = c.u64()?;
        let at = c.offset();
        let level = c.u32()?;
        let level = Level::from_number(level).ok_or(bad(at, "level", level.into()))?;
        let (name, arguments) = (string(c)?, string(c)?);
        let filter = if filter {
            let filter = EventFilter { enable: boolean(c)?, ids: u32s(c)? };
            (filter != EventFilter::default()).then_some(filter)
        } else {
            None
        };
        Ok(Self { name, keywords, level, arguments, filter })
    }
}

/// The runtime's provider.
const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

/// `GCHeapCollect`: the runtime collects garbage when a session with it starts, and replies after that.
const GC_HEAP_COLLECT: u64 = 0x80_0000;

/// `GCHeapDump` and `GCHeapCollect`: the runtime collects garbage and writes its heap when a session with
/// them starts.
const HEAP_WALK: u64 = 0x10_0000 | GC_HEAP_COLLECT;

/// Text that does not describe a [`Provider`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider {text:?}: {reason}; expected Name[:keywords[:level[:arguments]]]")]
pub struct ParseProviderError {
    text: Box<str>,
    reason: &'static str,
}

impl FromStr for Provider {
    type Err = ParseProviderError;

    fn from_str(text: &str) -> Result<Self, ParseProviderError> {
        let error = |reason| ParseProviderError { text: text.into(), reason };
        let mut parts = text.splitn(4, ':');
        let name = parts.next().unwrap_or_default().trim();
        if name.is_empty() {
            return Err(error("the name is empty"));
        }
        let mut provider = Self::new(name).level(Level::Informational);
        if let Some(keywords) = parts.next().filter(|k| !k.is_empty()) {
            let digits = keywords.strip_prefix("0x").or_else(|| keywords.strip_prefix("0X"));
            let digits = digits.unwrap_or(keywords);
            // The standard library accepts a sign.
            let number = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
            provider.keywords =
                number.ok_or_else(|| error("keywords are a 64-bit hexadecimal number"))?;
        } else if name.eq_ignore_ascii_case(RUNTIME) {
            provider.keywords &= !HEAP_WALK;
        }
        if let Some(level) = parts.next().filter(|l| !l.is_empty()) {
            provider.level = level
                .parse()
                .map_err(|_| error("a level is 0 to 5 or one of LogAlways … Verbose"))?;
        }
        provider.arguments = parts.next().unwrap_or_default().into();
        Ok(provider)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}:{}", self.name, self.keywords, self.level as u32)?;
        if !self.arguments.is_empty() {
            write!(f, ":{}", self.arguments)?;
        }
        Ok(())
    }
}

/// The format of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The legacy format, which is not designed for streaming.
    NetPerf,
    /// NetTrace.
    #[default]
    NetTrace,
}

/// The rundown: events at the end of a session that describe the loaded methods, modules and so on.
/// Without them, addresses cannot be resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rundown {
    /// No rundown. Stopping is fast. Needs `CollectTracing2`.
    None,
    /// The default rundown of the runtime.
    #[default]
    Default,
    /// The rundown events with these keywords. Needs `CollectTracing4` (.NET 9) unless they are 0
    /// or [`DEFAULT_RUNDOWN_KEYWORD`].
    Keywords(u64),
}

impl Rundown {
    const fn keywords(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Default => DEFAULT_RUNDOWN_KEYWORD,
            Self::Keywords(keywords) => keywords,
        }
    }

    const fn from_keywords(keywords: u64) -> Self {
        match keywords {
            0 => Self::None,
            DEFAULT_RUNDOWN_KEYWORD => Self::Default,
            other => Self::Keywords(other),
        }
    }
}

/// The handling of events when the buffer of a session is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferingMode {
    /// Events are dropped.
    #[default]
    Drop,
    /// The writing thread blocks. Needs `CollectTracing6` (.NET 11).
    Block,
}

/// The configuration of a streaming session.
///
/// ```
/// use diag_ipc::{Provider, Rundown, TracingConfig};
///
/// let config = TracingConfig::new([Provider::new("Microsoft-DotNETCore-SampleProfiler")])
///     .rundown(Rundown::Default)
///     .buffer_mb(64);
/// assert!(config.stacks);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracingConfig {
    /// Maximum size of the runtime's event buffer in megabytes. The default is 256.
    pub buffer_mb: u32,
    /// The format of the stream.
    pub format: Format,
    /// The rundown at the end.
    pub rundown: Rundown,
    /// Whether events contain the call stack of their thread. Without stacks (needs
    /// `CollectTracing3`, .NET 9) the overhead in the target is far lower.
    pub stacks: bool,
    /// The handling of events when the buffer is full.
    pub buffering: BufferingMode,
    /// The providers to enable: 1 to 1000.
    pub providers: Vec<Provider>,
}

impl TracingConfig {
    /// A session with these providers and the defaults of `dotnet-trace`.
    pub fn new(providers: impl IntoIterator<Item = Provider>) -> Self {
        Self {
            buffer_mb: 256,
            format: Format::default(),
            rundown: Rundown::default(),
            stacks: true,
            buffering: BufferingMode::default(),
            providers: providers.into_iter().collect(),
        }
    }

    /// Sets the buffer size, in megabytes.
    #[must_use]
    pub const fn buffer_mb(mut self, megabytes: u32) -> Self {
        self.buffer_mb = megabytes;
        self
    }

    /// Sets the format of the stream.
    #[must_use]
    pub const fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Sets the rundown.
    #[must_use]
    pub const fn rundown(mut self, rundown: Rundown) -> Self {
        self.rundown = rundown;
        self
    }

    /// Enables or disables stacks.
    #[must_use]
    pub const fn stacks(mut self, stacks: bool) -> Self {
        self.stacks = stacks;
        self
    }

    /// Sets the buffering mode.
    #[must_use]
    pub const fn buffering(mut self, mode: BufferingMode) -> Self {
        self.buffering = mode;
        self
    }

    /// The oldest command that can encode this configuration, and the option that requires it.
    pub fn needs(&self) -> (TracingCommand, &'static str) {
        let rundown = self.rundown.keywords();
        if self.buffering == BufferingMode::Block {
            (TracingCommand::CollectTracing6, "the buffering mode Block")
        } else if self.providers.iter().any(|p| p.filter.is_some()) {
            (TracingCommand::CollectTracing5, "an event filter")
        } else if rundown != 0 && rundown != DEFAULT_RUNDOWN_KEYWORD {
            (TracingCommand::CollectTracing4, "a rundown keyword")
        } else if !self.stacks {
            (TracingCommand::CollectTracing3, "a session without stacks")
        } else if rundown == 0 {
            (TracingCommand::CollectTracing2, "a session without rundown")
        } else {
            (TracingCommand::CollectTracing, "a tracing session")
        }
    }

    /// Encodes the payload of `command`, one of the `CollectTracing` family.
    ///
    /// Options that the command does not support are omitted: see [`TracingConfig::needs`].
    pub(super) fn encode(
        &self,
        command: TracingCommand,
        out: &mut Vec<u8>,
    ) -> Result<(), RejectedRequest> {
        // Each of these ends a .NET 9 process, so they are rejected here.
        if self.buffer_mb == 0 {
            return Err(RejectedRequest::NoBuffer);
        }
        check_count(self.providers.len())?;
        let version = version(command);
        if version >= 5 {
            out.extend(STREAMING.to_le_bytes());
        }
        out.extend(self.buffer_mb.to_le_bytes());
        out.extend((self.format as u32).to_le_bytes());
        let rundown = self.rundown.keywords();
        match version {
            1 => {}
            2 | 3 => out.push(u8::from(rundown != 0)),
            _ => out.extend(rundown.to_le_bytes()),
        }
        if version >= 3 {
            out.push(self.stacks.into());
        }
        put_count(out, self.providers.len())?;
        for provider in &self.providers {
            provider.encode(version >= 5, out)?;
        }
        if version >= 6 {
            out.extend((self.buffering as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Decodes the payload after the session type, which `CollectTracing5` and later have.
    pub(super) fn decode(command: TracingCommand, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let version = version(command);
        let buffer_mb = c.u32()?;
        let at = c.offset();
        let format = match c.u32()? {
            0 => Format::NetPerf,
            1 => Format::NetTrace,
            other => return Err(bad(at, "format", other.into())),
        };
        let rundown = match version {
            1 => Rundown::Default,
            2 | 3 if boolean(c)? => Rundown::Default,
            2 | 3 => Rundown::None,
            _ => Rundown::from_keywords(c.u64()?),
        };
        let stacks = version < 3 || boolean(c)?;
        let providers = array(c, 20, |c| Provider::decode(c, version >= 5))?;
        let at = c.offset();
        let buffering = match if version >= 6 { c.u32()? } else { 0 } {
            0 => BufferingMode::Drop,
            1 => BufferingMode::Block,
            other => return Err(bad(at, "buffering mode", other.into())),
        };
        Ok(Self { buffer_mb, format, rundown, stacks, buffering, providers })
    }
}

const STREAMING: u32 = 0;
const USER_EVENTS: u32 = 1;

/// The session type: whether the payload continues as a user_events session.
pub(super) fn is_user_events(c: &mut Cursor<'_>) -> Result<bool, DecodeError> {
    let at = c.offset();
    match c.u32()? {
        STREAMING => Ok(false),
        USER_EVENTS => Ok(true),
        other => Err(bad(at, "session type", other.into())),
    }
}

const fn version(command: TracingCommand) -> u8 {
    command as u8 + 1
}

const fn check_count(providers: usize) -> Result<(), RejectedRequest> {
    match providers {
        0 => Err(RejectedRequest::NoProviders),
        1..=1000 => Ok(()),
        more => Err(RejectedRequest::TooManyProviders(more)),
    }
}

/// The events of a provider that go to a separate tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracepointSet {
    /// The name of the tracepoint.
    pub name: String,
    /// The event ids. Each may be in at most one set of a provider.
    pub ids: Vec<u32>,
}

impl TracepointSet {
    /// The tracepoint `name` for the events with these ids.
    pub fn new(name: impl Into<String>, ids: impl Into<Vec<u32>>) -> Self {
        Self { name: name.into(), ids: ids.into() }
    }
}

/// The tracepoints of the events of a provider: at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tracepoints {
    /// The tracepoint of events that are in no set. If it is empty, these are not written.
    pub default: String,
    /// Tracepoints for selected events.
    pub sets: Vec<TracepointSet>,
}

impl Tracepoints {
    /// One tracepoint for all events.
    pub fn new(default: impl Into<String>) -> Self {
        Self { default: default.into(), sets: Vec::new() }
    }

    /// Adds a tracepoint for selected events.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, ids: impl Into<Vec<u32>>) -> Self {
        self.sets.push(TracepointSet::new(name, ids));
        self
    }
}

/// A provider of a user_events session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserEventsProvider {
    /// The provider to enable.
    pub provider: Provider,
    /// The tracepoints of its events.
    pub tracepoints: Tracepoints,
}

impl UserEventsProvider {
    /// A provider and the tracepoints of its events.
    pub const fn new(provider: Provider, tracepoints: Tracepoints) -> Self {
        Self { provider, tracepoints }
    }
}

/// The configuration of a session whose events go to the kernel's user_events (.NET 10 on Linux
/// 6.4), from which perf and ftrace read them.
///
/// ```
/// use diag_ipc::{Provider, Rundown, Tracepoints, UserEventsConfig, UserEventsProvider};
///
/// let tracepoints = Tracepoints::new("shop").set("shop_orders", [1, 2]);
/// let provider = UserEventsProvider::new(Provider::new("Shop"), tracepoints);
/// let config = UserEventsConfig::new([provider]).rundown(Rundown::None);
/// assert_eq!(config.providers.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserEventsConfig {
    /// The rundown at the end.
    pub rundown: Rundown,
    /// The providers to enable: 1 to 1000.
    pub providers: Vec<UserEventsProvider>,
}

impl UserEventsConfig {
    /// A session with these providers and the default rundown.
    pub fn new(providers: impl IntoIterator<Item = UserEventsProvider>) -> Self {
        Self { rundown: Rundown::default(), providers: providers.into_iter().collect() }
    }

    /// Sets the rundown.
    #[must_use]
    pub const fn rundown(mut self, rundown: Rundown) -> Self {
        self.rundown = rundown;
        self
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), RejectedRequest> {
        check_count(self.providers.len())?;
        out.extend(USER_EVENTS.to_le_bytes());
        out.extend(self.rundown.keywords().to_le_bytes());
        put_count(out, self.providers.len())?;
        for UserEventsProvider { provider, tracepoints } in &self.providers {
            provider.encode(true, out)?;
            if tracepoints.default.is_empty() && tracepoints.sets.is_empty() {
                return Err(RejectedRequest::NoTracepoint(provider.name.as_str().into()));
            }
            put_string(out, &tracepoints.default, "the default tracepoint")?;
            put_count(out, tracepoints.sets.len())?;
            for set in &tracepoints.sets {
                put_name(out, &set.name, "the name of a tracepoint")?;
                put_u32s(out, &set.ids)?;
            }
        }
        Ok(())
    }

    /// Decodes the payload after the session type.
    pub(super) fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let rundown = Rundown::from_keywords(c.u64()?);
        let providers = array(c, 33, |c| {
            let provider = Provider::decode(c, true)?;
            let default = string(c)?;
            let sets = array(c, 8, |c| Ok(TracepointSet { name: string(c)?, ids: u32s(c)? }))?;
            Ok(UserEventsProvider { provider, tracepoints: Tracepoints { default, sets } })
        })?;
        Ok(Self { rundown, providers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_text() {
        let parse = |s: &str| s.parse::<Provider>();
        let plain = Provider::new("A").level(Level::Informational);
        assert_eq!(parse("A"), Ok(plain.clone()));
        assert_eq!(parse("A::"), Ok(plain));
        assert_eq!(
            parse("A:FF:warning").unwrap(),
            Provider::new("A").keywords(0xff).level(Level::Warning)
        );
        assert_eq!(
            parse("A:0x1:1:Spec=\"B/C:-D;E\"").unwrap(),
            Provider::new("A").keywords(1).level(Level::Critical).arguments("Spec=\"B/C:-D;E\"")
        );
        for bad in
            ["", ":1", "A:xyz", "A:1:6", "A:1:Loud", "A:1ffffffffffffffff", "A:+ff", "A:0x0xff"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let provider = Provider::new("A").keywords(0x10).arguments("k=v");
        assert_eq!(provider.to_string().parse(), Ok(provider));
        // A heap walk is only done for those who ask for it.
        let keywords = |text: &str| parse(text).unwrap().keywords;
        for text in [RUNTIME, "microsoft-windows-dotnetruntime::5"] {
            assert_eq!(keywords(text), !0x90_0000, "{text}");
        }
        assert_eq!(keywords(&format!("{RUNTIME}:900001")), 0x90_0001);
        let collects = |text: &str| parse(text).unwrap().collects_garbage();
        assert!(collects("microsoft-windows-dotnetruntime:1980001:5"));
        for text in [RUNTIME, &format!("{RUNTIME}:100001"), "Other:800000"] {
            assert!(!collects(text), "{text}");
        }
    }

    #[test]
    fn the_oldest_command_that_will_do() {
        let config = || TracingConfig::new([Provider::new("A")]);
        let needs = |config: TracingConfig| config.needs().0;
        assert_eq!(needs(config()), TracingCommand::CollectTracing);
        assert_eq!(needs(config().rundown(Rundown::None)), TracingCommand::CollectTracing2);
        assert_eq!(needs(config().rundown(Rundown::Keywords(0))), TracingCommand::CollectTracing2);
        assert_eq!(needs(config().stacks(false)), TracingCommand::CollectTracing3);
        assert_eq!(
            needs(config().rundown(Rundown::Keywords(0x40))),
            TracingCommand::CollectTracing4
        );
        assert_eq!(
            needs(TracingConfig::new([Provider::new("A").filter(true, [1])])),
            TracingCommand::CollectTracing5
        );
        assert_eq!(
            needs(config().buffering(BufferingMode::Block)),
            TracingCommand::CollectTracing6
        );
    }
}
