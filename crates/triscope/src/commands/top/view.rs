//! The table in a terminal, and the keys that change it.

use super::Args;
use super::print::{columns, label, percent, summary};
use super::rows::{By, Interval, Row, Sort};
use crate::failure::OneLine;
use crate::sources::kernel::sampling::Opened;
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Table, TableState};

/// The event and the subject.
pub(super) struct Header(String);

impl Header {
    pub(super) fn of(args: &Args, opened: &Opened) -> Self {
        let target = &args.target;
        let subject = match &target.command[..] {
            _ if target.is_system_wide() => "all CPUs".to_owned(),
            [] => target.in_words(),
            command => command.join(" "),
        };
        let event = match opened.events.first() {
            _ if args.off_cpu => "time off the CPU".to_owned(),
            _ if args.wall => format!("time on and off the CPU, at {} Hz", args.freq),
            event => format!("{} at {} Hz", event.map_or("", |event| &event.name), args.freq),
        };
        Self(format!("triscope top: {event}, {}", OneLine(&subject)))
    }
}

/// The consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Continue,
    End,
}

pub(super) struct View {
    header: Header,
    by: By,
    sort: Sort,
    filter: String,
    /// Whether keys are text of the filter.
    is_typing: bool,
    is_paused: bool,
    interval: Option<Interval>,
    rows: Vec<Row>,
    table: TableState,
    /// Rows that fit.
    page: usize,
}

impl View {
    pub(super) fn new(header: Header, by: By, filter: String) -> Self {
        Self {
            header,
            by,
            sort: Sort::Own,
            filter,
            is_typing: false,
            is_paused: false,
            interval: None,
            rows: Vec::new(),
            table: TableState::new(),
            page: 1,
        }
    }

    /// Shows another interval, unless it is paused.
    pub(super) fn update(&mut self, interval: Interval) {
        if !self.is_paused {
            self.interval = Some(interval);
            self.select();
        }
    }

    /// Makes the rows of the last interval.
    fn select(&mut self) {
        let interval = self.interval.as_ref();
        self.rows = interval
            .map_or_else(Vec::new, |interval| interval.rows(self.by, self.sort, &self.filter));
        let last = self.rows.len().saturating_sub(1);
        let selected = self.table.selected().map(|row| row.min(last));
        self.table.select(selected.filter(|_| !self.rows.is_empty()));
    }

    pub(super) fn handle(&mut self, event: &Event) -> Action {
        if let Event::Key(key) = event {
            if key.kind != KeyEventKind::Release {
                return self.key(key);
            }
        }
        Action::Continue
    }

