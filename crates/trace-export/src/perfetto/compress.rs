//! Compressed packets.

use super::field::{TRACE_PACKET, packet};
use crate::proto::Buffer;
use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, bounded};
use flate2::{Compress, Compression, FlushCompress, Status};
use std::io::{self, Write};
use std::thread::JoinHandle;

/// Compresses the output of a [`PerfettoSink`](super::PerfettoSink) on a separate thread.
///
/// The file gets four to eight times smaller. Every viewer and every version of the trace processor
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
/// Each call of [`Write::write`] must contain whole packets, as those of a sink do: it becomes one
/// chunk, and each chunk one packet of the output, in the order of the calls. The output is that of
/// compression on the calling thread, byte for byte.
///
/// At most three chunks wait or are compressed, or as many as
/// [`with_queue`](Compressor::with_queue) says: then a slow writer blocks [`Write::write`].
/// [`Write::flush`] returns when all chunks so far are written. An error of the writer is returned
/// by the next call of either, and the thread has ended then.
#[derive(Debug)]
pub struct Compressor<W> {
    /// Storage of the next chunk. Takes the memory of compressed chunks again.
    chunk: BytesMut,
    jobs: Option<Sender<Job>>,
    /// Answers to [`Job::Flush`]. The thread has the only sender: its end ends the wait for one.
    flushed: Receiver<()>,
    worker: Option<JoinHandle<io::Result<W>>>,
}

#[derive(Debug)]
enum Job {
    /// Whole packets.
    Chunk(Bytes),
    /// A request to flush the writer, which is answered.
    Flush,
}

impl<W: Write + Send + 'static> Compressor<W> {
    /// Maximum number of chunks that wait to be compressed.
    const QUEUE: usize = 2;

    /// Makes a compressor that writes to `writer`, and starts its thread.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn new(writer: W) -> io::Result<Self> {
        Self::with_queue(writer, Self::QUEUE)
    }

    /// The same with at most `chunks` chunks that wait: a live recording must not wait for a disk that
    /// is busy for a moment. A [`PerfettoSink`](crate::PerfettoSink) writes chunks of 256 KiB.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn with_queue(writer: W, chunks: usize) -> io::Result<Self> {
        let (jobs, queue) = bounded(chunks.max(1));
        let (answers, flushed) = bounded(1);
        let work = move || work(&queue, &answers, writer);
        let worker = std::thread::Builder::new().name("compressor".to_owned()).spawn(work)?;
        Ok(Self { chunk: BytesMut::new(), jobs: Some(jobs), flushed, worker: Some(worker) })
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

    /// Returns the error that ended the thread.
    fn ended(&mut self) -> io::Error {
        match self.stop() {
            Err(error) => error,
            Ok(_) => io::Error::other("the compression thread has ended"),
        }
    }

    fn send(&mut self, job: Job) -> io::Result<()> {
        match &self.jobs {
            Some(jobs) if jobs.send(job).is_ok() => Ok(()),
            // The thread ends early only after an error.
            _ => Err(self.ended()),
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
            self.chunk.extend_from_slice(packets);
            let chunk = self.chunk.split().freeze();
            self.send(Job::Chunk(chunk))?;
        }
        Ok(packets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(Job::Flush)?;
        self.flushed.recv().map_err(|_| self.ended())
    }
}

/// Compresses chunks until the queue is closed.
fn work<W: Write>(queue: &Receiver<Job>, answers: &Sender<()>, mut writer: W) -> io::Result<W> {
    let mut deflate = deflate();
    let mut out = Buffer::default();
    for job in queue {
        match job {
            Job::Chunk(packets) => {
                compress(&mut deflate, &packets, &mut out)?;
                // Before the write, which may take long: the memory can be used again.
                drop(packets);
                writer.write_all(out.as_slice())?;
                out.clear();
            }
            Job::Flush => {
                writer.flush()?;
                let _ = answers.send(()); // the receiver waits for it
            }
        }
    }
    Ok(writer)
}

