use super::layouts::LAYOUTS;
use super::*;
use proptest::prelude::*;
use std::io;

/// Words of memory by address.
#[derive(Clone, Debug, Default)]
struct Words(HashMap<u64, u64>);

impl Memory for Words {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.0.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (i, chunk) in buffer.chunks_mut(8).enumerate() {
            let word = self.0.get(&address.wrapping_add(8 * i as u64)).copied().unwrap_or(0);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

const G: u64 = 0x1000;
const G0: u64 = 0x2000;
const GSIGNAL: u64 = 0x3000;
const M: u64 = 0x4000;
const TID: u32 = 77;
/// The stacks: of the goroutine, and of the thread.
const STACK: (u64, u64) = (0x10_0000, 0x10_2000);
const STACK0: (u64, u64) = (0x20_0000, 0x20_4000);

/// Functions have 256 bytes.
const ENTRY: u64 = 0x50_0000;
const OTHER: u64 = 0x50_0100;
const GOEXIT: u64 = 0x50_0200;
const MCALL: u64 = 0x50_0300;
const LEAF: u64 = 0x50_0400;

fn functions(address: u64) -> Option<Function> {
    let start = address & !0xff;
    let name = match start {
        ENTRY => "main.work",
        OTHER => "main.other",
        GOEXIT => "runtime.goexit",
        MCALL => "runtime.mcall",
        LEAF => "main.leaf",
        _ => return None,
    };
    Some(Function { start, name: name.into() })
}

/// A thread that executes goroutine 9.
fn reader() -> Reader<Words> {
    let layout = &LAYOUTS[0];
    let mut reader = Reader::new(Words::default(), layout);
    for (g, stack, goid, entry) in
        [(G, STACK, 9, ENTRY), (G0, STACK0, 0, 0), (GSIGNAL, (0x30_0000, 0x30_8000), 0, 0)]
    {
        reader.set(g, layout.g_stack, stack.0);
        reader.set(g, layout.g_stack + 8, stack.1);
        reader.set(g, layout.g_m, M);
        reader.set(g, layout.g_goid, goid);
        reader.set(g, layout.g_startpc, entry);
    }
    reader.set(M, layout.m_g0, G0);
    reader.set(M, layout.m_gsignal, GSIGNAL);
    reader.set(M, layout.m_procid, TID.into());
    reader.set(M, layout.m_curg, G);
    reader
}

impl Reader<Words> {
    fn set(&mut self, address: u64, offset: usize, word: u64) {
        self.memory.0.insert(address + offset as u64, word);
    }

    /// The thread executes C code.
    fn set_in_c(&mut self) {
        let incgo = self.layout.m_incgo as u64;
        *self.memory.0.entry(M + (incgo & !7)).or_default() |= 1u64 << (8 * (incgo & 7));
    }

    /// The goroutine of a sample that is read `age` nanoseconds later.
    fn find(&mut self, g: u64, sp: u64, callers: &[u64], at: i64, age: i64) -> Found {
        let (at, now) = (Timestamp::from_nanos(at), Timestamp::from_nanos(at + age));
        let sample = ThreadSample { tid: TID, g, sp, callers, time: at, now };
        self.at(&sample, &mut functions).map(|goroutine| goroutine.id)
    }
}

type Found = Result<u64, Unattributed>;

/// A call chain of the goroutine.
const CHAIN: [u64; 3] = [LEAF + 4, ENTRY + 8, GOEXIT + 1];

#[test]
fn goroutines_are_found_on_their_stack_and_on_that_of_the_runtime() {
    let mut reader = reader();
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 0, 1000), Ok(9));
    assert_eq!(reader.find(G, STACK.0 + 64, &[], 0, 1000), Ok(9));
    assert_eq!(reader.find(G0, STACK0.0 + 64, &CHAIN, 0, 1000), Ok(9));
    // vDSO: on the stack of the thread, with the goroutine in the register.
    assert_eq!(reader.find(G, STACK0.0 + 64, &[0x7fff_0000], 0, 1000), Ok(9));
}

