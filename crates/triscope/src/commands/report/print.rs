//! The report as text.

use super::{ROWS, View};
use crate::failure::OneLine;
use crate::sources::model::{duration, name};
use std::cmp::Reverse;
use std::io::{self, Write};
use trace_timeline::answers::{CpuTimes, Group, Histogram};
use trace_timeline::{Attribute, EntityKind, Occupant, Timestamp, text};

impl View<'_> {
    pub(super) fn print(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write!(out, "{:.3} s", self.seconds())?;
        if let Some(pid) = self.recorded {
            write!(out, ", process {pid} and its children (--all: every process)")?;
        }
        writeln!(out)?;
        self.print_processes(out)?;
        self.print_threads(out)?;
        self.print_groups(out)?;
        self.print_goroutines(out)?;
        self.print_off_cpu(out)?;
        self.print_delays(out)?;
        self.print_others(out)?;
        self.print_throttled(out)?;
        self.print_pauses(out)?;
        self.print_losses(out)
    }

    /// Processes that are shown and of which more than the name is known.
    fn print_processes(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let entities = &self.tables.entities;
        let line = |id| entities.attribute(id, Attribute::CommandLine);
        let mut processes: Vec<_> = entities
            .iter()
            .filter(|(id, e)| e.kind == EntityKind::Process && self.is_shown(Some(*id)))
            .filter(|(id, e)| e.number > 0 && (e.start.is_some() || line(*id).is_some()))
            .collect();
        if processes.is_empty() {
            return Ok(());
        }
        // Those that started first: the others are their descendants.
        processes.sort_by_key(|(_, e)| (e.start, e.number));
        writeln!(out, "\nProcesses{:>10} {:>10} {:>10}   command line", "parent", "start", "end")?;
        for (id, e) in processes.iter().take(ROWS) {
            let parent = e.parent.and_then(|parent| entities.get(parent));
            let at = |at: Option<Timestamp>| {
                let nanos = at.zip(self.report.start).map(|(at, start)| at.nanos_since(start));
                nanos.map_or_else(|| "-".to_owned(), duration)
            };
            let container = entities.attribute(*id, Attribute::Container);
            let container = container.map_or_else(String::new, |container| {
                let id = self.text(container);
                // As container engines print it.
                format!(" [container {}]", id.get(..12).unwrap_or(&id))
            });
            writeln!(
                out,
                "{:>9} {:>9} {:>10} {:>10}   {}{container}",
                e.number,
                parent.map_or_else(|| "-".to_owned(), |parent| parent.number.to_string()),
                at(e.start),
                at(e.end),
                self.text(line(*id).unwrap_or(e.name)),
            )?;
        }
        more(out, processes.len())
    }

    fn print_threads(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let threads = self.threads();
        if threads.is_empty() || !self.report.has_scheduler() {
            return Ok(());
        }
        writeln!(out, "\nThreads                {}", header(&CpuTimes::COLUMNS))?;
        for (thread, times, latency) in threads.iter().take(ROWS) {
            let process = self.process(self.process_of(*thread));
            let columns = columns(&times.columns(), latency);
            writeln!(out, "{:<23}{columns}  {process}", name(self.tables, *thread))?;
        }
        more(out, threads.len())
    }

    fn print_groups(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let groups = self.groups();
        if groups.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nGoroutines and .NET threads\n    count{}", header(&Group::COLUMNS))?;
        for (process, entry, g) in groups.iter().take(ROWS) {
            let (entry, process) = (self.entry(*entry, *process), self.process(*process));
            let columns = columns(&g.columns(), &g.latency);
            writeln!(out, "{:>9}{columns}  {entry}, {process}", g.count)?;
        }
        more(out, groups.len())
    }

    fn print_goroutines(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if self.goroutines.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nSingle goroutines, most scheduling latency first\n     runs{}",
            header(&Group::COLUMNS)
        )?;
        for (goroutine, g) in &self.goroutines {
            let process = self.process(self.process_of(*goroutine));
            let (runs, goroutine) = (g.latency.count(), name(self.tables, *goroutine));
            let columns = columns(&g.columns(), &g.latency);
            writeln!(out, "{runs:>9}{columns}  {goroutine}, {process}")?;
        }
        Ok(())
    }

    fn print_off_cpu(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let off_cpu = self.report.off_cpu.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut off_cpu: Vec<_> = off_cpu.collect();
        if off_cpu.is_empty() {
            return Ok(());
        }
        off_cpu.sort_by_key(|(_, times)| Reverse(times.nanos));
        writeln!(out, "\nOff CPU by reason {:>17} {:>10}", "sum", "longest")?;
        for ((process, reason), times) in off_cpu.iter().take(ROWS) {
            let (_, text) = text::off_cpu(*reason, self.tables);
            writeln!(
                out,
                "{:>12} times {:>16} {:>10}  {}; {}",
                times.count,
                duration(times.nanos),
                duration(times.longest),
                OneLine(&text),
                self.process(*process),
            )?;
        }
        more(out, off_cpu.len())
    }

    fn print_delays(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let delays: Vec<_> = self.delays().collect();
        if delays.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nLongest scheduling delays")?;
        for delay in delays {
            let at = self.since_start(delay.end) as f64 / 1e9;
            let (took, subject) = (duration(delay.nanos), self.with_process(delay.subject));
            write!(out, "{took:>12} until {at:.6} s  {subject}")?;
            match delay.occupant {
                Occupant::Unknown => writeln!(out)?,
                occupant => writeln!(out, "; CPU: {}", self.occupant(occupant))?,
            }
        }
        Ok(())
    }

    fn print_others(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let shown = self.report.preempters.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut preempters: Vec<_> = shown.collect();
        preempters.sort_by_key(|(_, p)| Reverse(p.total()));
        if !preempters.is_empty() {
            writeln!(out, "\nWho had the CPU that threads waited for   preempted      woken")?;
            for ((process, occupant), p) in preempters.iter().take(ROWS) {
                let (preempted, woken) = (duration(p.preempted), duration(p.woken));
                let (occupant, process) = (self.occupant(*occupant), self.process(*process));
                writeln!(out, "{preempted:>51} {woken:>10}  {occupant}; for {process}")?;
            }
            more(out, preempters.len())?;
        }
        let shown = self.report.wakers.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut wakers: Vec<_> = shown.collect();
        wakers.sort_by_key(|(_, count)| Reverse(**count));
        if !wakers.is_empty() {
            writeln!(out, "\nWho woke")?;
            for ((process, waker), count) in wakers.iter().take(ROWS) {
                let (waker, process) = (self.waker(*waker), self.process(*process));
                writeln!(out, "{count:>9}  {waker}; in {process}")?;
            }
            more(out, wakers.len())?;
        }
        Ok(())
    }

    fn print_throttled(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut rows: Vec<_> = self.throttled().collect();
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(_, throttled)| Reverse(throttled.nanos));
        writeln!(out, "\nThrottled by the CPU quota of the cgroup    time    periods")?;
        for (process, t) in rows.iter().take(ROWS) {
            let process = self.process(Some(*process));
            writeln!(out, "{:>47} {:>10}  {process}", duration(t.nanos), t.periods)?;
        }
        more(out, rows.len())
    }

    fn print_pauses(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let line = |out: &mut Vec<u8>, h: &Histogram, what: String| {
            let [sum, median, max] = [h.sum(), h.percentile(50.0), h.max()]
                .map(|nanos| duration(i64::try_from(nanos).unwrap_or(i64::MAX)));
            writeln!(
                out,
                "{:>9}  sum {sum:>10}  p50 {median:>10}  max {max:>10}  {what}",
                h.count()
            )
        };
        let shown = |process| self.is_shown(process);
        let gcs = self.report.gcs.iter().filter(|((p, _), _)| shown(*p));
        let mut gcs: Vec<_> = gcs.collect();
        gcs.sort_by_key(|(_, h)| Reverse(h.sum()));
        if !gcs.is_empty() {
            writeln!(out, "\nGarbage collections")?;
        }
        for ((process, name), h) in gcs.iter().take(ROWS) {
            line(out, h, format!("{}, {}", self.text(*name), self.process(*process)))?;
        }
        more(out, gcs.len())?;
        let pauses: Vec<_> =
            self.report.pauses.iter().filter(|((p, _), _)| shown(Some(*p))).collect();
        if pauses.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nStop-the-world pauses")?;
        for ((process, reason), h) in pauses {
            let what = format!("{}, {}", self.text(*reason), self.process(Some(*process)));
            line(out, h, what)?;
        }
        for pause in self.report.longest_pauses(shown).into_iter().take(3) {
            let took = pause.end.nanos_since(pause.start);
            let at = self.since_start(pause.start) as f64 / 1e9;
            let reason = self.text(pause.reason);
            write!(out, "  longest: {} {reason} at {at:.6} s", duration(took))?;
            if let Some(stopped) = pause.stopped {
                let stopping = duration(stopped.nanos_since(pause.start));
                let rest = duration(pause.end.nanos_since(stopped));
                write!(out, ": {stopping} until all had stopped, {rest} stopped")?;
            }
            writeln!(out)?;
            if let Some(requester) = text::requester(pause, self.tables) {
                writeln!(out, "    requester: {}", OneLine(&requester))?;
            }
            for stop in pause.late().take(3) {
                writeln!(out, "    late: {}", OneLine(&text::late(pause, stop, self.tables)))?;
            }
        }
        Ok(())
    }

    fn print_losses(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "\nNot known")?;
        let entities = &self.tables.entities;
        let unknown = self.report.unknown(|process| self.is_shown(process), entities);
        if !self.report.has_scheduler() {
            writeln!(out, "  The kernel's scheduler was not recorded: running is not on a CPU.")?;
        } else {
            let unknown = duration(unknown);
            writeln!(out, "  {unknown} of threads: before their first switch, or after a loss.")?;
        }
        for (kind, losses) in self.report.losses(|process| self.is_shown(process)) {
            let known = |count, unit| match count {
                0 => String::new(),
                count => format!(", {count} {unit}"),
            };
            let (records, bytes) = (known(losses.records, "records"), known(losses.bytes, "bytes"));
            writeln!(out, "  {} times: {}{records}{bytes}", losses.count, text::loss(kind))?;
        }
        let [.., samples] = self.report.samples(|process| self.is_shown(process));
        if samples > 0 {
            writeln!(out, "  {samples} samples: whether their thread had a CPU is not recorded.")?;
        }
        for note in self.notes() {
            writeln!(out, "  {}", OneLine(&note))?;
        }
        Ok(())
    }
}

