//! The file format of speedscope: <https://www.speedscope.app/file-format-schema.json>.

use super::view::{LabelText, Names, View};
use super::{Sample, Unit};
use crate::json;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use trace_timeline::{EntityId, TextId};

/// The number of a thread, and its process: threads of two processes can have one number.
type Thread = (i64, Option<EntityId>);

/// The frames of the file: a name at a line.
#[derive(Default)]
struct Frames {
    index: HashMap<(u32, TextId, u32), u32>,
    values: Vec<(u32, TextId, u32)>,
}

impl Frames {
    fn index(&mut self, frame: (u32, TextId, u32)) -> u32 {
        let next = self.values.len() as u32;
        *self.index.entry(frame).or_insert_with(|| {
            self.values.push(frame);
            next
        })
    }
}

pub(super) fn write(view: &View<'_>, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let unit = match view.measure().unit {
        Unit::Count | Unit::Occurrences => "none",
        unit => unit.name(),
    };
    let mut names = Names::default();
    let mut frames = Frames::default();
    let mut stack = |sample: &Sample| {
        let root = view.root(sample).map(|root| (names.text(root.into()), TextId::EMPTY, 0));
        let mut path: Vec<_> = root.into_iter().collect();
        for frame in view.frames(sample.stack).iter().rev() {
            path.push((names.frame(frame, view), frame.file, frame.line));
        }
        path.into_iter().map(|frame| frames.index(frame)).collect()
    };
    let entries: Vec<(Option<Thread>, Vec<u32>)> =
        view.samples().iter().map(|sample| (thread(view, sample), stack(sample))).collect();
    let mut thread_names: BTreeMap<Thread, String> = BTreeMap::new();
    for sample in view.samples() {
        let comm = view.labels(sample.labels).into_iter().find(|(key, _)| key == "comm");
        if let (Some(thread), Some((_, LabelText::Text(name)))) = (thread(view, sample), comm) {
            thread_names.entry(thread).or_insert_with(|| name.into_owned());
        }
    }
    let mut threads: BTreeMap<Option<Thread>, Vec<(&[u32], u64)>> = BTreeMap::new();
    for (entry, value) in view.profile.in_order() {
        if let Some((thread, stack)) = entries.get(entry) {
            threads.entry(*thread).or_default().push((stack, value));
        }
    }
    let mut text = String::from(
        "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":",
    );
    json::text(&mut text, concat!("trace-export ", env!("CARGO_PKG_VERSION")));
    text.push_str(",\"name\":");
    json::text(&mut text, title);
    let total = |samples: &[(&[u32], u64)]| {
        samples.iter().fold(0_u64, |sum, (_, value)| sum.saturating_add(*value))
    };
    // The first of those with the most weight.
    let by_weight = threads.values().map(|samples| total(samples)).enumerate();
    let shown = by_weight.rev().max_by_key(|(_, total)| *total).map_or(0, |(index, _)| index);
    text.push_str(&format!(",\"activeProfileIndex\":{shown},\"shared\":{{\"frames\":"));
    json::list(&mut text, &frames.values, |text, (name, file, line)| {
        text.push_str("{\"name\":");
        json::text(text, names.get(*name));
        if !file.is_empty() {
            text.push_str(",\"file\":");
            json::text(text, &view.text(*file));
        }
        if *line != 0 {
            text.push_str(",\"line\":");
            json::number(text, line);
        }
        text.push('}');
    });
    text.push_str("},\"profiles\":[");
    for (index, (thread, samples)) in threads.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str("{\"type\":\"sampled\",\"name\":");
        let name = match thread {
            Some(thread @ (number, process)) => {
                let name = match thread_names.get(thread) {
                    Some(name) => format!("{name} ({number})"),
                    None => format!("thread {number}"),
                };
                match view.shown_process(*process) {
                    Some(process) => format!("{name} of {process}"),
                    None => name,
                }
            }
            None => title.to_owned(),
        };
        json::text(&mut text, &name);
        let total = total(samples);
        text.push_str(&format!(
            ",\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{total},\"samples\":"
        ));
        json::list(&mut text, samples, |text, (stack, _)| json::list(text, *stack, json::number));
        text.push_str(",\"weights\":");
        json::list(&mut text, samples, |text, (_, value)| json::number(text, value));
        text.push('}');
        out.write_all(text.as_bytes())?;
        text.clear();
    }
    text.push_str("]}\n");
    out.write_all(text.as_bytes())
}

/// The value of the label `thread`, and the process.
fn thread(view: &View<'_>, sample: &Sample) -> Option<Thread> {
    let labels = view.labels(sample.labels);
    let number = labels.into_iter().find_map(|(key, value)| match value {
        LabelText::Number(thread) if key == "thread" => Some(thread),
        _ => None,
    })?;
    Some((number, view.process(sample)))
}
