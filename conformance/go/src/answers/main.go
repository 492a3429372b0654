// Waits, runs and is preempted in a known way, and prints what it measured itself.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	monotonic = 1
	threadCPU = 3
)

func clock(id uintptr) int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

// Binds this thread to CPU 0.
func pin() {
	var set [16]uint64
	set[0] = 1
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, 128, uintptr(unsafe.Pointer(&set)))
}

// The time of a thread on a CPU and in run queues, as the kernel counts it.
func schedstat(tid int) (run, wait int64) {
	return schedstatOf(fmt.Sprintf("/proc/self/task/%d", tid))
}

func schedstatOf(dir string) (run, wait int64) {
	text, err := os.ReadFile(dir + "/schedstat")
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(text))
	run, _ = strconv.ParseInt(fields[0], 10, 64)
	wait, _ = strconv.ParseInt(fields[1], 10, 64)
	return run, wait
}

var sink int

// Computes for this much CPU time. The thread must be locked.
func compute(ms int64) {
	end := clock(threadCPU) + ms*1e6
	for clock(threadCPU) < end {
		for i := 0; i < 20000; i++ {
			sink += i
		}
	}
}

// A goroutine with a thread of its own.
func locked(f func()) {
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
}

// A process that keeps CPU 0 busy.
func busy() *exec.Cmd {
	cmd := exec.Command("taskset", "-c", "0", "sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

func stop(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

func task(name string, f func(ctx context.Context)) {
	ctx, task := trace.NewTask(context.Background(), name)
	f(ctx)
	task.End()
}

// A thread beside a busy process on one CPU.
func preempted() {
	done := make(chan bool)
	other := busy()
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, as it is bound to a CPU
		pin()
		compute(20)
		task("preempted", func(context.Context) {
			tid := syscall.Gettid()
			run, wait := schedstat(tid)
			from, cpu := clock(monotonic), clock(threadCPU)
			trace.WithRegion(context.Background(), "compute", func() { compute(300) })
			to, cpu2 := clock(monotonic), clock(threadCPU)
			run2, wait2 := schedstat(tid)
			fmt.Printf("preempted %d %d %d %d\n", to-from, cpu2-cpu, run2-run, wait2-wait)
		})
		close(done)
	}()
	<-done
	stop(other)
}

// A channel behind a channel behind a timer.
func chain() {
	a, b := make(chan int), make(chan int)
	task("chain", func(context.Context) {
		locked(func() { time.Sleep(30 * time.Millisecond); compute(80); a <- 1 })
		locked(func() { <-a; compute(40); b <- 1 })
		<-b
		compute(20)
	})
}

// A mutex that another task holds.
func mutex() {
	var mu sync.Mutex
	holds := make(chan bool)
	locked(func() {
		task("holder", func(ctx context.Context) {
			mu.Lock()
			close(holds)
			compute(100)
			mu.Unlock()
		})
	})
	<-holds
	task("waiter", func(context.Context) {
		mu.Lock()
		mu.Unlock()
	})
}

// More jobs than workers.
func pool() {
	jobs, done := make(chan int64), make(chan bool)
	for i := 0; i < 2; i++ {
		locked(func() {
			for ms := range jobs {
				compute(ms)
				done <- true
			}
		})
	}
	task("pool", func(context.Context) {
		go func() {
			for _, ms := range []int64{40, 40, 60} {
				jobs <- ms
			}
			close(jobs)
		}()
		for i := 0; i < 3; i++ {
			<-done
		}
	})
}

// A disk.
func fsync() {
	file, err := os.Create("fsync.tmp")
	if err != nil {
		panic(err)
	}
	defer os.Remove("fsync.tmp")
	file.Write(make([]byte, 16<<20))
	task("fsync", func(context.Context) { file.Sync() })
	file.Close()
}

// A pipe from another process, which computes first.
func pipe() {
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; echo done; read x")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	task("pipe", func(context.Context) { out.Read(make([]byte, 16)) })
	in.Close()
	cmd.Wait()
}

var kept [][]byte

// Allocations that the garbage collector makes pay.
func assist() {
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	for i := 0; i < 4000; i++ {
		kept = append(kept, make([]byte, 16<<10))
	}
	task("assist", func(context.Context) {
		for i := 0; i < 20000; i++ {
			kept[i%len(kept)] = make([]byte, 16<<10)
		}
	})
	kept = nil
}

// A stop-the-world that waits for a thread without a CPU, and a task that waits for it.
func late() {
	other := busy()
	var over sync.WaitGroup
	over.Add(2)
	end := make(chan bool)
	untilEnd := func(context.Context) {
		for {
			select {
			case <-end:
				return
			default:
				compute(1)
			}
		}
	}
	go func() {
		defer over.Done()
		runtime.LockOSThread()
		pin()
		untilEnd(context.Background())
	}()
	locked(func() {
		defer over.Done()
		task("late", untilEnd)
	})
	for i := 0; i < 40; i++ {
		time.Sleep(3 * time.Millisecond)
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
	}
	close(end)
	over.Wait()
	stop(other)
}

// The counters of a cgroup's CPU quota: nanoseconds of throttling, throttled periods.
func throttled(dir string) (nanos, periods int64) {
	text, err := os.ReadFile(dir + "/cpu.stat")
	if err != nil {
		panic(err)
	}
	fields := strings.Fields(string(text))
	for i := 0; i+1 < len(fields); i += 2 {
		value, _ := strconv.ParseInt(fields[i+1], 10, 64)
		switch fields[i] {
		case "nr_throttled":
			periods = value
		case "throttled_time":
			nanos = value
		case "throttled_usec":
			nanos = value * 1000
		}
	}
	return nanos, periods
}

// A thread whose cgroup has a CPU quota.
func quota(dir string) {
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		panic(err)
	}
	pin() // throttling is counted per CPU
	before, periods := throttled(dir)
	from, cpu := clock(monotonic), clock(threadCPU)
	task("quota", func(context.Context) { compute(100) })
	to, cpu2 := clock(monotonic), clock(threadCPU)
	after, periods2 := throttled(dir)
	fmt.Printf("quota %d %d %d %d\n", to-from, cpu2-cpu, after-before, periods2-periods)
}

// Requests to a server at the other ends of the standard streams.
func requests() {
	answer := make([]byte, 1)
	from := clock(monotonic)
	task("requests", func(context.Context) {
		for i := 0; i < 5; i++ {
			os.Stdout.Write([]byte("?"))
			if n, err := os.Stdin.Read(answer); n != 1 {
				panic(err)
			}
		}
	})
	fmt.Fprintf(os.Stderr, "requests %d\n", clock(monotonic)-from)
}

// Waits that a goroutine measures: how many, and nanoseconds until it was woken and from then on.
type waits struct{ count, blocked, late int64 }

// Adds a wait that began at one time and ended at another one, which the waker measured.
func (w *waits) add(from, woken int64) {
	if woken > from {
		w.count++
		w.blocked += woken - from
		w.late += clock(monotonic) - woken
	}
}

func (w *waits) print(name string) {
	fmt.Println(name, w.count, w.blocked, w.late)
}

const rounds = 5

var (
	letter, over  = make(chan bool), make(chan bool)
	turn          = make(chan int64, 1) // the time of its value
	answer        = make(chan bool, 3)
	mu            sync.Mutex
	ends          [2]int
	begun         int64 // before the goroutines start
	taken, opened int64 // when the letter was taken, and the mutex unlocked

	sending, turns, locking, reading waits
	slept                            int64
)

// A goroutine that sends to another one, which is not ready to receive.
func sends() {
	sending.late += clock(monotonic) - begun
	for i := 0; i < rounds; i++ {
		from := clock(monotonic)
		letter <- true
		sending.add(from, taken)
		answer <- true
	}
}

// One that waits for the other one's mutex.
func locks() {
	locking.late += clock(monotonic) - begun
	for i := 0; i < rounds; i++ {
		from := clock(monotonic)
		turns.add(from, <-turn)
		from = clock(monotonic)
		mu.Lock()
		locking.add(from, opened)
		mu.Unlock()
		answer <- true
	}
}

// One that reads from it in a system call, which blocks its thread.
func reads() {
	reading.late += clock(monotonic) - begun
	buffer := make([]byte, 8)
	for i := 0; i < rounds; i++ {
		from := clock(monotonic)
		syscall.Read(ends[0], buffer)
		reading.add(from, int64(binary.LittleEndian.Uint64(buffer)))
		answer <- true
	}
}

// The other one: it sleeps, and ends the waits of all three. The runtime does not see its system call:
// at those that it sees, it may wake a thread of its own.
func hands() {
	buffer := make([]byte, 8)
	for i := 0; i < rounds; i++ {
		mu.Lock()
		turn <- clock(monotonic)
		from := clock(monotonic)
		time.Sleep(40 * time.Millisecond)
		opened = clock(monotonic)
		slept += opened - from
		mu.Unlock()
		taken = clock(monotonic)
		<-letter
		binary.LittleEndian.PutUint64(buffer, uint64(clock(monotonic)))
		syscall.RawSyscall(syscall.SYS_WRITE, uintptr(ends[1]), uintptr(unsafe.Pointer(&buffer[0])), 8)
		for j := 0; j < 3; j++ {
			<-answer
		}
	}
	over <- true
}

// As compute, but never leaves the CPU by itself: the runtime cannot preempt it.
//
//go:nosplit
func spin(ms int64) {
	var now syscall.Timespec
	end := int64(0)
	for {
		syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&now)), 0)
		nanos := now.Sec*1e9 + now.Nsec
		if end == 0 {
			end = nanos + ms*1e6
		}
		if nanos >= end {
			return
		}
		for i := 0; i < 20000; i++ {
			sink += i
		}
	}
}

