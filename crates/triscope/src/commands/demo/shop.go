// A small shop: an HTTP server with a shared stock, its clients, and garbage. It writes an
// execution trace to the file that it is given, and starts the program after it, with its
// arguments.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/trace"
	"sync"
	"time"
)

const (
	clients  = 6
	duration = 2 * time.Second
)

type item struct {
	Name  string
	Price int
	Tags  []string
}

type shop struct {
	mutex sync.Mutex
	stock map[string]*item
	jobs  chan string
}

// Pages are rendered without a lock: this allocates.
func (s *shop) search(w http.ResponseWriter, r *http.Request) {
	ctx, task := trace.NewTask(r.Context(), "GET /search")
	defer task.End()
	var found []item
	trace.WithRegion(ctx, "lookup", func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		for _, it := range s.stock {
			found = append(found, *it)
		}
	})
	trace.WithRegion(ctx, "render", func() {
		for i := range found {
			found[i].Tags = append(found[i].Tags, fmt.Sprint("tag ", i))
		}
		json.NewEncoder(w).Encode(found)
	})
}

// The payment is slow, and the stock is locked meanwhile.
func (s *shop) checkout(w http.ResponseWriter, r *http.Request) {
	ctx, task := trace.NewTask(r.Context(), "POST /checkout")
	defer task.End()
	trace.WithRegion(ctx, "reserve", func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		sum := []byte("order")
		for i := 0; i < 4000; i++ {
			h := sha256.Sum256(sum)
			sum = h[:]
		}
		time.Sleep(2 * time.Millisecond) // the bank
	})
	trace.Log(ctx, "order", "accepted")
	s.jobs <- "mail"
	fmt.Fprintln(w, "thank you")
}

// Sends mail.
func (s *shop) worker() {
	for range s.jobs {
		text := make([]byte, 0, 64)
		for i := 0; i < 2000; i++ {
			text = fmt.Appendf(text, "line %d\n", i)
		}
		sha256.Sum256(text)
	}
}

func client(ctx context.Context, number int, base string) {
	for i := number; ctx.Err() == nil; i++ {
		page := "/search"
		if i%3 == 0 {
			page = "/checkout"
		}
		response, err := http.Get(base + page)
		if err != nil {
			return
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}

func main() {
	if len(os.Args) > 1 {
		file, err := os.Create(os.Args[1])
		if err != nil {
			panic(err)
		}
		if err := trace.Start(file); err != nil {
			panic(err)
		}
		defer file.Close()
		defer trace.Stop()
	}
	if len(os.Args) > 2 {
		other := exec.Command(os.Args[2], os.Args[3:]...)
		if err := other.Start(); err != nil {
			panic(err)
		}
		defer other.Wait()
	}
	s := &shop{stock: map[string]*item{}, jobs: make(chan string, 4)}
	for i := 0; i < 300; i++ {
		name := fmt.Sprint("item ", i)
		s.stock[name] = &item{Name: name, Price: i}
	}
	for i := 0; i < 2; i++ {
		go s.worker()
	}
	http.HandleFunc("/search", s.search)
	http.HandleFunc("/checkout", s.checkout)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, nil)
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var wait sync.WaitGroup
	for i := 0; i < clients; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			client(ctx, i, "http://"+listener.Addr().String())
		}()
	}
	wait.Wait()
}
