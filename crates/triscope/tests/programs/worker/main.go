// Writes an execution trace of ten goroutines to the file that it is given, if its own name says so,
// and waits until its standard input ends.
package main

import (
	"io"
	"os"
	"runtime/trace"
	"strings"
	"sync"
)

func main() {
	if strings.HasSuffix(os.Args[0], "writer") {
		file, err := os.Create(os.Args[1])
		if err != nil {
			panic(err)
		}
		if err := trace.Start(file); err != nil {
			panic(err)
		}
		var all sync.WaitGroup
		for i := 0; i < 10; i++ {
			all.Add(1)
			go all.Done()
		}
		all.Wait()
		trace.Stop()
		file.Close()
	}
	io.Copy(io.Discard, os.Stdin)
}
