"""Reads a dataset with DuckDB and Arrow, asks all questions, and compares answers with reports."""

import collections
import glob
import json
import math
import sys

import duckdb
import pyarrow
import pyarrow.parquet

import answers
import given
import views

faults = []

# The durations of nothing: their number, sum, p50, p99, maximum, and all of them.
NONE = [0, 0, None, None, 0, []]


def require(is_good, message):
    if not is_good:
        faults.append(message)


def check_files(tables, dataset):
    """Both readers see the same values, the schema is the documented one, groups are sorted."""
    rows = size = damaged = 0
    for table in tables:
        for path in glob.glob(f"{dataset}/{table['name']}/*/*/*.parquet"):
            file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            metadata = file.metadata
            names = file.schema_arrow.names
            require(names == table["columns"], f"{path}: columns {names}")
            keys = {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()}
            require(keys.get("triscope.table") == table["name"], f"{path}: metadata {keys}")
            rows += metadata.num_rows
            size += len(open(path, "rb").read())
            arrow = file.read()
            arrow.validate(full=True)
            ours = duckdb.sql(
                f"SELECT * FROM read_parquet('{path}', hive_partitioning = false)"
            ).to_arrow_table()
            for name in names:
                left, right = arrow[name].to_pylist(), ours[name].to_pylist()
                require(left == right, f"{path}: {name} differs between Arrow and DuckDB")
            for group in range(metadata.num_row_groups):
                values = file.read_row_group(group)
                for index, name in enumerate(names):
                    known = [value for value in values[name].to_pylist() if value is not None]
                    chunk = metadata.row_group(group).column(index)
                    statistics = chunk.statistics
                    nulls = len(values) - len(known)
                    require(statistics.null_count == nulls, f"{path}: nulls of {name}")
                    if statistics.has_min_max:
                        limits = (statistics.min, statistics.max)
                        require(limits == (min(known), max(known)), f"{path}: range of {name}")
                    if name == table["sorted_by"]:
                        require(statistics.has_min_max, f"{path}: {name} has no range")
                        require(known == sorted(known), f"{path}: {name} is not sorted")
            damaged += check_damage(path, metadata)
    return rows, size, damaged


def check_damage(path, metadata):
    """A byte that differs in a page is an error in Arrow, in each page that ends a column."""
    content, damaged = open(path, "rb").read(), 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            end = start + chunk.total_compressed_size
            changed = pyarrow.BufferReader(content[: end - 1] + bytes([content[end - 1] ^ 1]) + content[end:])
            file = pyarrow.parquet.ParquetFile(changed, page_checksum_verification=True)
            try:
                file.read_row_group(group, columns=[chunk.path_in_schema])
                require(False, f"{path}: {chunk.path_in_schema}: a byte that differs is no error")
            except (OSError, pyarrow.ArrowException) as error:
                require("CRC" in str(error), f"{path}: {chunk.path_in_schema}: {error}")
            damaged += 1
    return damaged


def named(process):
    return (process["pid"], process["name"] or None) if process else (None, None)


