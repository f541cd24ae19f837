//! qcow2 images: made with qemu-img, filled from a raw file, and spread over files by ringloom's layout.
//!
//! Invariants: an image is durable when its function returns, so that no run shares the disk with
//! the writing back of its making.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use load::probe::{CacheMode, cache_mode};
use plan::variant::{Preallocation, Qcow2};
use serde::Deserialize;

use super::tools::{QEMU_IMG, Tools, word};
use crate::interrupt::Interrupt;

/// The options of `qemu-img create -o`, if there are any.
pub fn create_options(image: &Qcow2) -> String {
    let cluster = image.cluster.map(|cluster| format!("cluster_size={}", cluster.0));
    let preallocation = (image.preallocation != Preallocation::Off)
        .then(|| format!("preallocation={}", image.preallocation));
    [cluster, preallocation].into_iter().flatten().collect::<Vec<_>>().join(",")
}

fn with_options<'a>(words: &[&'a str], options: &'a str) -> Vec<&'a OsStr> {
    let mut words: Vec<&OsStr> = words.iter().copied().map(OsStr::new).collect();
    if !options.is_empty() {
        words.extend(["-o".as_ref(), OsStr::new(options)]);
    }
    words
}

#[derive(Deserialize)]
struct ImageSize {
    #[serde(rename = "fully-allocated")]
    fully_allocated: u64,
}

/// How large an image of a disk of this size can get.
///
/// # Errors
/// What qemu-img says.
pub(super) fn largest(
    image: &Qcow2,
    bytes: u64,
    tools: &Tools,
    interrupt: &Interrupt,
) -> Result<u64> {
    let (options, size) = (create_options(image), bytes.to_string());
    let words = ["measure", "--output=json", "-O", "qcow2", "--size", &size];
    let text = tools.run(QEMU_IMG, &with_options(&words, &options), interrupt)?;
    let measured: ImageSize = serde_json::from_str(&text).context("read what qemu-img measured")?;
    Ok(measured.fully_allocated)
}

/// Makes an image without data in a file or on a block device.
///
/// # Errors
/// What qemu-img says.
pub(super) fn create(
    image: &Qcow2,
    path: &Path,
    bytes: u64,
    tools: &Tools,
    interrupt: &Interrupt,
) -> Result<()> {
    let (options, size) = (create_options(image), bytes.to_string());
    let mut words = with_options(&["create", "-q", "-f", "qcow2"], &options);
    words.extend([word(path), OsStr::new(&size)]);
    tools.run(QEMU_IMG, &words, interrupt)?;
    File::open(path)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("sync {}", path.display()))
}

/// Copies all bytes of a raw file into the image that `create` made.
///
/// # Errors
/// What qemu-img says.
pub(super) fn fill(source: &Path, path: &Path, tools: &Tools, interrupt: &Interrupt) -> Result<()> {
    let cache = |path: &Path| -> Result<&'static str> {
        Ok(match cache_mode(path).with_context(|| format!("read {}", path.display()))? {
            CacheMode::Direct => "none",
            // qemu-img's own default never syncs.
            CacheMode::Buffered => "writeback",
        })
    };
    let (from, to) = (cache(source)?, cache(path)?);
    let words = ["convert", "-q", "-n", "-f", "raw", "-O", "qcow2", "-T", from, "-t", to];
    let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
    words.extend([source.into(), path.into()]);
    let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
    tools.run(QEMU_IMG, &words, interrupt).map(drop)
}

/// Writes the bytes of a file to files that are stripes of one disk: a chunk to each in turn.
///
/// # Errors
/// If one cannot be read or written, or a signal comes.
pub(super) fn spread(
    source: &Path,
    files: &[PathBuf],
    chunk: u64,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut from = File::open(source).with_context(|| format!("open {}", source.display()))?;
    let open = |path: &PathBuf| {
        let file = OpenOptions::new().write(true).open(path);
        file.with_context(|| format!("open {}", path.display()))
    };
    let mut to = files.iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut buffer = vec![0; usize::try_from(chunk).expect("a chunk fits memory")];
    for number in 0_usize.. {
        interrupt.check()?;
        let length = read_full(&mut from, &mut buffer)
            .with_context(|| format!("read {}", source.display()))?;
        if length == 0 {
            break;
        }
        let (stripe, row) = (number % to.len(), number / to.len());
        let place = u64::try_from(row).expect("usize fits u64") * chunk;
        to[stripe]
            .seek(SeekFrom::Start(place))
            .and_then(|_| to[stripe].write_all(&buffer[..length]))
            .with_context(|| format!("write {}", files[stripe].display()))?;
    }
    for (file, path) in to.iter().zip(files) {
        file.sync_all().with_context(|| format!("sync {}", path.display()))?;
    }
    Ok(())
}

/// As much as there is up to the buffer's length.
fn read_full(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use plan::variant::Image;

    use super::*;
    use crate::interrupt::Interrupt;

    fn options(text: &str) -> String {
        match text.parse().unwrap() {
            Image::Qcow2(image) => create_options(&image),
            Image::Raw => unreachable!("only images of qcow2 are tried"),
        }
    }

    #[test]
    fn only_what_is_asked_for_is_given_to_qemu_img() {
        assert_eq!(options("qcow2:cache=8M:empty"), "");
        assert_eq!(options("qcow2:cluster=2M"), "cluster_size=2097152");
        assert_eq!(
            options("qcow2:cluster=4k:preallocation=falloc"),
            "cluster_size=4096,preallocation=falloc"
        );
    }

    #[test]
    fn bytes_are_spread_in_chunks() {
        let directory = tempfile::tempdir().unwrap();
        let (source, files) =
            (directory.path().join("all"), ["0", "1"].map(|name| directory.path().join(name)));
        std::fs::write(&source, "aaaabbbbccccdd").unwrap();
        for file in &files {
            std::fs::write(file, "........").unwrap();
        }
        spread(&source, &files, 4, &Interrupt::deaf(false)).unwrap();
        assert_eq!(std::fs::read(&files[0]).unwrap(), b"aaaacccc");
        assert_eq!(std::fs::read(&files[1]).unwrap(), b"bbbbdd..");
        assert!(spread(&source, &files, 4, &Interrupt::deaf(true)).is_err());
    }
}
