//! A target with a planted bug, to prove the rig: it must be found within seconds.
//!
//! The way there is a word that no random input has, so it is found only if the engine sees what
//! code an input reaches; the bug is an overflow, so it is found only if those are checked.

/// Adds two numbers that come after a word.
pub fn must_fail(data: &[u8]) {
    let Some((word, [first, second, ..])) = data.split_at_checked(WORD.len()) else {
        return;
    };
    for (byte, expected) in word.iter().zip(WORD) {
        if std::hint::black_box(*byte) != *expected {
            return;
        }
    }
    std::hint::black_box(first + second);
}

const WORD: &[u8] = b"ring";
