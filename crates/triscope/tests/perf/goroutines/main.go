// Command goroutines computes in two goroutines, which print their function and number.
package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"sync"
)

func number() string {
	buffer := make([]byte, 64)
	buffer = buffer[:runtime.Stack(buffer, false)]
	return string(bytes.Fields(buffer)[1])
}

//go:noinline
func spin() (x uint64) {
	for i := 0; i < 300_000_000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

// burn is missing in stacks: spin has no frame.
//
//go:noinline
func burn() uint64 { return spin() ^ 3 }

//go:noinline
func first() uint64 { return burn() + 1 }

//go:noinline
func second() uint64 { return burn() + 2 }

func main() {
	var wait sync.WaitGroup
	for name, work := range map[string]func() uint64{"first": first, "second": second} {
		name, work := name, work
		wait.Add(1)
		go func() {
			defer wait.Done()
			fmt.Println(name, number())
			pprof.Do(context.Background(), pprof.Labels("request", name), func(context.Context) { work() })
		}()
	}
	wait.Wait()
}
