"""Answers all questions with Spark, by several worker processes: writes JSON by question."""

import datetime
import decimal
import glob
import json
import os
import sys
import time

from pyspark.sql import SparkSession


def plain(value):
    if isinstance(value, decimal.Decimal):
        # A sum of whole numbers has no places.
        return float(value) if value.as_tuple().exponent else int(value)
    if isinstance(value, (datetime.date, datetime.datetime)):
        return str(value)
    return value


def bytes_read():
    """Bytes that the driver and the workers, which are below this process, have got from read(2) and the
    like. They do not end before the session."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            parents[int(path.split("/")[2])] = int(open(path).read().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    total, below = 0, {os.getpid()}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        for pid in below:
            try:
                total += int(open(f"/proc/{pid}/io").read().split()[1])
            except OSError:  # a helper has ended
                continue
    return total


def main():
    task = json.load(open(sys.argv[1]))
    cores, memory = task.get("cores", 1), task.get("memory", 2048) // 2
    builder = SparkSession.builder.master(f"local-cluster[2,{cores},{memory}]").appName("questions")
    settings = {
        "spark.sql.ansi.enabled": "true",
        # date and host are texts.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.shuffle.partitions": str(task.get("partitions", 2)),
        "spark.executor.memory": f"{memory}m",
        "spark.driver.memory": f"{memory}m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    for table in task["tables"]:
        path = f"{task['dataset']}/{table['name']}"
        session.read.parquet(path).createOrReplaceTempView(table["name"])
    for sql in task.get("before", []):
        # Loads what the engine is made of.
        session.sql(sql).collect()
    answers = {}
    for question in task["questions"]:
        before, start = bytes_read(), time.monotonic()
        try:
            frame = session.sql(question["spark"].strip().rstrip(";"))
            rows = [[plain(value) for value in row] for row in frame.collect()]
            answers[question["name"]] = {"columns": frame.columns, "rows": rows}
        except Exception as error:  # the failure of a question is its answer
            answers[question["name"]] = {"error": " ".join(str(error).split())[:300]}
        cost = {"seconds": time.monotonic() - start, "bytes": bytes_read() - before}
        answers[question["name"]].update(cost)
    # The driver is one of them.
    workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    session.stop()
    json.dump({"workers": workers, "answers": answers}, open(sys.argv[2], "w"))


main()
