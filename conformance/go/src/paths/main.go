// Tasks whose critical path is known. Nothing sleeps: each step ends when its computation does.
package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"sync"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

var sink int

// Computes without a function call, for some milliseconds.
func compute(n int) {
	for i := 0; i < n*1_000_000; i++ {
		sink += i
	}
}

func task(name string, f func(ctx context.Context)) {
	ctx, task := trace.NewTask(context.Background(), name)
	f(ctx)
	task.End()
}

func first(out chan int)      { compute(40); out <- 1 }
func second(in, out chan int) { <-in; compute(20); out <- 1 }
func third(in, out chan int)  { <-in; compute(20); out <- 1 }
func holder(mu *sync.Mutex, holds chan bool) {
	task("holder", func(context.Context) {
		mu.Lock()
		close(holds)
		compute(60)
		mu.Unlock()
	})
}
func worker(jobs chan int, done chan bool) {
	for n := range jobs {
		compute(n)
		done <- true
	}
}

func main() {
	file, err := os.Create(os.Args[1])
	check(err)
	check(trace.Start(file))
	// Each value is handed over to a goroutine that waits for it.
	task("chain", func(context.Context) {
		a, b, c := make(chan int), make(chan int), make(chan int)
		go third(b, c)
		go second(a, b)
		go first(a)
		<-c
	})
	var mu sync.Mutex
	holds := make(chan bool)
	go holder(&mu, holds)
	<-holds
	task("waiter", func(context.Context) {
		mu.Lock()
		mu.Unlock()
	})
	jobs, done := make(chan int), make(chan bool)
	for i := 0; i < 2; i++ {
		go worker(jobs, done)
	}
	task("pool", func(context.Context) {
		go func() {
			for i := 0; i < 4; i++ {
				jobs <- 20
			}
			close(jobs)
		}()
		for i := 0; i < 4; i++ {
			<-done
		}
	})
	data, err := os.Create(os.Args[1] + ".data")
	check(err)
	_, err = data.Write(make([]byte, 8<<20))
	check(err)
	task("fsync", func(context.Context) { check(data.Sync()) })
	check(os.Remove(data.Name()))
	old := debug.SetGCPercent(2)
	var keep [][]*int
	task("assist", func(context.Context) {
		for i := 0; i < 20_000; i++ {
			keep = append(keep, make([]*int, 512))
		}
	})
	debug.SetGCPercent(old)
	runtime.KeepAlive(keep)
	trace.Stop()
	check(file.Close())
}
