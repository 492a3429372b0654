// Computes in the function FUNCTION for as many rounds as its first argument says, then replaces itself with
// the program of its second argument, which gets the rest. MORE makes programs different.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef MORE
#define MORE 1
#endif

static volatile uint64_t sink;

__attribute__((noinline)) void FUNCTION(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds * 1000000; i++) sink += i;
    sink += MORE;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    FUNCTION(strtoull(argv[1], NULL, 10));
    if (argc > 2) {
        execv(argv[2], argv + 2);
        perror(argv[2]);
        return 1;
    }
    return 0;
}
