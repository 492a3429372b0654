//! The memory of a process, and checked reads of it.

use crate::error::{Error, Result};
use std::io;

/// The memory of a program: of a process, of a core file, or of another source.
pub trait Memory {
    /// Fills `buffer` with the bytes at a virtual address.
    ///
    /// # Errors
    ///
    /// A part of it is not mapped, or cannot be read.
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl<M: Memory + ?Sized> Memory for &mut M {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(address, buffer)
    }
}

/// Bytes of one read: no more is allocated ahead of what was read.
const CHUNK: u64 = 1 << 16;

/// Reads of a memory, up to a number of bytes.
pub(crate) struct Source<'m, M: ?Sized> {
    memory: &'m mut M,
    left: u64,
    limit: usize,
}

/// A value of a type of the program, as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    address: u64,
    bytes: &'a [u8],
}

/// The first two words of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl<'m, M: Memory + ?Sized> Source<'m, M> {
    /// Limits the reads to `limit` bytes in total.
    pub(crate) fn new(memory: &'m mut M, limit: usize) -> Self {
        Self { memory, left: limit as u64, limit }
    }

    /// Reads the value at an address; `buffer` then contains it.
    pub(crate) fn object<'a>(
        &mut self,
        address: u64,
        size: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Object<'a>> {
        buffer.clear();
        self.append(address, size, buffer)?;
        Ok(Object { address, bytes: buffer })
    }

    /// Reads the word at an address.
    pub(crate) fn word(&mut self, address: u64) -> Result<u64> {
        self.object(address, 8, &mut Vec::new())?.word(0)
    }

    /// Appends `len` bytes to `out`. Allocates little more than what could be read.
    pub(crate) fn append(&mut self, address: u64, len: u64, out: &mut Vec<u8>) -> Result<()> {
        let limit = Error::LimitExceeded { max_buffer: self.limit };
        self.left = self.left.checked_sub(len).ok_or(limit)?;
        let mut done = 0;
        while done < len {
            let at = address.checked_add(done).ok_or(Error::Malformed {
                what: "a value extends beyond the address space",
                address,
            })?;
            let chunk = (len - done).min(CHUNK);
            let start = out.len();
            out.resize(start + chunk as usize, 0);
            let buffer = out.get_mut(start..).unwrap_or_default();
            let read = self.memory.read_at(at, buffer);
            read.map_err(|source| Error::Memory { address: at, source })?;
            done += chunk;
        }
        Ok(())
    }
}

impl<'a> Object<'a> {
    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        let bytes = self.bytes.get(offset..).and_then(|rest| rest.first_chunk().copied());
        let what = "a field is outside of its type";
        bytes.ok_or(Error::Malformed { what, address: self.address })
    }

    pub(crate) fn word(&self, offset: usize) -> Result<u64> {
        self.bytes(offset).map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&self, offset: usize) -> Result<Slice> {
        Ok(Slice { address: self.word(offset)?, len: self.word(offset + 8)? })
    }

    pub(crate) fn flag(&self, offset: usize) -> Result<bool> {
        self.bytes(offset).map(|[byte]| byte != 0)
    }

    /// Its parts of `size` bytes.
    pub(crate) fn elements(&self, size: usize) -> impl Iterator<Item = Object<'a>> + use<'a> {
        let address = self.address;
        let parts = self.bytes.chunks_exact(size.max(1));
        parts.enumerate().map(move |(i, bytes)| Object {
            address: address.wrapping_add((i * size) as u64),
            bytes,
        })
    }
}
