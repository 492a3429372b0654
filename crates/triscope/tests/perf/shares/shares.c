// Spends 60, 30 and 10 % of its time in three functions, and prints the nanoseconds in each:
// `on` runs, `on-wall` too and prints the time with that in which it could not, `sleep` sleeps, `lock` waits for a lock. The second argument is the number of rounds.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline))

static volatile uint64_t sink;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int request[2], held[2];
static char kind;

static uint64_t now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000ull + at.tv_nsec;
}

// Stands between the measured functions and the C library: a function without a frame pointer
// hides its caller.
FUNCTION void wait_for(int ms) {
    if (kind == 'o') {
        uint64_t end = now(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000ull;
        while (now(CLOCK_THREAD_CPUTIME_ID) < end)
            for (int i = 0; i < 20000; i++) sink += i;
    } else if (kind == 's') {
        struct timespec time = {0, ms * 1000000l};
        nanosleep(&time, NULL);
    } else {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    sink++;
}

FUNCTION void sixty(void) { wait_for(6); sink++; }
FUNCTION void thirty(void) { wait_for(3); sink++; }
FUNCTION void ten(void) { wait_for(1); sink++; }

// Holds the lock as long as it is asked to.
static void *holder(void *unused) {
    char ms;
    while (read(request[0], &ms, 1) == 1) {
        pthread_mutex_lock(&mutex);
        if (write(held[1], &ms, 1) != 1) abort();
        struct timespec time = {0, ms * 1000000l};
        nanosleep(&time, NULL);
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

int main(int argc, char **argv) {
    void (*functions[])(void) = {sixty, thirty, ten};
    const char *names[] = {"sixty", "thirty", "ten"};
    const char times[] = {6, 3, 1};
    uint64_t spent[3] = {0};
    pthread_t thread;
    if (argc != 3 || pipe(request) || pipe(held)) return 1;
    kind = argv[1][0];
    clockid_t clock = strcmp(argv[1], "on") ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    if (kind == 'l' && pthread_create(&thread, NULL, holder, NULL)) return 1;
    for (int round = 0; round < atoi(argv[2]); round++)
        for (int i = 0; i < 3; i++) {
            char byte = times[i];
            if (kind == 'l' && (write(request[1], &byte, 1) != 1 || read(held[0], &byte, 1) != 1))
                return 1;
            uint64_t begin = now(clock);
            functions[i]();
            spent[i] += now(clock) - begin;
        }
    for (int i = 0; i < 3; i++) printf("%s %llu\n", names[i], (unsigned long long)spent[i]);
    return 0;
}
