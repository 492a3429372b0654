//! Prints the functions at addresses of a process: `symbolize PID ADDRESS…`.

use std::error::Error;
use trace_symbols::{Symbolizer, Timestamp};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let process: u32 = arguments.next().ok_or("usage: symbolize PID ADDRESS…")?.parse()?;
    let mut symbols = Symbolizer::default();
    symbols.add_process(process)?;
    for argument in arguments {
        let address = u64::from_str_radix(argument.trim_start_matches("0x"), 16)?;
        let found = symbols.symbolize(process, address, Timestamp::MAX);
        println!("{address:#x} in {}", found.module.map_or("?", |module| &module.name));
        match found.frames {
            Ok(frames) => {
                for frame in frames {
                    let file = frame.file.as_deref().unwrap_or("?");
                    println!("    {} at {file}:{}", frame.function, frame.line);
                }
            }
            Err(why) => println!("    {why}"),
        }
    }
    Ok(())
}
