// Command triscopejudge puts Go's own trace reader to work for the comparisons of `cargo xtask
// test-go` and `cargo xtask bench-go`. It is built below the src directory of a copied GOROOT, where
// it may import what the go command keeps internal.
//
//	triscopejudge text           read every file named on a line of standard input ("events FILE" or
//	                             "wire FILE") and print its events
//	triscopejudge bytes IN OUT   turn a .test file, or one of the fuzz corpus, into trace bytes
//	triscopejudge drain FILE N   read all events N times, print how long each took
//	triscopejudge raw FILE N     the same on the wire level
//	triscopejudge analyze FILE   print the summaries and the mutator utilization of a trace
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"internal/trace"
	"internal/trace/raw"
	"internal/trace/testtrace"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "triscopejudge:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "text":
		return textAll(os.Stdin, os.Stdout)
	case len(args) == 3 && args[0] == "bytes":
		return toBytes(args[1], args[2])
	case len(args) == 3 && (args[0] == "drain" || args[0] == "raw"):
		times, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return measure(args[0], args[1], times)
	case len(args) == 2 && args[0] == "analyze":
		return analyze(args[1], os.Stdout)
	}
	return errors.New("unknown arguments")
}

// textAll answers each file with frames: "T LENGTH\n" and that many bytes of event text, any
// number of times, then one line "V VERDICT EVENTS MESSAGE", where MESSAGE is a quoted string.
// The verdicts:
//
//	ok       all was read
//	silent   the reader reported the end of the trace, but before the end of the input
//	error    the reader refused
//	panic    the reader, or the text of an event, panicked
//	timeout  there was no answer within a minute
func textAll(in io.Reader, out io.Writer) error {
	w := bufio.NewWriterSize(out, 1<<16)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		layer, path, _ := strings.Cut(lines.Text(), " ")
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read := readEvents
		if layer == "wire" {
			read = readWire
		}
		done := make(chan answer, 1)
		go func() { done <- read(bytes.NewReader(data)) }()
		var a answer
		select {
		case a = <-done:
		case <-time.After(time.Minute):
			a.verdict = "timeout"
		}
		if a.verdict == "ok" && read(&endless{data}).verdict == "ok" {
			a.verdict = "silent"
		}
		fmt.Fprintf(w, "T %d\n", a.text.Len())
		if _, err := w.Write(a.text.Bytes()); err != nil {
			return err
		}
		fmt.Fprintf(w, "V %s %d %q\n", a.verdict, a.events, a.message)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

type answer struct {
	verdict, message string
	events           int
	text             bytes.Buffer
}

func readEvents(in io.Reader) answer {
	return collect(func() (func() (fmt.Stringer, error), error) {
		r, err := trace.NewReader(in)
		return func() (fmt.Stringer, error) { return r.ReadEvent() }, err
	})
}

func readWire(in io.Reader) answer {
	return collect(func() (func() (fmt.Stringer, error), error) {
		r, err := raw.NewReader(in)
		return func() (fmt.Stringer, error) { ev, err := r.ReadEvent(); return &ev, err }, err
	})
}

// collect opens a trace and takes all the events that the function then gives.
func collect(open func() (func() (fmt.Stringer, error), error)) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a.verdict, a.message = "panic", fmt.Sprint(p)
		}
	}()
	next, err := open()
	for err == nil {
		var ev fmt.Stringer
		if ev, err = next(); err == nil {
			a.text.WriteString(ev.String())
			a.text.WriteByte('\n')
			a.events++
		}
	}
	a.verdict = "ok"
	if err != io.EOF {
		a.verdict, a.message = "error", err.Error()
	}
	return a
}

// endless never reports io.EOF: a reader that reports it invented it.
type endless struct{ rest []byte }