def compare(name, connection, report):
    """The numbers of a report, and of the same recording in SQL. Percentiles of a report are upper
    ends of buckets that are at most 3.2 % wide."""
    count = 0

    def same(what, ours, theirs):
        nonlocal count
        count += 1
        require(ours == theirs, f"{name}: {what}: {ours} in SQL, {theirs} in the report")

    def same_durations(what, ours, theirs):
        waits, total, p50, p99, longest, values = ours
        same(f"{what}: number", waits, theirs["count"])
        same(f"{what}: sum", total or 0, theirs["sum"])
        same(f"{what}: maximum", longest or 0, theirs["max"])
        for percent, value in [(50, p50), (99, p99)]:
            if values:
                rank = max(1, math.ceil(len(values) * percent / 100.0))
                right, found = values[rank - 1], theirs[f"p{percent}"]
                require(right <= found <= right * 1.033, f"{name}: {what}: p{percent} {right} and {found}")
                # An engine may round the rank in another way.
                near = values[max(0, rank - 2) : rank + 1]
                require(value in near, f"{name}: {what}: p{percent} {value} in SQL, not {near}")

    durations = (
        "count({0}), sum({0}), percentile_disc(0.5) WITHIN GROUP (ORDER BY {0}), "
        "percentile_disc(0.99) WITHIN GROUP (ORDER BY {0}), max({0}), "
        "list({0} ORDER BY {0}) FILTER (WHERE {0} IS NOT NULL)"
    )

    def ask(sql, column=None):
        rows = connection.execute(sql.replace("DURATIONS", durations.format(column))).fetchall()
        return [[int(v) if isinstance(v, float) else v for v in row] for row in rows]

    # Threads: times by state, and the scheduling latency.
    states = ask(
        "SELECT thread, state, sum(duration) FROM ("
        "SELECT thread, 'on_cpu' AS state, duration FROM sched UNION ALL "
        "SELECT thread, coalesce(state, 'unknown'), duration FROM thread_states) GROUP BY ALL"
    )
    times = collections.defaultdict(collections.Counter)
    for thread, state, nanos in states:
        times[thread][state] += int(nanos)
    latencies = {row[0]: row[1:] for row in ask("SELECT thread, DURATIONS FROM sched GROUP BY 1", "latency")}
    keys = collections.defaultdict(list)
    for thread, tid, text in ask("SELECT thread, tid, name FROM threads WHERE layer = 'kernel'"):
        keys[tid, text].append(thread)
    for thread in report["threads"]:
        candidates = keys[thread["tid"], thread["name"] or None]
        # Two threads with one id and name are distinguished by their times.
        matching = [c for c in candidates if +times[c] == +collections.Counter(thread["times"])]
        what = f"thread {thread['tid']} {thread['name']}"
        require(matching, f"{name}: {what}: {[dict(times[c]) for c in candidates]} and {thread['times']}")
        count += 1
        if len(candidates) == 1:
            ours = latencies.get(candidates[0], NONE)
            same_durations(f"{what}: latency", ours, thread["latency"])

    # Goroutines by entry function.
    groups = {}
    for row in ask(
        "SELECT g.entry, p.pid, p.name, count(DISTINCT s.goroutine), "
        "sum(duration) FILTER (WHERE state = 'running'), sum(duration) FILTER (WHERE state = 'runnable'), "
        "sum(duration) FILTER (WHERE state = 'waiting'), sum(duration) FILTER (WHERE state = 'syscall'), "
        "DURATIONS FROM goroutine_states s JOIN goroutines g USING (goroutine) "
        "LEFT JOIN processes p USING (process) GROUP BY 1, 2, 3",
        "latency",
    ):
        groups[row[0], row[1], row[2]] = row[3:]
    dotnet = ask(
        "SELECT DISTINCT p.pid, p.name FROM threads JOIN processes p USING (process) WHERE layer = 'dotnet'"
    )
    dotnet = {tuple(row) for row in dotnet}
    for group in report["goroutines"]:
        pid, process = named(group["process"])
        key = (group["entry"] or None, pid, process)
        if key[0] is None and (pid, process) in dotnet:
            continue  # its .NET threads
        _, running, runnable, waiting, syscall, *latency = groups.get(key, [0, 0, 0, 0, 0, *NONE])
        what = f"goroutines {key[0]}"
        same(f"{what}: running", running or 0, sum(group["running"].values()))
        same(f"{what}: syscall", syscall or 0, sum(group["syscall"].values()))
        same(f"{what}: runnable", runnable or 0, group["runnable"])
        same(f"{what}: waiting", waiting or 0, group["waiting"])
        same_durations(f"{what}: latency", latency, group["latency"])

    # Pauses and GCs.
    for table, key, condition in [
        ("pauses", "reason", "true"),
        ("gc", "name", "kind = 'gc' AND NOT is_open"),
    ]:
        ours = {
            tuple(row[:3]): row[3:]
            for row in ask(
                f"SELECT p.pid, p.name, t.{key}, DURATIONS FROM {table} t "
                f"LEFT JOIN processes p USING (process) WHERE {condition} GROUP BY 1, 2, 3",
                "t.duration",
            )
        }
        entries = report["pauses" if table == "pauses" else "gcs"]
        same(f"{table}: rows", len(ours), len(entries))
        for entry in entries:
            key_of = (*named(entry["process"]), (entry["reason"] if table == "pauses" else entry["name"]) or None)
            same_durations(f"{table} {key_of}", ours.get(key_of, NONE), entry["durations"])

    # Samples, losses, throttling, and the times of the recording.
    profiled = "SELECT count(*) FROM samples WHERE kind NOT IN ('off_cpu', 'allocation')"
    same("samples", ask(profiled)[0][0], sum(report["samples"].values()))
    lost = ask("SELECT count(*), coalesce(sum(count), 0) FROM losses")[0]
    same("losses", lost, [sum(l["count"] for l in report["losses"]), sum(l["records"] + l["bytes"] for l in report["losses"])])
    throttled = ask("SELECT coalesce(sum(throttled), 0), coalesce(sum(periods), 0) FROM throttles")[0]
    same("throttling", throttled, [sum(t["nanos"] for t in report["throttled"]), sum(t["periods"] for t in report["throttled"])])
    same("times", ask("SELECT start_monotonic, end_monotonic FROM recordings"), [[report["start"], report["end"]]])
    # Those of the scheduler are within them, and all of its intervals within those.
    outside = ask(
        "SELECT count(*) FROM recordings r LEFT JOIN sched s USING (recording) WHERE "
        "(s.thread IS NOT NULL AND r.sched_start_monotonic IS NULL) OR "
        "s.end_monotonic - s.duration < r.sched_start_monotonic OR s.end_monotonic > r.sched_end_monotonic OR "
        "r.sched_start_monotonic < r.start_monotonic OR r.sched_end_monotonic > r.end_monotonic"
    )
    same("intervals outside of the scheduler's time", outside, [[0]])
    return count


