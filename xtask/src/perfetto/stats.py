"""Imports traces with Perfetto's own trace processor: no stat of severity error or data_loss may be set.

The Python package downloads the trace processor when it is first used, unless the variable
TRACE_PROCESSOR names one.
"""

import os
import sys

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

QUERY = """
    select name, coalesce(idx, '') as idx, severity, value from stats
    where severity in ('error', 'data_loss') and value != 0
"""

good = True
for path in sys.argv[1:]:
    config = TraceProcessorConfig(bin_path=os.environ.get("TRACE_PROCESSOR"))
    processor = TraceProcessor(trace=path, config=config)
    stats = list(processor.query(QUERY))
    events = list(processor.query("select count(*) as n from slice"))[0].n
    processor.close()
    for stat in stats:
        print(f"{path}: FAULT: {stat.severity} {stat.name} {stat.idx}: {stat.value}")
        good = False
    print(f"{path}: imported by the trace processor, {events} slices, {len(stats)} errors")
sys.exit(0 if good else 1)
