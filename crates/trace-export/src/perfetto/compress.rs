//! Compressed packets.

use super::field::{TRACE_PACKET, packet};
use super::proto::Buffer;
use flate2::{Compress, Compression, FlushCompress, Status};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Compresses the output of a [`PerfettoSink`](super::PerfettoSink) on a separate thread.
///
/// The file gets six to eight times smaller. Every viewer and every version of the trace processor
/// reads it (the format has packets that contain compressed packets), and a truncated file is
/// readable up to its end.
///
/// ```
/// use trace_export::{ClockDomain, Compressor, PerfettoSink, Sink, Track};
///
/// let mut sink = PerfettoSink::new(Compressor::new(Vec::new())?, ClockDomain::Monotonic);
/// sink.track(&Track::process(42, b"server"))?;
/// sink.finish()?;
/// let trace: Vec<u8> = sink.into_inner().into_inner()?;
/// # assert!(!trace.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Each call of [`Write::write`] must contain whole packets, as those of a sink do.
#[derive(Debug)]
pub struct Compressor<W> {
    jobs: Option<SyncSender<Job>>,
    /// Buffers for reuse.
    used: Receiver<Vec<u8>>,
    /// Answers to [`Job::Flush`].
    flushed: Receiver<()>,
    worker: Option<JoinHandle<io::Result<W>>>,
}

#[derive(Debug)]
enum Job {
    Packets(Vec<u8>),
    Flush,
}

impl<W: Write + Send + 'static> Compressor<W> {
    /// Maximum number of pieces that wait to be compressed.
    const QUEUE: usize = 2;

    /// Makes a compressor that writes to `writer`.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn new(mut writer: W) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(Self::QUEUE);
        let (done, used) = sync_channel(Self::QUEUE + 1);
        let (answer, flushed) = sync_channel(1);
        let work = move || {
            // Higher levels take longer than generating the timeline does.
            let mut deflate = Compress::new(Compression::new(2), true);
            let mut out = Buffer::default();
            for job in queue {
                match job {
                    Job::Packets(packets) => {
                        compress(&mut deflate, &packets, &mut out)?;
                        writer.write_all(out.as_slice())?;
                        out.clear();
                        // The receiver may be gone.
                        let _ = done.try_send(packets);
                    }
                    Job::Flush => {
                        writer.flush()?;
                        let _ = answer.send(());
                    }
                }
            }
            Ok(writer)
        };
        let worker = std::thread::Builder::new().name("compressor".to_owned()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), used, flushed, worker: Some(worker) })
    }

    /// Waits until all data is compressed and returns the writer.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.stop()
    }
}

impl<W> Compressor<W> {
    /// Stops the thread and returns its result.
    fn stop(&mut self) -> io::Result<W> {
        self.jobs = None;
        let worker = self.worker.take().ok_or_else(|| io::Error::other("writing has failed"))?;
        worker.join().map_err(|_| io::Error::other("the compression thread panicked"))?
    }

    fn send(&mut self, job: Job) -> io::Result<()> {
        match &self.jobs {
            Some(jobs) if jobs.send(job).is_ok() => Ok(()),
            // The thread ends early only after an error.
            _ => self.stop().and(Err(io::Error::other("the compression thread has ended"))),
        }
    }
}

impl<W> Drop for Compressor<W> {
    fn drop(&mut self) {
        let _ = self.stop(); // `into_inner` returns the error
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, packets: &[u8]) -> io::Result<usize> {
        if !packets.is_empty() {
            let mut copy = self.used.try_recv().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(packets);
            self.send(Job::Packets(copy))?;
        }
        Ok(packets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(Job::Flush)?;
        match self.flushed.recv() {
            Ok(()) => Ok(()),
            Err(_) => self.stop().map(drop),
        }
    }
}

/// Appends a packet of compressed `packets` to `out`.
fn compress(deflate: &mut Compress, packets: &[u8], out: &mut Buffer) -> io::Result<()> {
    deflate.reset();
    let message = out.open_large(TRACE_PACKET);
    let body = out.open_large(packet::COMPRESSED_PACKETS);
    let bytes = out.bytes_mut();
    loop {
        // Incompressible data grows by a few bytes.
        bytes.reserve(packets.len() / 4 + 1024);
        let rest = packets.get(deflate.total_in() as usize..).unwrap_or_default();
        match deflate.compress_vec(rest, bytes, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => break,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
    out.close_large(body);
    out.close_large(message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::ZlibDecoder;
    use std::io::Read;

    #[test]
    fn what_is_compressed_comes_back() {
        let mut noise = 1u32;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        })
        .take(300_000)
        .collect();
        for packets in [&b""[..], b"\x0a\x00", &[7; 1 << 20], &random] {
            let mut out = Buffer::default();
            compress(&mut Compress::new(Compression::new(2), true), packets, &mut out).unwrap();
            // Tag and length of the packet, tag (of two bytes) and length of the field.
            let mut inflated = Vec::new();
            ZlibDecoder::new(&out.as_slice()[11..]).read_to_end(&mut inflated).unwrap();
            assert!(inflated == packets);
        }
    }

    #[test]
    fn errors_of_the_writer_arrive() {
        #[derive(Debug)]
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut compressor = Compressor::new(Full).unwrap();
        let error = (0..10).find_map(|_| compressor.write_all(&[0; 10]).err());
        let error = error.or_else(|| compressor.flush().err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(compressor.into_inner().is_err());
    }
}