def compare_paths(name, connection, explained):
    """The critical paths of a dataset, and those of triscope explain."""
    ask = lambda sql: connection.execute(sql).fetchall()
    numbers = dict(ask("SELECT goroutine, number FROM goroutines UNION ALL SELECT thread, tid FROM threads"))
    functions = collections.defaultdict(list)
    for stack, function in ask("SELECT stack, function FROM stacks JOIN frames USING (frame) ORDER BY stack, depth"):
        functions[stack].append(function)
    paths = collections.defaultdict(list)
    for span, *piece, entity, thread, waiter, context, stack in ask(
        "SELECT span, end_monotonic - duration, duration, what, text, depth, coalesce(reason, ''), "
        "coalesce(waiter_reason, ''), during, entity, thread, waiter, context, stack FROM critical_paths "
        "ORDER BY span, end_monotonic, end_monotonic - duration"
    ):
        entities = [id is not None and numbers.get(id) for id in (entity, thread, waiter)]
        paths[span].append((*piece, *entities, context is not None, stack is not None and len(functions[stack])))
    known = collections.Counter(tuple(path) for path in paths.values())
    for request in explained:
        path = []
        for piece in request["pieces"]:
            values = [piece[key] for key in ("start", "nanos", "what", "text", "depth", "reason", "waiter_reason", "during")]
            entities = [bool(piece[key]) and piece[key]["number"] for key in ("entity", "thread", "waiter")]
            context, stack = piece["context"] is not None, piece["stack"]
            path.append((*values, *entities, context, stack is not None and len(stack)))
        require(known[tuple(path)], f"{name}: the path of {request['name']} at {request['start']} differs")
        known[tuple(path)] -= 1
    durations = dict(ask("SELECT span, duration FROM tasks UNION ALL SELECT span, duration FROM regions"))
    for span, path in paths.items():
        require(sum(piece[1] for piece in path) == durations[span], f"{name}: the path of span {span} is not complete")
    requests, count = ask("SELECT requests, paths FROM recordings")[0]
    ended = ask("SELECT (SELECT count(*) FROM tasks WHERE NOT is_open) + "
                "(SELECT count(*) FROM regions WHERE kind = 'region' AND NOT is_open)")[0][0]
    require((ended, requests > 0) == (requests, count > 0), f"{name}: {requests} requests, {ended} rows, {count} paths")
    return len(explained)


def compare_engine(engine, ours, ask):
    """The answers of another engine to all questions: `ask` returns rows, or an error."""
    before = len(faults)
    for name, (columns, rows) in ours.items():
        theirs, error = ask(name, columns)
        if error is None:
            error = answers.difference(columns, rows, theirs)
        require(error is None, f"{name}: {engine}: {error}")
    same = len(ours) - (len(faults) - before)
    print(f"{same} of {len(ours)} answers of {engine} are those of DuckDB")


