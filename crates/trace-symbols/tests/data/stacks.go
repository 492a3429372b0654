// Spends its time below recursive functions, closures, methods, deferred calls and callbacks, on the main
// thread.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
)

var sink uint64

//go:noinline
func spin(n uint64) uint64 {
	for i := uint64(0); i < 200; i++ {
		n = leaf(n) + i*i/3
	}
	sink += n
	return n
}

//go:noinline
func leaf(n uint64) uint64 { return n*2862933555777941757 + 3037000493 }

//go:noinline
func recurse(depth int, n uint64) uint64 {
	var keep [9]uint64
	keep[depth%9] = n
	if depth == 0 {
		return spin(n)
	}
	for i := 0; i < 20; i++ {
		n = leaf(n)
	}
	return recurse(depth-1, n) + keep[n%9]
}

type worker interface{ work(n uint64) uint64 }
type small struct{ n uint64 }
type large struct{ values [64]uint64 }

func (s small) work(n uint64) uint64 { return recurse(2, s.n+n) }
func (l *large) work(n uint64) uint64 {
	defer func() { l.values[n%64] = spin(n) }()
	return apply(func(m uint64) uint64 { return recurse(3, m+l.values[m%64]) }, n)
}

//go:noinline
func apply(f func(uint64) uint64, n uint64) uint64 { return f(n) + leaf(n) }

func init() { runtime.LockOSThread() }

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	workers := []worker{small{1}, &large{}}
	for i := 0; i < rounds; i++ {
		sink += workers[i%2].work(uint64(i))
		values := []uint64{spin(sink), spin(sink + 1), spin(sink + 2), sink}
		sort.Slice(values, func(a, b int) bool { return spin(values[a]) < spin(values[b]) })
		names := map[string]uint64{strconv.Itoa(i): sink, "x": 1}
		sink += uint64(len(fmt.Sprint(names)))
	}
	fmt.Println(sink)
}
