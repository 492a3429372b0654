//! A small reader of Perfetto traces that returns the timeline as text. It supports the packets
//! that the sink writes and panics at any other.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io::Read;
use trace_common::Cursor;

/// A field of a protobuf message.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message.
fn fields(message: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut c = Cursor::new(message);
    let mut fields = Vec::new();
    while !c.is_empty() {
        let tag = c.uvarint().unwrap();
        let field = match tag & 7 {
            0 => Field::Varint(c.uvarint().unwrap()),
            1 => Field::Fixed(c.u64().unwrap()),
            2 => {
                let len = c.uvarint().unwrap() as usize;
                Field::Bytes(c.bytes(len).unwrap())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

/// Fields of a message by number.
struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self(fields(bytes))
    }

    fn all(&self, number: u64) -> impl Iterator<Item = Field<'a>> {
        self.0.iter().filter(move |(n, _)| *n == number).map(|(_, field)| *field)
    }

    fn number(&self, number: u64) -> Option<u64> {
        self.all(number).next().map(|field| match field {
            Field::Varint(value) | Field::Fixed(value) => value,
            Field::Bytes(_) => panic!("field {number} is no number"),
        })
    }

    fn messages(&self, number: u64) -> impl Iterator<Item = Message<'a>> {
        self.bytes(number).map(Message::of)
    }

    fn bytes(&self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        self.all(number).map(move |field| match field {
            Field::Bytes(bytes) => bytes,
            _ => panic!("field {number} is no message"),
        })
    }

    fn message(&self, number: u64) -> Option<Message<'a>> {
        self.messages(number).next()
    }

    fn text(&self, number: u64) -> Option<String> {
        // A `string` must be UTF-8.
        self.bytes(number).next().map(|b| String::from_utf8(b.to_vec()).unwrap())
    }
}

/// A timeline read back.
#[derive(Debug, Default)]
pub struct Timeline {
    /// One line per packet, in file order.
    pub lines: Vec<String>,
    /// Number of packets that clear the incremental state.
    pub restarts: usize,
    /// Number of packets.
    pub packets: usize,
    /// Number of slices and instants by category; empty without one.
    pub categories: BTreeMap<String, usize>,
    tracks: HashMap<u64, (String, bool)>,
    depth: BTreeMap<String, i64>,
    last: HashMap<u64, u64>,
    clocks: HashMap<u64, Incremental>,
    /// The clock of packets that name none.
    clock: Option<u64>,
    primary: Option<u64>,
    /// The primary clock in the last snapshot.
    snapshots: Option<u64>,
    tables: HashMap<(u64, u64), String>,
}

/// An incremental clock.
#[derive(Clone, Copy, Debug)]
struct Incremental {
    /// In nanoseconds.
    unit: u64,
    /// The last time on the primary clock, which differs from this one by a part of the unit.
    last: u64,
    offset: u64,
}

impl Timeline {
    /// Reads a trace, compressed or not.
    #[must_use]
    pub fn read(trace: &[u8]) -> Self {
        let mut timeline = Self::default();
        timeline.packets(trace);
        timeline
    }

    /// All lines.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Tracks with slices that are still open at the end.
    #[must_use]
    pub fn open(&self) -> Vec<&str> {
        self.depth.iter().filter(|(_, n)| **n > 0).map(|(track, _)| &track[..]).collect()
    }

    /// Number of lines that contain `what`.
    #[must_use]
    pub fn count(&self, what: &str) -> usize {
        self.lines.iter().filter(|line| line.contains(what)).count()
    }

    fn packets(&mut self, trace: &[u8]) {
        for (number, packet) in fields(trace) {
            let (1, Field::Bytes(packet)) = (number, packet) else { panic!("not a packet") };
            let message = Message::of(packet);
            if let Some(compressed) = message.bytes(50).next() {
                let mut inner = Vec::new();
                flate2::read::ZlibDecoder::new(compressed).read_to_end(&mut inner).unwrap();
                self.packets(&inner);
            } else {
                self.packet(&message);
            }
        }
    }

