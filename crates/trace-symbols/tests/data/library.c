/* A small library with symbols, debug information and unwind tables: a seed of fuzzing. */
static inline int twice(int n)
{
	return n * 2;
}

__attribute__((noinline)) static int sum(const int *values, int count)
{
	int sum = 0;
	for (int i = 0; i < count; i++)
		sum += twice(values[i]);
	return sum;
}

int exported(int count)
{
	int values[count + 1];
	for (int i = 0; i <= count; i++)
		values[i] = i;
	return sum(values, count);
}
