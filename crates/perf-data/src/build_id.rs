//! Build ids in recordings.

use crate::bytes::{Section, text};
use crate::error::Result;
use crate::layout::{MISC_BUILD_ID_SIZE, STRING_ALIGN, record_type};
use perf_sys::{
    PERF_RECORD_MISC_CPUMODE_MASK, PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER,
    perf_event_header,
};
use trace_common::BuildId;
use zerocopy::IntoBytes;

/// A mapped file with its build id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildIdEntry {
    /// The process; `None` is any process of the machine.
    pub pid: Option<u32>,
    /// The kernel or one of its modules, not a file of a process.
    pub is_kernel: bool,
    /// The build id.
    pub build_id: BuildId,
    /// The file, or `[kernel.kallsyms]`.
    pub file: String,
}

/// Bytes of the build id in a record: 20, their number, padding.
const FIELD: usize = 24;

/// The process id -1 of the file: any process.
const ANY_PROCESS: u32 = u32::MAX;

impl BuildIdEntry {
    /// An entry for every process of the machine.
    pub const fn new(build_id: BuildId, file: String, is_kernel: bool) -> Self {
        Self { pid: None, is_kernel, build_id, file }
    }

    /// Appends the entry as a record.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let name = (self.file.len() + 1).next_multiple_of(STRING_ALIGN);
        let mode = if self.is_kernel { PERF_RECORD_MISC_KERNEL } else { PERF_RECORD_MISC_USER };
        let size = size_of::<perf_event_header>() + 4 + FIELD + name;
        // Names of files have at most 4096 bytes; a longer one has no place in a record.
        let Ok(size) = u16::try_from(size) else { return };
        let header = perf_event_header {
            type_: record_type::HEADER_BUILD_ID,
            misc: mode | MISC_BUILD_ID_SIZE,
            size,
        };
        let end = out.len() + usize::from(size);
        out.extend(header.as_bytes());
        out.extend(self.pid.unwrap_or(ANY_PROCESS).to_le_bytes());
        let id = self.build_id.as_bytes();
        out.extend(id);
        out.resize(out.len() + BuildId::MAX - id.len(), 0);
        out.extend([id.len() as u8, 0, 0, 0]);
        out.extend(self.file.as_bytes());
        out.resize(end, 0);
    }

    /// Reads the next record. `None` at the end, and for an empty build id.
    pub(crate) fn parse_next(section: &mut Section<'_>) -> Result<Option<Self>> {
        let at = section.cursor.offset();
        section.u32()?; // The type is not always set.
        let sizes = section.u32()?;
        let (misc, size) = (sizes as u16, u64::from(sizes >> 16));
        let fixed = (size_of::<perf_event_header>() + 4 + FIELD) as u64;
        let Some(name) = size.checked_sub(fixed) else {
            return Err(section.malformed(at, "a record that is too short"));
        };
        let pid = Some(section.u32()?).filter(|pid| *pid != ANY_PROCESS);
        let field = section.bytes(FIELD as u64)?;
        let file = text(section.bytes(name)?);
        let len = match field.get(BuildId::MAX) {
            Some(len) if misc & MISC_BUILD_ID_SIZE != 0 => usize::from(*len),
            _ => len_of_padded(field),
        };
        let build_id = field.get(..len.min(BuildId::MAX)).and_then(BuildId::new);
        let is_kernel = misc & PERF_RECORD_MISC_CPUMODE_MASK == PERF_RECORD_MISC_KERNEL;
        Ok(build_id.map(|build_id| Self { pid, is_kernel, build_id, file }))
    }
}

/// The bytes of a build id whose size was not recorded, as before Linux 5.12: shorter ones have zeros at
/// the end. Linkers make them of 20 bytes (SHA-1), 16 (MD5, UUID) or 8 (`--build-id=fast` of LLD).
fn len_of_padded(field: &[u8]) -> usize {
    let is_padded = |len: &usize| {
        let padding = field.get(*len..BuildId::MAX).unwrap_or(&[1]);
        padding.iter().all(|byte| *byte == 0)
    };
    [8, 16].into_iter().find(is_padded).unwrap_or(BuildId::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_common::{Cursor, Limits};

    #[test]
    fn entries_round_trip() {
        let any = (None, [0xff; 4]);
        for (len, is_kernel, (pid, field)) in
            [(20, true, any), (16, false, (Some(7), [7, 0, 0, 0])), (1, false, any)]
        {
            let build_id = BuildId::new(&[7; 20][..len]).unwrap();
            let mut entry = BuildIdEntry::new(build_id, "/usr/lib/libc.so.6".into(), is_kernel);
            entry.pid = pid;
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            assert_eq!(bytes[8..12], field);
            let mut section =
                Section { what: "test", cursor: Cursor::new(&bytes), limits: Limits::default() };
            assert_eq!(BuildIdEntry::parse_next(&mut section).unwrap(), Some(entry));
            assert!(section.cursor.is_empty());
        }
    }

    #[test]
    fn zeros_after_a_build_id_without_a_size_are_padding() {
        for len in [20, 16, 8] {
            let build_id = BuildId::new(&[7; 20][..len]).unwrap();
            let entry = BuildIdEntry::new(build_id, "/bin/x".into(), false);
            let mut bytes = Vec::new();
            entry.put(&mut bytes);
            const MISC: std::ops::Range<usize> = 4..6;
            bytes[MISC].copy_from_slice(&PERF_RECORD_MISC_USER.to_le_bytes());
            // Not defined then.
            bytes[12 + BuildId::MAX] = 0xaa;
            let mut section =
                Section { what: "test", cursor: Cursor::new(&bytes), limits: Limits::default() };
            assert_eq!(BuildIdEntry::parse_next(&mut section).unwrap(), Some(entry));
        }
    }
}
