/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rel_loc

#if !defined(REL_LOC_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define REL_LOC_TRACE_H

#include <linux/tracepoint.h>

/* Two fields whose data is behind the fixed part, found by `__rel_loc`. */
TRACE_EVENT(fired,
	TP_PROTO(const char *text, unsigned int count),
	TP_ARGS(text, count),
	TP_STRUCT__entry(
		__field(unsigned int, count)
		__rel_string(text, text)
		__rel_dynamic_array(u16, words, count)
		__field(int, last)
	),
	TP_fast_assign(
		u16 *words = __get_rel_dynamic_array(words);
		unsigned int i;

		__entry->count = count;
		__assign_rel_str(text, text);
		for (i = 0; i < count; i++)
			words[i] = 1000 + i;
		__entry->last = -1;
	),
	TP_printk("count=%u text=%s", __entry->count, __get_rel_str(text))
);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
