//! Counts the samples of a recording by function: `symbolize perf.data [--unverified]`.
//!
//! A function has a name if its file is known to be the one that was mapped. With `--unverified`, files are
//! used that nothing identifies, such as those of `perf record -z`.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("files are found on Linux only");
}

#[cfg(target_os = "linux")]
pub(crate) mod linux {
    use perf_data::perf_monitor::{CpuMode, Record};
    use perf_data::trace_symbols::{Location, ModuleId, Options, Symbolizer};
    use perf_data::{Mappings, Reader, Result, SortedReader};
    use std::collections::{BTreeMap, HashMap};
    use std::fs::File;
    use std::io::Read;

    pub(crate) fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut arguments = std::env::args_os().skip(1);
        let path = arguments.next().ok_or("usage: symbolize FILE [--unverified]")?;
        let mut options = Options::default();
        options.unverified = arguments.next().is_some_and(|option| option == "--unverified");
        let reader = Reader::new(File::open(path)?)?;
        let mut functions: Vec<_> = functions(reader, options)?.into_iter().collect();
        functions.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        for (function, samples) in functions {
            println!("{samples:8} {function}");
        }
        Ok(())
    }

    /// The number of samples of each function.
    pub(crate) fn functions(
        reader: Reader<impl Read>,
        options: Options,
    ) -> Result<BTreeMap<String, u64>> {
        let mut records = SortedReader::new(reader);
        let mut mappings = Mappings::new(records.session().features());
        let mut symbols = Symbolizer::new(options);
        let mut modules = HashMap::new();
        let mut functions = BTreeMap::new();
        while let Some(entry) = records.next_record()? {
            // A record that cannot be decoded is left out.
            let Some(Ok(record)) = entry.decode() else { continue };
            let Record::Sample(sample) = record else {
                mappings.push(&record, entry.raw);
                continue;
            };
            let (Some(process), Some(address)) = (sample.pid, sample.ip) else { continue };
            let is_kernel = entry.raw.cpu_mode() == CpuMode::Kernel;
            let found = mappings.at(process, address, is_kernel);
            let function = match found.and_then(|found| Some((found, mappings.file(found.file)?))) {
                Some((found, file)) => {
                    let clock = entry.session.features().clock;
                    let module = *modules.entry(found.file).or_insert_with(|| -> ModuleId {
                        let spaces = symbols.spaces_mut();
                        // It is read for the memory of the compiler.
                        if let Some(dump) = file.jitdump_module() {
                            spaces.add_module(dump);
                        }
                        spaces.add_module(file.module(clock.as_ref()))
                    });
                    let location = Location { module, address: found.address };
                    match symbols.resolve(location).frames {
                        // The function that has the code; those before it are inlined into it.
                        Ok(frames) => {
                            frames.last().map_or("?", |frame| &*frame.function).to_owned()
                        }
                        Err(why) => format!("{}: {why}", file.name),
                    }
                }
                None => "not mapped".to_owned(),
            };
            *functions.entry(function).or_default() += 1;
        }
        Ok(functions)
    }
}
