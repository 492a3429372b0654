//! Writes a timeline with something of everything:
//! `cargo run -p trace-export --example synthetic -- synthetic.pftrace`, for
//! <https://ui.perfetto.dev>.

use std::fs::File;
use trace_export::{
    ClockDomain, CpuMode, DebugAnnotation, Flow, Frame, Interrupt, Loss, PerfettoSink, Sample,
    SchedSwitch, SchedWaking, Sink, Task, Timestamp, Track, TrackEvent, Unit, Value,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "synthetic.pftrace".into());
    let mut sink = PerfettoSink::new(File::create(path)?, ClockDomain::Monotonic);
    let start = Timestamp::from_nanos(5_000_000_000);
    let at = |micros: i64| start.saturating_add_nanos(micros * 1000);

    sink.kernel(b"6.12.0")?;
    // What relates the clocks: this machine was suspended for a minute once.
    sink.clock_snapshot(&[
        (ClockDomain::Monotonic, start),
        (ClockDomain::Boottime, start.saturating_add_nanos(60_000_000_000)),
        (ClockDomain::Realtime, Timestamp::from_nanos(1_800_000_000_000_000_000)),
    ])?;

    let process = sink.track(&Track::process(100, b"server").ordered())?;
    let queue =
        sink.track(&Track::counter(b"queue length", Unit::Count).child_of(process).rank(1))?;
    let requests = sink.track(&Track::custom(b"requests").child_of(process).rank(2))?;
    let workers =
        [101, 102].map(|tid| sink.track(&Track::thread(100, tid, format!("w{tid}").as_bytes())));

    let (request, work, idle) = (sink.text(b"request"), sink.text(b"work"), sink.text(b"idle"));
    let (number, url) = (sink.text(b"number"), sink.text(b"url"));
    let frames = [
        Frame::new(b"parse").source(b"src/parse.c", 12),
        Frame::new(b"handle").source(b"src/main.c", 80),
    ];
    let stack = sink.stack(&mut frames.into_iter());

    let [first, second] = workers;
    let workers = [first?, second?];
    for (i, tid) in (0..200i64).zip([101, 102].into_iter().cycle()) {
        let t = i * 50;
        let worker = workers[(tid - 101) as usize];
        let flow = sink.new_flow();
        let args = [
            DebugAnnotation::new(number, Value::Int(i)),
            DebugAnnotation::new(url, Value::Text((&b"/cart"[..]).into())),
        ];
        let entry = TrackEvent::new(request).args(&args).flow(Some(Flow::Through(flow)));
        sink.begin(at(t), requests, &entry)?;
        sink.counter(at(t), queue, (i % 7).into())?;
        let entry = TrackEvent::new(work).stack(Some(stack)).flow(Some(Flow::Ends(flow)));
        sink.state(at(t + 5), worker, Some(&entry))?;
        let mut sample = Sample::new(100, tid);
        sample.cpu = Some(0);
        sample.mode = CpuMode::User;
        sample.stack = Some(stack);
        sink.sample(at(t + 10), &sample)?;
        sink.state(at(t + 20), worker, Some(&TrackEvent::new(idle)))?;
        sink.end(at(t + 25), requests, &[])?;

        // The same thread, as the kernel sees it.
        let name = format!("w{tid}");
        let thread = Task::new(tid, name.as_bytes(), 120);
        let idle = Task::new(0, b"swapper/0", 120);
        // The idle thread has nothing to do with it.
        let waking = SchedWaking::new(0, thread, 0).interrupt(Interrupt::Hard);
        sink.sched_waking(at(t + 2), &waking)?;
        let on = SchedSwitch::new(0, idle, 0, thread);
        sink.sched_switch(at(t + 4), &on)?;
        let off = SchedSwitch::new(0, thread, 1, idle);
        sink.sched_switch(at(t + 22), &off)?;
    }
    let loss = Loss::new(b"samples").count(3).why(b"the ring buffer was full");
    sink.lost(at(10_000), None, &loss)?;
    sink.finish()?;
    println!("{:?}", sink.stats());
    Ok(())
}