    fn packet(&mut self, packet: &Message<'_>) {
        self.packets += 1;
        assert_eq!(packet.number(10), Some(1), "the one sequence");
        if packet.number(13) == Some(1) {
            self.restarts += 1;
            self.tables.clear();
            self.clock = None;
        } else {
            assert!(self.restarts > 0, "the sequence has not begun");
        }
        if let Some(defaults) = packet.message(59) {
            self.clock = defaults.number(58);
        }
        assert!(self.clock.is_some(), "no clock of the sequence");
        let at = packet.number(8).map(|time| {
            let clock = packet.number(58).or(self.clock).expect("a default clock");
            if clock < 64 {
                assert!(packet.message(6).is_some(), "only snapshots are on clock {clock}");
                return time;
            }
            let clock = self.clocks.get_mut(&clock).expect("a snapshot of the incremental clock");
            // Deltas are signed 64-bit numbers.
            clock.last = clock.last.wrapping_add(time.wrapping_mul(clock.unit));
            clock.last
        });
        if let Some(snapshot) = packet.message(6) {
            self.snapshot(&snapshot);
        }
        if let Some(data) = packet.message(12) {
            self.interned(&data);
        }
        if let Some(track) = packet.message(60) {
            self.track(&track);
        }
        if let Some(event) = packet.message(11) {
            self.event(at.unwrap(), &event);
        }
        if let Some(sample) = packet.message(66) {
            let stack = sample.number(4).map_or(String::new(), |iid| self.get(7, iid));
            let (pid, tid) = (sample.number(2).unwrap(), sample.number(3).unwrap());
            self.lines.push(format!("{} sample {pid}/{tid}{stack}", at.unwrap()));
        }
        if let Some(system) = packet.message(45) {
            let utsname = system.message(1).unwrap();
            let (name, release) = (utsname.text(1).unwrap(), utsname.text(3).unwrap());
            self.lines.push(format!("{name} {release}"));
        }
        if let Some(tree) = packet.message(2) {
            self.processes(&tree);
        }
        if let Some(bundle) = packet.message(1) {
            self.ftrace(&bundle);
        }
    }

    fn processes(&mut self, tree: &Message<'_>) {
        for process in tree.messages(1) {
            let (pid, parent) = (process.number(1).unwrap(), process.number(2).unwrap());
            let arguments: Vec<&str> =
                process.bytes(3).map(|bytes| std::str::from_utf8(bytes).unwrap()).collect();
            let start = process.number(7).map_or(String::new(), |at| format!(" since {at}"));
            self.lines.push(format!("process {pid} of {parent}{start}: {arguments:?}"));
        }
    }

    fn snapshot(&mut self, snapshot: &Message<'_>) {
        let primary = snapshot.number(2);
        let reading = |id| {
            let mut clocks = snapshot.messages(1);
            clocks.find_map(|c| (c.number(1) == Some(id)).then(|| c.number(2).unwrap()))
        };
        let own = reading(primary.unwrap()).expect("a snapshot without the primary clock");
        let mut line = String::from("clocks");
        for clock in snapshot.messages(1) {
            let (id, at) = (clock.number(1).unwrap(), clock.number(2).unwrap());
            if (64..128).contains(&id) {
                assert_eq!(clock.number(3), Some(1), "incremental");
                let unit = clock.number(4).unwrap_or(1);
                let offset = own.checked_sub(at * unit).expect("not after the primary clock");
                assert!(offset < unit, "a part of the unit");
                let new = Incremental { unit, last: own, offset };
                let before = self.clocks.insert(id, new).unwrap_or(new);
                assert_eq!((before.unit, before.offset), (unit, offset), "they do not change");
            } else {
                write!(line, " {id}={at}").unwrap();
            }
        }
        assert!(self.snapshots.is_none_or(|last| last <= own), "snapshots go back");
        if self.snapshots.is_none() && primary != Some(11) {
            assert!(reading(6).is_some(), "the first snapshot lacks CLOCK_BOOTTIME");
        }
        self.snapshots = Some(own);
        assert!(self.primary.is_none() || self.primary == primary);
        self.primary = primary;
        self.lines.push(line);
    }

