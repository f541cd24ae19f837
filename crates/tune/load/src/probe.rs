//! What a file allows: whether it can be read past the page cache.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::{Errno, pread};

const PROBE_BYTES: usize = 4096;

/// Whether requests go past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// O_DIRECT.
    Direct,
    /// Through the page cache, because the file system knows no O_DIRECT.
    Buffered,
}

/// Finds out by reading one page with O_DIRECT.
///
/// # Errors
/// Anything but the answer that O_DIRECT is not possible: missing file, no permission, I/O error.
pub fn cache_mode(path: &Path) -> io::Result<CacheMode> {
    let flag = i32::try_from(OFlags::DIRECT.bits()).expect("O_DIRECT fits the flags of open");
    let file = match OpenOptions::new().read(true).custom_flags(flag).open(path) {
        Ok(file) => file,
        Err(error) if is_refusal(&error) => return Ok(CacheMode::Buffered),
        Err(error) => return Err(error),
    };
    let mut memory = vec![0_u8; 2 * PROBE_BYTES];
    let aligned = memory.as_ptr().align_offset(PROBE_BYTES);
    match pread(&file, &mut memory[aligned..aligned + PROBE_BYTES], 0).map_err(io::Error::from) {
        Ok(_) => Ok(CacheMode::Direct),
        Err(error) if is_refusal(&error) => Ok(CacheMode::Buffered),
        Err(error) => Err(error),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_an_error() {
        let error = cache_mode(Path::new("/nonexistent/disk")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_procfs_knows_no_direct_io() {
        let mode = cache_mode(Path::new("/proc/self/status")).unwrap();
        assert_eq!(mode, CacheMode::Buffered);
    }
}
