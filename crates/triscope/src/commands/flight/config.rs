//! Configuration files: the settings of the command line in TOML.
//!
//! The keys are the names of the options; `triggers` is a list of texts. Values have the form that they
//! have on the command line.

use super::Settings;
use crate::failure::{Failure, Result};
use clap::{CommandFactory, Parser};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Bytes of a file.
const MAX_FILE: u64 = 1 << 20;

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct File {
    #[command(flatten)]
    settings: Settings,
}

/// Reads the settings in a file.
pub(super) fn read(path: &Path) -> Result<Settings> {
    let name = path.display();
    let fail = |error: std::io::Error| Failure::about(&name, error);
    let file = std::fs::File::open(path).map_err(fail)?;
    let text = std::io::read_to_string(std::io::Read::take(file, MAX_FILE)).map_err(fail)?;
    parse(&text).map_err(|(line, why)| Failure::about(format_args!("{name}:{line}"), why))
}

/// Parses the text of a file. An error has its line.
fn parse(text: &str) -> std::result::Result<Settings, (usize, String)> {
    let line = |at: usize| text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (line(at), error.message().to_owned())
    })?;
    let known: Vec<String> = File::command()
        .get_arguments()
        .filter_map(|arg| arg.get_long().map(|long| key_of(long).to_owned()))
        .collect();
    let mut args = Vec::new();
    for (key, value) in table.get_ref() {
        let fail = |why: String| (line(key.span().start), format!("{}: {why}", key.get_ref()));
        if !known.iter().any(|name| name == key.get_ref()) {
            return Err(fail(format!("unknown key; the keys are {}", known.join(", "))));
        }
        let of_key = args_of(key.get_ref(), value.get_ref()).map_err(fail)?;
        if let Err(error) = File::try_parse_from(&of_key) {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            return Err(fail(first.trim_start_matches("error: ").to_owned()));
        }
        args.extend(of_key);
    }
    let parsed = File::try_parse_from(&args);
    parsed.map(|file| file.settings).map_err(|error| (1, error.to_string()))
}

/// The key of an option.
fn key_of(long: &str) -> &str {
    if long == "trigger" { "triggers" } else { long }
}

/// The value of a key as options.
fn args_of(key: &str, value: &DeValue<'_>) -> std::result::Result<Vec<String>, String> {
    let option = |text: &str| format!("--{}={text}", key.trim_end_matches('s'));
    match value {
        DeValue::Array(items) if key == "triggers" => {
            let text = |item: &toml::Spanned<DeValue<'_>>| match item.get_ref() {
                DeValue::String(text) => Ok(option(text)),
                _ => Err("a trigger is a text".to_owned()),
            };
            items.iter().map(text).collect()
        }
        _ if key == "triggers" => Err("expected a list of texts".to_owned()),
        DeValue::String(text) => Ok(vec![format!("--{key}={text}")]),
        DeValue::Integer(number) => Ok(vec![format!("--{key}={number}")]),
        DeValue::Float(number) => Ok(vec![format!("--{key}={number}")]),
        DeValue::Boolean(true) => Ok(vec![format!("--{key}")]),
        DeValue::Boolean(false) => Ok(Vec::new()),
        _ => Err("expected a text, a number, true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn settings_are_read() {
        let settings = parse(
            "# What is slow\nback = \"30s\"\ndisk = \"1GB\"\ncpu = 2.5\nfreq = 99\n\
             oneshot = true\ncommand-lines = false\n\
             triggers = [\n  \"sched-delay=20ms\", # of any thread\n  \"exit-signal\",\n]\n",
        )
        .unwrap();
        assert_eq!(
            (settings.back, settings.forward),
            (Duration::from_secs(30), Duration::from_secs(2))
        );
        assert_eq!((settings.disk, settings.cpu, settings.freq), (1_000_000_000, 2.5, Some(99)));
        assert_eq!((settings.oneshot, settings.command_lines), (true, false));
        let triggers: Vec<String> = settings.triggers.iter().map(ToString::to_string).collect();
        assert_eq!(triggers, ["sched-delay=20ms", "exit-signal"]);
        assert!(parse("").is_ok());
    }

    #[test]
    fn errors_have_their_line() {
        for (text, line, why) in [
            ("back = \"3s\"\nbakc = \"3s\"", 2, "bakc: unknown key"),
            ("\n\nback = \"3\"", 3, "back: invalid value '3'"),
            ("cpu = 0", 1, "cpu: "),
            ("cpu = nan", 1, "cpu: "),
            ("freq = 0.5", 1, "freq: "),
            ("oneshot = 1", 1, "oneshot: "),
            ("oneshot = true\ntriggers = [\"no\"]", 2, "triggers: "),
            ("triggers = \"exit-signal\"", 1, "triggers: expected a list"),
            ("triggers = [1]", 1, "triggers: a trigger is a text"),
            ("metrics = \"0.0.0.0:1\"", 1, "metrics: "),
            ("[table]\nx = 1", 1, "table: unknown key"),
            ("back = 3s", 1, ""),
            ("cpu = 1\ncpu = 2", 2, ""),
        ] {
            let (at, error) = parse(text).unwrap_err();
            assert_eq!(at, line, "{text}: {error}");
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text in "[a-z =\"\\[\\],0-9\n.{}#-]{0,60}|\\PC*") {
            let _ = parse(&text);
        }
    }
}
