// Command flight is a process with a flight recorder. Each line of its input is a command; it answers
// each with "done" when it is complete.
//
//	start         start the flight recorder
//	record FILE   write an ordinary trace to a file from now on; the file ends with the program
//	write FILE    write the flight recorder to a file
//	advance       end a generation
//	stop          stop the flight recorder
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/trace"
	"strings"
)

func main() {
	recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MaxBytes: 4 << 20})
	work := make(chan int)
	for i := 0; i < 4; i++ {
		go func() {
			for n := range work {
				runtime.KeepAlive(make([]byte, n))
				runtime.Gosched()
			}
		}()
	}
	go func() {
		for i := 0; ; i++ {
			work <- i % 5000
			if i%64 == 0 {
				read, write, err := os.Pipe() // system calls
				check(err)
				check(read.Close())
				check(write.Close())
			}
		}
	}()
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, file, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "start":
			check(recorder.Start())
		case "record":
			out, err := os.Create(file)
			check(err)
			check(trace.Start(out))
			defer trace.Stop()
		case "write":
			out, err := os.Create(file)
			check(err)
			_, err = recorder.WriteTo(out)
			check(err)
			check(out.Close())
		case "advance":
			_, err := recorder.WriteTo(io.Discard)
			check(err)
		case "stop":
			recorder.Stop()
		default:
			panic("unknown command " + command)
		}
		fmt.Println("done")
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
