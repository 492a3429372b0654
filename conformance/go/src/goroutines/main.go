// Command goroutines computes in goroutines of many kinds, with an execution trace.
//
// Usage: goroutines TRACE. It waits for a line on standard input before it starts, and for another one
// before it ends. Goroutines that keep a thread print `locked THREAD GOROUTINE`.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

var sink atomic.Uint64

//go:noinline
func spin(units int) {
	x := uint64(units)
	for i := 0; i < units*1000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	sink.Add(x)
}

// spinLocked is only called by goroutines that keep a thread.
//
//go:noinline
func spinLocked(units int) {
	x := uint64(units)
	for i := 0; i < units*1000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	sink.Add(x)
}

// number is that of the current goroutine.
func number() string {
	buffer := make([]byte, 64)
	buffer = buffer[:runtime.Stack(buffer, false)]
	return string(bytes.Fields(buffer)[1])
}

func locked() {
	runtime.LockOSThread()
	fmt.Println("locked", syscall.Gettid(), number())
	for i := 0; i < 150; i++ {
		spinLocked(400)
		runtime.Gosched()
	}
}

func ping(in <-chan int, out chan<- int) {
	for n := range in {
		spin(5)
		out <- n - 1
	}
	close(out)
}

func short(n int, wait *sync.WaitGroup, slots chan struct{}) {
	spin(1000 + n%2000)
	<-slots
	wait.Done()
}

func spawner() {
	slots := make(chan struct{}, 4)
	var wait sync.WaitGroup
	for n := 0; n < 200; n++ {
		wait.Add(1)
		slots <- struct{}{}
		go short(n, &wait, slots)
	}
	wait.Wait()
}

type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

func allocator() {
	for i := 0; i < 20; i++ {
		sink.Add(uint64(len(fmt.Sprint(tree(13).left != nil))))
	}
}

func sorter() {
	for i := 0; i < 100; i++ {
		words := strings.Fields(strings.Repeat("the quick brown fox jumps over it ", 200))
		sort.Strings(words)
		sink.Add(uint64(len(words)))
	}
}

func hasher() {
	data := make([]byte, 1<<20)
	for i := 0; i < 100; i++ {
		sum := sha256.Sum256(data)
		sink.Add(uint64(sum[0]))
	}
}

func reader() {
	for i := 0; i < 1000; i++ {
		data, err := os.ReadFile("/proc/self/stat")
		check(err)
		sink.Add(uint64(len(data)))
	}
}

func labelled() {
	pprof.Do(context.Background(), pprof.Labels("request", "7", "user", "gopher"), func(context.Context) {
		spin(50_000)
	})
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	input.Scan()
	file, err := os.Create(os.Args[1])
	check(err)
	check(trace.Start(file))
	var wait sync.WaitGroup
	begin := func(work func()) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			work()
		}()
	}
	for _, work := range []func(){locked, locked, spawner, allocator, sorter, hasher, reader, labelled} {
		begin(work)
	}
	there, back := make(chan int), make(chan int)
	go ping(there, back)
	begin(func() {
		for n := 2000; n > 0; n-- {
			there <- n
			<-back
		}
		close(there)
	})
	wait.Wait()
	trace.Stop()
	check(file.Close())
	fmt.Println("done")
	input.Scan()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
