"""Answers of DataFusion and Spark, and their comparison with those of DuckDB."""

import decimal
import json
import math
import pathlib
import subprocess


def datafusion(program, query, dataset, columns):
    """Rows of triscope-sql in the order of the columns, or an error."""
    output = subprocess.run([program, "--json", "--", query, dataset], capture_output=True, text=True)
    if output.returncode != 0:
        return None, output.stderr.strip() or f"it ended with {output.returncode}"
    return [[row[column] for column in columns] for row in json.loads(output.stdout)], None


def spark(python, task):
    """Answers of Spark by question. It runs in a Python of its own."""
    directory = pathlib.Path(task).parent
    script, path = directory / "spark.py", directory / "spark.json"
    log = directory / "spark.log"
    with open(log, "w") as errors:
        result = subprocess.run([python, script, task, path], stderr=errors, cwd=directory)
    if result.returncode != 0:
        raise SystemExit(f"Spark ended with {result.returncode}: {log}")
    return json.load(open(path))


def plain(value):
    """A decimal as a number: sums of whole numbers are decimals without places, which may be too long for others."""
    if not isinstance(value, decimal.Decimal):
        return value
    return float(value) if value.as_tuple().exponent else int(value)


def difference(columns, ours, theirs):
    """The first difference between the rows of two engines as a text. Sums of fractions may differ in
    the last digits. DataFusion interpolates percentiles in steps of a millionth of the distance between
    two values."""
    percentiles = [column.rpartition("_")[2] in ("p50", "p90", "p99") for column in columns]

    def key(row):
        return [(value is not None, "" if isinstance(value, float) else str(value)) for value in row]

    def equal(left, right):
        if len(left) != len(right):
            return False
        greatest = max((v for v in left if isinstance(v, (int, float))), default=0)
        for mine, other, is_percentile in zip(left, right, percentiles):
            if isinstance(mine, float) and isinstance(other, (int, float)):
                steps = greatest * 1e-6 if is_percentile else 1e-9
                if not math.isclose(mine, other, rel_tol=1e-9, abs_tol=steps):
                    return False
            elif mine != other:
                return False
        return True

    ours = [[plain(value) for value in row] for row in ours]
    # Rows that are equal in their order may have another one.
    pairs = zip(sorted(ours, key=key), sorted(theirs, key=key))
    different = next((pair for pair in pairs if not equal(*pair)), None)
    if len(ours) == len(theirs) and different is None:
        return None
    return f"{len(ours)} rows in DuckDB, {len(theirs)} in the other; {different}"
