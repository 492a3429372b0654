"""Questions about a few rows whose answers are known."""

import math

import duckdb


def ask(questions, name, tables):
    """The answer as dictionaries. A table is a list of rows: a column that a row lacks is NULL."""
    connection = duckdb.connect()
    for table, rows in tables.items():
        columns = {column: value for row in rows for column, value in row.items()}
        types = {column: "VARCHAR" if isinstance(value, str) else "BIGINT" for column, value in columns.items()}
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in types.items())})")
        places = ", ".join("?" for _ in types)
        values = [[row.get(column) for column in types] for row in rows]
        connection.executemany(f"INSERT INTO {table} VALUES ({places})", values)
    sql = next(question["sql"] for question in questions if question["name"] == name)
    result = connection.sql(sql)
    return [dict(zip(result.columns, row)) for row in result.fetchall()]


def recordings(count):
    """Recordings with 1000 ns of the scheduler. Of those with an even number, an older version wrote no more than
    the time of all sources; a runtime was recorded for longer in the others."""
    older = {"start_monotonic": 0, "end_monotonic": 1000, "sched_start_monotonic": None, "sched_end_monotonic": None}
    newer = {"start_monotonic": -63000, "end_monotonic": 2000, "sched_start_monotonic": 0, "sched_end_monotonic": 1000}
    numbers = range(1, count + 1)
    return [{"recording": n, "host": "a", **(newer if n % 2 else older)} for n in numbers]


def coverage(questions):
    """The time of the scheduler is beside that of all sources."""
    found = ask(questions, "coverage", {"recordings": [
        {"kernel": "6.1", "is_partial": 0, **row} for row in recordings(1)
    ], "losses": [{"recording": 2}]})
    return [(row["recorded"], row["scheduler"]) for row in found] == [(65000, 1000)]


def losses(questions):
    """Records, and the bytes of Go traces, are not added."""
    rows = [("samples", 5), ("samples", None), ("go_trace", 8867)]
    rows = [{"recording": 1, "kind": kind, "count": count} for kind, count in rows]
    found = ask(questions, "losses", {"recordings": recordings(1), "losses": rows})
    keys = ("kind", "losses", "records", "bytes", "of_unknown_size")
    return [tuple(row[key] for key in keys) for row in found] == [
        ("samples", 2, 5, None, 1),
        ("go_trace", 1, None, 8867, 0),
    ]


def throttling(questions):
    """A reading counts once, also that of an ancestor of several cgroups."""
    processes = [(1, "sh", "/s/a"), (2, "grep", "/s/b"), (3, "sh", "/y")]
    older = [(1, 0, 100, 50, 1), (2, 0, 100, 50, 1), (3, 0, 90, 50, 1)]
    # Two readings of /fs/s. The second process came after the one before the first of them.
    newer = [
        (1, 0, 100, 50, 1, "/fs/s"),
        (2, 60, 100, 50, 0, "/fs/s"),
        (1, 100, 200, 50, 1, "/fs/s"),
        (3, 0, 100, 50, 1, "/fs/y"),
    ]
    keys = ("process", "since_monotonic", "monotonic", "throttled", "periods", "cgroup")
    tables = {
        "recordings": recordings(2),
        "processes": [
            {"recording": n, "process": process, "name": name, "cgroup": cgroup}
            for n in (1, 2) for process, name, cgroup in processes
        ],
        "throttles": [{"recording": n, **dict(zip(keys, row))} for n, rows in ((2, older), (1, newer)) for row in rows],
    }
    found = ask(questions, "throttling", tables)
    keys = ("cgroup", "process", "processes", "throttled", "periods", "share")
    return [tuple(row[key] for key in keys) for row in found] == [
        ("/fs/s", "grep", 2, 100, 2, 0.1),
        ("/fs/y", "sh", 1, 50, 1, 0.05),
        ("/y", "sh", 1, 50, 1, 0.05),
        (None, "grep", 2, 50, 1, 0.05),
    ]


