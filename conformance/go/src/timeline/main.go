// Calls the kernel where both tracers see it: a system call that the Go runtime
// puts in its trace, and that a tracepoint of the kernel sees.
package main

import (
	"os"
	"runtime/trace"
	"syscall"
	"time"
)

func main() {
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := trace.Start(file); err != nil {
		panic(err)
	}
	for i := range 1000 {
		syscall.Syscall(syscall.SYS_GETPPID, 0, 0, 0)
		if i%10 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	trace.Stop()
	if err := file.Close(); err != nil {
		panic(err)
	}
}
