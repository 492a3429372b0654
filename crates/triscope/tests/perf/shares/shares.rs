//! Spends 60, 30 and 10 % of its time in three functions, by numbers of iterations.

use std::hint::black_box;

#[inline(never)]
fn work(iterations: u64) -> u64 {
    (0..iterations).fold(1, |sum, n| black_box(sum) ^ n)
}

#[inline(never)]
fn sixty() -> u64 {
    black_box(work(black_box(600_000))) + 1
}

#[inline(never)]
fn thirty() -> u64 {
    black_box(work(black_box(300_000))) + 2
}

#[inline(never)]
fn ten() -> u64 {
    black_box(work(black_box(100_000))) + 3
}

fn main() {
    let rounds: u64 = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(1);
    for _ in 0..rounds {
        black_box(sixty() + thirty() + ten());
    }
    println!("sixty 6\nthirty 3\nten 1");
}
