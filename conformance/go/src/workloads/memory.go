package main

import (
	"io"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"sync"
)

type node struct {
	left, right *node
	payload     [64]byte
}

func tree(depth int) *node {
	if depth == 0 {
		return nil
	}
	return &node{left: tree(depth - 1), right: tree(depth - 1)}
}

var sink sync.Map // keeps garbage reachable for a while

// gcWork allocates from several goroutines with a tight heap goal: collections follow each other,
// allocating goroutines assist and sweep, and every reason to stop the world that a program can
// give is given once.
func gcWork() {
	old := debug.SetGCPercent(5)
	defer debug.SetGCPercent(old)
	var wg sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		wg.Add(1)
		go func(worker int) {
			defer wg.Done()
			for round := 0; round < 6; round++ {
				sink.Store(worker, tree(13))
				sink.Store(worker+10, make([]byte, 256<<10))
			}
		}(worker)
	}
	wg.Wait()
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	runtime.NumGoroutine()
	runtime.Stack(make([]byte, 1<<16), true)
	check(pprof.Lookup("goroutine").WriteTo(io.Discard, 0))
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/sched/latencies:seconds"}}
	metrics.Read(samples)
	sink.Range(func(key, _ any) bool { sink.Delete(key); return true })
}

// allocations is for GODEBUG=traceallocfree=1, where every object, span and stack is traced.
func allocations() {
	var wg sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		wg.Add(1)
		go func(worker int) {
			defer wg.Done()
			for size := 16; size <= 64<<10; size *= 2 {
				sink.Store(worker, make([]byte, size))
				sink.Store(worker+10, make([]*int, size/8))
			}
			sink.Store(worker+20, tree(6))
			grow(400)
		}(worker)
	}
	wg.Wait()
	sink.Range(func(key, _ any) bool { sink.Delete(key); return true })
	runtime.GC()
}

// grow makes the goroutine's stack grow.
func grow(depth int) byte {
	var frame [256]byte
	if depth > 0 {
		frame[depth%256] = grow(depth - 1)
	}
	return frame[(depth*7)%256]
}
