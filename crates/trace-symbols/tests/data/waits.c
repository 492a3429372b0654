/* Copies its standard input to its output; a function with a name of its own does it. */
#include <unistd.h>

#ifndef NAME
#define NAME copy
#endif

__attribute__((noinline, used)) int NAME(void)
{
	char byte;
	return read(0, &byte, 1) == 1 && write(1, &byte, 1) == 1;
}

int main(void)
{
	while (NAME())
		;
	return 0;
}