fn more(out: &mut Vec<u8>, rows: usize) -> io::Result<()> {
    if rows > ROWS {
        writeln!(out, "  {} more: --json prints all", rows - ROWS)?;
    }
    Ok(())
}

/// The names of times, and of [`columns`].
fn header(times: &[&str]) -> String {
    let times: String = times.iter().map(|name| format!(" {name:>10}")).collect();
    format!("{times}   latency {:>9} {:>9}", "p50", "p99")
}

/// Times, and the median and a percentile of the latency.
fn columns(times: &[i64], latency: &Histogram) -> String {
    let times: String = times.iter().map(|nanos| format!(" {:>10}", duration(*nanos))).collect();
    let [p50, p99] = [50.0, 99.0].map(|percent| duration(latency.percentile(percent) as i64));
    format!("{times}           {p50:>9} {p99:>9}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values are below each other, and each time of a thread has a column.
    #[test]
    fn columns_have_their_names() {
        let names = header(&CpuTimes::COLUMNS);
        let values = columns(&[1, 2, 3, 4, 5, 6, 7], &Histogram::default());
        assert_eq!(names.len(), values.len());
        for (index, name) in CpuTimes::COLUMNS.into_iter().enumerate() {
            let value = format!(" {} ns", index + 1);
            let ends = (names.find(&format!(" {name}")), values.find(&value));
            let ends = (ends.0.unwrap() + name.len() + 1, ends.1.unwrap() + value.len());
            assert_eq!(ends.0, ends.1, "{name}: {names}\n{values}");
        }
        assert!(names.contains(" stopped"), "{names}");
    }
}
