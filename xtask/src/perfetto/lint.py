"""Checks Perfetto traces against the official schema, and for faults that readers ignore.

The trace processor drops an end without a beginning, shows an undefined name as NULL and accepts
an undeclared track, all without an error. Here each of these is a fault. So is what it does report:
a clock that no snapshot relates to its own. Runs after packets.py.
"""

import sys
from collections import Counter, defaultdict

from google.protobuf.unknown_fields import UnknownFieldSet

BEGIN, END, INSTANT, COUNTER, STATE = 1, 2, 3, 4, 5
STATE_CLEARED, NEEDS_STATE = 1, 2
BOOTTIME, TRACE_FILE = 6, 11
HARDIRQ, SOFTIRQ = 0x08, 0x10


class Sequence:
    """The interned data that packets of one sequence can refer to."""

    def __init__(self):
        self.cleared = False
        self.clocks = {}  # by number: the last time, and the unit
        self.units, self.offsets = {}, {}
        self.reset()

    def reset(self):
        self.default_clock = None
        self.iids = defaultdict(set)


class Lint:
    def __init__(self):
        self.faults = Counter()
        self.kinds = Counter()
        self.events = Counter()
        self.sequences = defaultdict(Sequence)
        self.tracks = {}
        self.identities = {}
        self.counters = set()
        self.depth = Counter()
        self.last = {}
        self.flows = Counter()
        self.switches = 0
        self.switched = {}  # by processor: when, and to whom
        self.has_kernel = False
        self.primary = None
        self.related = set()  # clocks that a snapshot relates to CLOCK_BOOTTIME
        self.last_reading = {}
        self.first = None
        self.end = None

    def fault(self, text):
        self.faults[text] += 1

    def unknown_fields(self, message, path):
        for field in UnknownFieldSet(message):
            self.fault(f"unknown field {path}.{field.field_number}")
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
                for one in value if repeated else [value]:
                    self.unknown_fields(one, f"{path}.{field.name}")

    def time(self, packet, sequence):
        """The time of a packet on the primary clock, if it has one."""
        if not packet.HasField("timestamp"):
            return None
        clock = packet.timestamp_clock_id or sequence.default_clock
        if clock is not None and 64 <= clock < 128:
            if clock not in sequence.clocks:
                self.fault(f"clock {clock} is used before a snapshot of it")
                return None
            # Deltas are signed 64-bit numbers.
            at, unit = sequence.clocks[clock]
            at = (at + packet.timestamp * unit) % 2**64
            sequence.clocks[clock] = at, unit
            self.relate(self.primary)
            return at
        if clock != self.primary:
            self.fault(f"a time on clock {clock}, where the primary one is {self.primary}")
        self.relate(clock)
        return packet.timestamp

    def relate(self, clock):
        """The trace processor drops events whose clock it cannot relate to CLOCK_BOOTTIME."""
        if clock not in self.related and clock not in (BOOTTIME, TRACE_FILE):
            self.fault(f"clock_sync_unrelatable_clock_domains: clock {clock} and CLOCK_BOOTTIME")

    def use(self, sequence, table, iid, what):
        if iid not in sequence.iids[table]:
            self.fault(f"{what} refers to {table} {'0' if iid == 0 else 'that are not defined'}")

    def packet(self, packet):
        self.unknown_fields(packet, "TracePacket")
        sid = packet.trusted_packet_sequence_id
        if sid == 0:
            self.fault("a packet without a sequence")
        sequence = self.sequences[sid]
        if packet.sequence_flags & STATE_CLEARED:
            sequence.reset()
            sequence.cleared = True
        if packet.sequence_flags & NEEDS_STATE and not sequence.cleared:
            self.fault("a packet needs the state of a sequence that was never begun")
        if packet.HasField("trace_packet_defaults"):
            sequence.default_clock = packet.trace_packet_defaults.timestamp_clock_id
        if packet.HasField("clock_snapshot"):
            self.snapshot(packet.clock_snapshot, sequence)
        at = self.time(packet, sequence)
        if at is not None:
            self.first = at if self.first is None else min(at, self.first)
            self.end = at if self.end is None else max(at, self.end)
        if packet.HasField("interned_data"):
            self.interned(packet.interned_data, sequence)
        kind = packet.WhichOneof("data")
        self.kinds[kind or "interned data or defaults"] += 1
        if kind == "track_descriptor":
            self.descriptor(packet.track_descriptor)
        elif kind == "track_event":
            self.event(packet.track_event, sequence, at)
        elif kind == "perf_sample":
            if at is None:
                self.fault("a sample without a time")
            sample = packet.perf_sample
            if sample.HasField("callstack_iid"):
                self.use(sequence, "callstacks", sample.callstack_iid, "a sample")
        elif kind == "system_info":
            self.has_kernel = bool(packet.system_info.utsname.release)
        elif kind == "ftrace_events":
            self.ftrace(packet.ftrace_events)

    def snapshot(self, snapshot, sequence):
        if snapshot.primary_trace_clock:
            if self.primary not in (None, snapshot.primary_trace_clock):
                self.fault("the primary clock changes")
            self.primary = snapshot.primary_trace_clock
        ids = [clock.clock_id for clock in snapshot.clocks]
        if len(set(ids)) != len(ids):
            self.fault("a clock is twice in a snapshot")
        if self.primary not in ids:
            self.fault("a snapshot without the primary clock")
        own = {clock.clock_id: clock.timestamp for clock in snapshot.clocks}.get(self.primary, 0)
        for clock in snapshot.clocks:
            if 64 <= clock.clock_id < 128:
                unit = clock.unit_multiplier_ns or 1
                if sequence.units.setdefault(clock.clock_id, unit) != unit:
                    self.fault("the unit of a clock changes")
                offset = own - clock.timestamp * unit
                if sequence.offsets.setdefault(clock.clock_id, offset) != offset:
                    self.fault("the offset of a clock from the primary one changes")
                # Times are on the primary clock.
                sequence.clocks[clock.clock_id] = own, unit
            elif clock.clock_id == self.primary:
                if clock.timestamp < self.last_reading.get(clock.clock_id, 0):
                    self.fault("invalid_clock_snapshots: the primary clock goes back")
                self.last_reading[clock.clock_id] = clock.timestamp
        if BOOTTIME in ids:
            self.related.update(ids)

    def interned(self, data, sequence):
        for field, entries in data.ListFields():
            for entry in entries:
                if entry.iid == 0:
                    self.fault(f"{field.name} 0 is defined, which stands for none")
                if entry.iid in sequence.iids[field.name]:
                    self.fault(f"{field.name} are defined twice")
                sequence.iids[field.name].add(entry.iid)
        for frame in data.frames:
            self.use(sequence, "function_names", frame.function_name_id, "a frame")
            self.use(sequence, "mappings", frame.mapping_id, "a frame")
            if frame.HasField("source_path_iid"):
                self.use(sequence, "source_paths", frame.source_path_iid, "a frame")
        for mapping in data.mappings:
            for path in mapping.path_string_ids:
                self.use(sequence, "mapping_paths", path, "a mapping")
        for stack in data.callstacks:
            if not stack.frame_ids:
                self.fault("a stack without frames")
            for frame in stack.frame_ids:
                self.use(sequence, "frames", frame, "a stack")

    def descriptor(self, track):
        # Trace Processor compares these, not the name: a process or thread can get another one.
        identity = (track.parent_uuid, track.process.pid, track.thread.pid, track.thread.tid)
        if track.uuid in self.tracks:
            if not (track.HasField("process") or track.HasField("thread")):
                self.fault("a track is declared twice")
            elif identity != self.identities[track.uuid]:
                self.fault("a track is declared again as another one")
        self.identities[track.uuid] = identity
        if track.HasField("parent_uuid") and track.parent_uuid not in self.tracks:
            self.fault("a track's parent is not declared before it")
        self.tracks[track.uuid] = track.name
        if track.HasField("counter"):
            self.counters.add(track.uuid)

    def event(self, event, sequence, at):
        self.events[event.type] += 1
        track = event.track_uuid
        if track not in self.tracks:
            self.fault("an event on a track that is not declared")
        if (event.type == COUNTER) != (track in self.counters):
            self.fault("a track has both values and slices")
        if at is None:
            self.fault("an event without a time")
        else:
            if at < self.last.get(track, 0):
                self.fault("time goes back on a track")
            self.last[track] = at
        if event.type == BEGIN:
            self.depth[track] += 1
        elif event.type == END:
            if self.depth[track] == 0:
                self.fault("an end without a beginning")
            else:
                self.depth[track] -= 1
        elif event.type == COUNTER:
            if not (event.HasField("counter_value") or event.HasField("double_counter_value")):
                self.fault("a counter without a value")
        elif event.type not in (INSTANT, STATE):
            self.fault(f"an event of type {event.type}")
        if event.type in (BEGIN, INSTANT):
            if event.HasField("name_iid"):
                self.use(sequence, "event_names", event.name_iid, "an event")
            elif not event.HasField("name"):
                self.fault("a slice or instant without a name")
        for iid in event.category_iids:
            self.use(sequence, "event_categories", iid, "an event")
        if event.HasField("callstack_iid"):
            self.use(sequence, "callstacks", event.callstack_iid, "an event")
        for flow in [*event.flow_ids, *event.flow_ids_old]:
            self.flows[flow] += 1
        for flow in [*event.terminating_flow_ids, *event.terminating_flow_ids_old]:
            if flow not in self.flows:
                self.fault("an arrow ends that never began")
        for arg in event.debug_annotations:
            if arg.HasField("name_iid"):
                self.use(sequence, "debug_annotation_names", arg.name_iid, "an argument")
            if arg.HasField("string_value_iid"):
                table = "debug_annotation_string_values"
                self.use(sequence, table, arg.string_value_iid, "an argument")

    def ftrace(self, bundle):
        if not self.has_kernel:
            self.fault("switches without the kernel release that defines their states")
        for event in bundle.event:
            if event.HasField("sched_switch"):
                self.switch(bundle.cpu, event.timestamp, event.sched_switch.next_pid)
        sched = bundle.compact_sched
        at = 0
        for delta, tid in zip(sched.switch_timestamp, sched.switch_next_pid):
            at = (at + delta) % 2**64
            self.switch(bundle.cpu, at, tid)
        columns = [
            sched.switch_timestamp,
            sched.switch_prev_state,
            sched.switch_next_pid,
            sched.switch_next_prio,
            sched.switch_next_comm_index,
        ]
        if len({len(column) for column in columns}) != 1:
            self.fault("columns of switches that differ in length")
        columns = [
            sched.waking_timestamp,
            sched.waking_pid,
            sched.waking_target_cpu,
            sched.waking_prio,
            sched.waking_comm_index,
        ]
        if len({len(column) for column in columns}) != 1:
            self.fault("columns of wake-ups that differ in length")
        # Readers take it as zeros where it is missing.
        flags = sched.waking_common_flags
        if flags and len(flags) != len(sched.waking_timestamp):
            self.fault("a column of flags that is not as long as those of wake-ups")
        if any(value not in (0, HARDIRQ, SOFTIRQ) for value in flags):
            self.fault("flags of a wake-up that are not those of one interrupt")
        names = len(sched.intern_table)
        for index in [*sched.switch_next_comm_index, *sched.waking_comm_index]:
            if index >= names:
                self.fault("a thread name that is not in the table")


    def switch(self, cpu, at, tid):
        self.switches += 1
        last, running = self.switched.get(cpu, (0, None))
        if at < last:
            self.fault("switches of a processor go back in time")
        if tid == running:
            self.fault("a thread gets the processor that it has")
        self.switched[cpu] = (at, tid)


def check(path):
    lint = Lint()
    try:
        with open(path, "rb") as file:
            data = file.read()
        for packet in packets(memoryview(data)):
            lint.packet(packet)
    except Exception as error:  # whatever is wrong with the bytes
        lint.fault(f"cannot be parsed: {type(error).__name__}: {error}")
    if not lint.kinds:
        lint.fault("there are no packets")
    begin, instants, values = (lint.events[kind] for kind in (BEGIN, INSTANT, COUNTER))
    still_open = sum(lint.depth.values())
    seconds = ((lint.end or 0) - (lint.first or 0)) / 1e9
    print(
        f"{path}: {sum(lint.kinds.values())} packets, {len(lint.tracks)} tracks, "
        f"{begin} slices ({still_open} open at the end), {instants} instants, "
        f"{values} counter values, {lint.kinds['perf_sample']} samples, "
        f"{lint.switches} switches, {seconds:.3f} s"
    )
    for fault, count in sorted(lint.faults.items()):
        print(f"{path}: FAULT: {fault} ({count} times)")
    return not lint.faults


if __name__ == "__main__":
    results = [check(path) for path in sys.argv[1:]]
    sys.exit(0 if all(results) else 1)
