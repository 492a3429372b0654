// Prints the hashes that the tests of src/gosort.rs compare with: of the permutations that
// slices.SortFunc makes of many inputs with many ties. Run with: go run main.go
package main

import (
	"cmp"
	"fmt"
	"slices"
)

type random uint64

func (r *random) next() uint64 { // splitmix64
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

type item struct{ key, index uint64 }

type pattern struct {
	name string
	key  func(i, n uint64, r *random) uint64
}

func below(k uint64) func(i, n uint64, r *random) uint64 {
	return func(i, n uint64, r *random) uint64 { return r.next() % k }
}

var patterns = []pattern{
	{"equal", func(i, n uint64, r *random) uint64 { return 7 }},
	{"two values", below(2)},
	{"three values", below(3)},
	{"ten values", below(10)},
	{"hundred values", below(100)},
	{"many values", below(1 << 40)},
	{"few ties", func(i, n uint64, r *random) uint64 { return r.next() % (n*4 + 1) }},
	{"rising", func(i, n uint64, r *random) uint64 { return i }},
	{"rising ties", func(i, n uint64, r *random) uint64 { return i / 7 }},
	{"falling", func(i, n uint64, r *random) uint64 { return n - i }},
	{"falling ties", func(i, n uint64, r *random) uint64 { return (n - i) / 5 }},
	{"organ pipe", func(i, n uint64, r *random) uint64 { return min(i, n-i) }},
	{"sawtooth", func(i, n uint64, r *random) uint64 { return i % 17 }},
	{"interleaved", func(i, n uint64, r *random) uint64 { return i%2*n + i/3 }},
	{"nearly sorted", func(i, n uint64, r *random) uint64 {
		if r.next()%64 == 0 {
			return r.next() % (n + 1)
		}
		return i
	}},
	{"one swap", func(i, n uint64, r *random) uint64 {
		if i == n/3 {
			return n
		}
		return i / 2
	}},
}

var groups = [][3]uint64{{0, 13, 1}, {13, 50, 1}, {50, 301, 1}, {301, 1500, 47}, {1500, 5001, 250}}

func hash(h uint64, items []item) uint64 { // FNV-1a over 64-bit words
	for _, it := range items {
		h = (h ^ it.index) * 0x100000001b3
	}
	return h
}

func main() {
	for _, p := range patterns {
		fmt.Printf("(%q, [", p.name)
		for _, g := range groups {
			h := uint64(0xcbf29ce484222325)
			for n := g[0]; n < g[1]; n += g[2] {
				r := random(n)
				items := make([]item, n)
				for i := range items {
					items[i] = item{p.key(uint64(i), n, &r), uint64(i)}
				}
				slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.key, b.key) })
				h = hash(h, items)
			}
			fmt.Printf("%#x, ", h)
		}
		fmt.Println("]),")
	}
	// McIlroy's adversary ("A killer adversary for quicksort", 1999) answers comparisons so that
	// the pivot is always bad: the same answers lead to the same result only if the same
	// questions are asked.
	fmt.Printf("(%q, [", "adversary")
	for _, g := range groups {
		h := uint64(0xcbf29ce484222325)
		for n := g[0]; n < g[1]; n += g[2] {
			gas := n
			value := make([]uint64, n)
			items := make([]item, n)
			for i := range items {
				value[i], items[i].index = gas, uint64(i)
			}
			solid, candidate := uint64(0), uint64(0)
			slices.SortFunc(items, func(a, b item) int {
				x, y := a.index, b.index
				if value[x] == gas && value[y] == gas {
					if x == candidate {
						value[x] = solid
					} else {
						value[y] = solid
					}
					solid++
				}
				if value[x] == gas {
					candidate = x
				} else if value[y] == gas {
					candidate = y
				}
				return cmp.Compare(value[x], value[y])
			})
			h = hash(h, items)
		}
		fmt.Printf("%#x, ", h)
	}
	fmt.Println("]),")
}
