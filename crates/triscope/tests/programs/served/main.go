// Serves net/http/pprof on a loopback address, starts the programs that it is given, and computes
// until its standard input ends, which it shares with them. Then it shuts its server down.
package main

import (
	"context"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/exec"
	"time"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := &http.Server{}
	go server.Serve(listener)
	var started []*exec.Cmd
	for _, program := range os.Args[1:] {
		command := exec.Command(program, program+".trace")
		command.Stdin = os.Stdin
		if err := command.Start(); err != nil {
			panic(err)
		}
		started = append(started, command)
	}
	go func() {
		for range time.Tick(time.Millisecond) {
			done := make(chan bool)
			go func() { done <- true }()
			<-done
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	// It waits for the requests.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		panic(err)
	}
	for _, command := range started {
		command.Wait()
	}
}
