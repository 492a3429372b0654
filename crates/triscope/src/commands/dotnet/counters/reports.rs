//! What the runtime reports about meters beside their values.

use super::OneLine;
use crate::timeline::counted;
use nettrace::analysis::CounterTracker;

/// The reports of a session, each of which is shown when it comes first, and counted at the end.
#[derive(Default)]
pub(super) struct Reports {
    conflicts: u64,
    limits: u64,
    errors: u64,
}

impl Reports {
    /// The messages about reports that are the first ones of their kind.
    pub(super) fn first(&mut self, tracker: &CounterTracker) -> Vec<String> {
        let mut messages = Vec::new();
        if is_first(&mut self.conflicts, tracker.conflicts()) {
            messages.extend(conflict(tracker));
        }
        if is_first(&mut self.limits, tracker.limits()) {
            let limits = "--max-time-series and --max-histograms are the limits";
            messages.push(format!("the runtime does not collect all time series: {limits}"));
        }
        if is_first(&mut self.errors, tracker.errors()) {
            messages.push(errors(tracker));
        }
        messages
    }

    /// The messages at the end, about all reports. What was shown is not repeated.
    pub(super) fn rest(self, tracker: &CounterTracker) -> Vec<String> {
        let mut messages = Vec::new();
        if tracker.limits() > self.limits {
            let n = tracker.limits();
            messages.push(format!(
                "the runtime reported {n} times that it does not collect all time series"
            ));
        }
        if tracker.untagged() > 0 {
            let instruments = counted(tracker.untagged(), "instrument");
            messages.push(format!(
                "the values of {instruments} lack tags: the tags are too long, or too many"
            ));
        }
        if tracker.errors() > self.errors {
            messages.push(errors(tracker));
        }
        if tracker.undecodable() > 0 {
            let n = tracker.undecodable();
            messages.push(format!("{n} values of meters were not decoded"));
        }
        if self.conflicts == 0 {
            messages.extend(conflict(tracker));
        }
        messages
    }
}

/// Whether the first of these reports were made since the last call. `shown` is their number then.
fn is_first(shown: &mut u64, count: u64) -> bool {
    let is_first = *shown == 0 && count > 0;
    if is_first {
        *shown = count;
    }
    is_first
}

/// Why the meters of this session are not collected.
pub(super) fn conflict(tracker: &CounterTracker) -> Option<String> {
    let why = if tracker.exclusive() > 0 {
        "another session has the meters; end it"
    } else if tracker.conflicts() > 0 {
        "another session has other meters or settings, such as the interval; end it, or use its \
         settings"
    } else {
        return None;
    };
    Some(format!("the runtime does not collect these meters: {why}"))
}

fn errors(tracker: &CounterTracker) -> String {
    let errors = counted(tracker.errors(), "error");
    // An exception, with its stack on the following lines.
    let first = tracker.first_error().and_then(|message| message.lines().next());
    let first = OneLine(first.unwrap_or("without a message"));
    format!("the runtime reported {errors} of meters: {first}")
}