// A thread beside a process on one CPU, which computes from when it is continued until it is stopped.
func beside(pid int) {
	runtime.LockOSThread() // it ends with the goroutine, as it is bound to a CPU
	pin()
	other := fmt.Sprintf("/proc/%d", pid)
	before, _ := schedstatOf(other)
	// The runtime does not see these calls either: it could take the P meanwhile, and the thread would sleep.
	syscall.RawSyscall(syscall.SYS_KILL, uintptr(pid), uintptr(syscall.SIGCONT), 0)
	spin(150)
	syscall.RawSyscall(syscall.SYS_KILL, uintptr(pid), uintptr(syscall.SIGSTOP), 0)
	after, _ := schedstatOf(other)
	tid := syscall.Gettid()
	_, wait := schedstat(tid)
	fmt.Println("beside", tid, wait, after-before)
	over <- true
}

// Waits for known reasons, then beside another process.
func blocked(pid int) {
	if err := syscall.Pipe(ends[:]); err != nil {
		panic(err)
	}
	begun = clock(monotonic)
	go sends()
	go locks()
	go reads()
	go hands()
	<-over
	go beside(pid)
	<-over
	sending.print("sending")
	turns.print("turns")
	locking.print("locking")
	reading.print("reading")
	fmt.Println("slept", rounds, slept)
}

func main() {
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := trace.Start(file); err != nil {
		panic(err)
	}
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	runtime.LockOSThread()
	if len(os.Args) > 2 {
		switch os.Args[2] {
		case "quota":
			quota(os.Args[3])
		case "requests":
			requests()
		case "blocked":
			pid, _ := strconv.Atoi(os.Args[3])
			blocked(pid)
		}
		trace.Stop()
		file.Close()
		return
	}
	chain()
	mutex()
	pool()
	fsync()
	pipe()
	assist()
	late()
	preempted()
	debug.ReadGCStats(&after)
	trace.Stop()
	fmt.Printf("gc %d %d\n", after.NumGC-before.NumGC, after.PauseTotal-before.PauseTotal)
	file.Close()
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		// The kernel counts the time of a running thread when it leaves the CPU.
		pause := syscall.Timespec{Nsec: 1e6}
		syscall.Nanosleep(&pause, nil)
		run, _ := schedstat(tid)
		fmt.Printf("thread %d %d %d\n", tid, run, clock(monotonic))
	}
	// The run time of all threads, also of ended ones, as the kernel counts it, in microseconds.
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	fmt.Printf("process %d\n", usage.Utime.Nano()+usage.Stime.Nano())
}
