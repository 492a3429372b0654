// SPDX-License-Identifier: MIT OR Apache-2.0
// A kernel module with one tracepoint: what is written to /sys/module/rel_loc/parameters/fire comes
// as its text, with as many numbers as the text has bytes.
#include <linux/module.h>
#include <linux/string.h>

#define CREATE_TRACE_POINTS
#include "trace.h"

static int fire(const char *value, const struct kernel_param *param)
{
	trace_fired(value, strlen(value));
	return 0;
}

static const struct kernel_param_ops fire_ops = { .set = fire };
module_param_cb(fire, &fire_ops, NULL, 0200);

MODULE_DESCRIPTION("a tracepoint with __rel_loc fields");
MODULE_LICENSE("Dual MIT/GPL");
