// Calls a function of C.
package main

/*
static __attribute__((noinline, noclone)) int twice(int value)
{
	return value + value;
}
*/
import "C"

import "os"

func main() {
	os.Exit(int(C.twice(C.int(len(os.Args)))))
}
