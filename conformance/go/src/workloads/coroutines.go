//go:build go1.23

package main

import (
	"iter"
	"runtime"
	"sync"
)

func init() {
	traced["coroutines"] = struct{ before, run func() }{nil, coroutines}
}

func count(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < n; i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// coroutines switches between goroutines without the scheduler: to the end, stopped early, never
// started, nested, and handed from one goroutine to another.
func coroutines() {
	var wg sync.WaitGroup
	for w := 0; w < 4; w++ {
		wg.Add(1)
		go func(w int) {
			defer wg.Done()
			for n := 0; n < 10; n++ {
				next, stop := iter.Pull(count(n * 3))
				for i := 0; i < 20; i++ {
					if _, ok := next(); !ok {
						break
					}
					if i%7 == w {
						runtime.Gosched()
					}
				}
				stop()
			}
			_, unused := iter.Pull(count(1))
			unused()
			nested, stop := iter.Pull(func(yield func(int) bool) {
				next, stop := iter.Pull(count(10))
				defer stop()
				for v, ok := next(); ok && yield(v*v); v, ok = next() {
				}
			})
			for i := 0; i < 5; i++ {
				nested()
			}
			handed := make(chan struct{})
			go func() { nested(); stop(); close(handed) }()
			<-handed
		}(w)
	}
	wg.Wait()
}
