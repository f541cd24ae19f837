//! The witness: a program for guests that works on a disk and knows what must be there, and its disk.
//!
//! Where it stands: a test makes the image, puts the program into a guest, and compares the image with the
//! digest that the guest prints at its end. What it is made to see stands in `witness/main.rs`.
//!
//! Limits: the program is compiled for each test, by the rustc of the search path, because a guest has no
//! dynamic linker for it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::find_program;
use crate::image;
use crate::process::Bench;

mod stamp;

use stamp::{BLOCK_BYTES, BLOCK_SECTORS, FIXED_BLOCKS, KNOWN_BLOCKS};

/// The first byte that the guest leaves alone; `SPARE_BYTES` follow.
pub const SPARE: u64 = KNOWN_BLOCKS * BLOCK_BYTES as u64;
const SPARE_BYTES: u64 = 1 << 20;
const COMPILER: &str = "rustc";
const ALIVE: &str = "@@alive ";
const WRONG: &str = "@@wrong ";
const FINAL: &str = "@@final ";

/// Why it cannot be compiled here, if so.
pub(super) fn missing() -> Option<String> {
    find_program(COMPILER).is_none().then(|| format!("{COMPILER} is not installed"))
}

/// Compiles the program, so that it runs without any library.
pub(super) fn compile(bench: &Bench) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guest/witness/main.rs");
    let program = bench.path("witness");
    let options =
        "--edition=2024 -Copt-level=2 -Ctarget-feature=+crt-static -Cpanic=abort -Cstrip=symbols";
    let output = Command::new(COMPILER)
        .args(options.split(' '))
        .arg("-o")
        .args([&program, &source])
        .output()
        .context("start rustc")?;
    ensure!(output.status.success(), "rustc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

/// Makes the image that the program expects.
pub fn create_image(path: &Path) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(SPARE).context("an image in memory")?];
    stamp::fill(&mut bytes, 0, 0);
    bytes.resize(usize::try_from(SPARE + SPARE_BYTES).context("an image in memory")?, 0);
    image::create_with(path, &bytes)
}

/// The digest of an image, to be compared with what the guest prints; an error if something changed that
/// is only read.
pub fn digest_of_image(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut block = [0; BLOCK_BYTES];
    let mut digest = 0;
    for index in 0..KNOWN_BLOCKS {
        file.read_exact_at(&mut block, index * BLOCK_BYTES as u64).context("read the image")?;
        if index < FIXED_BLOCKS
            && let Some(what) = stamp::wrong(&block, index * BLOCK_SECTORS, 0)
        {
            bail!("the image: {what}");
        }
        digest = stamp::digest(digest, &block);
    }
    Ok(format!("{digest:016x}"))
}

/// How many operations the witness has finished, by the lines of one console; an error if something was wrong.
pub(super) fn operations(console: &str) -> Result<Vec<u64>> {
    // The last line may not have arrived as a whole.
    let complete = console.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut found = Vec::new();
    for line in complete.lines().map(str::trim) {
        if let Some(what) = line.strip_prefix(WRONG) {
            bail!("the guest saw that {what}");
        }
        let Some(words) = line.strip_prefix(ALIVE) else { continue };
        // A line that began on another console ends here; its end is no whole line either.
        let numbers: Vec<u64> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [operations, 0] => found.push(operations),
            [_, wrong] => bail!("the guest saw {wrong} wrong things"),
            _ => {}
        }
    }
    Ok(found)
}

/// The digest that the witness printed at its end, if it has.
pub(super) fn digest(console: &str) -> Option<String> {
    let line = console.lines().find_map(|line| line.trim().strip_prefix(FINAL))?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_whole_lines() {
        let console = "ve 7 0\r\n@@alive 8 0\r\nnoise\n\r\n@@alive 31 0\r\n@@alive 3";
        assert_eq!(operations(console).expect("nothing is wrong"), [8, 31]);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for console in ["@@alive 8 0\r\n@@wrong sector 8\r\n", "@@alive 8 1\r\n"] {
            operations(console).expect_err("something is wrong");
        }
    }

    #[test]
    fn an_image_that_was_changed_has_another_digest() {
        let bench = Bench::new().expect("a directory");
        let path = bench.path("d.img");
        create_image(&path).expect("an image");
        let digest = || digest_of_image(&path);
        let before = digest().expect("a digest");
        image::corrupt(&path, SPARE).expect("an image");
        assert_eq!(digest().expect("a digest"), before);
        image::corrupt(&path, SPARE - 1).expect("an image");
        assert_ne!(digest().expect("a digest"), before);
        image::corrupt(&path, 512).expect("an image");
        digest().expect_err("this is only read");
    }
}
