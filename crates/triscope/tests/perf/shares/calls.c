// Spends its time in a function that is inlined, as often as the first argument says. MORE makes programs
// different.
#include <stdlib.h>

#ifndef MORE
#define MORE 1
#endif

static volatile unsigned long sink;

__attribute__((always_inline)) static inline void inlined(unsigned long rounds) {
    for (unsigned long i = 0; i < rounds * 1000000; i++) sink += i;
    sink += MORE;
}

// A name of C++.
__attribute__((noinline)) void called(unsigned long rounds) __asm__("_ZN5space6calledEm");

void called(unsigned long rounds) {
    inlined(rounds);
    sink++;
}

__attribute__((noinline)) void outer(unsigned long rounds) {
    called(rounds);
    sink++;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    outer(strtoul(argv[1], NULL, 10));
    return 0;
}