#[test]
fn other_samples_have_a_reason() {
    let mut reader = reader();
    let mut reason = |g, sp, callers: &[u64]| reader.find(g, sp, callers, 0, 1000).unwrap_err();
    assert_eq!(reason(G0, STACK0.0 + 64, &[LEAF, MCALL + 4]), Unattributed::Runtime);
    assert_eq!(reason(G0, STACK0.0 + 64, &[LEAF]), Unattributed::SystemStack);
    assert_eq!(reason(GSIGNAL, 0x30_0040, &[LEAF]), Unattributed::Signal);
    assert_eq!(reason(12345, STACK.0 + 64, &[0x1234]), Unattributed::NotGo);
    assert_eq!(reason(0, 0, &[]), Unattributed::NotGo);
    // The call chain is of another goroutine.
    let other = [LEAF + 4, OTHER + 8, GOEXIT + 1];
    assert_eq!(reason(G, STACK.0 + 64, &other), Unattributed::Changed);
    assert_eq!(reason(G0, STACK0.0 + 64, &other), Unattributed::Changed);
    // Not on any stack of it.
    assert_eq!(reason(G, 0x99_0000, &[LEAF]), Unattributed::NotGo);
}

#[test]
fn goroutines_of_assembly_that_uses_the_register_are_those_of_the_thread() {
    let mut reader = reader();
    assert_eq!(reader.find(42, STACK.0 + 64, &CHAIN, 0, 1000), Err(Unattributed::NotGo));
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 0, 1000), Ok(9));
    assert_eq!(reader.find(42, STACK.0 + 64, &CHAIN, 0, 1000), Ok(9));
    // C code.
    assert_eq!(reader.find(42, STACK0.0 + 64, &[0x1234], 0, 1000), Err(Unattributed::NotGo));
    reader.set_in_c();
    assert_eq!(reader.find(42, STACK0.0 + 64, &[0x1234], 0, 1000), Ok(9));
}

#[test]
fn new_goroutines_are_not_those_of_old_samples() {
    let mut reader = reader();
    let late = MAX_AGE + 1;
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 1_000_000, late), Err(Unattributed::Changed));
    // Known since then.
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 1_000_001, late), Err(Unattributed::Changed));
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 2_000_000, late), Ok(9));
    // The memory is used again.
    reader.set(G, reader.layout.g_goid, 10);
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 3_000_000, late), Err(Unattributed::Changed));
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 3_300_000, late), Ok(10));
    reader.set(G, reader.layout.g_goid, 11);
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 4_500_000, 10_000), Ok(11));
}

/// The thread may execute another goroutine of the same function since.
#[test]
fn what_a_thread_executes_now_is_not_what_it_executed_at_old_samples() {
    const NEXT: u64 = 0x5000;
    let late = MAX_AGE + 1;
    let mut reader = reader();
    assert_eq!(reader.find(G0, STACK0.0 + 64, &CHAIN, 0, 1000), Ok(9));
    let layout = reader.layout;
    reader.set(NEXT, layout.g_stack, 0x11_0000);
    reader.set(NEXT, layout.g_stack + 8, 0x11_2000);
    reader.set(NEXT, layout.g_m, M);
    reader.set(NEXT, layout.g_goid, 10);
    reader.set(NEXT, layout.g_startpc, ENTRY);
    reader.set(M, layout.m_curg, NEXT);
    // On the stack of the runtime, and in assembly that uses the register.
    for g in [G0, 42] {
        let mut found = |age| reader.find(g, STACK0.0 + 64, &CHAIN, 1_000_000, age);
        assert_eq!(found(late), Err(Unattributed::Changed));
        assert_eq!(found(MAX_AGE), Ok(10));
    }
    // Other samples keep their reason.
    let runtime = reader.find(G0, STACK0.0 + 64, &[LEAF, MCALL + 4], 1_000_000, late);
    assert_eq!(runtime, Err(Unattributed::Runtime));
    reader.set_in_c();
    let mut in_c = |age| reader.find(42, STACK0.0 + 64, &[0x1234], 1_000_000, age);
    assert_eq!(in_c(late), Err(Unattributed::Changed));
    assert_eq!(in_c(MAX_AGE), Ok(10));
}

#[test]
fn goroutines_of_a_process_that_ended_are_those_found_before() {
    let mut reader = reader();
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 0, 1000), Ok(9));
    reader.memory.0.clear();
    assert_eq!(reader.find(G, STACK.0 + 64, &CHAIN, 0, 1000), Ok(9));
    assert_eq!(reader.find(G, STACK.0 + 64, &[LEAF], 0, 1000), Err(Unattributed::Unreadable));
}

