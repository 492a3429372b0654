//! The values of a column in a row group, and their pages.

use super::Cell;
use super::encoding::{delta, hybrid, width};
use super::thrift::Struct;
use crate::schema::{Column, ColumnType};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;
use std::io;
use trace_common::crc32;

/// Numbers of the format: `Encoding` and `PageType`.
mod number {
    pub(super) const PLAIN: i32 = 0;
    pub(super) const RLE: i32 = 3;
    pub(super) const DELTA_BINARY_PACKED: i32 = 5;
    pub(super) const RLE_DICTIONARY: i32 = 8;
    pub(super) const DATA_PAGE: i32 = 0;
    pub(super) const DICTIONARY_PAGE: i32 = 2;
}

/// The level of zstd: 3 is its default.
const LEVEL: i32 = 3;

/// Different integers above which there is no dictionary.
const MAX_DICTIONARY: usize = 1 << 15;

/// Bytes above which a text is not in the statistics.
const MAX_STATISTICS: usize = 64;

/// The values of a column. A row without a value has a placeholder.
#[derive(Debug)]
pub(super) struct Values {
    /// Of a column that can be `NULL`: whether each row has a value.
    present: Option<Vec<bool>>,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Int(Vec<i64>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    Text(Texts),
}

/// Texts, each stored once.
#[derive(Debug, Default)]
struct Texts {
    rows: Vec<u32>,
    texts: Vec<Box<str>>,
    bytes: usize,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    fn push(&mut self, text: &str) {
        let hash = self.hasher.hash_one(text);
        let is_it = |id: &u32| self.texts.get(*id as usize).is_some_and(|known| **known == *text);
        if let Some(id) = self.index.find(hash, is_it) {
            self.rows.push(*id);
            return;
        }
        // A row group has fewer rows than a `u32` counts.
        let id = self.texts.len() as u32;
        self.texts.push(text.into());
        self.bytes += text.len();
        let (texts, hasher) = (&self.texts, &self.hasher);
        self.index.insert_unique(hash, id, |id| {
            hasher.hash_one(texts.get(*id as usize).map_or("", |text| text))
        });
        self.rows.push(id);
    }
}

impl Values {
    pub(super) fn new(column: &Column) -> Self {
        let data = match column.kind {
            ColumnType::Int => Data::Int(Vec::new()),
            ColumnType::Double => Data::Double(Vec::new()),
            ColumnType::Bool => Data::Bool(Vec::new()),
            ColumnType::Text => Data::Text(Texts::default()),
        };
        Self { present: column.is_nullable.then(Vec::new), data }
    }

    pub(super) fn push(&mut self, cell: Cell<'_>) {
        if let Some(present) = &mut self.present {
            present.push(cell != Cell::Null);
        }
        match (&mut self.data, cell) {
            (Data::Int(values), Cell::Int(value)) => values.push(value),
            (Data::Double(values), Cell::Double(value)) => values.push(value),
            (Data::Bool(values), Cell::Bool(value)) => values.push(value),
            (Data::Text(texts), Cell::Text(text)) => texts.push(text),
            (data, other) => {
                let is_known = self.present.is_none() || other != Cell::Null;
                debug_assert!(!is_known, "{other:?} in {data:?}");
                match data {
                    Data::Int(values) => values.push(0),
                    Data::Double(values) => values.push(0.0),
                    Data::Bool(values) => values.push(false),
                    Data::Text(texts) => texts.rows.push(0),
                }
            }
        }
    }

    pub(super) const fn text_bytes(&self) -> usize {
        match &self.data {
            Data::Text(texts) => texts.bytes,
            _ => 0,
        }
    }

    pub(super) fn clear(&mut self) {
        if let Some(present) = &mut self.present {
            present.clear();
        }
        match &mut self.data {
            Data::Int(values) => values.clear(),
            Data::Double(values) => values.clear(),
            Data::Bool(values) => values.clear(),
            Data::Text(texts) => *texts = Texts::default(),
        }
    }

