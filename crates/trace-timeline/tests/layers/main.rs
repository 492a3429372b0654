//! Known answers across the layers, on timelines by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

#[path = "../common/mod.rs"]
mod common;

mod causes;
mod dotnet;
mod processes;
mod procs;
mod reports;
mod threads;

use common::World;
use trace_timeline::{EntityId, EntityKind, State, ThreadState};

/// A Go program with two Ms on two CPUs, and another process.
struct Go {
    world: World,
    cpus: [EntityId; 2],
    /// Kernel threads of the Ms.
    threads: [EntityId; 2],
    ms: [EntityId; 2],
    procs: [EntityId; 2],
    process: EntityId,
    other: EntityId,
}

fn go() -> Go {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let kernel_process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let threads = [10, 11].map(|n| w.entity(EntityKind::Thread, n, Some(kernel_process)));
    let other = w.entity(EntityKind::Thread, 99, None);
    let ms = [10, 11].map(|n| w.entity(EntityKind::GoThread, n, Some(process)));
    let procs = [0, 1].map(|n| w.entity(EntityKind::Proc, n, Some(process)));
    for n in 0..2 {
        w.switch(cpus[n], None, ThreadState::Unknown, Some(threads[n]));
        w.go(procs[n], State::Running, Some(ms[n]), "");
    }
    Go { world: w, cpus, threads, ms, procs, process, other }
}

impl Go {
    fn goroutine(&mut self, number: i64) -> EntityId {
        self.world.entity(EntityKind::Goroutine, number, Some(self.process))
    }
}
