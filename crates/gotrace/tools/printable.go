// Prints crates/gotrace/src/printable.rs: the code points that Go's strconv prints as they are.
//
//	go run crates/gotrace/tools/printable.go > crates/gotrace/src/printable.rs
//
// Run it with the newest Go release: its Unicode version is the one to follow.
package main

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"unicode"
	"unicode/utf8"
)

func main() {
	var changes []rune
	printable := false
	hash := fnv.New64a()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if strconv.IsPrint(r) != printable {
			printable = !printable
			changes = append(changes, r)
		}
		if utf8.ValidRune(r) {
			hash.Write([]byte(strconv.Quote(string(r))))
		}
	}
	fmt.Printf(`//! Made by tools/printable.go (Unicode %s); do not edit.

/// Code points at which `+"`strconv.IsPrint`"+` changes, beginning with the first printable one.
#[rustfmt::skip]
pub(crate) static CHANGES: [u32; %d] = [
`, unicode.Version, len(changes))
	for i, r := range changes {
		if i%12 == 0 {
			fmt.Print("    ")
		}
		fmt.Printf("0x%x,", r)
		if i%12 == 11 || i == len(changes)-1 {
			fmt.Println()
		} else {
			fmt.Print(" ")
		}
	}
	fmt.Printf(`];

/// FNV-1a of what `+"`strconv.Quote`"+` makes of every code point on its own, in order.
#[cfg(test)]
pub(crate) const QUOTED_HASH: u64 = 0x%x;
`, hash.Sum64())
}
