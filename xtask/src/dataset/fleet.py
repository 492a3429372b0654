"""Reads the dataset of a fleet: its rows and bytes, and all questions by DuckDB, triscope-sql and Spark,
with their times and the bytes that they read."""

import glob
import json
import os
import sys
import time

import pyarrow.parquet

import answers
import views

MOST_BYTES_PER_ROW = 12
MOST_READ = 0.01
MINUTE = 60_000_000_000
# Spark also reads its classes, and rows that its workers exchange.
OF_ITSELF = {"Spark": 2_000_000}
ONE_MINUTE = "one host, one minute"

# Who had the CPUs of a host in a minute, and how long its threads waited. The partitions are named
# for each table: then no file of another host is opened.
OF_ONE_MINUTE = """
    SELECT p.name AS process, sum(s.duration) AS on_cpu, count(s.latency) AS waits, max(s.latency) AS longest
    FROM sched s
    JOIN threads t USING (date, host, recording, thread)
    JOIN processes p ON p.date = t.date AND p.host = t.host AND p.recording = t.recording AND p.process = t.process
    WHERE s.host = '{host}' AND s.end_time BETWEEN {begin} AND {end}
    GROUP BY p.name
    ORDER BY on_cpu DESC, p.name
"""

faults = []


def bytes_read():
    """Bytes that this process and its children that have ended got from read(2) and the like, also of
    cached files."""
    return int(open("/proc/self/io").read().split()[1])


class Answer:
    """Columns and rows, or an error, with their cost."""

    def __init__(self, ask):
        before, start = bytes_read(), time.monotonic()
        self.columns, self.rows, self.error = ask()
        self.seconds, self.bytes = time.monotonic() - start, bytes_read() - before

    def cost(self):
        return f"{self.seconds:.2f} | {self.bytes / 1e6:.1f} MB"


def of_duckdb(task, question):
    """By an engine that has read nothing before, with the metadata of the files of its tables."""
    tables = views.named_in(question["sql"], task["tables"])
    union = question["name"] != ONE_MINUTE
    connect = lambda: views.connect(tables, task["dataset"], union, task["memory"])
    # Without a union by name, a view reads the metadata of any file: that is not part of the question.
    connection = None if union else connect()

    def ask():
        result = (connection or connect()).sql(question["sql"])
        return result.columns, result.fetchall(), None

    return Answer(ask)


def of_datafusion(task, question, columns):
    def ask():
        rows, error = answers.datafusion(task["triscope_sql"], question["sql"], task["dataset"], columns)
        return columns, rows, error

    return Answer(ask)


def of_spark(spark, question):
    found = spark["answers"][question["name"]]
    answer = Answer(lambda: (found.get("columns"), found.get("rows"), found.get("error")))
    answer.seconds, answer.bytes = found["seconds"], found["bytes"]
    return answer


def of_host(host, begin):
    sql = OF_ONE_MINUTE.format(host=host, begin=begin, end=begin + MINUTE - 1)
    return {"name": ONE_MINUTE, "sql": sql, "spark": sql}


def check_size(task):
    """The bytes of the dataset, whose rows are those that were written."""
    rows = size = files = 0
    for table in task["tables"]:
        for path in glob.glob(f"{task['dataset']}/{table['name']}/*/*/*.parquet"):
            rows += pyarrow.parquet.read_metadata(path).num_rows
            size += os.path.getsize(path)
            files += 1
    print(f"{rows} rows in {files} files, {size} bytes: {size / rows:.2f} bytes a row")
    if rows != task["rows"]:
        faults.append(f"{task['rows']} rows were written")
    if size > rows * MOST_BYTES_PER_ROW:
        faults.append(f"a row has more than {MOST_BYTES_PER_ROW} bytes")
    hidden = [name for name in os.listdir(task["dataset"]) if name.startswith(".")]
    if hidden:
        faults.append(f"left by an export: {hidden}")
    sql = "SELECT count(DISTINCT recording) AS found FROM recordings"
    found = of_duckdb(task, {"name": "recordings", "sql": sql}).rows[0][0]
    if found != task["recordings"]:
        faults.append(f"{found} recordings, {task['recordings']} were exported")
    return size


def compare(engine, question, first, answer):
    """Compares the answer of another engine with that of DuckDB, and counts it."""
    error = answer.error
    if error is None and answer.columns != first.columns:
        error = f"columns {answer.columns}"
    if error is None:
        error = answers.difference(first.columns, first.rows, answer.rows)
    if error is not None:
        faults.append(f"{question['name']}: {engine}: {error}")
    return error is None


def check_pruning(engine, answer, size):
    share = answer.bytes / size
    print(f"{engine}: {ONE_MINUTE}: {answer.bytes} bytes read, {share:.4%}", flush=True)
    if answer.bytes > MOST_READ * size + OF_ITSELF.get(engine, 0):
        faults.append(f"{engine}: one minute of one host reads more than {MOST_READ:.0%} of the bytes")


def main():
    path = sys.argv[1]
    task = json.load(open(path))
    size = check_size(task)
    task["questions"].insert(0, of_host(task["host"], task["begin"]))
    # Another minute.
    task["before"] = [of_host(task["other_host"], task["begin"])["spark"]]
    spark = None
    if task["spark"]:
        json.dump(task, open(path + ".spark", "w"))
        spark = answers.spark(task["spark"], path + ".spark")
        if spark["workers"] < 2:
            faults.append(f"{spark['workers']} workers of Spark")
    engines = ["DuckDB"] + ["DataFusion"] * bool(task["triscope_sql"]) + ["Spark"] * bool(spark)
    print("| question | rows |" + "".join(f" {engine}, s | read |" for engine in engines))
    print("| --- | --: |" + " --: | --: |" * len(engines))
    same = dict.fromkeys(engines[1:], 0)
    for question in task["questions"]:
        found = {"DuckDB": of_duckdb(task, question)}
        first = found["DuckDB"]
        if task["triscope_sql"]:
            found["DataFusion"] = of_datafusion(task, question, first.columns)
        if spark:
            found["Spark"] = of_spark(spark, question)
        for engine in engines[1:]:
            same[engine] += compare(engine, question, first, found[engine])
        cells = [f"`{question['name']}`", str(len(first.rows)), *(found[engine].cost() for engine in engines)]
        print("| " + " | ".join(cells) + " |", flush=True)
        if question["name"] == ONE_MINUTE:
            minute = found
    for engine, answer in minute.items():
        check_pruning(engine, answer, size)
    if not minute["DuckDB"].rows:
        faults.append("the minute of a host is empty")
    for engine, count in same.items():
        print(f"{count} of {len(task['questions'])} answers of {engine} are those of DuckDB")
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        sys.exit(1)


main()
