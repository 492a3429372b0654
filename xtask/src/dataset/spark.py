"""Answers all questions with Spark, by several worker processes: prints JSON by question."""

import datetime
import decimal
import json
import sys

from pyspark.sql import SparkSession


def plain(value):
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, (datetime.date, datetime.datetime)):
        return str(value)
    return value


def main():
    task = json.load(open(sys.argv[1]))
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("questions")
    settings = {
        "spark.sql.ansi.enabled": "true",
        # date and host are texts.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
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
    answers = {}
    for question in task["questions"]:
        try:
            frame = session.sql(question["spark"].strip().rstrip(";"))
            rows = [[plain(value) for value in row] for row in frame.collect()]
            answers[question["name"]] = {"columns": frame.columns, "rows": rows}
        except Exception as error:  # the failure of a question is its answer
            answers[question["name"]] = {"error": " ".join(str(error).split())[:300]}
    # The driver is one of them.
    workers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    session.stop()
    json.dump({"workers": workers, "answers": answers}, open(sys.argv[2], "w"))


main()
