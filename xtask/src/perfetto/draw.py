"""Draws a part of a Perfetto trace as SVG: from the file, by the official schema.

Runs behind packets.py. Not a screenshot of a viewer: the same tracks, slices, instants, counters and arrows, drawn plainly.
"""

import argparse
import html
import os
from collections import defaultdict

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
ROW, GAP, LEFT, WIDTH = 17, 3, 292, 1320


class Track:
    def __init__(self, descriptor):
        self.uuid = descriptor.uuid
        self.parent = descriptor.parent_uuid
        self.rank = descriptor.sibling_order_rank
        self.is_counter = descriptor.HasField("counter")
        self.bytes = self.is_counter and descriptor.counter.unit == 3
        self.is_thread = descriptor.HasField("thread")
        self.pid = descriptor.process.pid or descriptor.thread.pid
        self.name = descriptor.name
        if descriptor.HasField("process"):
            self.name = descriptor.process.process_name
        elif self.is_thread:
            name = descriptor.thread.thread_name
            self.name = f"{name or 'thread'} {descriptor.thread.tid}"
        self.slices = []  # begin, end, depth, name
        self.instants = []  # at, name
        self.values = []  # at, value
        self.samples = []
        self.open = []
        self.states = []  # begin, end, state

    @classmethod
    def of_cpu(cls, cpu):
        track = cls.__new__(cls)
        track.uuid, track.parent, track.rank = f"cpu{cpu}", 0, cpu
        track.is_counter = track.bytes = track.is_thread = False
        track.pid, track.name = 0, f"CPU {cpu}"
        track.slices, track.instants, track.values = [], [], []
        track.samples, track.open, track.states = [], [], []
        return track