    /// The order in which these integers ascend; `None` if they do.
    pub(super) fn order(&self) -> Option<Vec<u32>> {
        let Data::Int(values) = &self.data else { return None };
        if values.is_sorted() {
            return None;
        }
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|row| values.get(*row as usize));
        Some(order)
    }

    pub(super) fn permute(&mut self, order: &[u32]) {
        fn permuted<T: Copy>(values: &mut Vec<T>, order: &[u32]) {
            *values = order.iter().filter_map(|row| values.get(*row as usize).copied()).collect();
        }
        if let Some(present) = &mut self.present {
            permuted(present, order);
        }
        match &mut self.data {
            Data::Int(values) => permuted(values, order),
            Data::Double(values) => permuted(values, order),
            Data::Bool(values) => permuted(values, order),
            Data::Text(texts) => permuted(&mut texts.rows, order),
        }
    }

    /// Values of the rows that have one.
    fn known<'a, T: Copy>(&'a self, values: &'a [T]) -> Vec<T> {
        match &self.present {
            None => values.to_vec(),
            Some(present) => {
                let known = values.iter().zip(present).filter(|(_, is_present)| **is_present);
                known.map(|(value, _)| *value).collect()
            }
        }
    }
}

/// The metadata of the pages of a column.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) encodings: Vec<i32>,
    /// Bytes with the headers of the pages.
    pub(super) uncompressed: u64,
    pub(super) compressed: u64,
    /// Positions in the file.
    pub(super) data_page: u64,
    pub(super) dictionary_page: Option<u64>,
    pub(super) nulls: usize,
    /// The least and the greatest value in plain encoding.
    pub(super) range: Option<(Vec<u8>, Vec<u8>)>,
}

pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) chunk: Chunk,
}

/// The values of a data page with those of its dictionary.
struct Coded {
    encoding: i32,
    values: Vec<u8>,
    /// Entries and bytes.
    dictionary: Option<(usize, Vec<u8>)>,
}

/// A dictionary with an index of it for each value.
fn dictionary(entries: usize, plain: Vec<u8>, indexes: &[u32]) -> Coded {
    let width = width((entries as u64).saturating_sub(1)).max(1);
    let mut values = vec![width];
    hybrid(indexes, width, &mut values);
    Coded { encoding: number::RLE_DICTIONARY, values, dictionary: Some((entries, plain)) }
}

/// `None` if there are too many different values.
fn int_dictionary(values: &[i64]) -> Option<Coded> {
    let mut known: HashMap<i64, u32> = HashMap::new();
    let (mut plain, mut indexes) = (Vec::new(), Vec::with_capacity(values.len()));
    for value in values {
        let next = known.len() as u32;
        let index = *known.entry(*value).or_insert_with(|| {
            plain.extend(value.to_le_bytes());
            next
        });
        indexes.push(index);
        if known.len() > MAX_DICTIONARY || known.len() > 64 + indexes.len() / 2 {
            return None;
        }
    }
    Some(dictionary(known.len(), plain, &indexes))
}

fn plain(values: Vec<u8>) -> Coded {
    Coded { encoding: number::PLAIN, values, dictionary: None }
}