def compare_cohorts(connection, ours):
    """The questions about two cohorts: here those without and with a kernel, which all recordings are in."""
    (before, after, difference, *_), = ours["latency_regression by kernel"][1]
    expected = connection.execute(
        "SELECT avg(l) FILTER (kernel IS NULL), avg(l) FILTER (kernel IS NOT NULL) FROM recordings JOIN ("
        "SELECT recording, avg(latency) AS l FROM (SELECT recording, latency FROM sched UNION ALL "
        "SELECT recording, latency FROM goroutine_states) GROUP BY 1) USING (recording)"
    ).fetchone()
    for mine, other in zip((before, after, difference), (*expected, expected[1] - expected[0])):
        require(math.isclose(mine, other, rel_tol=1e-9), f"latency_regression by kernel: {mine} and {other}")
    # Other cohorts have the same samples.
    sums = [
        {(event, function): before + after for event, function, before, after, _ in ours[name][1]}
        for name in ("flame_graph_difference", "flame_graph_difference by kernel")
    ]
    require(sums[0] == sums[1], "flame_graph_difference by kernel: other samples")
    kernel = dict((row[:2], row[2:4]) for row in ours["flame_graph_difference by kernel"][1])
    sampled = connection.execute(
        "SELECT event, function, coalesce(sum(n) FILTER (kernel IS NULL), 0), coalesce(sum(n) FILTER (kernel IS NOT NULL), 0) "
        "FROM (SELECT DISTINCT s, n, event, function, r.kernel "
        "FROM (SELECT recording, stack, coalesce(event, kind) AS event, row_number() OVER () AS s, "
        "CASE WHEN samples.event IS NULL AND kind = 'cpu' THEN weight ELSE 1 END AS n FROM samples "
        "WHERE kind IN ('cpu', 'go_cpu') OR (kind = 'managed' AND (kernel IS NULL OR kernel = 'on_cpu'))) "
        "JOIN recordings r USING (recording) JOIN stacks USING (recording, stack) "
        "JOIN frames USING (recording, frame) WHERE function IS NOT NULL) GROUP BY 1, 2"
    ).fetchall()
    require(kernel == {row[:2]: row[2:] for row in sampled}, "flame_graph_difference by kernel: other numbers")


def compare_datafusion(program, dataset, questions, ours):
    queries = {question["name"]: question["ask"] for question in questions}
    ask = lambda name, columns: answers.datafusion(program, queries[name], dataset, columns)
    compare_engine("triscope-sql", ours, ask)


def compare_spark(python, task, ours):
    spark = answers.spark(python, task)
    require(spark["workers"] > 1, f"{spark['workers']} workers of Spark")

    def ask(name, columns):
        answer = spark["answers"][name]
        require("error" in answer or answer["columns"] == columns, f"{name}: columns {answer}")
        return answer.get("rows"), answer.get("error")

    compare_engine(f"Spark with {spark['workers']} workers", ours, ask)


def main():
    task = json.load(open(sys.argv[1]))
    tables = task["tables"]
    given.check(task["questions"], require)
    rows, size, damaged = check_files(tables, task["dataset"])
    require(damaged > 100, f"only {damaged} pages")
    print(f"{damaged} damaged pages are errors in Arrow")
    print(f"{rows} rows of {len(task['recordings'])} recordings, {size / rows:.2f} bytes a row: equal in DuckDB and Arrow")
    paths = 0
    for recording in task["recordings"]:
        report = json.load(open(recording["report"]))
        connection = views.connect(tables, recording["dataset"])
        compared = compare(recording["name"], connection, report)
        explained = compare_paths(recording["name"], connection, json.loads(recording["explained"]))
        paths += explained
        rows, total = 0, 0
        for table in tables:
            rows += connection.execute(f"SELECT count(*) FROM {table['name']}").fetchone()[0]
            for path in glob.glob(f"{recording['dataset']}/{table['name']}/*/*/*.parquet"):
                total += len(open(path, "rb").read())
        print(f"{recording['name']}: {rows} rows, {total / rows:.2f} bytes a row; {compared} numbers as in the report, {explained} critical paths as explained")
    require(paths > 100, f"only {paths} critical paths")
    connection = views.connect(tables, task["dataset"])
    examples, ours = {}, {}
    for question in task["questions"]:
        result = connection.sql(question["sql"])
        columns, rows = result.columns, result.fetchall()
        require(rows, f"{question['name']}: no rows")
        ours[question["name"]] = (columns, rows)
        print(f"{question['name']}: {len(rows)} rows")
        cell = lambda v: "NULL" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v)[:60]
        texts = [columns] + [[cell(value) for value in row] for row in rows[:4]]
        widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
        lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() for row in texts]
        examples[question["name"]] = "\n".join(lines)
    compare_cohorts(connection, ours)
    if task["triscope_sql"]:
        compare_datafusion(task["triscope_sql"], task["dataset"], task["questions"], ours)
    if task["spark"]:
        compare_spark(task["spark"], sys.argv[1], ours)
    json.dump(examples, open(task["examples"], "w"))
    if faults:
        print(f"{len(faults)} faults:", *faults[:20], sep="\n", file=sys.stderr)
        sys.exit(1)


main()
