// Command triscopejudge puts Go's own trace reader to work for the comparisons of `cargo xtask
// test-go` and `cargo xtask bench-go`. It is built below the src directory of a copied GOROOT, where
// it may import what the go command keeps internal.
//
//	triscopejudge text           read every file named on a line of standard input ("events FILE" or
//	                             "wire FILE") and print its events
//	triscopejudge bytes IN OUT   turn a .test file, or one of the fuzz corpus, into trace bytes
//	triscopejudge drain FILE N   read all events N times, print how long each took
//	triscopejudge raw FILE N     the same on the wire level
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
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

// endless never reports io.EOF: whoever does so after reading from it made it up.
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
