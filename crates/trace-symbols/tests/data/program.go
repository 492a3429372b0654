// Prints the frames of random addresses of its own code, as the runtime has them, and waits until its
// standard input is closed.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"sort"
	"strings"
	"text/template"
)

type number interface{ ~int | ~float64 }

func sum[T number](values []T) (total T) {
	each(values, func(value T) { total += twice(value) })
	return total
}

func each[T any](values []T, call func(T)) {
	for _, value := range values {
		call(value)
	}
}

func twice[T number](value T) T { return value + value }

type shape struct{ width, height int }

func (s *shape) area() int { return s.width * twice(s.height) }

//go:noinline
func work() int {
	s := &shape{3, len(os.Args)}
	return s.area() + sum([]int{1, 2, 3}) + int(sum([]float64{1.5, 2}))
}

func main() {
	// Programs with more code have larger tables.
	t := template.Must(template.New("t").Parse("{{.}}"))
	if t.Execute(io.Discard, work()) != nil {
		os.Exit(1)
	}
	middle := reflect.ValueOf(sort.Strings).Pointer()
	own := reflect.ValueOf(work).Pointer()
	random := uint64(12345)
	out := bufio.NewWriter(os.Stdout)
	for n := 0; n < 2000; {
		random = random*6364136223846793005 + 1442695040888963407
		pc := middle + uintptr(random>>44) - 1<<19
		if n%4 == 0 {
			pc = own - 4096 + uintptr(random>>52)
		}
		// CallersFrames takes return addresses: that of the last byte is in the next function.
		function, next := runtime.FuncForPC(pc), runtime.FuncForPC(pc+1)
		if function == nil || next == nil || next.Entry() != function.Entry() {
			continue
		}
		n++
		// The runtime finds callers that were inlined if another address follows.
		frames := runtime.CallersFrames([]uintptr{pc + 1, 1})
		var line []string
		for {
			frame, more := frames.Next()
			line = append(line, fmt.Sprintf("%s|%s|%d", frame.Function, frame.File, frame.Line))
			if !more {
				break
			}
		}
		fmt.Fprintf(out, "%x %s\n", pc, strings.Join(line, "\t"))
	}
	fmt.Fprintln(out, "end")
	out.Flush()
	io.Copy(io.Discard, os.Stdin)
}
