use super::fast::{
    BEGIN_OBJECT, BYTE, END_OBJECT, NULL_REFERENCE, SIGNATURE, SKIP_REGION, STRING, put_compressed,
    put_string,
};
use super::{HeapGraph, Node};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Ticks of 100 ns from year 1 to 1970.
pub(super) const UNIX_TICKS: i64 = 621_355_968_000_000_000;

/// The largest size of an object: sizes are signed 32-bit integers in the file.
pub(super) const LARGEST: u64 = i32::MAX as u64;

impl HeapGraph {
    /// Writes a `.gcdump` file (version 10, readable from version 8 on).
    ///
    /// The format has sizes up to 2³¹ − 1 bytes: [larger objects](Self::oversized) have that size in the file.
    ///
    /// # Errors
    ///
    /// Errors of `out`; [`io::ErrorKind::InvalidInput`] if the file would exceed 4 GiB or 2³¹
    /// nodes, the limits of the format.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut file = Vec::with_capacity(64 + self.nodes.len() * 24);
        put_string(&mut file, std::str::from_utf8(SIGNATURE).ok());
        begin(&mut file, "GCHeapDump", 10, 8);

        begin(&mut file, "Graphs.MemoryGraph", 1, 0);
        self.put_graph(&mut file)?;
        file.push(END_OBJECT);

        file.push(1); // 64-bit addresses
        file.extend(1f32.to_le_bytes()); // no sampling of objects: counts are multiplied by 1,
        file.extend(1f32.to_le_bytes()); // and sizes
        file.push(NULL_REFERENCE); // JavaScript heap
        file.push(NULL_REFERENCE); // segments of the .NET heap
        put_string(&mut file, None); // log of the collection
        file.extend(self.info.collected.map_or(0, ticks).to_le_bytes());
        put_string(&mut file, self.info.machine.as_deref());
        put_string(&mut file, self.info.process_name.as_deref());
        file.extend(self.info.pid.to_le_bytes());
        file.extend(0i64.to_le_bytes()); // commit size
        file.extend(0i64.to_le_bytes()); // working set
        file.extend(0i32.to_le_bytes()); // multipliers by type
        // COM interoperability: none. A region can be skipped by the forward reference 0.
        file.push(SKIP_REGION);
        file.extend(0i32.to_le_bytes());
        file.push(NULL_REFERENCE);
        let region_end = label(&file)?;
        file.push(STRING);
        put_string(&mut file, Some(self.info.tool.as_deref().unwrap_or("triscope")));
        file.push(END_OBJECT);

        file.push(END_OBJECT); // of all objects
        let forward_references = label(&file)?;
        file.extend(1i32.to_le_bytes());
        file.extend(region_end.to_le_bytes());
        let trailer = label(&file)?;
        file.extend(forward_references.to_le_bytes());
        file.extend(trailer.to_le_bytes());
        out.write_all(&file)
    }

    /// Number of objects that are larger than a `.gcdump` file can describe: more than 2³¹ − 1 bytes.
    pub fn oversized(&self) -> usize {
        self.objects().filter(|node| node.size > LARGEST).count()
    }

    fn put_graph(&self, file: &mut Vec<u8>) -> io::Result<()> {
        let count = i32::try_from(self.nodes.len()).map_err(|_| too_large())?;
        let bytes = self.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.size));
        file.extend(i64::try_from(bytes).unwrap_or(i64::MAX).to_le_bytes());
        file.extend(self.root.to_le_bytes());

        // The size of a type is that of its first object; other objects contain their own.
        let mut sizes: Vec<Option<u32>> = vec![None; self.types.len()];
        if let Some(undefined) = sizes.first_mut() {
            *undefined = Some(0);
        }
        for node in &self.nodes {
            if let Some(size) = sizes.get_mut(node.kind as usize) {
                size.get_or_insert(clamp(node));
            }
        }
        file.extend((self.types.len() as u32).to_le_bytes());
        for (kind, size) in self.types.iter().zip(&sizes) {
            put_string(file, Some(&kind.name));
            file.extend(size.map_or(-1, |size| size as i32).to_le_bytes());
            put_string(file, kind.module.as_deref());
        }

        let mut blob = vec![0, 0]; // the undefined node: type 0, no references
        file.extend(count.to_le_bytes());
        for (index, node) in (0i32..).zip(&self.nodes) {
            file.extend(label(&blob)?.to_le_bytes());
            let kind = (node.kind as i32) << 1;
            if sizes.get(node.kind as usize) == Some(&Some(clamp(node))) {
                put_compressed(&mut blob, kind);
            } else {
                put_compressed(&mut blob, kind | 1);
                put_compressed(&mut blob, clamp(node) as i32);
            }
            let children = self.children(node);
            put_compressed(&mut blob, children.len() as i32);
            for &child in children {
                put_compressed(&mut blob, child as i32 - index);
            }
        }
        file.extend(i32::try_from(blob.len()).map_err(|_| too_large())?.to_le_bytes());
        file.extend(blob);

        file.extend(count.to_le_bytes());
        for node in &self.nodes {
            file.extend(node.address.to_le_bytes());
        }
        file.extend([BYTE, 1]); // 64-bit addresses
        Ok(())
    }
}

/// The size of an object in the file.
fn clamp(node: &Node) -> u32 {
    node.size.min(LARGEST) as u32
}

/// Writes the begin tag and the type of an object.
fn begin(file: &mut Vec<u8>, name: &str, version: i32, minimum_reader: i32) {
    file.extend([BEGIN_OBJECT, BEGIN_OBJECT, NULL_REFERENCE]);
    file.extend(version.to_le_bytes());
    file.extend(minimum_reader.to_le_bytes());
    put_string(file, Some(name));
    file.push(END_OBJECT);
}

fn label(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| too_large())
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the heap is too large for a .gcdump file (4 GiB)")
}

/// A time in the ticks of .NET's `DateTime`.
fn ticks(time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() / 100;
    UNIX_TICKS.saturating_add(i64::try_from(since_1970).unwrap_or(i64::MAX))
}
