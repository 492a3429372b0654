"""The tables of a dataset as views of DuckDB."""

import duckdb


def connect(tables, dataset, union_by_name=True):
    """A connection that keeps nothing of the files between questions. For a union by name, the
    metadata of all files is read."""
    connection = duckdb.connect()
    connection.execute("SET enable_external_file_cache = false")
    for table in tables:
        connection.execute(
            f"CREATE VIEW {table['name']} AS SELECT * FROM read_parquet("
            f"'{dataset}/{table['name']}/*/*/*.parquet', hive_partitioning = true, "
            f"hive_types = {{'date': VARCHAR, 'host': VARCHAR}}, union_by_name = {union_by_name})"
        )
    return connection
