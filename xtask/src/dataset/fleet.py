"""Reads the dataset of a fleet with DuckDB: rows, bytes, the time of all questions, and pruning."""

import glob
import json
import os
import sys
import time

import pyarrow.parquet

import views

MOST_BYTES_PER_ROW = 12
MOST_READ = 0.01
MINUTE = 60_000_000_000

# Who had the CPUs of a host in a minute, and how long its threads waited. The partitions are named
# for each table: then no file of another host is opened.
ONE_HOST_ONE_MINUTE = """
    SELECT p.name AS process, sum(s.duration) AS on_cpu, count(s.latency) AS waits, max(s.latency) AS longest
    FROM sched s
    JOIN threads t USING (date, host, recording, thread)
    JOIN processes p ON p.date = t.date AND p.host = t.host AND p.recording = t.recording AND p.process = t.process
    WHERE s.host = $host AND s.end_time BETWEEN $begin AND $end
    GROUP BY p.name
    ORDER BY on_cpu DESC, p.name
"""


def bytes_read():
    """Bytes that this process has got from read(2) and the like, also of cached files."""
    return int(open("/proc/self/io").read().split()[1])


def ask(tables, dataset, sql, parameters=None, union_by_name=True):
    """Rows, seconds and bytes of a question, by an engine that has read nothing before."""
    connection = views.connect(tables, dataset, union_by_name)
    before, start = bytes_read(), time.monotonic()
    rows = connection.execute(sql, parameters).fetchall()
    return rows, time.monotonic() - start, bytes_read() - before


def main():
    task = json.load(open(sys.argv[1]))
    tables, dataset = task["tables"], task["dataset"]
    rows = size = files = 0
    for table in tables:
        for path in glob.glob(f"{dataset}/{table['name']}/*/*/*.parquet"):
            rows += pyarrow.parquet.read_metadata(path).num_rows
            size += os.path.getsize(path)
            files += 1
    print(f"{rows} rows in {files} files, {size} bytes: {size / rows:.2f} bytes a row")
    faults = []
    if rows != task["rows"]:
        faults.append(f"{task['rows']} rows were written")
    if size > rows * MOST_BYTES_PER_ROW:
        faults.append(f"a row has more than {MOST_BYTES_PER_ROW} bytes")
    hidden = [name for name in os.listdir(dataset) if name.startswith(".")]
    if hidden:
        faults.append(f"left by an export: {hidden}")
    found = ask(tables, dataset, "SELECT count(DISTINCT recording) FROM recordings")[0][0][0]
    if found != task["recordings"]:
        faults.append(f"{found} recordings, {task['recordings']} were exported")

    print(f"{'question':<24} {'rows':>8} {'seconds':>8} {'bytes read':>14}")
    for question in task["questions"]:
        answer, seconds, read = ask(tables, dataset, question["sql"])
        print(f"{question['name']:<24} {len(answer):>8} {seconds:>8.2f} {read:>14}")

    begin = task["begin"]
    pruned = [table for table in tables if table["name"] in ("sched", "threads", "processes")]
    minute = {"host": task["host"], "begin": begin, "end": begin + MINUTE - 1}
    answer, seconds, read = ask(pruned, dataset, ONE_HOST_ONE_MINUTE, minute, union_by_name=False)
    share = read / size
    print(f"one host, one minute: {len(answer)} rows, {seconds:.2f} s, {read} bytes read, {share:.3%}")
    if not answer:
        faults.append("the minute of a host is empty")
    if share > MOST_READ:
        faults.append(f"one minute of one host reads more than {MOST_READ:.0%} of the bytes")
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        sys.exit(1)


main()