/// The pages of a column that begin at `position` of the file.
pub(super) fn encode(values: &Values, column: &Column, position: u64) -> io::Result<Encoded> {
    let rows = match &values.data {
        Data::Int(values) => values.len(),
        Data::Double(values) => values.len(),
        Data::Bool(values) => values.len(),
        Data::Text(texts) => texts.rows.len(),
    };
    let mut levels = Vec::new();
    let mut nulls = 0;
    if let Some(present) = values.present.as_ref().filter(|_| column.is_nullable) {
        let known: Vec<u32> = present.iter().map(|is_present| u32::from(*is_present)).collect();
        nulls = known.iter().filter(|level| **level == 0).count();
        hybrid(&known, 1, &mut levels);
        let len = u32::try_from(levels.len()).map_err(io::Error::other)?;
        levels.splice(0..0, len.to_le_bytes());
    }
    let (range, candidates) = match &values.data {
        Data::Int(ints) => {
            let ints = values.known(ints);
            let range = ints.iter().min().zip(ints.iter().max());
            let range = range.map(|(a, b)| (a.to_le_bytes().to_vec(), b.to_le_bytes().to_vec()));
            let mut packed = Vec::new();
            delta(&ints, &mut packed);
            let encoding = number::DELTA_BINARY_PACKED;
            let packed = Coded { encoding, values: packed, dictionary: None };
            (range, [Some(packed), int_dictionary(&ints)])
        }
        Data::Double(doubles) => {
            let doubles = values.known(doubles);
            (None, [Some(plain(doubles.iter().flat_map(|v| v.to_le_bytes()).collect())), None])
        }
        Data::Bool(bools) => {
            let bools = values.known(bools);
            let byte =
                |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
            (None, [Some(plain(bools.chunks(8).map(byte).collect())), None])
        }
        Data::Text(texts) => {
            let mut bytes = Vec::with_capacity(texts.bytes + 4 * texts.texts.len());
            for text in &texts.texts {
                bytes.extend(u32::try_from(text.len()).map_err(io::Error::other)?.to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
            let range = texts.texts.iter().min().zip(texts.texts.iter().max());
            let range = range.filter(|(a, b)| a.len().max(b.len()) <= MAX_STATISTICS);
            let range = range.map(|(a, b)| (a.as_bytes().to_vec(), b.as_bytes().to_vec()));
            let coded = dictionary(texts.texts.len(), bytes, &values.known(&texts.rows));
            (range, [Some(coded), None])
        }
    };
    let mut best: Option<Encoded> = None;
    for coded in candidates.into_iter().flatten() {
        let encoded = pages(&levels, rows, coded, position)?;
        if best.as_ref().is_none_or(|best| encoded.bytes.len() < best.bytes.len()) {
            best = Some(encoded);
        }
    }
    let mut encoded = best.ok_or_else(|| io::Error::other("a column without an encoding"))?;
    (encoded.chunk.nulls, encoded.chunk.range) = (nulls, range);
    Ok(encoded)
}

fn pages(levels: &[u8], rows: usize, coded: Coded, position: u64) -> io::Result<Encoded> {
    let (mut bytes, mut uncompressed) = (Vec::new(), 0);
    let mut page = |kind: i32, field: i16, count: usize, encoding: i32, body: &[u8]| {
        let int = |value: usize| i32::try_from(value).map_err(io::Error::other);
        let packed = zstd::bulk::compress(body, LEVEL)?;
        let mut header = Struct::default();
        header.i32(1, kind);
        header.i32(2, int(body.len())?);
        header.i32(3, int(packed.len())?);
        // Of the page as it is in the file, without its header.
        header.i32(4, crc32(0, &packed) as i32);
        header.begin(field);
        header.i32(1, int(count)?);
        header.i32(2, encoding);
        if kind == number::DATA_PAGE {
            header.i32(3, number::RLE);
            header.i32(4, number::RLE);
        }
        header.end();
        let header = header.finish();
        uncompressed += (header.len() + body.len()) as u64;
        bytes.extend(header);
        bytes.extend(packed);
        io::Result::Ok(bytes.len() as u64)
    };
    let mut chunk = Chunk {
        encodings: vec![number::RLE, coded.encoding],
        uncompressed: 0,
        compressed: 0,
        data_page: position,
        dictionary_page: None,
        nulls: 0,
        range: None,
    };
    if let Some((entries, plain)) = &coded.dictionary {
        chunk.encodings.push(number::PLAIN);
        chunk.dictionary_page = Some(position);
        chunk.data_page += page(number::DICTIONARY_PAGE, 7, *entries, number::PLAIN, plain)?;
    }
    let body = [levels, &coded.values].concat();
    chunk.compressed = page(number::DATA_PAGE, 5, rows, coded.encoding, &body)?;
    chunk.uncompressed = uncompressed;
    Ok(Encoded { bytes, chunk })
}
