/* Spends its time below recursive functions, callbacks of the C library, a signal handler and a thread. */
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile unsigned sink;

__attribute__((noinline)) static unsigned spin(unsigned n)
{
	unsigned value = n;
	for (unsigned i = 0; i < 2000; i++)
		value = value * 1103515245 + 12345 + i;
	sink += value;
	return value;
}

/* The stack pointer moves by an amount that is known at run time only. */
__attribute__((noinline)) static unsigned moving(unsigned n)
{
	char *bytes = alloca(64 + n % 512);
	memset(bytes, (int)n, 64);
	return spin(n) + (unsigned)bytes[n % 64];
}

/* The stack is aligned by the function. */
__attribute__((noinline)) static unsigned aligned(unsigned n)
{
	__attribute__((aligned(128))) volatile char bytes[256];
	bytes[n % 256] = (char)n;
	return moving(n) + (unsigned)bytes[n % 256];
}

__attribute__((noinline)) static unsigned recurse(unsigned depth, unsigned n)
{
	volatile unsigned keep[7] = { depth, n };
	if (depth == 0)
		return aligned(n);
	unsigned found = recurse(depth - 1, n + 1);
	return found + keep[depth % 7];
}

static int compare(const void *a, const void *b)
{
	unsigned left = *(const unsigned *)a, right = *(const unsigned *)b;
	moving(left);
	return (left > right) - (left < right);
}

static void on_signal(int number)
{
	recurse(3, (unsigned)number);
}

static void *thread(void *rounds)
{
	for (unsigned i = 0; i < *(unsigned *)rounds; i++)
		recurse(i % 20, i);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 10000;
	unsigned values[64];
	char text[64];
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
	pthread_t other;
	sigaction(SIGPROF, &action, NULL);
	setitimer(ITIMER_PROF, &often, NULL);
	pthread_create(&other, NULL, thread, &rounds);
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned j = 0; j < 64; j++)
			values[j] = (j * 2654435761u) ^ i;
		if (i % 8 == 0)
			qsort(values, 16, sizeof *values, compare);
		recurse(i % 30, i);
		snprintf(text, sizeof text, "%f %u", (double)i / 3, i);
		sink += (unsigned)strlen(text);
	}
	pthread_join(other, NULL);
	printf("%u\n", sink);
	return 0;
}
