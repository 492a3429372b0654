// A thread waits for a condition that another one signals in `signal_it`, and sleeps as often in
// `sleep_a_little`. The argument is the number of rounds.
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTION __attribute__((noinline))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile int asked, done;
static volatile unsigned long sink;

FUNCTION void signal_it(void) {
    pthread_mutex_lock(&mutex);
    done = asked;
    pthread_mutex_unlock(&mutex);
    // Not within the lock: the waiting thread waits for the condition only.
    pthread_cond_signal(&condition);
    sink++;
}

FUNCTION void wait_for_it(void) {
    pthread_mutex_lock(&mutex);
    asked++;
    while (done != asked) pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    sink++;
}

FUNCTION void sleep_a_little(void) {
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
    sink++;
}

// Signals a while after it was asked.
static void *signaller(void *unused) {
    pthread_setname_np(pthread_self(), "signaller");
    for (;;) {
        struct timespec time = {0, 2000000};
        nanosleep(&time, NULL);
        if (done != asked) signal_it();
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 2 || pthread_create(&thread, NULL, signaller, NULL)) return 1;
    for (int round = 0; round < atoi(argv[1]); round++) {
        wait_for_it();
        sleep_a_little();
    }
    return 0;
}
