// Command workload records an execution trace of one kind of work.
//
// Each kind is small, ends by itself within seconds, touches nothing but loopback sockets, pipes
// and the file it writes, and is there to make the runtime emit certain events.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/trace"
	"sort"
)

// traced maps a name to work that is run while a trace is recorded. before, where it is set, is
// run ahead of the recording and leaves something behind that the trace starts with.
var traced = map[string]struct{ before, run func() }{
	"http":        {nil, httpWork},
	"shop":        {nil, shop},
	"gc":          {nil, gcWork},
	"contention":  {nil, contention},
	"annotations": {openTask, annotations},
	"syscalls":    {nil, syscalls},
	"goroutines":  {manyBefore, manyGoroutines},
	"churn":       {nil, churn},
	"timers":      {nil, timers},
	"cpuprofile":  {nil, cpuProfile},
	"gomaxprocs":  {nil, gomaxprocs},
	"lockthread":  {lockedBefore, lockThread},
	"deepstacks":  {nil, deepStacks},
	"generations": {nil, func() { generations(6) }},
	"idle":        {nil, idle},
	"allocations": {nil, allocations},
	"killed":      {nil, killed},
	"fixture":     {openTask, fixture},
}

// controlled maps a name to work that starts and stops the recording itself.
var controlled = map[string]func(out io.Writer){
	"startstop": startStop,
	"busy":      busy,
	"swarm":     swarm,
}

func main() {
	if len(os.Args) != 3 {
		usage()
	}
	name, path := os.Args[1], os.Args[2]
	out, err := os.Create(path)
	check(err)
	if work, ok := controlled[name]; ok {
		work(out)
	} else if work, ok := traced[name]; ok {
		if work.before != nil {
			work.before()
		}
		check(trace.Start(out))
		work.run()
		trace.Stop()
	} else {
		usage()
	}
	check(out.Close())
}

func usage() {
	var names []string
	for name := range traced {
		names = append(names, name)
	}
	for name := range controlled {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintln(os.Stderr, "usage: workload NAME OUT\n\nnames:")
	for _, name := range names {
		fmt.Fprintln(os.Stderr, "  "+name)
	}
	os.Exit(2)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}
