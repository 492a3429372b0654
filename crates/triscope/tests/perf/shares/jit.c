// Copies code to memory without a file, and executes it for as many rounds as the first argument says.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// A loop that counts its argument down to 0.
#if defined(__x86_64__)
static const unsigned char code[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3};
#elif defined(__aarch64__)
static const uint32_t code[] = {0xf1000400, 0x54ffffe1, 0xd65f03c0};
#endif

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    memcpy(memory, code, sizeof code);
    if (mprotect(memory, 4096, PROT_READ | PROT_EXEC)) return 1;
    __builtin___clear_cache(memory, (char *)memory + sizeof code);
    ((void (*)(uint64_t))memory)(strtoull(argv[1], NULL, 10) * 1000000);
    return 0;
}
