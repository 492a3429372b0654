"""Prints the bytes of an event of each trace, as a table in Markdown.

With `--limits FILE` first, such a table in this file has the most bytes of the traces that it names.
"""

import os
import re
import sys
import zlib
from collections import Counter

# Fields of Trace, TracePacket, FtraceEventBundle, its CompactSched, and TrackEvent.
PACKET, FTRACE, TRACK_EVENT, INTERNED, COMPRESSED, SAMPLE = 1, 1, 11, 12, 50, 66
EVENT, COMPACT, SWITCH_TIMES, WAKING_TIMES = 2, 4, 1, 7
ARGUMENTS, EXTRA = 4, "texts, stacks, tracks"


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data, at, end):
    """The number, begin of the content, and end of each field; its first byte."""
    while at < end:
        first = at
        tag, at = varint(data, at)
        wire, content = tag & 7, at
        if wire == 0:
            _, at = varint(data, at)
        elif wire == 2:
            length, content = varint(data, at)
            at = content + length
        else:
            at += {1: 8, 5: 4}[wire]
        yield tag >> 3, content, at, first


def count(data, sums):
    for number, begin, end, first in fields(data, 0, len(data)):
        assert number == PACKET, f"field {number} of the trace"
        rest, is_event, is_sched = end - first, False, False
        for number, begin, end, first in fields(data, begin, end):
            size = end - first
            if number == COMPRESSED:
                rest -= size
                count(zlib.decompress(data[begin:end]), sums)
            elif number == FTRACE:
                is_sched = True
                for number, begin, end, _ in fields(data, begin, end):
                    sums["switches"] += number == EVENT
                    for column in fields(data, begin, end) if number == COMPACT else ():
                        if column[0] in (SWITCH_TIMES, WAKING_TIMES):
                            sums["switches"] += sum(b < 128 for b in data[column[1]:column[2]])
            elif number == TRACK_EVENT:
                is_event = True
                for number, _, end, first in fields(data, begin, end):
                    if number == ARGUMENTS:
                        sums["arguments"] += end - first
            elif number == INTERNED:
                sums[EXTRA] += size
                rest -= size
            elif number == SAMPLE:
                is_event = True
        sums["events"] += is_event
        sums["sched bytes" if is_sched else "event bytes" if is_event else EXTRA] += rest


def limits(path):
    """The number of events, the most bytes of one, and of its share of texts, by trace."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.split("|")]
            # Live recordings differ each time.
            name = re.search(r"`([\w.-]+)`", cells[1]) if len(cells) == 9 else None
            if name and cells[2].isdigit():
                found[name[1]] = (int(cells[2]), float(cells[3]), float(cells[5]))
    return found


def per(total, number):
    return f"{total / number:.1f}" if number else ""


paths, most = sys.argv[1:], {}
if paths[0] == "--limits":
    most, paths = limits(paths[1]), paths[2:]
    assert most, "a table of limits"
faults, missing = [], set(most)
names = ["events", "bytes each", "of these arguments", EXTRA, "switches and wake-ups", "bytes each"]
print(f"| trace | {' | '.join(names)} |")
print("| --- |" + " --: |" * len(names))
for path in paths:
    with open(path, "rb") as file:
        data = file.read()
    sums = Counter()
    count(data, sums)
    events, switches = sums["events"], sums["switches"]
    texts = per(sums[EXTRA], events)
    row = [events or "", per(sums["event bytes"], events), per(sums["arguments"], events), texts]
    row += [switches or "", per(sums["sched bytes"], switches)]
    cells = [os.path.basename(path), *map(str, row)]
    print(f"| {' | '.join(cells)} |")
    name = os.path.basename(path)
    for known in (known for known in most if name.startswith(f"{known}.")):
        missing.discard(known)
        listed, *limits = most[known]
        if events != listed:
            faults.append(f"{known}: {events} events, {listed} expected: update the table")
        for what, value, limit in zip(("events", EXTRA), (float(row[1]), float(row[3])), limits):
            if value > limit:
                faults.append(f"{known}: {value} bytes of {what} each, at most {limit} expected")
faults += [f"{known}: no such trace" for known in sorted(missing)]
for fault in faults:
    print(f"FAULT: {fault}")
sys.exit(1 if faults else 0)
