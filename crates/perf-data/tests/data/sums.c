// Adds numbers in two processes with a sleep between rounds. Without a C library: it maps nothing else.
// gcc -O1 -static -nostdlib -fno-omit-frame-pointer -fno-optimize-sibling-calls -o sums sums.c
static long call(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
struct timespec { long seconds, nanoseconds; };
volatile unsigned long sum;
__attribute__((noinline)) void add(unsigned long count) { for (unsigned long i = 0; i < count; i++) sum += i; }
__attribute__((noinline)) void multiply(unsigned long count) { for (unsigned long i = 0; i < count; i++) sum = sum * 31 + i; }
__attribute__((noinline)) void round_of(unsigned long count) { add(count); multiply(count / 2); }
void _start(void) {
  long child = call(57, 0, 0, 0); // fork
  for (int round = 0; round < 6; round++) {
    round_of(child ? 60000000 : 20000000);
    struct timespec pause = { 0, child ? 2000000 : 5000000 };
    call(35, (long)&pause, 0, 0); // nanosleep
  }
  if (child) call(61, child, 0, 0); // wait4
  call(231, 0, 0, 0); // exit_group
}
