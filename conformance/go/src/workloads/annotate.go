package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"sync"
	"time"
)

var early context.Context
var earlyTask *trace.Task

// openTask begins a task that is only ended while the trace is recorded.
func openTask() {
	early, earlyTask = trace.NewTask(context.Background(), "begun before the trace")
}

// annotations uses tasks, regions and logs in all the ways that are legal, with strings of every
// kind: empty, not UTF-8, with quotes and control characters, and as long as a trace keeps.
func annotations() {
	background := context.Background()
	trace.Log(background, "", "")
	trace.Log(early, "early", "logged in a task that the trace did not see begin")
	earlyTask.End()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	trace.Log(background, "binary", string(every))
	trace.Log(background, "quotes", "\"quoted\" `back` 'single' \\ back\\slash\ttab\nline\r\x00end\x7f")
	trace.Log(background, "text", "héllo wörld, 日本語, 😀, \u2028\u200b\ufeff\u00ad\u0301, broken: \xc3\x28 \xed\xa0\x80 \xf4\x90\x80\x80")
	for _, size := range []int{1, 127, 128, 1023, 1024, 1025, 5000} {
		trace.Log(background, "long", strings.Repeat("x", size-1)+"é")
		trace.WithRegion(background, strings.Repeat("r", size), func() {})
	}
	ctx, outer := trace.NewTask(background, "outer")
	var wg sync.WaitGroup
	for i := 0; i < 20; i++ {
		ctx, task := trace.NewTask(ctx, fmt.Sprintf("request %d", i))
		wg.Add(1)
		go func(i int) { // the task ends on another goroutine than it began
			defer wg.Done()
			defer task.End()
			trace.WithRegion(ctx, "parse", func() {
				trace.Logf(ctx, "size", "%d bytes", i*100)
				defer trace.StartRegion(ctx, "inner").End()
				runtime.Gosched()
			})
			region := trace.StartRegion(ctx, "render")
			pprof.Do(ctx, pprof.Labels("request", fmt.Sprint(i), "kind", "test"), func(ctx context.Context) {
				time.Sleep(50 * time.Microsecond)
			})
			region.End()
		}(i)
	}
	wg.Wait()
	outer.End()
	outer.End() // twice is harmless
	trace.StartRegion(background, "left open")
	wg.Add(1)
	go func() {
		defer wg.Done()
		trace.StartRegion(ctx, "left open when its goroutine ends")
	}()
	wg.Wait()
	_, abandoned := trace.NewTask(background, "never ended")
	_ = abandoned
}

// spin keeps a CPU busy for about that long.
func spin(d time.Duration) int {
	n := 0
	for start := time.Now(); time.Since(start) < d; {
		for i := 0; i < 1000; i++ {
			n = n*31 + i
		}
	}
	return n
}
