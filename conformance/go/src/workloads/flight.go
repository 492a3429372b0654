//go:build go1.25

package main

import (
	"io"
	"runtime/trace"
	"sync"
	"time"
)

func init() {
	controlled["flight"] = flight
}

// flight takes a snapshot of the last moments of a busy process with the flight recorder, which
// runs beside an ordinary trace for a part of the time.
func flight(out io.Writer) {
	recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: 20 * time.Millisecond, MaxBytes: 1 << 20})
	check(recorder.Start())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := 0; i < 3; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(i*100) * time.Microsecond):
					sink.Store(i, tree(8))
				}
			}
		}(i)
	}
	time.Sleep(40 * time.Millisecond)
	check(trace.Start(io.Discard))
	time.Sleep(20 * time.Millisecond)
	trace.Stop()
	time.Sleep(20 * time.Millisecond)
	_, err := recorder.WriteTo(out)
	check(err)
	recorder.Stop()
	close(stop)
	wg.Wait()
}
