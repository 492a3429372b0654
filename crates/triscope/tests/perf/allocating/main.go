// Command allocating spends most of its time in the allocator, on stacks of the runtime.
package main

import "fmt"

func main() {
	var kept [][]byte
	bytes := 0
	for i := 0; i < 500_000; i++ {
		if i%1000 == 0 {
			kept = nil
		}
		kept = append(kept, make([]byte, 4096))
		bytes += len(kept)
	}
	fmt.Println(bytes)
}
