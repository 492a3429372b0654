// Command busy writes an execution trace to the file that it is given: twice as many goroutines compute
// as there are CPUs, each on a thread, so the kernel preempts them.
package main

import (
	"os"
	"runtime"
	"runtime/trace"
	"sync"
	"time"
)

func compute(end time.Time) (x uint64) {
	for time.Now().Before(end) {
		for i := 0; i < 1000; i++ {
			x = x*6364136223846793005 + 1442695040888963407
		}
	}
	return x
}

func main() {
	threads := 2 * runtime.NumCPU()
	runtime.GOMAXPROCS(threads)
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := trace.Start(file); err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	end := time.Now().Add(300 * time.Millisecond)
	for i := 0; i < threads; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			compute(end)
		}()
	}
	all.Wait()
	trace.Stop()
	if err := file.Close(); err != nil {
		panic(err)
	}
}