/// Level 2: higher levels take longer than generating the timeline does.
fn deflate() -> Compress {
    Compress::new(Compression::new(2), true)
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

    /// Bytes that cannot be compressed.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn compressed_data_inflates_to_the_input() {
        let random = noise(300_000);
        for packets in [&b""[..], b"\x0a\x00", &[7; 1 << 20], &random] {
            let mut out = Buffer::default();
            compress(&mut deflate(), packets, &mut out).unwrap();
            // Tag and length of the packet, tag (of two bytes) and length of the field.
            let mut inflated = Vec::new();
            ZlibDecoder::new(&out.as_slice()[11..]).read_to_end(&mut inflated).unwrap();
            assert!(inflated == packets);
        }
    }

    #[test]
    fn the_output_is_that_of_one_thread() {
        let random = noise(700_000);
        // More chunks than the queue has places, of very different sizes.
        let mut rest = &random[..];
        let mut chunks = Vec::new();
        for len in [1, 100_000, 17, 4096, 2, 60_000].into_iter().cycle() {
            let Some((chunk, after)) = rest.split_at_checked(len) else { break };
            chunks.push(chunk);
            rest = after;
        }
        assert!(chunks.len() > 8);
        let (mut deflate, mut expected) = (deflate(), Buffer::default());
        let mut compressor = Compressor::new(Vec::new()).unwrap();
        for (i, chunk) in chunks.iter().enumerate() {
            compress(&mut deflate, chunk, &mut expected).unwrap();
            compressor.write_all(chunk).unwrap();
            if i % 5 == 0 {
                compressor.flush().unwrap();
            }
        }
        assert!(compressor.into_inner().unwrap() == expected.as_slice());
    }

    /// A writer whose content another thread can read, and that waits for its turn to write.
    #[derive(Clone, Debug)]
    struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flush_waits_for_every_chunk_before_it() {
        let content = std::sync::Arc::default();
        let mut compressor = Compressor::new(Shared(std::sync::Arc::clone(&content))).unwrap();
        let (mut deflate, mut expected) = (deflate(), Buffer::default());
        for round in 1..=20_u8 {
            let held = content.lock().unwrap(); // the thread cannot write yet
            for part in 0..2 {
                let chunk = vec![round ^ part; usize::from(round) * 1000];
                compress(&mut deflate, &chunk, &mut expected).unwrap();
                compressor.write_all(&chunk).unwrap();
            }
            drop(held);
            compressor.flush().unwrap();
            assert!(*content.lock().unwrap() == expected.as_slice());
        }
    }

    #[test]
    fn an_error_of_the_writer_reaches_the_caller() {
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
        assert!(compressor.write_all(&[0; 10]).is_err() && compressor.flush().is_err());
        assert!(compressor.into_inner().is_err());
    }

    #[test]
    fn a_flush_behind_a_chunk_that_cannot_be_written_fails() {
        /// Reports that it writes, and fails when the sender of its channel is dropped.
        #[derive(Debug)]
        struct Gate(Sender<()>, Receiver<()>);
        impl Write for Gate {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0.send(()).unwrap();
                let _ = self.1.recv();
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (hold, gate) = bounded(0);
        let (writes, written) = bounded(1);
        let mut compressor = Compressor::new(Gate(writes, gate)).unwrap();
        compressor.write_all(&[0; 10]).unwrap();
        let jobs = compressor.jobs.clone().unwrap();
        let opener = std::thread::spawn(move || {
            // The chunk is being written, and the request to flush waits.
            written.recv().unwrap();
            while jobs.is_empty() {
                std::thread::yield_now();
            }
            drop(hold);
        });
        assert_eq!(compressor.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        opener.join().unwrap();
    }

    #[test]
    fn an_error_is_returned_by_the_flush_that_meets_it() {
        #[derive(Debug)]
        struct NoFlush;
        impl Write for NoFlush {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let mut compressor = Compressor::new(NoFlush).unwrap();
        compressor.write_all(&[0; 10]).unwrap();
        assert_eq!(compressor.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
