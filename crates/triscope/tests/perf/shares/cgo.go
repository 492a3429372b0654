// Spends 60, 30 and 10 % of its time in C, called by three functions of Go.
package main

// #cgo CFLAGS: -O1 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer
// static volatile unsigned long sink;
// __attribute__((noinline)) static void work(unsigned long n) {
//     for (unsigned long i = 0; i < n; i++) sink += i;
// }
import "C"

import (
	"fmt"
	"os"
	"strconv"
)

var sink int

//go:noinline
func sixty() { C.work(600000); sink++ }

//go:noinline
func thirty() { C.work(300000); sink++ }

//go:noinline
func ten() { C.work(100000); sink++ }

func main() {
	rounds, _ := strconv.Atoi(os.Args[2])
	for round := 0; round < rounds; round++ {
		sixty()
		thirty()
		ten()
	}
	fmt.Printf("sixty 6\nthirty 3\nten 1\n")
}