    fn get(&self, table: u64, iid: u64) -> String {
        self.tables.get(&(table, iid)).unwrap_or_else(|| panic!("{iid} of {table}")).clone()
    }

    fn define(&mut self, table: u64, entry: &Message<'_>, value: String) {
        let iid = entry.number(1).unwrap();
        assert_ne!(iid, 0);
        assert!(self.tables.insert((table, iid), value).is_none(), "{iid} of {table} is there");
    }

    fn interned(&mut self, data: &Message<'_>) {
        for table in [1, 2, 3, 5, 17, 18, 29] {
            for entry in data.messages(table) {
                let text = entry.text(2).unwrap();
                self.define(table, &entry, text);
            }
        }
        for mapping in data.messages(19) {
            let path = self.get(17, mapping.number(7).unwrap());
            self.define(19, &mapping, path);
        }
        for frame in data.messages(6) {
            let mut text = self.get(5, frame.number(2).unwrap());
            self.get(19, frame.number(3).unwrap());
            if let Some(file) = frame.number(5) {
                write!(text, "@{}:{}", self.get(18, file), frame.number(6).unwrap_or(0)).unwrap();
            }
            self.define(6, &frame, text);
        }
        for stack in data.messages(7) {
            let mut text = String::from(" [");
            for (i, frame) in stack.all(2).enumerate() {
                let Field::Varint(frame) = frame else { panic!("a frame is a number") };
                text.push_str(if i > 0 { " > " } else { "" });
                text.push_str(&self.get(6, frame));
            }
            text.push(']');
            self.define(7, &stack, text);
        }
    }

    fn track(&mut self, track: &Message<'_>) {
        let uuid = track.number(1).unwrap();
        let mut name = match (track.message(3), track.message(4)) {
            (Some(p), _) => format!("{} {}", p.text(6).unwrap(), p.number(1).unwrap()),
            (_, Some(t)) => format!("{} {}", t.text(5).unwrap_or_default(), t.number(2).unwrap()),
            _ => track.text(2).unwrap(),
        };
        if let Some(parent) = track.number(5) {
            name = format!("{}/{name}", self.tracks[&parent].0);
        }
        let counter = track.message(8);
        let values = counter.as_ref().map_or(String::new(), |counter| {
            match (counter.text(6), counter.number(3)) {
                (Some(unit), None) => format!(" (values in {unit})"),
                (None, Some(1)) => " (values in ns)".into(),
                (None, Some(2)) => " (values)".into(),
                (None, Some(3)) => " (values in bytes)".into(),
                unit => panic!("unit {unit:?}"),
            }
        });
        self.lines.push(format!("track {name}{values}"));
        let before = self.tracks.insert(uuid, (name, counter.is_some()));
        // A process or thread can get another name.
        let is_named_again = track.message(3).is_some() || track.message(4).is_some();
        assert!(before.is_none() || is_named_again);
    }

