//! Records the page faults of this program to a file: `record_faults perf.data`, then
//! `perf report -i perf.data`.

use perf_data::{Features, FileWriter, RecordWriter, RecordedEvent, Synthesizer};
use perf_monitor::{Event, SampleFlags, Software, Target};
use std::fs::File;
use std::io::BufWriter;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: record_faults FILE")?;
    let mut sampler = Event::software(Software::PageFaults)
        .builder()
        .exclude_kernel(true)
        .exclude_hv(true)
        .sample_period(1)
        .sample(SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME | SampleFlags::PERIOD)
        .mmap(true)
        .mmap2(true)
        .comm(true)
        .open_sampler(Target::ThisThread, 8)?;
    let event = RecordedEvent {
        name: sampler.counter().event().name().to_owned(),
        attr: *sampler.counter().attr(),
        ids: vec![sampler.counter().id()?],
    };

    let mut writer = FileWriter::new(BufWriter::new(File::create(path)?), vec![event])?;
    let with_build_ids = true;
    Synthesizer::new(sampler.counter().attr(), with_build_ids)
        .process(std::process::id(), &mut writer)?;

    sampler.enable()?;
    let touched = vec![1u8; 1 << 20];
    sampler.disable()?;
    println!("touched {} bytes", touched.len());

    sampler.drain_raw(|_, record| writer.record(record))?;
    writer.finish_round()?;
    writer.finish(&Features::of_this_machine())?;
    Ok(())
}