def counters(questions):
    """The sizes of the parts of a heap are several counters."""
    values = [(None, "cpu-usage", 4), ("gen 0", "size", 2), ("gen 0", "size", 6), ("LOH", "size", 100)]
    tables = {
        "recordings": recordings(1),
        "processes": [{"recording": 1, "process": 1, "name": "p"}],
        "counters": [
            {"recording": 1, "process": 1, "unit": "B", "value": value, "name": name, "of_name": part}
            for part, name, value in values
        ],
    }
    found = ask(questions, "counters", tables)
    keys = ("of_name", "name", "samples", "least", "mean", "greatest")
    rows = {tuple(row[key] for key in keys) for row in found}
    return rows == {("gen 0", "size", 2, 2, 4, 6), ("LOH", "size", 1, 100, 100, 100), (None, "cpu-usage", 1, 4, 4, 4)}


def latency_regression(questions):
    """The interval has the quantile of the t distribution for the smaller cohort."""
    quantiles = {2: 12.706, 3: 4.303, 4: 3.182, 6: 2.571, 10: 2.262, 11: 2.228, 16: 2.131, 31: 2.042, 61: 2.0}
    for count, quantile in quantiles.items():
        # The cohorts alternate. Those before have 0 and 2 in turn, with one recording more, and those after have 5.
        latencies = [5 if n % 2 else n // 2 % 2 * 2 for n in range(2 * count + 1)]
        before = latencies[::2]
        mean = sum(before) / len(before)
        variance = sum((value - mean) ** 2 for value in before) / (len(before) - 1)
        margin = quantile * math.sqrt(variance / len(before))
        tables = {
            "recordings": recordings(len(latencies)),
            "sched": [{"recording": n, "latency": latency} for n, latency in enumerate(latencies, 1)],
            "goroutine_states": [{"recording": 1, "latency": None}],
        }
        found = ask(questions, "latency_regression", tables)[0]
        expected = {"difference": 5 - mean, "low": 5 - mean - margin, "high": 5 - mean + margin}
        if not all(math.isclose(found[key], value, rel_tol=2e-3) for key, value in expected.items()):
            return False
    return True


def sampled():
    """Two recordings with a sample of each kind, those of .NET by what the kernel did with the thread, and one with
    samples of another event, and of .NET those of the kernel, which can stand for several."""
    kernels = [None, "on_cpu", "sleeping", "woken"]
    samples = [("go_cpu", None), ("off_cpu", "sleeping"), *(("managed", kernel) for kernel in kernels)]
    keys = ("kind", "kernel")
    rows = [{"recording": n, "stack": 1, "weight": 1, **dict(zip(keys, row))} for n in (1, 2) for row in samples]
    # The weight of an event is its period.
    cpu = {"stack": 1, "kind": "cpu", "weight": 1000}
    rows += [{"recording": 2, **cpu, "weight": weight} for weight in (4, 1)]
    rows += [{"recording": 2, **cpu, "event": "page-faults"}] * 2
    rows += [{"recording": n, **cpu, "event": "cycles"} for n in (1, 2)]
    # A recording that is not complete does not count.
    rows.append({"recording": 3, **cpu, "event": "cycles"})
    return {
        "recordings": recordings(2),
        "samples": rows,
        "stacks": [{"recording": n, "stack": 1, "depth": 0, "frame": 1} for n in (1, 2, 3)],
        "frames": [{"recording": n, "frame": 1, "function": "f"} for n in (1, 2, 3)],
    }


# Samples of `sampled` by event.
SAMPLES = {"cpu": 5, "managed": 4, "cycles": 2, "go_cpu": 2, "page-faults": 2}


def hot_functions(questions):
    """.NET samples of threads that wait are left out, and samples of several events are not added."""
    found = ask(questions, "hot_functions", sampled())
    return found == [{"event": event, "function": "f", "self": n, "total": n} for event, n in SAMPLES.items()]


def flame_graph(questions):
    """.NET samples of threads that wait are left out, and samples of several events are not added."""
    found = ask(questions, "flame_graph", sampled())
    return found == [{"event": event, "folded": "f", "samples": n} for event, n in SAMPLES.items()]


def flame_graph_difference(questions):
    """.NET samples of threads that wait are left out. Shares are those of the samples of an event."""
    found = ask(questions, "flame_graph_difference", sampled())
    return [tuple(row.values()) for row in found] == [
        ("cycles", "f", 1, 1, 0),
        ("go_cpu", "f", 1, 1, 0),
        ("managed", "f", 2, 2, 0),
        ("cpu", "f", 0, 5, None),
        ("page-faults", "f", 0, 2, None),
    ]


def sums(questions):
    """Sums of durations that are longer than a BIGINT."""
    long = 5 * 10**18
    row = {"recording": 1, "duration": long, "latency": long}
    goroutine = {**row, "state": "waiting", "reason": "sleep", "kernel": "absent"}
    thread = {**row, "state": "preempted", "occupant_kind": "thread", "occupant": 3}
    tables = {
        "recordings": [{**recording, "kernel": "6.1"} for recording in recordings(1)],
        "processes": [{"recording": 1, "process": 1, "name": "p", "pid": 7}],
        "threads": [{"recording": 1, "thread": n, "process": 1, "tid": n} for n in (1, 2, 3)],
        "goroutines": [{"recording": 1, "goroutine": n, "process": 1, "entry": "main.main"} for n in (1, 2)],
        "goroutine_states": [{**goroutine, "goroutine": n} for n in (1, 2)],
        "thread_states": [{**thread, "thread": n} for n in (1, 2)],
        "sched": [{**row, "thread": n} for n in (1, 2)],
        "waits": [{**row, "process": 1, "kind": "lock", "is_open": 0}] * 2,
    }
    columns = {
        "goroutine_waits": "total",
        "goroutine_times": "waiting",
        "off_cpu": "total",
        "noisy_neighbours": "preempted",
        "cpu_time": "on_cpu",
        "lock_waits": "total",
        "scheduling_latency": "total",
    }
    found = {name: ask(questions, name, tables) for name in columns}
    shares = [row["share"] for row in found["cpu_time"]]
    return shares == [1] and all(
        # As a text: it is printed as a whole number.
        [str(row[column]) for row in found[name]] == ["10000000000000000000"]
        for name, column in columns.items()
    )


def cpu_utilization(questions):
    """A CPU that no recorded thread had is idle, unless the scheduler was not recorded."""
    tables = {
        "recordings": recordings(2),
        "cpus": [{"recording": n, "cpu": cpu} for n in (1, 2) for cpu in (0, 1)],
        "sched": [{"recording": 1, "cpu": 1, "duration": 250}, {"recording": 1, "cpu": 1, "duration": 500}],
    }
    found = ask(questions, "cpu_utilization", tables)
    return [(row["cpu"], row["busy"], row["utilization"]) for row in found] == [(0, 0, 0), (1, 750, 0.75)]


def allocation_sites(questions):
    """The function is the innermost one that is known."""
    frames = {1: None, 2: "f", 3: "g"}
    stacks = {1: [1, 2, 3], 2: [3], 3: [1]}
    tables = {
        "recordings": recordings(1),
        "samples": [
            {"recording": 1, "process": 1, "stack": stack, "kind": "allocation", "weight": 10}
            for stack in (1, 1, 2, 3, 4)
        ],
        "processes": [{"recording": 1, "process": 1, "name": "p"}],
        "stacks": [
            {"recording": 1, "stack": stack, "depth": depth, "frame": frame}
            for stack, frames in stacks.items() for depth, frame in enumerate(frames)
        ],
        "frames": [{"recording": 1, "frame": frame, "function": name} for frame, name in frames.items()],
    }
    found = ask(questions, "allocation_sites", tables)
    rows = {(row["function"], row["samples"], row["bytes"]) for row in found}
    return rows == {("f", 2, 20), (None, 2, 20), ("g", 1, 10)}


CHECKS = [
    coverage,
    losses,
    throttling,
    counters,
    latency_regression,
    hot_functions,
    flame_graph,
    flame_graph_difference,
    sums,
    cpu_utilization,
    allocation_sites,
]


def check(questions, require):
    for one in CHECKS:
        require(one(questions), f"{one.__name__}: another answer: {one.__doc__}")