class Timeline:
    def __init__(self, data):
        self.tracks, self.order, self.cpus = {}, [], []
        self.threads, self.flows = {}, defaultdict(list)
        self.names, self.end, self.begin = {}, 0, None
        clocks, units, default = {}, {}, 0
        self.sched, offset = [], 0
        for packet in packets(memoryview(data)):
            if packet.sequence_flags & 1:
                self.names = {}
            if packet.HasField("trace_packet_defaults"):
                default = packet.trace_packet_defaults.timestamp_clock_id
            # Incremental clocks start at the time of the primary clock.
            for reading in packet.clock_snapshot.clocks:
                if reading.is_incremental:
                    units[reading.clock_id] = reading.unit_multiplier_ns or 1
                    clocks[reading.clock_id] = packet.timestamp
            times = {c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks}
            if 3 in times and 6 in times:
                offset = times[6] - times[3]
            at = None
            if packet.HasField("timestamp"):
                at = packet.timestamp
                clock = packet.timestamp_clock_id or default
                if clock in clocks:
                    at = (clocks[clock] + packet.timestamp * units[clock]) % 2**64
                    clocks[clock] = at
            for name in packet.interned_data.event_names:
                self.names[name.iid] = name.name
            if packet.HasField("track_descriptor"):
                track = Track(packet.track_descriptor)
                self.tracks[track.uuid] = track
                self.order.append(track)
                if track.is_thread:
                    self.threads[packet.track_descriptor.thread.tid] = track
            elif packet.HasField("track_event"):
                self.event(packet.track_event, at)
            elif packet.HasField("perf_sample"):
                self.threads[packet.perf_sample.tid].samples.append(at)
            elif packet.HasField("ftrace_events"):
                self.scheduler(packet.ftrace_events, offset)
        self.draw_scheduler()
        for track in self.order:
            for begin, depth, name in track.open:
                track.slices.append((begin, self.end, depth, name))

    def event(self, event, at):
        track = self.tracks[event.track_uuid]
        self.end = max(self.end, at)
        self.begin = at if self.begin is None else min(self.begin, at)
        name = event.name or self.names.get(event.name_iid, "")
        if event.type == BEGIN:
            depth = len(track.open)
            track.open.append((at, depth, name))
        elif event.type == END:
            begin, depth, name = track.open.pop()
            track.slices.append((begin, at, depth, name))
        elif event.type == INSTANT:
            depth = len(track.open)
            track.instants.append((at, name))
        elif event.type == COUNTER:
            is_double = event.HasField("double_counter_value")
            value = event.double_counter_value if is_double else event.counter_value
            track.values.append((at, value))
        starts = [*event.flow_ids, *event.flow_ids_old]
        for flow in [*starts, *event.terminating_flow_ids, *event.terminating_flow_ids_old]:
            self.flows[flow].append((at, track.uuid, max(depth - (event.type == INSTANT), 0)))

    def scheduler(self, bundle, offset):
        """Collects switches and wake-ups: time, CPU, thread, its name, state of the previous thread."""
        for event in bundle.event:
            if event.HasField("sched_switch"):
                to = event.sched_switch
                at = event.timestamp - offset
                self.sched.append((at, bundle.cpu, to.next_pid, to.next_comm, to.prev_state))
        compact = bundle.compact_sched
        at = -offset
        columns = (
            compact.switch_timestamp,
            compact.switch_next_pid,
            compact.switch_next_comm_index,
            compact.switch_prev_state,
        )
        for delta, tid, name, state in zip(*columns):
            at += delta
            self.sched.append((at, bundle.cpu, tid, compact.intern_table[name], state))
        at = -offset
        for delta, tid in zip(compact.waking_timestamp, compact.waking_pid):
            at += delta
            self.sched.append((at, None, tid, None, None))

    def draw_scheduler(self):
        """Tracks of the CPUs, and of the known threads."""
        if not self.sched:
            return
        self.sched.sort(key=lambda event: event[0])
        first, last = self.sched[0][0], self.sched[-1][0]
        self.begin = first if self.begin is None else min(first, self.begin)
        self.end = max(self.end, last)
        cpus, running, states = {}, {}, {}

        def continues(at, tid, state):
            """Sets the state of the thread from this time on."""
            if tid in states and tid in self.threads:
                since, before = states[tid]
                if before:
                    self.threads[tid].states.append((since, at, before))
            states[tid] = (at, state)

        for at, cpu, tid, name, state in self.sched:
            if cpu is None:
                if states.get(tid, (0, "Asleep"))[1] in ("Asleep", "Blocked"):
                    continues(at, tid, "Runnable")
                continue
            if cpu not in cpus:
                cpus[cpu] = Track.of_cpu(cpu)
            if cpu in running:
                since, old, old_name = running[cpu]
                if old:
                    known = self.threads.get(old)
                    cpus[cpu].slices.append((since, at, 0, known.name if known else old_name))
                    blocked = "Blocked" if state & 2 else "Asleep" if state & 0xFF else "Runnable"
                    continues(at, old, None if state & 0x30 else blocked)
            running[cpu] = (at, tid, name)
            if tid:
                continues(at, tid, "Running")
        for cpu, (since, tid, name) in running.items():
            if tid:
                known = self.threads.get(tid)
                cpus[cpu].slices.append((since, last, 0, known.name if known else name))
        for tid in list(states):
            continues(last, tid, None)
        self.cpus = [cpus[cpu] for cpu in sorted(cpus)]

    def path(self, track):
        names = []
        while track:
            names.append(track.name)
            track = self.tracks.get(track.parent)
        return names[::-1]


STATES = {
    "Running": "#2f9e44",
    "Runnable": "#f2c14e",
    "Waiting": "#dfe3e8",
    "Asleep": "#dfe3e8",
    "Blocked": "#e8a09a",
    "other": "#c9ced6",
    "others": "#c9ced6",
    "Syscall": "#4a7fc1",
}
PALETTE = ["#7b6fd0", "#d0716f", "#3f9fa8", "#c98a3c", "#6f8fd0", "#b56fa8", "#79a04a", "#a8795c"]


def colour(name):
    state = name.split(" ")[0]
    if state in STATES:
        return STATES[state]
    if name.startswith(("GC", "stop-the-world")):
        return "#c0392b" if name.startswith("stop") else "#9b59b6"
    return PALETTE[zlib.crc32(name.split(" ", 1)[-1].encode()) % len(PALETTE)]


