// Command workload-cgo records a trace in which C calls Go: on Go's own threads, on threads that C
// made (each call makes and ends a goroutine in a system call), and from within such a call again.
package main

/*
#include <pthread.h>

void enter(int depth);

static void *on_thread(void *arg) {
	for (int i = 0; i < 5; i++)
		enter(i % 3);
	return 0;
}

static void threads(int n) {
	pthread_t all[16];
	for (int i = 0; i < n && i < 16; i++)
		pthread_create(&all[i], 0, on_thread, 0);
	for (int i = 0; i < n && i < 16; i++)
		pthread_join(all[i], 0);
}

static void call(int depth) { enter(depth); }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/trace"
	"time"
)

//export enter
func enter(depth C.int) {
	runtime.Gosched()
	if depth > 0 {
		C.call(depth - 1)
	} else {
		time.Sleep(100 * time.Microsecond)
	}
}

func main() {
	if err := run(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "workload-cgo:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	C.threads(2) // threads that the trace starts with
	if err := trace.Start(out); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { C.threads(8); close(done) }()
	C.call(3)
	runtime.GC()
	<-done
	C.threads(4)
	trace.Stop()
	return out.Close()
}
