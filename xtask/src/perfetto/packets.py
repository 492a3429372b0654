"""Reads the packets of a Perfetto trace, by the official schema."""

import zlib

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def packets(data):
    """The packets of a trace, decompressed."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag != 0x0A:
            raise ValueError(f"field {tag >> 3} at byte {at}, which is not a packet")
        size, at = varint(data, at)
        if at + size > len(data):
            raise ValueError(f"the packet at byte {at} is cut short")
        packet = TracePacket.FromString(data[at : at + size])
        at += size
        if packet.HasField("compressed_packets"):
            yield from packets(memoryview(zlib.decompress(packet.compressed_packets)))
        else:
            yield packet


