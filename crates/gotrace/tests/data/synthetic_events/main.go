// Prints the events that tests/layouts/synthetic_events.rs makes, as Go's own MakeEvent makes them. It imports
// internal/trace of Go 1.26 or later; `cargo xtask update-golden` builds and runs it with 1.27.3.
package main

import (
	"fmt"
	t "internal/trace"
	"time"
)

var stk = t.MakeStack([]t.StackFrame{{PC: 16, Func: "main.f", File: "f.go", Line: 7}, {PC: 32, Func: "main.main", File: "main.go", Line: 9}})
var other = t.MakeStack([]t.StackFrame{{PC: 48, Func: "main.g", File: "g.go", Line: 3}})

func show[T t.EventDetails](c t.EventConfig[T]) {
	ev, err := t.MakeEvent(c)
	if err != nil {
		fmt.Println("ERROR", err)
		return
	}
	fmt.Println(ev)
}

func cfg[T t.EventDetails](k t.EventKind, d T, s t.Stack) {
	show(t.EventConfig[T]{Time: 42, Kind: k, Goroutine: 5, Proc: 2, Thread: 3, Stack: s, Details: d})
}

func main() {
	no := t.NoStack
	time.Local = time.UTC
	cfg(t.EventMetric, t.Metric{Name: "/sched/gomaxprocs:threads", Value: t.Uint64Value(4)}, stk)
	cfg(t.EventMetric, t.Metric{Name: "/memory/classes/heap/objects:bytes", Value: t.Uint64Value(1 << 40)}, no)
	cfg(t.EventMetric, t.Metric{Name: "/gc/heap/goal:bytes", Value: t.Uint64Value(0)}, no)
	cfg(t.EventLabel, t.Label{Label: "GC (idle)", Resource: t.MakeResourceID(t.GoID(5))}, no)
	for _, k := range []t.EventKind{t.EventRangeBegin, t.EventRangeActive, t.EventRangeEnd} {
		cfg(k, t.Range{Name: "GC concurrent mark phase"}, no)
		cfg(k, t.Range{Name: "GC incremental sweep", Scope: t.MakeResourceID(t.ProcID(2))}, no)
		cfg(k, t.Range{Name: "GC mark assist", Scope: t.MakeResourceID(t.GoID(5))}, no)
		if k != t.EventRangeActive {
			cfg(k, t.Range{Name: "stop-the-world (read mem stats)", Scope: t.MakeResourceID(t.GoID(5))}, no)
		}
	}
	cfg(t.EventTaskBegin, t.Task{ID: 1, Parent: t.NoTask, Type: "request"}, stk)
	cfg(t.EventTaskEnd, t.Task{ID: 1, Parent: 0, Type: "request"}, stk)
	cfg(t.EventRegionBegin, t.Region{Task: 1, Type: "parse"}, stk)
	cfg(t.EventRegionEnd, t.Region{Task: 1, Type: "parse"}, no)
	cfg(t.EventLog, t.Log{Task: 1, Category: "cat", Message: "a\x00\"b"}, stk)
	cfg(t.EventStackSample, t.StackSample{}, stk)
	cfg(t.EventSync, t.Sync{N: 3}, no)
	cfg(t.EventSync, t.Sync{N: 4, ClockSnapshot: &t.ClockSnapshot{Trace: 41, Mono: 99, Wall: time.Unix(59, 123456789)}}, no)
	g := func(id t.GoID, from, to t.GoState, reason string, own, s t.Stack) {
		st := t.MakeGoStateTransition(id, from, to)
		st.Reason, st.Stack = reason, own
		cfg(t.EventStateTransition, st, s)
	}
	g(9, t.GoNotExist, t.GoRunnable, "", other, stk)
	g(9, t.GoNotExist, t.GoWaiting, "", other, stk)
	g(9, t.GoNotExist, t.GoSyscall, "", no, no)
	g(9, t.GoRunnable, t.GoRunning, "", no, no)
	g(9, t.GoWaiting, t.GoRunnable, "", no, stk)
	g(5, t.GoRunning, t.GoNotExist, "", no, no)
	g(5, t.GoRunning, t.GoRunnable, "preempted", stk, stk)
	g(5, t.GoRunning, t.GoWaiting, "chan send", stk, stk)
	g(5, t.GoRunning, t.GoSyscall, "", stk, stk)
	g(5, t.GoSyscall, t.GoNotExist, "", no, no)
	g(5, t.GoSyscall, t.GoRunning, "", no, no)
	g(5, t.GoSyscall, t.GoRunnable, "", no, no)
	g(9, t.GoUndetermined, t.GoWaiting, "", no, no)
	g(9, t.GoUndetermined, t.GoRunning, "", stk, stk)
	g(9, t.GoRunnable, t.GoRunnable, "", no, no)
	p := func(id t.ProcID, from, to t.ProcState) {
		cfg(t.EventStateTransition, t.MakeProcStateTransition(id, from, to), no)
	}
	p(7, t.ProcIdle, t.ProcRunning)
	p(2, t.ProcRunning, t.ProcIdle)
	p(7, t.ProcRunning, t.ProcIdle)
	p(7, t.ProcIdle, t.ProcIdle)
	p(7, t.ProcUndetermined, t.ProcRunning)
	p(7, t.ProcUndetermined, t.ProcIdle)
}
