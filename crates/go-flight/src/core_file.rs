//! Core files (`core(5)`): the memory of a program that crashed.

use crate::auxv;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::program::Program;
use crate::snapshot::Snapshot;
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use std::io::{self, Read, Seek, SeekFrom};
use trace_common::Limits;

const LE: LittleEndian = LittleEndian;

/// Program headers: one for each mapping.
const MAX_SEGMENTS: u32 = 1 << 20;
/// Bytes of notes: registers of each thread, names of mapped files.
const MAX_NOTES: u64 = 256 << 20;

/// A core file of a Go program.
#[derive(Debug)]
pub struct CoreFile<R> {
    file: R,
    /// Ordered by address.
    segments: Vec<Segment>,
    program_headers: u64,
}

/// A part of the memory that is in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
}

impl<R: Read + Seek> CoreFile<R> {
    /// Reads the headers and notes of a core file.
    ///
    /// # Errors
    ///
    /// [`Error::CoreFile`].
    pub fn parse(mut file: R) -> Result<Self> {
        let cache = ReadCache::new(&mut file);
        let (segments, program_headers) = headers(&cache).map_err(Error::CoreFile)?;
        drop(cache);
        Ok(Self { file, segments, program_headers })
    }

    /// Reads the finished generations of the flight recorder. `program` is the executable file of the
    /// process.
    ///
    /// # Errors
    ///
    /// Those of [`Program::snapshot`]. [`Error::Memory`] if the core file lacks a part of the memory:
    /// it is truncated, or `/proc/PID/coredump_filter` left out anonymous mappings.
    pub fn snapshot(&mut self, program: &Program, limits: Limits) -> Result<Snapshot> {
        let load_bias = program.load_bias(self.program_headers);
        program.snapshot(self, load_bias, limits)
    }

    /// The offset of an address in the file, and the bytes from there to the end of the segment.
    fn place(&self, address: u64) -> Option<(u64, u64)> {
        let before = self.segments.partition_point(|segment| segment.address <= address);
        let segment = self.segments.get(before.checked_sub(1)?)?;
        let inside = address - segment.address;
        let left = segment.size.checked_sub(inside).filter(|left| *left > 0)?;
        Some((segment.offset.checked_add(inside)?, left))
    }
}

impl<R: Read + Seek> Memory for CoreFile<R> {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut address, mut buffer) = (address, buffer);
        while !buffer.is_empty() {
            let missing = || io::Error::other("the core file does not contain it");
            let (offset, left) = self.place(address).ok_or_else(missing)?;
            let len = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let (part, rest) = buffer.split_at_mut(len);
            self.file.seek(SeekFrom::Start(offset))?;
            self.file.read_exact(part).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(error.kind(), "the core file is truncated")
                }
                _ => error,
            })?;
            address = address.wrapping_add(len as u64);
            buffer = rest;
        }
        Ok(())
    }
}

/// The segments of a core file, and `AT_PHDR` of its auxiliary vector.
fn headers<R: Read + Seek>(cache: &ReadCache<R>) -> Result<(Vec<Segment>, u64), &'static str> {
    let malformed = "its headers are malformed";
    let header = FileHeader64::<LittleEndian>::parse(cache);
    let header = header.map_err(|_| "it is not a 64-bit ELF file")?;
    header.endian().map_err(|_| "it is not a little-endian ELF file")?;
    if header.e_type(LE) != elf::ET_CORE {
        return Err("it is an ELF file, but not a core file");
    }
    if header.phnum(LE, cache).map_err(|_| malformed)? > MAX_SEGMENTS {
        return Err("it has too many segments");
    }
    let all = header.program_headers(LE, cache).map_err(|_| malformed)?;
    let (mut program_headers, mut left) = (None, MAX_NOTES);
    for segment in all.iter().filter(|segment| segment.p_type(LE) == elf::PT_NOTE) {
        // What was read stays in memory.
        left = left.checked_sub(segment.p_filesz(LE)).ok_or("its notes are too large")?;
        let notes = segment.notes(LE, cache).map_err(|_| malformed)?;
        for note in notes.into_iter().flatten() {
            let note = note.map_err(|_| malformed)?;
            if note.n_type(LE) == elf::NT_AUXV {
                program_headers = program_headers.or(auxv::program_headers(note.desc()));
            }
        }
    }
    let loaded = all.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD && s.p_filesz(LE) > 0);
    let mut segments: Vec<Segment> = loaded
        .map(|segment| Segment {
            address: segment.p_vaddr(LE),
            size: segment.p_filesz(LE),
            offset: segment.p_offset(LE),
        })
        .collect();
    segments.sort_by_key(|segment| segment.address);
    Ok((segments, program_headers.ok_or("it has no auxiliary vector with AT_PHDR")?))
}