    fn event(&mut self, at: u64, event: &Message<'_>) {
        let uuid = event.number(11).unwrap();
        let (track, counter) = self.tracks[&uuid].clone();
        let last = self.last.insert(uuid, at).unwrap_or(0);
        assert!(last <= at, "time goes back on {track}: from {last} to {at}");
        let ty = event.number(9).unwrap();
        assert_eq!(counter, ty == 4);
        let mut line = format!("{at} {track}: ");
        let depth = self.depth.entry(track).or_default();
        match ty {
            1 => *depth += 1,
            2 => *depth -= 1,
            _ => {}
        }
        assert!(*depth >= 0, "an end without a beginning: {line}");
        line.push_str(match ty {
            1 => "begin",
            2 => "end",
            3 => "instant",
            4 => "value",
            other => panic!("type {other}"),
        });
        match (event.number(10), event.text(23)) {
            (Some(iid), None) => write!(line, " {}", self.get(2, iid)).unwrap(),
            (None, Some(name)) => write!(line, " {name}").unwrap(),
            (None, None) => assert!(matches!(ty, 2 | 4), "no name"),
            _ => panic!("two names"),
        }
        if let Some(value) = event.number(30) {
            write!(line, " {}", value as i64).unwrap();
        }
        if let Some(value) = event.number(44) {
            write!(line, " {}", f64::from_bits(value)).unwrap();
        }
        for arg in event.messages(4) {
            write!(line, " {}=", self.get(3, arg.number(1).unwrap())).unwrap();
            match arg.0.iter().find(|(number, _)| *number != 1).unwrap() {
                (17, Field::Varint(iid)) => line.push_str(&self.get(29, *iid)),
                (4, Field::Varint(value)) => write!(line, "{}", *value as i64).unwrap(),
                (_, Field::Varint(value)) => write!(line, "{value}").unwrap(),
                (_, Field::Fixed(value)) => write!(line, "{}", f64::from_bits(*value)).unwrap(),
                (_, Field::Bytes(text)) => line.push_str(std::str::from_utf8(text).unwrap()),
            }
        }
        if matches!(ty, 1 | 3) {
            let category = event.number(3).map_or(String::new(), |iid| self.get(1, iid));
            *self.categories.entry(category).or_default() += 1;
        }
        for (number, arrow) in [(36, "->"), (42, "->|")] {
            if let Some(flow) = event.number(number) {
                write!(line, " {arrow}{flow}").unwrap();
            }
        }
        if let Some(stack) = event.number(56) {
            line.push_str(&self.get(7, stack));
        }
        self.lines.push(line);
    }

    fn ftrace(&mut self, bundle: &Message<'_>) {
        let cpu = bundle.number(1).unwrap();
        for event in bundle.messages(2) {
            let at = event.number(1).unwrap();
            let switch = event.message(4).unwrap();
            let (prev, next) = (switch.text(1).unwrap(), switch.text(5).unwrap());
            let (from, to) = (switch.number(2).unwrap(), switch.number(6).unwrap());
            self.lines.push(format!("{at} cpu {cpu}: {prev} {from} -> {next} {to}"));
        }
        let Some(compact) = bundle.message(4) else { return };
        let names: Vec<String> =
            compact.bytes(5).map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
        let column = |number| {
            let mut c = Cursor::new(compact.bytes(number).next().unwrap_or_default());
            std::iter::from_fn(move || (!c.is_empty()).then(|| c.uvarint().unwrap()))
        };
        let mut at = 0;
        let switches = column(1).zip(column(2)).zip(column(3)).zip(column(4)).zip(column(6));
        for ((((delta, state), tid), _prio), name) in switches {
            at += delta;
            let name = &names[name as usize];
            self.lines.push(format!("{at} cpu {cpu}: ({state}) -> {name} {tid}"));
        }
        let mut at = 0;
        let wake_ups = column(7).zip(column(8)).zip(column(9)).zip(column(11));
        // A column that is missing has zeros.
        let [times, all] = [7, 12].map(|number| column(number).count());
        assert!(all == 0 || all == times, "{all} flags of {times} wake-ups");
        let flags = column(12).chain(std::iter::repeat(0));
        for ((((delta, tid), target), name), flags) in wake_ups.zip(flags) {
            at += delta;
            let name = &names[name as usize];
            let by = match flags {
                0 => "",
                0x08 => " by a hardware interrupt",
                0x10 => " by a software interrupt",
                other => panic!("flags {other:#x}"),
            };
            self.lines.push(format!("{at} cpu {cpu}: wakes {name} {tid} for {target}{by}"));
        }
    }
}
