"""Receives what triscope push sends to Pyroscope and to OTLP, and compares both with each other and
with triscope diff."""

import collections
import http.server
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.parse

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

LABELS = {"env": "test run", "zone": "a/1"}

requests = []
# What the server answers, instead of accepting.
answer = None


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query, strict_parsing=True) if url.query else {}
        requests.append((url.path, query, self.headers["Content-Type"], body))
        status, text = answer or (200, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def require(is_good, message):
    if not is_good:
        sys.exit(f"fault: {message}")


def unknown(message):
    """The number of fields that the definitions do not have."""
    count = len(unknown_fields.UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type:
            try:
                parts = list(value)
            except TypeError:
                parts = [value]
            count += sum(unknown(part) for part in parts)
    return count


def any_value(value):
    return getattr(value, value.WhichOneof("value"))


def of_otlp(body, what):
    """Samples by stack and value of each profile of a request, whose references are checked."""
    request = service.ExportProfilesServiceRequest.FromString(body)
    require(unknown(request) == 0, f"{what}: unknown fields")
    tables = request.dictionary
    for name in ("mapping", "location", "function", "link", "attribute", "stack"):
        first = getattr(tables, f"{name}_table")[0]
        require(first.ByteSize() == 0, f"{what}: the first {name} is not empty")
    strings = tables.string_table
    require(strings[0] == "" and len(set(strings)) == len(strings), f"{what}: strings")

    def attributes(indices):
        all_of_them = [tables.attribute_table[index] for index in indices]
        require(0 not in indices, f"{what}: an empty attribute")
        found = {strings[a.key_strindex]: any_value(a.value) for a in all_of_them}
        require(len(found) == len(all_of_them), f"{what}: an attribute occurs twice")
        return found

    def frame(index):
        require(index > 0, f"{what}: an empty location")
        location = tables.location_table[index]
        mapping = tables.mapping_table[location.mapping_index]
        kinds.update(attributes(location.attribute_indices).values())
        attributes(mapping.attribute_indices)
        if location.mapping_index and location.address:
            inside = mapping.memory_start <= location.address
            require(inside, f"{what}: an address outside of its mapping")
        if not location.lines:
            return hex(location.address)
        (line,) = location.lines
        function = tables.function_table[line.function_index]
        require(line.function_index > 0, f"{what}: an empty function")
        return f"{strings[function.name_strindex]} {strings[function.filename_strindex]}:{line.line}"

    kinds = set()
    (of_resource,) = request.resource_profiles
    resource = {a.key: any_value(a.value) for a in of_resource.resource.attributes}
    require(resource == {"service.name": "shop", **LABELS}, f"{what}: resource {resource}")
    (of_scope,) = of_resource.scope_profiles
    require(of_scope.scope.name == "triscope", f"{what}: scope")
    profiles = []
    for profile in of_scope.profiles:
        samples = collections.Counter()
        threads = 0
        for sample in profile.samples:
            stack = tables.stack_table[sample.stack_index].location_indices
            (value,) = sample.values
            samples[tuple(frame(index) for index in stack)] += value
            threads += "thread.id" in attributes(sample.attribute_indices)
        kind = (strings[profile.sample_type.type_strindex], strings[profile.sample_type.unit_strindex])
        profiles.append((kind, samples, profile.time_unix_nano, profile.duration_nano, threads))
    return profiles, kinds


def of_pprof(pprof, body, dir):
    """The same of a file of pprof, as Go's tool prints it."""
    path = pathlib.Path(dir) / "received.pb.gz"
    path.write_bytes(body)
    command = [pprof, "-raw", "-symbolize=none", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    _, _, rest = text.partition("\nSamples:\n")
    lines, _, rest = rest.partition("Locations\n")
    locations, _, _ = rest.partition("Mappings\n")
    frames = {}
    for line in locations.splitlines():
        number, _, location = line.strip().partition(": ")
        address, _, name = location.partition(" ")
        name = name.partition(" ")[2] if name.startswith("M=") else name
        # Behind the line are its column and the line of the function.
        name = name.rpartition(" s=")[0].rpartition(":")[0].strip()
        frames[number] = name or address
    kinds, *lines = [line for line in lines.splitlines() if line]
    kinds = [tuple(kind.removesuffix("[dflt]").split("/")) for kind in kinds.split()]
    samples = [collections.Counter() for _ in kinds]
    for line in lines:
        values, is_sample, stack = line.partition(": ")
        values = values.split()
        if not is_sample or not all(value.isdigit() for value in values):
            continue  # the labels of the sample before
        stack = tuple(frames[number] for number in stack.split())
        for counter, value in zip(samples, values):
            counter[stack] += int(value)
    return dict(zip(kinds, samples))


def push(task, profile, url, *options, fails=False):
    labels = [f"--label={key}={value}" for key, value in LABELS.items()]
    command = [task["triscope"], "push", profile, "--service", "shop", *labels, *options]
    command += [f"--pyroscope={url}", f"--otlp={url}"] if not options else []
    output = subprocess.run(command, capture_output=True, text=True)
    require((output.returncode != 0) == fails, f"{command}: {output.stderr}")
    return output.stderr


def compare(task, profile, url):
    name = pathlib.Path(profile).name
    requests.clear()
    push(task, profile, url)
    (path, query, _, pprof), (otlp_path, otlp_query, kind, otlp) = requests
    require(path == "/ingest" and otlp_path == "/v1development/profiles", f"{path} {otlp_path}")
    require(kind == "application/x-protobuf" and not otlp_query, f"{kind} {otlp_query}")
    require(query["name"] == ["shop{env=test run,zone=a/1}"], f"{query}")
    require(query["format"] == ["pprof"], f"{query}")
    begin, end = int(query["from"][0]), int(query["until"][0])
    require(0 < begin < end <= time.time() + 2, f"{name}: from {begin} until {end}")

    (profiles, frames), by_kind = of_otlp(otlp, name), of_pprof(task["pprof"], pprof, task["dir"])
    require(len(profiles) == len(by_kind), f"{name}: {len(profiles)} profiles and {list(by_kind)}")
    for kind, samples, start, duration, threads in profiles:
        require(samples == by_kind[kind], f"{name}: {kind} differs between OTLP and pprof")
        require(0 < begin == start // 10**9, f"{name}: {start} and {begin}")
        ends = (start + duration) / 1e9
        require(ends <= time.time(), f"{name}: ends in the future: {ends}")
    command = [task["triscope"], "diff", profile, profile, "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    kind, samples, *_, threads = profiles[0]
    require(samples.total() == report["before"]["total"], f"{name}: {samples.total()} {report['before']}")
    require(profiles[-1][1].total() == report["before"]["samples"], f"{name}: {report['before']}")
    print(f"{name}: {samples.total()} {kind[0]} in {len(samples)} stacks, {threads} with threads, code {sorted(frames)}")
    return frames


def main():
    global answer
    task = json.load(open(sys.argv[1]))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    frames = set().union(*(compare(task, profile, url) for profile in task["profiles"]))
    require({"go", "kernel", "native"} <= frames, f"only {frames}")

    # Refusals.
    profile = task["profiles"][1]
    answer = (422, b"no such tenant\n")
    for option in (f"--pyroscope={url}", f"--otlp={url}"):
        text = push(task, profile, url, option, fails=True)
        require("422" in text and "no such tenant" in text, text)
    reply = service.ExportProfilesServiceResponse()
    reply.partial_success.rejected_profiles = 2
    reply.partial_success.error_message = "too old"
    answer = (200, reply.SerializeToString())
    text = push(task, profile, url, f"--otlp={url}", fails=True)
    require("rejects 2 profiles: too old" in text, text)
    reply.partial_success.rejected_profiles = 0
    answer = (200, reply.SerializeToString())
    text = push(task, profile, url, f"--otlp={url}")
    require("too old" in text and "sent to" in text, text)
    answer = (200, b"<html>")
    text = push(task, profile, url, f"--otlp={url}", fails=True)
    require("not that of a receiver of OTLP" in text, text)
    server.shutdown()
    server.server_close()
    text = push(task, profile, url, f"--otlp={url}", fails=True)
    require("refused" in text, text)
    print("refusals are reported")


main()
