//! One pool of worker threads for every task.

use crate::{Error, Result};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

/// Runs `work` for all items on as many threads as there are CPUs. The results are in the order of
/// the items.
///
/// # Errors
/// All failures, one per line. Every item is tried.
pub fn parallel<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    on_threads(threads, items, work)
}

/// Like the function above, on `threads` threads.
///
/// # Errors
/// All failures, one per line. Every item is tried.
pub fn on_threads<T: Send, R: Send>(
    threads: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let mut results: Vec<std::result::Result<R, String>> = Vec::new();
    results.resize_with(items.len(), || Err("its thread panicked".to_owned()));
    let queue = Mutex::new(items.into_iter().zip(&mut results));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((item, slot)) = next() {
                    // An `Error` need not be `Send`; its text is.
                    *slot = work(item).map_err(|error: Error| error.to_string());
                }
            });
        }
    });
    let mut failures = Vec::new();
    let mut values = Vec::new();
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => failures.push(error),
        }
    }
    if failures.is_empty() { Ok(values) } else { Err(failures.join("\n").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let squares = on_threads(3, (0..100).collect(), |n: u32| Ok(n * n)).unwrap();
        assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
    }

    #[test]
    fn every_failure_is_reported() {
        let odd = |n: u32| if n % 2 == 0 { Ok(n) } else { Err(format!("{n} is odd").into()) };
        let error = on_threads(2, vec![1, 2, 3], odd).unwrap_err().to_string();
        assert_eq!(error, "1 is odd\n3 is odd");
    }
}
