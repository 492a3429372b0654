"""Prints the bytes of an event of each trace, as a table in Markdown."""

import os
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


def per(total, number):
    return f"{total / number:.1f}" if number else ""


names = ["events", "bytes each", "of these arguments", EXTRA, "switches and wake-ups", "bytes each"]
print(f"| trace | {' | '.join(names)} |")
print("| --- |" + " --: |" * len(names))
for path in sys.argv[1:]:
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