    fn key(&mut self, key: &KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::End } else { Action::Continue };
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.is_typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) => self.filter.push(c),
                _ => {}
            }
            self.select();
            return Action::Continue;
        }
        let page = i64::try_from(self.page).unwrap_or(1);
        match key.code {
            KeyCode::Char('q') => return Action::End,
            KeyCode::Tab => {
                let has_goroutines =
                    self.interval.as_ref().is_some_and(|interval| interval.has_goroutines);
                self.by = self.by.next(has_goroutines);
                self.table = TableState::new();
            }
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::PageUp => self.scroll(-page),
            KeyCode::PageDown => self.scroll(page),
            KeyCode::Home => self.scroll(i64::MIN),
            KeyCode::End => self.scroll(i64::MAX),
            _ => {}
        }
        self.select();
        Action::Continue
    }

    fn scroll(&mut self, rows: i64) {
        let last = i64::try_from(self.rows.len()).unwrap_or(i64::MAX) - 1;
        let at = self.table.selected().map_or(-1, |row| i64::try_from(row).unwrap_or(0));
        let at = at.saturating_add(rows).clamp(0, last.max(0));
        self.table.select(usize::try_from(at).ok());
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [top, state, table, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.page = usize::from(table.height.saturating_sub(1)).max(1);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Line::styled(self.header.0.as_str(), bold), top);
        frame.render_widget(Line::raw(self.state()), state);
        let (first, last) = columns(self.by);
        let row = |row: &Row| {
            let [own, total] = [row.own, row.total].map(percent);
            ratatui::widgets::Row::new([own, total, label(row, self.by), row.detail.clone()])
        };
        let wide = table.width >= 120;
        let widths = [
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Fill(if wide { 3 } else { 2 }),
            Constraint::Fill(1),
        ];
        let titles = ["    SELF", "   TOTAL", first, last].map(Cell::from);
        let rows = Table::new(self.rows.iter().map(row), widths)
            .header(ratatui::widgets::Row::new(titles).style(reversed))
            .row_highlight_style(reversed)
            .column_spacing(2);
        frame.render_stateful_widget(rows, table, &mut self.table);
        let help = match self.is_typing {
            true => "Enter keep  Esc clear",
            false => "q quit  Tab by  s sort  / filter  p pause  ↑↓ PgUp PgDn scroll",
        };
        frame.render_widget(Line::styled(help, reversed), keys);
    }

    /// The line below the header.
    fn state(&self) -> String {
        let Some(interval) = &self.interval else { return "waiting for samples".to_owned() };
        let mut text = format!("{}, by {}", summary(interval), self.sort.name());
        if self.is_typing || !self.filter.is_empty() {
            let cursor = if self.is_typing { "_" } else { "" };
            text.push_str(&format!(", filter: {}{cursor}", self.filter));
        }
        if self.is_paused {
            text.push_str(", PAUSED");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::rows::tests::example;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view(by: By) -> View {
        let header = Header("triscope top: cycles at 999 Hz, all CPUs".into());
        let mut view = View::new(header, by, String::new());
        view.update(example());
        view
    }

    /// The lines of the screen, without spaces at their end.
    fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| row(y).trim_end().to_owned()).collect()
    }

    fn press(view: &mut View, codes: &[KeyCode]) {
        for code in codes {
            let key = KeyEvent::new(*code, KeyModifiers::NONE);
            assert_eq!(view.handle(&Event::Key(key)), Action::Continue);
        }
    }

    #[test]
    fn a_small_screen_has_all_columns() {
        let lines = drawn(&mut view(By::Function), 80, 24);
        assert_eq!(
            lines[..6],
            [
                "triscope top: cycles at 999 Hz, all CPUs",
                "100 samples in 2.0 s, 3 lost, by self",
                "    SELF     TOTAL  FUNCTION                                 FILE",
                " 60.00 %   60.00 %  parse                                    app",
                " 30.00 %   30.00 %  print                                    app",
                " 10.00 %  100.00 %  main                                     app",
            ]
        );
        assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
        let lines = drawn(&mut view(By::Goroutine), 200, 50);
        assert!(lines[3].starts_with(" 60.00 %   60.00 %  7 main.serve"), "{}", lines[3]);
        assert!(lines[2].ends_with("MOST IN") && lines[49].starts_with("q quit"));
    }

    /// No size is a panic.
    #[test]
    fn tiny_screens_are_drawn() {
        for (width, height) in [(1, 1), (3, 2), (20, 4), (500, 3)] {
            drawn(&mut view(By::Thread), width, height);
        }
    }

    #[test]
    fn keys_change_rows_order_and_filter() {
        let mut view = view(By::Function);
        let first = |view: &mut View| drawn(view, 80, 24)[3].clone();
        press(&mut view, &[KeyCode::Char('s')]);
        assert!(first(&mut view).contains("main"));
        press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace]);
        press(&mut view, &[KeyCode::Char('P'), KeyCode::Char('r')]);
        assert!(drawn(&mut view, 80, 24)[1].ends_with("by total, filter: Pr_"));
        press(&mut view, &[KeyCode::Enter]);
        assert!(first(&mut view).contains("print"));
        press(&mut view, &[KeyCode::Esc, KeyCode::Tab]);
        assert!(first(&mut view).contains("worker-11 (11)"));
        press(&mut view, &[KeyCode::Tab]);
        assert!(first(&mut view).contains("server (10)"));
        press(&mut view, &[KeyCode::Tab]);
        assert!(first(&mut view).contains("7 main.serve"));
        press(&mut view, &[KeyCode::Tab]);
        assert!(drawn(&mut view, 80, 24)[2].contains("FUNCTION"));
    }

    #[test]
    fn a_paused_view_keeps_its_interval() {
        let mut view = view(By::Function);
        press(&mut view, &[KeyCode::Char('p')]);
        view.update(Interval::default());
        assert_eq!(drawn(&mut view, 80, 24)[1], "100 samples in 2.0 s, 3 lost, by self, PAUSED");
        press(&mut view, &[KeyCode::Char(' ')]);
        view.update(Interval::default());
        assert_eq!(drawn(&mut view, 80, 24)[1], "0 samples in 0.0 s, 0 lost, by self");
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut view = view(By::Function);
        press(&mut view, &[KeyCode::PageDown, KeyCode::Down, KeyCode::Down]);
        assert_eq!(view.table.selected(), Some(2));
        press(&mut view, &[KeyCode::Up, KeyCode::Home, KeyCode::Up]);
        assert_eq!(view.table.selected(), Some(0));
        press(&mut view, &[KeyCode::End]);
        view.update(Interval::default());
        assert_eq!(view.table.selected(), None);
        press(&mut view, &[KeyCode::Down, KeyCode::PageUp, KeyCode::End]);
    }

    #[test]
    fn q_and_control_c_end() {
        let mut view = view(By::Function);
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert_eq!(view.handle(&key(KeyCode::Char('q'), KeyModifiers::NONE)), Action::End);
        press(&mut view, &[KeyCode::Char('/')]);
        assert_eq!(view.handle(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::End);
    }
}
