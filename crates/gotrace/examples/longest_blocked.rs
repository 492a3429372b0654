//! Prints the ten longest intervals in which a goroutine was blocked, with reason and location:
//! `cargo run --release --example longest_blocked -- FILE`.

use gotrace::{GoId, GoState, Reader, Timestamp};
use std::collections::HashMap;

struct Blocked {
    since: Timestamp,
    why: String,
    r#where: String,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: longest_blocked FILE")?;
    let mut reader = Reader::new(std::fs::File::open(path)?)?;
    let mut blocked: HashMap<GoId, Blocked> = HashMap::new();
    let mut longest: Vec<(i64, GoId, Blocked)> = Vec::new();
    while let Some(event) = reader.next_event()? {
        let Some(transition) = event.state_transition() else { continue };
        let (Some((from, to)), Some(id)) =
            (transition.goroutine(), transition.resource().goroutine())
        else {
            continue;
        };
        if from != GoState::Waiting && to == GoState::Waiting {
            let top = transition.stack().and_then(|stack| stack.frames().next());
            let r#where =
                top.map_or(String::new(), |f| format!("{} {}:{}", f.function, f.file, f.line));
            let why = transition.reason().to_string();
            blocked.insert(id, Blocked { since: event.time(), why, r#where });
        } else if from == GoState::Waiting && to != GoState::Waiting {
            if let Some(b) = blocked.remove(&id) {
                longest.push((event.time().nanos_since(b.since), id, b));
                longest.sort_by_key(|(nanos, ..)| std::cmp::Reverse(*nanos));
                longest.truncate(10);
            }
        }
    }
    for (nanos, id, blocked) in longest {
        let millis = nanos as f64 / 1e6;
        println!("{millis:>10.3} ms  goroutine {id:<6} {}  {}", blocked.why, blocked.r#where);
    }
    Ok(())
}