def text_colour(fill):
    red, green, blue = (int(fill[i : i + 2], 16) for i in (1, 3, 5))
    return "#222" if 0.3 * red + 0.59 * green + 0.11 * blue > 150 else "#fff"


def short(nanos):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanos >= size:
            return f"{nanos / size:g} {unit}"
    return f"{nanos} ns"


def draw(timeline, begin, end, wanted, most, out):
    scale = (WIDTH - LEFT - 12) / (end - begin)
    x = lambda at: LEFT + (min(max(at, begin), end) - begin) * scale
    parts, y, places = [], 44, {}

    def label(track, depth, top, height):
        name = html.escape(track.name)
        parts.append(
            f'<text x="{12 + 10 * depth}" y="{top + height / 2 + 4:.1f}" class="l">'
            f"<title>{html.escape(' / '.join(timeline.path(track)))}</title>{name[:44]}</text>"
        )

    def visible(track):
        inside = lambda a, b: b > begin and a < end
        return (
            any(inside(a, b) for a, b, _, _ in track.slices)
            or any(begin <= at < end for at, _ in track.instants)
            or any(begin <= at < end for at in track.samples)
            or any(a < end and b > begin for a, b, _ in track.states)
            or bool(track.values)
        )

    def row(track, depth):
        nonlocal y
        levels = 1 + max((d for a, b, d, _ in track.slices if b > begin and a < end), default=0)
        if track.is_counter:
            levels = 2
        height = levels * ROW
        parts.append(f'<line x1="0" x2="{WIDTH}" y1="{y - 1.5}" y2="{y - 1.5}" stroke="#eceef1"/>')
        label(track, depth, y, height)
        places[track.uuid] = y
        if track.is_counter:
            counter(track, y, height)
        for a, b, d, name in sorted(track.slices):
            if b <= begin or a >= end:
                continue
            left, width = x(a), max(x(b) - x(a), 0.6)
            fill = colour(name)
            parts.append(
                f'<rect x="{left:.1f}" y="{y + d * ROW}" width="{width:.1f}" height="{ROW - 2}" '
                f'fill="{fill}"/>'
            )
            room = int((width - 6) / 5.7)
            if room >= 3:
                shown = name if len(name) <= room else name[: room - 1] + "…"
                parts.append(
                    f'<text x="{left + 3:.1f}" y="{y + d * ROW + 11.5}" '
                    f'fill="{text_colour(fill)}">{html.escape(shown)}</text>'
                )
        for a, b, name in track.states:
            if b > begin and a < end:
                left, width = x(a), max(x(b) - x(a), 0.6)
                parts.append(
                    f'<rect x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 8}" '
                    f'fill="{STATES[name]}"><title>{name}</title></rect>'
                )
        for at, name in track.instants:
            if begin <= at < end and name not in ("unblock", "go"):
                px = x(at)
                parts.append(
                    f'<path d="M{px:.1f} {y}l4 7l-4 7l-4 -7z" fill="#e8590c">'
                    f"<title>{html.escape(name)}</title></path>"
                )
        for at in track.samples:
            if begin <= at < end:
                parts.append(f'<circle cx="{x(at):.1f}" cy="{y + 8}" r="3.5" fill="#d6336c"/>')
        y += height + GAP

    def counter(track, top, height):
        values = [(at, v) for at, v in track.values if at < end]
        before = [v for at, v in values if at < begin]
        values = ([(begin, before[-1])] if before else []) + [p for p in values if p[0] >= begin]
        if not values:
            return
        high = max(v for _, v in values) or 1
        points = []
        for i, (at, value) in enumerate(values):
            until = values[i + 1][0] if i + 1 < len(values) else end
            level = top + height - 2 - value / high * (height - 4)
            points += [f"{x(at):.1f},{level:.1f}", f"{x(until):.1f},{level:.1f}"]
        bottom = top + height - 2
        area = f"{x(values[0][0]):.1f},{bottom} {' '.join(points)} {x(end):.1f},{bottom}"
        parts.append(f'<polygon points="{area}" fill="#cfe3f6" stroke="#4a90d9"/>')
        text = f"max {high / 1048576:.1f} MiB" if track.bytes else f"max {high}"
        parts.append(f'<text x="{LEFT + 4}" y="{top + 11}" fill="#345">{text}</text>')

    def group(track, depth):
        nonlocal y
        children = [t for t in timeline.order if t.parent == track.uuid]
        children.sort(key=lambda t: t.rank)
        own = visible(track)
        shown = [t for t in children if any_visible(t)]
        if not own and not shown:
            return
        if own:
            row(track, depth)
        else:
            label(track, depth, y, ROW)
            y += ROW
        for child in shown[: most if depth > 1 else None]:
            group(child, depth + 1)

    def any_visible(track):
        path = "/".join(timeline.path(track))
        if wanted and not any(w in path or path in w for w in wanted):
            children = [t for t in timeline.order if t.parent == track.uuid]
            return any(any_visible(t) for t in children)
        if visible(track):
            return True
        return any(any_visible(t) for t in timeline.order if t.parent == track.uuid)

    for cpu in timeline.cpus:
        if not wanted or any(w in cpu.name for w in wanted):
            row(cpu, 0)
    for root in [t for t in timeline.order if not t.parent and not t.is_thread]:
        if any_visible(root):
            group(root, 0)
    for thread in [t for t in timeline.order if t.is_thread]:
        if any_visible(thread):
            row(thread, 1)
    arrows = []
    for stops in timeline.flows.values():
        for (a, from_track, from_depth), (b, to_track, to_depth) in zip(stops, stops[1:]):
            if begin <= a and b < end and from_track in places and to_track in places:
                ax, ay = x(a), places[from_track] + from_depth * ROW + ROW / 2
                bx, by = x(b), places[to_track] + to_depth * ROW + ROW / 2
                middle = max(abs(bx - ax) / 2, 14)
                arrows.append(
                    f'<path d="M{ax:.1f} {ay:.1f}C{ax + middle:.1f} {ay:.1f} {bx - middle:.1f} '
                    f'{by:.1f} {bx:.1f} {by:.1f}" class="a"/>'
                )
    height = y + 14
    step = next(
        s for p in range(3, 12) for s in (10**p, 2 * 10**p, 5 * 10**p) if (end - begin) / s <= 11
    )
    grid = []
    for i in range(int((end - begin) // step) + 1):
        px = x(begin + i * step)
        grid.append(
            f'<line x1="{px:.1f}" x2="{px:.1f}" y1="26" y2="{height - 8}" stroke="#e3e6ea"/>'
            f'<text x="{px + 3:.1f}" y="30" fill="#667">{"+" + short(i * step) if i else "0"}</text>'
        )
    out.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="10.5">'
        "<style>.l{fill:#24292f;font-size:11px}.a{fill:none;stroke:#111;stroke-width:.8;"
        "stroke-opacity:.65;marker-end:url(#m)}</style>"
        '<defs><marker id="m" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="#111"/></marker>'
        f'<clipPath id="c"><rect x="0" y="0" width="{LEFT - 6}" height="{height}"/></clipPath></defs>'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    )
    out.write("\n".join(grid + parts + arrows))
    out.write("\n</svg>\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--from-ms", type=float, default=0, help="from the first event on")
    parser.add_argument("--ms", type=float, default=None, help="how much of it")
    parser.add_argument("--most", type=int, default=8, help="children of a group at most")
    parser.add_argument("--only", action="append", default=[], help="a part of a track's path")
    args = parser.parse_args()
    with open(args.trace, "rb") as file:
        timeline = Timeline(file.read())
    begin = timeline.begin + int(args.from_ms * 1e6)
    end = begin + int(args.ms * 1e6) if args.ms else timeline.end
    with open(args.output, "w", encoding="utf-8") as out:
        draw(timeline, begin, end, args.only, args.most, out)
    print(f"{args.output}: {os.path.getsize(args.output) / 1e3:.1f} kB")


if __name__ == "__main__":
    main()
