// Functions that are inlined two levels deep, for the test of debug information.
#include <stdio.h>
#include <stdlib.h>

static inline __attribute__((always_inline)) unsigned mix(unsigned value)
{
	value ^= value << 13;
	value ^= value >> 17;
	return value ^ value << 5;
}

static inline __attribute__((always_inline)) unsigned rounds(unsigned value, int count)
{
	for (int i = 0; i < count; i++)
		value = mix(value) + i;
	return value;
}

__attribute__((noinline)) static unsigned work(unsigned seed, int count)
{
	unsigned total = rounds(seed, count);
	return total + mix(total * 3);
}

__attribute__((noinline)) static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv)
{
	int values[] = {3, 1, 2};
	qsort(values, 3, sizeof values[0], compare);
	printf("%u %d\n", work(argc, argc * 10), values[0]);
	return argv[argc] != NULL;
}
