//! Spends its time below generic, recursive and dynamic calls, in collections and formatting.

use std::collections::BTreeMap;
use std::fmt::Write;

#[inline(never)]
fn spin(n: u64) -> u64 {
    (0..2000).fold(n, |value, i| std::hint::black_box(value.wrapping_mul(6364136223846793005) + i))
}

trait Work {
    fn work(&self, n: u64) -> u64;
}

struct Leaf;
struct Inner(Vec<Box<dyn Work>>);

impl Work for Leaf {
    #[inline(never)]
    fn work(&self, n: u64) -> u64 {
        spin(n)
    }
}

impl Work for Inner {
    #[inline(never)]
    fn work(&self, n: u64) -> u64 {
        let mut text = String::new();
        let sum = self.0.iter().fold(n, |sum, part| sum ^ part.work(sum));
        write!(text, "{sum:x}").unwrap();
        spin(text.len() as u64) ^ sum
    }
}

fn tree(depth: u32) -> Box<dyn Work> {
    match depth {
        0 => Box::new(Leaf),
        _ => Box::new(Inner((0..2).map(|_| tree(depth - 1)).collect())),
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10u64);
    let thread = std::thread::spawn(move || {
        let mut map = BTreeMap::new();
        for n in 0..rounds * 1000 {
            map.entry(n.wrapping_mul(0x9e3779b97f4a7c15) % 1000).or_insert_with(|| spin(n));
            if n % 1000 == 0 {
                map.clear();
            }
        }
        map.len()
    });
    let tree = tree(8);
    let sum = (0..rounds).fold(0, |sum, n| sum ^ tree.work(n));
    let mut values: Vec<u64> = (0..rounds * 20).map(|n| n.wrapping_mul(0x9e3779b97f4a7c15)).collect();
    values.sort_by_key(|value| spin(*value));
    println!("{sum} {} {}", thread.join().unwrap(), values[0]);
}
