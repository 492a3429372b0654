package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"syscall"
	"time"
)

// syscalls makes short and long system calls, so long that their procs are taken away.
func syscalls() {
	file, err := os.CreateTemp("", "workload")
	check(err)
	defer os.Remove(file.Name())
	defer file.Close()
	block := make([]byte, 512)
	for i := 0; i < 100; i++ {
		_, err = file.Write(block)
		check(err)
		syscall.Getpid()
		syscall.Getuid()
	}
	var wg sync.WaitGroup
	for i := 0; i < 6; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; n < 5; n++ {
				pause := syscall.NsecToTimespec(int64(n) * 400_000)
				syscall.Nanosleep(&pause, nil)
				runtime.Gosched()
			}
		}()
	}
	wg.Wait()
	// A pipe as the poller sees it, and one whose reader blocks in read(2).
	reader, writer, err := os.Pipe()
	check(err)
	var raw [2]int
	check(syscall.Pipe(raw[:]))
	wg.Add(2)
	go func() { defer wg.Done(); _, _ = io.Copy(io.Discard, reader) }()
	go func() {
		defer wg.Done()
		buf := make([]byte, 10)
		for {
			if n, err := syscall.Read(raw[0], buf); n <= 0 || err != nil {
				return
			}
		}
	}()
	for i := 0; i < 20; i++ {
		time.Sleep(100 * time.Microsecond)
		_, _ = writer.Write([]byte("hello"))
		_, _ = syscall.Write(raw[1], []byte("hello"))
	}
	writer.Close()
	syscall.Close(raw[1])
	wg.Wait()
	reader.Close()
	syscall.Close(raw[0])
	_ = exec.Command("true").Run()
}

// cpuProfile samples busy goroutines while the trace is recorded, with labels.
func cpuProfile() {
	runtime.SetCPUProfileRate(1000) // StartCPUProfile then keeps this rate and says so
	silence(func() { check(pprof.StartCPUProfile(io.Discard)) })
	var wg sync.WaitGroup
	for i := 0; i < 3; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			pprof.Do(context.Background(), pprof.Labels("worker", fmt.Sprint(i)), func(context.Context) {
				descend(i*80, func() { spin(60 * time.Millisecond) })
			})
		}(i)
	}
	wg.Wait()
	pprof.StopCPUProfile()
}

// silence runs f with standard error closed to the runtime's remark.
func silence(f func()) {
	saved, err := syscall.Dup(2)
	check(err)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	check(err)
	check(syscall.Dup3(int(null.Fd()), 2, 0))
	f()
	check(syscall.Dup3(saved, 2, 0))
	syscall.Close(saved)
	null.Close()
}

// generations is for a short GODEBUG=traceadvanceperiod: whatever can span generations does.
func generations(collections int) {
	ctx, task := trace.NewTask(context.Background(), "spans generations")
	region := trace.StartRegion(ctx, "spans generations too")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	background := func(work func()) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					work()
				}
			}
		}()
	}
	background(func() { spin(2 * time.Millisecond) })
	background(func() { time.Sleep(700 * time.Microsecond) })
	background(func() {
		pause := syscall.NsecToTimespec(3_000_000)
		syscall.Nanosleep(&pause, nil)
	})
	background(func() {
		sink.Store("generations", tree(12))
		time.Sleep(500 * time.Microsecond)
	})
	background(func() { // regions and tasks that begin in one generation and end in a later one
		ctx, task := trace.NewTask(ctx, "child")
		region := trace.StartRegion(ctx, "sleepy")
		time.Sleep(5 * time.Millisecond)
		region.End()
		task.End()
	})
	sink.Store("ballast", make([]*node, 1<<20)) // long marking
	for i := 0; i < collections; i++ {
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	region.End()
	task.End()
	sink.Delete("ballast")
}

// fixture does a little of all that a trace can show, for traces that are kept as test data.
func fixture() {
	annotations()
	deepStack := make(chan int)
	descend(140, func() {
		go func() { descend(20, func() { deepStack <- 1 }) }()
		<-deepStack
	})
	silence(func() { check(pprof.StartCPUProfile(io.Discard)) })
	var wg sync.WaitGroup
	for i := 0; i < 2; i++ {
		wg.Add(1)
		go func() { defer wg.Done(); spin(25 * time.Millisecond) }()
	}
	pause := syscall.NsecToTimespec(1_000_000)
	syscall.Nanosleep(&pause, nil)
	wg.Wait()
	pprof.StopCPUProfile()
	before := runtime.GOMAXPROCS(3)
	sink.Store("fixture", tree(8))
	runtime.GC()
	runtime.GOMAXPROCS(before)
	_ = exec.Command("true").Run()
}

// idle lets generations pass in which next to nothing happens.
func idle() {
	for i := 0; i < 10; i++ {
		time.Sleep(10 * time.Millisecond)
	}
}

// killed ends the process in the middle of the trace, as a crash would.
func killed() {
	go spin(time.Hour)
	for i := 0; i < 2000; i++ {
		sink.Store(i%10, make([]byte, 1<<12))
		runtime.Gosched()
	}
	time.Sleep(30 * time.Millisecond)
	os.Exit(0)
}

// startStop records several short traces of a busy process and keeps the last.
func startStop(out io.Writer) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					sink.Store(i, make([]byte, 1000))
					ctx, task := trace.NewTask(context.Background(), "around")
					trace.WithRegion(ctx, "restart", func() { time.Sleep(time.Duration(i) * 50 * time.Microsecond) })
					task.End()
				}
			}
		}(i)
	}
	var last bytes.Buffer
	for i := 0; i < 8; i++ {
		last.Reset()
		check(trace.Start(&last))
		time.Sleep(3 * time.Millisecond)
		trace.Stop()
	}
	close(stop)
	wg.Wait()
	_, err := out.Write(last.Bytes())
	check(err)
}
