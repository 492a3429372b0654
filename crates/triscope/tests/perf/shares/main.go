// Spends 60, 30 and 10 % of its CPU time in three functions, and prints the nanoseconds in each.
// The first argument is not used, the second one is the number of rounds. With a third one, the profile of
// runtime/pprof is written there.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"syscall"
	"unsafe"
)

var sink int

func now() int64 {
	const threadCPUTime = 3
	var at syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPUTime, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

// A round takes 10 ms, or another time than that between two samples of runtime/pprof.
var unit int64 = 1000000

//go:noinline
func run(units int64) {
	for end := now() + units*unit; now() < end; {
		for i := 0; i < 20000; i++ {
			sink += i
		}
	}
}

//go:noinline
func sixty() { run(6); sink++ }

//go:noinline
func thirty() { run(3); sink++ }

//go:noinline
func ten() { run(1); sink++ }

func main() {
	runtime.LockOSThread()
	rounds, _ := strconv.Atoi(os.Args[2])
	if len(os.Args) > 3 {
		unit = 1370000
		file, err := os.Create(os.Args[3])
		if err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			panic(err)
		}
		defer pprof.StopCPUProfile()
	}
	var spent [3]int64
	for round := 0; round < rounds; round++ {
		for i, function := range []func(){sixty, thirty, ten} {
			begin := now()
			function()
			spent[i] += now() - begin
		}
	}
	fmt.Printf("sixty %d\nthirty %d\nten %d\n", spent[0], spent[1], spent[2])
}
