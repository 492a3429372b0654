package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"runtime/trace"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// httpWork is a busy server and its clients in one process.
func httpWork() { serve(4, 100) }

// shop is a smaller one with a collection and a CPU profile on top: an example of a trace.
func shop() {
	silence(func() { check(pprof.StartCPUProfile(io.Discard)) })
	old := debug.SetGCPercent(30)
	serve(3, 40)
	debug.SetGCPercent(old)
	pprof.StopCPUProfile()
}

// busy records a server under load until the trace has some 40 MB.
func busy(out io.Writer) {
	size := &counter{to: out}
	check(trace.Start(size))
	for size.bytes.Load() < 40_000_000 {
		serve(16, 500)
	}
	trace.Stop()
}

type counter struct {
	to    io.Writer
	bytes atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return c.to.Write(p)
}

// serve lets clients make requests of a shop: a lookup that waits for a store behind a lock, work
// on the CPU, and an answer. Every request is a task with regions and a log line.
func serve(clients, requests int) {
	var store sync.Mutex
	handler := func(w http.ResponseWriter, r *http.Request) {
		ctx, task := trace.NewTask(r.Context(), "GET "+r.URL.Path)
		defer task.End()
		trace.Log(ctx, "user", r.URL.Query().Get("user"))
		var prices []int
		trace.WithRegion(ctx, "lookup", func() {
			store.Lock()
			defer store.Unlock()
			time.Sleep(100 * time.Microsecond)
			random := rand.New(rand.NewSource(int64(len(r.URL.RawQuery))))
			for i := 0; i < 2000; i++ {
				prices = append(prices, random.Intn(10_000))
			}
		})
		trace.WithRegion(ctx, "rank", func() { sort.Ints(prices) })
		trace.WithRegion(ctx, "render", func() {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(prices[:50])
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("/cart", handler)
	mux.HandleFunc("/search", handler)
	server := &http.Server{Handler: mux}
	served := make(chan struct{})
	go func() { _ = server.Serve(listener); close(served) }()
	var wg sync.WaitGroup
	for c := 0; c < clients; c++ {
		wg.Add(1)
		go func(c int) {
			defer wg.Done()
			client := &http.Client{Transport: &http.Transport{}}
			for i := 0; i < requests; i++ {
				path := [...]string{"cart", "search"}[i%2]
				url := fmt.Sprintf("http://%s/%s?user=%d", listener.Addr(), path, c)
				response, err := client.Get(url)
				check(err)
				_, err = io.Copy(io.Discard, response.Body)
				check(err)
				response.Body.Close()
			}
			client.CloseIdleConnections()
		}(c)
	}
	wg.Wait()
	check(server.Shutdown(context.Background()))
	<-served
}
