package main

import (
	"context"
	"io"
	"runtime"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"time"
)

// contention makes goroutines wait for each other in every way that sync and channels offer.
func contention() {
	var wg sync.WaitGroup
	spawn := func(n int, work func(i int)) {
		for i := 0; i < n; i++ {
			wg.Add(1)
			go func(i int) { defer wg.Done(); work(i) }(i)
		}
	}
	var mu sync.Mutex
	var shared int
	spawn(6, func(int) {
		for i := 0; i < 150; i++ {
			mu.Lock()
			shared++
			if i%10 == 0 {
				runtime.Gosched()
			}
			mu.Unlock()
		}
	})
	var rw sync.RWMutex
	spawn(4, func(i int) {
		for j := 0; j < 60; j++ {
			if (i+j)%5 == 0 {
				rw.Lock()
				runtime.Gosched()
				rw.Unlock()
			} else {
				rw.RLock()
				runtime.Gosched()
				rw.RUnlock()
			}
		}
	})
	plain, buffered := make(chan int), make(chan int, 4)
	spawn(2, func(int) {
		for i := 0; i < 300; i++ {
			plain <- i
			buffered <- i
		}
	})
	spawn(2, func(int) {
		for i := 0; i < 300; i++ {
			<-plain
			<-buffered
		}
	})
	cond := sync.NewCond(&mu)
	var ready atomic.Int32
	spawn(8, func(int) {
		mu.Lock()
		ready.Add(1)
		cond.Wait()
		mu.Unlock()
	})
	for ready.Load() != 8 {
		runtime.Gosched()
	}
	mu.Lock()
	cond.Signal()
	cond.Broadcast()
	mu.Unlock()
	wg.Wait()
	var once sync.Once
	spawn(4, func(int) { once.Do(func() { time.Sleep(time.Millisecond) }) })
	wg.Wait()
	forever := make(chan int)
	go func() { <-forever }() // blocked when the trace ends
	go func() { select {} }()
	time.Sleep(time.Millisecond)
}

const crowd = 50_000

var crowdGate = make(chan struct{})
var crowdDone sync.WaitGroup

// manyBefore leaves half of the crowd waiting when the trace starts.
func manyBefore() {
	crowdDone.Add(crowd)
	for i := 0; i < crowd; i++ {
		go func() { <-crowdGate; crowdDone.Done() }()
	}
	time.Sleep(50 * time.Millisecond)
}

// manyGoroutines has 100 000 goroutines alive at once.
func manyGoroutines() {
	crowdDone.Add(crowd)
	for i := 0; i < crowd; i++ {
		go crowdDone.Done()
	}
	close(crowdGate)
	crowdDone.Wait()
}

// churn makes 100 000 goroutines that end at once, some dozens alive at a time: work that is
// handed to a new goroutine for each item.
func churn() {
	var wg sync.WaitGroup
	for made := 0; made < 100_000; made += 50 {
		wg.Add(50)
		for i := 0; i < 50; i++ {
			go wg.Done()
		}
		wg.Wait()
	}
}

// swarm records goroutines that come and go, 100 000 of them alive at a time, until the trace has
// some 16 MB.
func swarm(out io.Writer) {
	size := &counter{to: out}
	check(trace.Start(size))
	for size.bytes.Load() < 16_000_000 {
		var wg sync.WaitGroup
		gate := make(chan struct{})
		wg.Add(100_000)
		for i := 0; i < 100_000; i++ {
			go func() { <-gate; wg.Done() }()
		}
		close(gate)
		wg.Wait()
	}
	trace.Stop()
}

// timers has timers fire, stop and reset, tickers tick, and selects choose.
func timers() {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			ticker := time.NewTicker(time.Duration(i+1) * 500 * time.Microsecond)
			defer ticker.Stop()
			fired := make(chan int, 100)
			for n := 0; ; n++ {
				timer := time.AfterFunc(time.Duration(n%5)*200*time.Microsecond, func() {
					select {
					case fired <- n:
					default:
					}
				})
				select {
				case <-ticker.C:
					timer.Stop()
				case <-fired:
					timer.Reset(time.Hour)
					timer.Stop()
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					timer.Stop()
					return
				}
			}
		}(i)
	}
	wg.Wait()
	time.Sleep(time.Millisecond)
}

// gomaxprocs changes the number of procs under load.
func gomaxprocs() {
	before := runtime.GOMAXPROCS(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	for _, n := range []int{1, 4, 2, 8, 3, 1, before} {
		runtime.GOMAXPROCS(n)
		time.Sleep(300 * time.Microsecond)
	}
	close(stop)
	wg.Wait()
}

var lockedGate, lockedReady = make(chan struct{}), make(chan struct{})

// lockedBefore leaves a goroutine waiting on a thread of its own when the trace starts.
func lockedBefore() {
	go func() {
		runtime.LockOSThread()
		close(lockedReady)
		<-lockedGate
	}()
	<-lockedReady
}

// lockThread passes control between goroutines that own their threads, some of which end locked
// and so take their thread along.
func lockThread() {
	var wg sync.WaitGroup
	for i := 0; i < 4; i++ {
		ping, pong := make(chan int), make(chan int)
		wg.Add(2)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for n := 0; n < 40; n++ {
				ping <- n
				<-pong
			}
		}()
		go func() {
			defer wg.Done()
			runtime.LockOSThread() // never unlocked
			for n := 0; n < 40; n++ {
				pong <- <-ping + 1
			}
		}()
	}
	wg.Wait()
	close(lockedGate)
	time.Sleep(time.Millisecond)
}

// deepStacks blocks, yields and starts goroutines below more calls than a trace keeps of a stack.
func deepStacks() {
	for depth := 1; depth <= 1000; depth = depth*3/2 + 1 {
		done := make(chan int)
		descend(depth, func() {
			go func() { descend(depth/2, func() { runtime.Gosched(); done <- depth }) }()
			<-done
		})
	}
}

//go:noinline
func descend(depth int, then func()) {
	if depth == 0 {
		then()
		return
	}
	if depth%2 == 0 {
		descendEven(depth, then)
	} else {
		descend(depth-1, then)
	}
}

//go:noinline
func descendEven(depth int, then func()) {
	descend(depth-1, then)
}
