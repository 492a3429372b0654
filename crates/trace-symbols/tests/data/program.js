// Compiled functions, and a process that waits until its standard input is closed.
function hot(n) {
  let total = 0;
  for (let i = 0; i < n; i++) total += i % 7;
  return total;
}
let total = 0;
for (let i = 0; i < 3000; i++) total += hot(1000);
process.stdout.write('x');
process.stdin.on('data', () => {});
