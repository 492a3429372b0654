//! Selections of counters: `System.Runtime[cpu-usage,gc-heap-size],Microsoft.AspNetCore.Hosting`.

use nettrace::analysis::Counter;
use std::str::FromStr;

/// Event sources, each with the selected counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection(Vec<Wanted>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    provider: String,
    /// Names of counters; an empty list selects all.
    names: Vec<String>,
}

impl Selection {
    pub(super) fn all(provider: &str) -> Self {
        Self(vec![Wanted { provider: provider.to_owned(), names: Vec::new() }])
    }

    pub(super) fn providers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|wanted| wanted.provider.as_str())
    }
}

/// Whether a counter is selected: one of an event source by a selection of it, and one of a meter by its
/// meter, as both can have the same name. If there are only selections or only meters, they select from
/// both. Without any, everything is selected.
pub(super) fn is_selected(selections: &[Selection], meters: &[String], counter: &Counter) -> bool {
    let has_both = !selections.is_empty() && !meters.is_empty();
    let mut of_source = selections
        .iter()
        .filter(|_| !(has_both && counter.is_meter))
        .flat_map(|selection| &selection.0)
        .filter(|wanted| wanted.provider.eq_ignore_ascii_case(&counter.provider))
        .peekable();
    if of_source.peek().is_some() {
        return of_source.any(|w| w.names.is_empty() || w.names.contains(&counter.name));
    }
    if has_both && !counter.is_meter {
        return false;
    }
    if meters.is_empty() {
        return selections.is_empty();
    }
    meters.iter().flat_map(|list| list.split(',')).any(|meter| is_of_meter(meter.trim(), counter))
}

/// Whether a counter is of `METER`, `PREFIX*` or `METER\INSTRUMENT`. A shared session also has the
/// meters of others.
fn is_of_meter(wanted: &str, counter: &Counter) -> bool {
    let (meter, instrument) = match wanted.split_once('\\') {
        Some((meter, instrument)) => (meter, Some(instrument)),
        None => (wanted, None),
    };
    let is_meter = match meter.strip_suffix('*') {
        Some(prefix) => counter.provider.starts_with(prefix),
        None => counter.provider == meter,
    };
    is_meter && instrument.is_none_or(|instrument| counter.name == instrument)
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find([',', '[']).unwrap_or(rest.len());
            let (provider, behind) = rest.split_at(end);
            let mut names = Vec::new();
            rest = behind;
            if let Some(list) = behind.strip_prefix('[') {
                let (list, behind) =
                    list.split_once(']').ok_or_else(|| format!("no ] after {provider}["))?;
                names = list.split(',').map(|n| n.trim().to_owned()).collect();
                if names.iter().any(String::is_empty) {
                    return Err(format!("{provider}[{list}]: the name of a counter is missing"));
                }
                rest = behind;
            }
            let provider = provider.trim().to_owned();
            if provider.is_empty() {
                return Err("the name of an event source is missing".to_owned());
            }
            all.push(Wanted { provider, names });
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None if rest.is_empty() => {}
                None => return Err(format!("expected a comma before {rest}")),
            }
        }
        if all.is_empty() {
            return Err("the name of an event source is missing".to_owned());
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<(String, Vec<String>)> {
        let selection: Selection = text.parse().unwrap();
        selection.0.into_iter().map(|w| (w.provider, w.names)).collect()
    }

    #[test]
    fn selections_name_sources_and_counters() {
        assert_eq!(parse("A"), [("A".into(), vec![])]);
        assert_eq!(
            parse("A[x, y],B,C[z]"),
            [
                ("A".into(), vec!["x".into(), "y".into()]),
                ("B".into(), vec![]),
                ("C".into(), vec!["z".into()])
            ]
        );
        for bad in ["", "[x]", "A[x", "A[]", "A[x]B", ",A", "A[x,]"] {
            assert!(bad.parse::<Selection>().is_err(), "{bad}");
        }
    }
}
