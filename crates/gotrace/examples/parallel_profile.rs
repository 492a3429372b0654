//! Prints the profile of waits in `sync` and channels of a trace, read on several threads.
//!
//! `cargo run --release --example parallel_profile -- trace.out [THREADS]`

use gotrace::analysis::{Profile, ProfileKind, ProfileScope};
use gotrace::parallel::Parallel;
use std::fs::File;
use std::num::NonZeroUsize;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: parallel_profile TRACE [THREADS]")?;
    let parallel = match args.next() {
        Some(threads) => Parallel::new(threads.parse::<NonZeroUsize>()?),
        None => Parallel::available(),
    };
    let mut profile = Profile::new(ProfileKind::Sync, ProfileScope::all());
    let mut rest = parallel.read(|| File::open(&path), &mut profile)?;
    while let Some(event) = rest.next_event()? {
        profile.push(event);
    }
    profile.finish();
    let mut delays: Vec<_> = profile.stacks().collect();
    delays.sort_by_key(|(delay, _)| std::cmp::Reverse(delay.time));
    for (delay, mut stack) in delays.into_iter().take(10) {
        let innermost = stack.next().map(|frame| frame.function.to_string()).unwrap_or_default();
        println!("{:>12.3?} {:>8}  {innermost}", delay.time, delay.count);
    }
    Ok(())
}
