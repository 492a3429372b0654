// Has regions and tasks of 30 ms, and stops the world, until its standard input ends. Its trace is served
// by net/http/pprof on a loopback address, whose server it shuts down in the end, or, with the argument "recorder", kept by a flight recorder.
package main

import (
	"context"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"runtime"
	"runtime/trace"
	"time"
)

func main() {
	server := &http.Server{}
	if len(os.Args) > 1 && os.Args[1] == "recorder" {
		recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: 10 * time.Second})
		if err := recorder.Start(); err != nil {
			panic(err)
		}
	} else {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		go server.Serve(listener)
	}
	go func() {
		for {
			ctx, task := trace.NewTask(context.Background(), "request")
			trace.WithRegion(ctx, "slow", func() { time.Sleep(30 * time.Millisecond) })
			task.End()
			runtime.GC()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	// It waits for the requests.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		panic(err)
	}
}
