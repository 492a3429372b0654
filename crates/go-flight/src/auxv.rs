//! The auxiliary vector of a process (`getauxval(3)`): pairs of words.

/// `AT_NULL` and `AT_PHDR`: `linux/auxvec.h`.
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;

/// The address of the program headers of the executable file, `AT_PHDR`.
pub(crate) fn program_headers(vector: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.first_chunk().copied().map(u64::from_le_bytes);
    let pairs = vector.chunks_exact(16);
    let pairs = pairs.filter_map(|pair| Some((word(pair)?, word(pair.get(8..)?)?)));
    let mut pairs = pairs.take_while(|(type_, _)| *type_ != AT_NULL);
    pairs.find_map(|(type_, value)| (type_ == AT_PHDR).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_headers_are_found() {
        let vector = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(program_headers(&vector(&[6, 4096, 3, 0x40_0040, 0, 0])), Some(0x40_0040));
        assert_eq!(program_headers(&vector(&[6, 4096, 0, 0, 3, 0x40_0040])), None);
        assert_eq!(program_headers(&vector(&[3])), None);
    }
}
