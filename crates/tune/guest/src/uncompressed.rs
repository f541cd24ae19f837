//! The kernel of guests without its compression: an emulated processor takes seconds to undo that, this one a tenth of one.
//!
//! QEMU boots an ELF file that has the note of PVH, and Linux has it where `CONFIG_PVH` is set; Debian does.
//!
//! Invariants: a file appears under its name when it is complete. Not here: where the kernel comes from (`kernel`).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const ELF: [u8; 4] = *b"\x7fELF";
/// Documentation/arch/x86/boot.rst: sectors of the part that runs in real mode, behind the boot sector.
const SETUP_SECTORS: usize = 0x1f1;
/// "HdrS", and the fields that say where behind that part the compressed kernel is, and how long.
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Far more than any kernel has.
const BYTES_MAX: usize = 256 << 20;

/// The ELF file in an image, kept in the directory `cache`; the image itself if it is one, is compressed in another way
/// than Debian's, or is not understood.
pub(crate) fn kernel(image: &Path, cache: &Path) -> Result<PathBuf> {
    let facts = image.metadata().with_context(|| format!("look at {}", image.display()))?;
    let mut hasher = DefaultHasher::new();
    (image, facts.len(), facts.mtime(), facts.mtime_nsec()).hash(&mut hasher);
    let path = cache.join(format!("vmlinux-{:016x}", hasher.finish()));
    if path.is_file() {
        return Ok(path);
    }
    let bytes = std::fs::read(image).with_context(|| format!("read {}", image.display()))?;
    // What is not understood here is judged by QEMU.
    let Ok(Some(elf)) = unpack(&bytes) else { return Ok(image.to_path_buf()) };
    std::fs::create_dir_all(cache).with_context(|| format!("create {}", cache.display()))?;
    // Written beside and renamed, because several may do this at once.
    let partial = tempfile::NamedTempFile::new_in(cache).context("make the kernel's file")?;
    std::fs::write(partial.path(), elf).context("write the kernel")?;
    partial.persist(&path).with_context(|| format!("keep {}", path.display()))?;
    Ok(path)
}

/// What an image holds, if it is compressed with zstd.
fn unpack(image: &[u8]) -> Result<Option<Vec<u8>>> {
    let number = |place: usize| -> Option<usize> {
        let bytes = image.get(place..place + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.starts_with(&ELF) {
        return Ok(None);
    }
    ensure!(image.get(MAGIC..MAGIC + 4) == Some(b"HdrS"), "it is no kernel's image");
    let setup = (1 + usize::from(image[SETUP_SECTORS])) * 512;
    let payload = number(PAYLOAD_OFFSET).zip(number(PAYLOAD_LENGTH)).and_then(|(from, length)| {
        let from = setup.checked_add(from)?;
        // The last field of the payload is the length of what is compressed.
        Some((from..from.checked_add(length)?.checked_sub(4)?, number(from + length - 4)?))
    });
    let (place, length) = payload.context("its header speaks of bytes that are not there")?;
    let compressed = image.get(place).context("its payload ends before it begins")?;
    if !compressed.starts_with(&ZSTD) {
        return Ok(None);
    }
    ensure!(length <= BYTES_MAX, "a kernel of {length} bytes");
    let mut elf = vec![0; length];
    let found = zstd_safe::decompress(&mut elf[..], compressed);
    let found = found.map_err(|code| anyhow::anyhow!(zstd_safe::get_error_name(code)))?;
    ensure!(found == length, "{found} bytes instead of {length}");
    Ok(Some(elf))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with a real-mode part of three sectors and this payload behind eight other bytes.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512 + 8];
        image[SETUP_SECTORS] = 2;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&8_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("short").to_le_bytes();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length);
        image.extend_from_slice(payload);
        image
    }

    /// As a kernel is built: its length is behind it.
    fn payload(content: &[u8], length: u32) -> Vec<u8> {
        let mut bytes = vec![0; zstd_safe::compress_bound(content.len())];
        let count = zstd_safe::compress(&mut bytes[..], content, 3).expect("there is room");
        bytes.truncate(count);
        bytes.extend(length.to_le_bytes());
        bytes
    }

    #[test]
    fn what_is_compressed_with_zstd_is_unpacked_and_nothing_else() {
        let found = unpack(&image(&payload(b"an elf", 6))).expect("well formed");
        assert_eq!(found.as_deref(), Some(&b"an elf"[..]));
        assert_eq!(unpack(&image(b"\x1f\x8bgzip....")).expect("an image"), None);
        assert_eq!(unpack(b"\x7fELF is not compressed").expect("an image"), None);
    }

    #[test]
    fn an_image_that_is_not_whole_is_an_error() {
        let whole = image(&payload(b"an elf", 6));
        for wrong in [&b"short"[..], &whole[..whole.len() - 5], &image(&payload(b"an elf", 7))] {
            unpack(wrong).expect_err("it cannot be unpacked");
        }
    }
}