var errEndless = errors.New("end of the input")

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		return 0, errEndless
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func toBytes(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if fuzz, ok := strings.CutPrefix(string(data), "go test fuzz v1\n[]byte("); ok {
		literal := strings.TrimSuffix(strings.TrimSpace(fuzz), ")")
		text, err := strconv.Unquote(literal)
		if err != nil {
			return fmt.Errorf("%s: %v", from, err)
		}
		return os.WriteFile(to, []byte(text), 0o644)
	}
	r, _, _, err := testtrace.ParseFile(from)
	if err != nil {
		return err
	}
	if data, err = io.ReadAll(r); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// measure prints for each run how many events there are and how many nanoseconds it took by the
// clock and on all CPUs. The hash is there so that no work can be left out.
func measure(what, path string, times int) error {
	for i := 0; i < times; i++ {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		start, before := time.Now(), cpuTime()
		events := 0
		hash := fnv.New64a()
		switch what {
		case "drain":
			r, err := trace.NewReader(file)
			if err != nil {
				return err
			}
			for {
				ev, err := r.ReadEvent()
				if err == io.EOF {
					break
				} else if err != nil {
					return err
				}
				events++
				if ev.Kind() == trace.EventSync {
					fmt.Fprint(hash, ev.Time())
				}
			}
		case "raw":
			r, err := raw.NewReader(file)
			if err != nil {
				return err
			}
			for {
				ev, err := r.ReadEvent()
				if err == io.EOF {
					break
				} else if err != nil {
					return err
				}
				events++
				if len(ev.Args) == 0 {
					hash.Write([]byte{byte(ev.Ev)})
				}
			}
		}
		elapsed, used := time.Since(start), cpuTime()-before
		fmt.Printf("%d %d %d %x\n", events, elapsed.Nanoseconds(), used, hash.Sum64())
		file.Close()
	}
	return nil
}

// cpuTime is what the process used so far, in nanoseconds.
func cpuTime() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// analyze prints the results of the internal analyses, a line for each fact, in no order. Names
// are percent-encoded, times are in nanoseconds, -1 is none. Reasons and ranges with no time are
// left out.
func analyze(path string, out io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := trace.NewReader(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(out, 1<<16)
	summarizer := trace.NewSummarizer()
	var events []trace.Event
	for {
		ev, err := r.ReadEvent()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		summarizer.Event(&ev)
		events = append(events, ev)
	}
	printSummary(w, summarizer.Finalize())
	stopped := stoppedAtFirst(events)
	if stopped {
		fmt.Fprintln(w, "fault stop-the-world")
	}
	for flags := trace.UtilFlags(0); flags <= trace.UtilSTW|trace.UtilBackground|trace.UtilAssist|trace.UtilSweep|trace.UtilPerProc; flags++ {
		if stopped && flags&trace.UtilSTW != 0 {
			continue
		}
		functions := trace.MutatorUtilizationV2(events, flags)
		for i, function := range functions {
			for _, u := range function {
				fmt.Fprintf(w, "utilization %d %d %d %.9f\n", flags, i, u.Time, u.Util)
			}
		}
		if len(functions) == 0 {
			continue
		}
		curve := trace.NewMMUCurve(functions)
		for window := time.Microsecond; window <= 100*time.Second; window *= 10 {
			minimum := curve.MMU(window)
			if least := leastMean(functions, window); minimum < least-1e-9 {
				fmt.Fprintf(w, "fault window %d %d %.9f\n", flags, window, minimum)
				minimum = least
			}
			fmt.Fprintf(w, "minimum %d %d %.9f\n", flags, window, minimum)
		}
	}
	return w.Flush()
}

// leastMean returns the minimum utilization of the windows of this length that are in the trace. A mean is
// least where a window begins or ends at a change. The reference can also look at a window that extends
// past the end of the trace, where its utilization is 0: its minimum is too low then.
func leastMean(functions [][]trace.MutatorUtil, window time.Duration) float64 {
	least := 1.0
	for _, function := range functions {
		sums := make([]float64, len(function))
		for i := 1; i < len(function); i++ {
			before := function[i-1]
			sums[i] = sums[i-1] + before.Util*float64(function[i].Time-before.Time)
		}
		integral := func(time int64) float64 {
			i := sort.Search(len(function), func(i int) bool { return function[i].Time > time }) - 1
			return sums[i] + function[i].Util*float64(time-function[i].Time)
		}
		first, last := function[0].Time, function[len(function)-1].Time
		length := min(int64(window), last-first)
		if length <= 0 {
			continue
		}
		for _, change := range function {
			for _, start := range []int64{change.Time, change.Time - length} {
				if start >= first && start+length <= last {
					least = min(least, (integral(start+length)-integral(start))/float64(length))
				}
			}
		}
	}
	return least
}

// stoppedAtFirst reports whether the GC has stopped the world when GOMAXPROCS is first seen. The
// reference then counts the end of the range but not its begin, and no stop after it.
func stoppedAtFirst(events []trace.Event) bool {
	stopped := false
	for i := range events {
		ev := &events[i]
		switch kind := ev.Kind(); kind {
		case trace.EventRangeBegin, trace.EventRangeEnd:
			if name := ev.Range().Name; strings.HasPrefix(name, "stop-the-world") && strings.Contains(name, "GC") {
				stopped = kind == trace.EventRangeBegin
			}
		case trace.EventMetric:
			if ev.Metric().Name == "/sched/gomaxprocs:threads" {
				return stopped
			}
		}
	}
	return false
}

func printSummary(w io.Writer, summary *trace.Summary) {
	for _, g := range summary.Goroutines {
		started, ended := int64(g.StartTime), int64(g.EndTime)
		if started == 0 {
			started = -1
		}
		if ended == 0 {
			ended = -1
		}
		fmt.Fprintf(w, "goroutine %d %s %d %d %d %d %s\n", g.ID, encode(g.Name), g.PC, g.CreationTime, started, ended, stats(g.GoroutineExecStats))
		for _, r := range g.Regions {
			fmt.Fprintf(w, "region %d %d %s %d %d %s\n", g.ID, r.TaskID, encode(r.Name), at(r.Start), at(r.End), stats(r.GoroutineExecStats))
		}
	}
	for _, t := range summary.Tasks {
		parent := int64(-1)
		if t.Parent != nil {
			parent = int64(t.Parent.ID)
		}
		name := t.Name
		if name == "" && t.Start != nil {
			name = t.Start.Task().Type // the second end of a task has none
		}
		fmt.Fprintf(w, "task %d %s %d %d %d %d %d", t.ID, encode(name), parent, at(t.Start), at(t.End), len(t.Regions), len(t.Logs))
		for _, g := range slices.Sorted(maps.Keys(t.Goroutines)) {
			if g != trace.NoGoroutine {
				fmt.Fprintf(w, " %d", g)
			}
		}
		fmt.Fprintln(w)
	}
}

func at(ev *trace.Event) int64 {
	if ev == nil {
		return -1
	}
	return int64(ev.Time())
}

// stats formats what a goroutine spent its time with. A system call that is blocked at the end of
// the trace counts twice in the reference, as time in the call and as time runnable: where the
// states exceed the total, the excess is time in a blocked call.
func stats(s trace.GoroutineExecStats) string {
	sum := s.ExecTime + s.SchedWaitTime + s.SyscallTime + s.SyscallBlockTime
	for _, d := range s.BlockTimeByReason {
		sum += d
	}
	if excess := sum - s.TotalTime; excess > 0 {
		s.SyscallTime -= excess
		s.SchedWaitTime -= excess
		s.SyscallBlockTime += excess
	}
	text := fmt.Sprintf("%d %d %d %d %d", s.TotalTime, s.ExecTime, s.SchedWaitTime, s.SyscallTime, s.SyscallBlockTime)
	for _, of := range []map[string]time.Duration{s.BlockTimeByReason, s.RangeTime} {
		text += " |"
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if of[name] != 0 {
				text += fmt.Sprintf(" %s %d", encode(name), of[name])
			}
		}
	}
	return text
}

// encode replaces what would not be one word.
func encode(name string) string {
	var text strings.Builder
	text.WriteByte('"')
	for i := 0; i < len(name); i++ {
		if c := name[i]; c > ' ' && c < 0x7f && c != '%' {
			text.WriteByte(c)
		} else {
			fmt.Fprintf(&text, "%%%02x", c)
		}
	}
	text.WriteByte('"')
	return text.String()
}
