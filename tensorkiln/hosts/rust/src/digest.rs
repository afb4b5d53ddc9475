//! The digest that a library has of its own file, by which damage is found before the dynamic
//! loader reads it.
//!
//! Behind the section header table, at a multiple of 8: 32 bytes of name, the size of the file, the
//! sum of all bytes before it (8 bytes each, little-endian). Weights inside the file follow.
//! `tensorkiln/artifact/digest.py` says what the sum is and what it is good for.

pub const NAME: &[u8; 32] = b"tensorkiln: digest of this file\n";
pub const BYTES: u64 = 48;

/// Whether these 32 bytes are the name, or what damage has left of it: a word of it.
pub fn is_named(name: &[u8]) -> bool {
    name.chunks_exact(8).zip(NAME.chunks_exact(8)).any(|(here, there)| here == there)
}

/// The sum of bytes, a multiple of 8: word i is part of total i % 256, and of total 256 + i % 255.
fn sum(bytes: &[u8]) -> u64 {
    let mut totals = [0_u64; 511];
    let (even, odd) = totals.split_at_mut(256);
    for part in [even, odd] {
        for row in bytes.chunks(8 * part.len()) {
            for (total, word) in part.iter_mut().zip(row.chunks_exact(8)) {
                *total = total.wrapping_add(word_of(word));
            }
        }
    }
    let scrambled = totals.iter().zip(0_u64..).map(|(total, i)| {
        let mut z = total.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    });
    scrambled.fold(0, |all, one| all ^ one)
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// How a file of `size` bytes contradicts its digest, with which `head` ends.
pub fn damage(head: &[u8], size: u64) -> Option<String> {
    let (covered, last) = head.split_at(head.len() - 8);
    if sum(covered) != word_of(last) {
        return Some("its bytes are not those that were written".to_string());
    }
    let written = word_of(&covered[covered.len() - 8..]);
    (written != size).then(|| format!("it has {size} bytes, and was written with {written}"))
}
