"""The tables of a dataset as views of DuckDB."""

import re

import duckdb


def connect(tables, dataset, union_by_name=True, memory=None):
    """A connection that keeps nothing of the files between questions. For a union by name, the
    metadata of all files is read."""
    connection = duckdb.connect()
    connection.execute("SET enable_external_file_cache = false")
    if memory:
        connection.execute(f"SET memory_limit = '{memory}MB'")
        connection.execute(f"SET temp_directory = '{dataset}/../spill'")
    for table in tables:
        connection.execute(
            f"CREATE VIEW {table['name']} AS SELECT * FROM read_parquet("
            f"'{dataset}/{table['name']}/*/*/*.parquet', hive_partitioning = true, "
            f"hive_types = {{'date': VARCHAR, 'host': VARCHAR}}, union_by_name = {union_by_name})"
        )
    return connection


def named_in(sql, tables):
    """The tables that a question names: a view reads the metadata of its files when it is made."""
    words = set(re.findall(r"\w+", sql))
    return [table for table in tables if table["name"] in words]