#[test]
fn labels_are_read() {
    let text = |words: &mut Words, at: u64, text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(8, 0);
        words.0.insert(at, u64::from_le_bytes(bytes.try_into().unwrap()));
        (at, text.len() as u64)
    };
    let strings = |words: &mut Words, at: u64, (address, len): (u64, u64)| {
        words.0.extend([(at, address), (at + 8, len)]);
    };
    let expected = vec![("user".to_owned(), "gopher".to_owned())];
    // A slice of one pair.
    let mut words = Words::default();
    words.0.extend([(0x100, 0x200), (0x108, 1)]);
    let (key, value) = (text(&mut words, 0x300, "user"), text(&mut words, 0x308, "gopher"));
    strings(&mut words, 0x200, key);
    strings(&mut words, 0x210, value);
    assert_eq!(labels::read(&mut words, 27, 0x100).unwrap(), expected);
    // A map with one bucket, whose third slot is used.
    let mut words = Words::default();
    words.0.extend([(0x100, 0x400), (0x400, 1), (0x410, 0x1000), (0x1000, 7 << 16)]);
    let (key, value) = (text(&mut words, 0x300, "user"), text(&mut words, 0x308, "gopher"));
    strings(&mut words, 0x1008 + 32, key);
    strings(&mut words, 0x1088 + 32, value);
    assert_eq!(labels::read(&mut words, 23, 0x100).unwrap(), expected);
    assert_eq!(labels::read(&mut words, 23, 0).unwrap(), []);
    // A full bucket, and another one that it names.
    let mut words = Words::default();
    words.0.extend([(0x100, 0x400), (0x400, 9), (0x410, 0x1000), (0x1000, 0x0707_0707_0707_0707)]);
    words.0.extend([(0x1108, 0x2000), (0x2000, 7)]);
    let mut expected = Vec::new();
    for number in 0..9 {
        let (key, value) = (format!("key {number}"), format!("value {number}"));
        let (bucket, slot) = if number < 8 { (0x1000, number) } else { (0x2000, 0) };
        let at = text(&mut words, 0x3000 + 16 * number, &key);
        strings(&mut words, bucket + 0x08 + 16 * slot, at);
        let at = text(&mut words, 0x3008 + 16 * number, &value);
        strings(&mut words, bucket + 0x88 + 16 * slot, at);
        expected.push((key, value));
    }
    // That one can name itself or the first one if the memory was changed meanwhile.
    for next in [0, 0x2000, 0x1000] {
        words.0.insert(0x2108, next);
        assert_eq!(labels::read(&mut words, 23, 0x100).unwrap(), expected, "{next:x}");
    }
    // While it grows to two buckets, the one before has what was not moved: the first slot was (`evacuatedX`).
    words.0.extend([(0x408, 1 << 8), (0x410, 0x5000), (0x418, 0x1000), (0x2108, 0)]);
    words.0.insert(0x1000, 0x0707_0707_0707_0702);
    expected.remove(0);
    assert_eq!(labels::read(&mut words, 23, 0x100).unwrap(), expected);
    // As many buckets as before: two, of which the second one has nothing.
    words.0.insert(0x408, 1 << 8 | 8);
    words.0.insert(0x1110, 0);
    assert_eq!(labels::read(&mut words, 23, 0x100).unwrap(), expected);
}

proptest! {
    /// No memory makes the reader panic or allocate much.
    #[test]
    fn memory_is_untrusted(
        words in prop::collection::hash_map((0u64..64).prop_map(|n| n * 8), prop_oneof![
            Just(u64::MAX), (0u64..64).prop_map(|n| n * 8), any::<u64>(),
        ], 1..64),
        samples in prop::collection::vec((any::<u64>(), any::<u64>(), 0..5usize), 1..8),
        layout in 0..LAYOUTS.len(),
    ) {
        let mut reader = Reader::new(Words(words), &LAYOUTS[layout]);
        for (g, sp, callers) in samples {
            for g in [g, (g % 512) & !7] {
                let _ = reader.find(g, sp, &CHAIN[..callers.min(3)], 0, 0);
                let labels = labels::read(&mut reader.memory, LAYOUTS[layout].minor, g);
                prop_assert!(labels.map_or(0, |labels| labels.len()) <= 64);
            }
        }
    }
}
