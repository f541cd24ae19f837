//! Jobs that write a file and read it back with checksums.
//!
//! Invariants: every block of the part is written once, in random order, and read once. Limits: at
//! most `VERIFY_BYTES_MAX`, because it is done before a measurement and measures nothing.

use crate::BlockBytes;
use crate::fio::error::FioError;
use crate::fio::job::{Engine, can_be_named, check_size, common, escaped};
use crate::fio::report::{last_document, said_or_errno};
use crate::fio::version::{FIO_OLDEST, FioVersion};
use crate::probe::CacheMode;

/// The most that is written for a verification.
pub const VERIFY_BYTES_MAX: u64 = 64 << 20;
/// Enough to have requests overtake each other.
const IODEPTH: u16 = 16;

/// What a verification does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyPhase {
    /// Writes, then reads what it wrote.
    WriteAndRead,
    /// Reads what an earlier job with the same seed wrote.
    ReadOnly,
}

/// The first bytes of a file or disk, written with checksums and read back.
#[derive(Clone, Debug)]
pub struct VerifyJob {
    file: String,
    block: BlockBytes,
    bytes: u64,
    engine: Engine,
    cache: CacheMode,
    seed: u64,
}

impl VerifyJob {
    /// Checks that fio can run it. The first `bytes` of `file` will be overwritten, or as many whole
    /// blocks as fit into them.
    ///
    /// # Errors
    /// With a name that a job file cannot hold, with less than a block or more than
    /// `VERIFY_BYTES_MAX`.
    pub fn new(
        file: &str,
        block: BlockBytes,
        bytes: u64,
        engine: Engine,
        cache: CacheMode,
        seed: u64,
    ) -> Result<Self, FioError> {
        if !can_be_named(file) {
            return Err(FioError::Name { name: file.to_owned() });
        }
        let size = block.get();
        if bytes < u64::from(size) || bytes > VERIFY_BYTES_MAX {
            return Err(FioError::VerifyBytes { bytes, block: size, max: VERIFY_BYTES_MAX });
        }
        let bytes = bytes - bytes % u64::from(size);
        Ok(Self { file: file.to_owned(), block, bytes, engine, cache, seed })
    }

    /// How many bytes are written and read: whole blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The job file. `fio` is the version that will run it; it is told in a comment.
    #[must_use]
    pub fn file(&self, fio: FioVersion, phase: VerifyPhase) -> String {
        let (block, bytes) = (self.block.get(), self.bytes);
        let iodepth = match self.engine {
            Engine::IoUring | Engine::Libaio => IODEPTH,
            Engine::Psync => 1,
        };
        let (does, only) = match phase {
            VerifyPhase::WriteAndRead => ("Overwrites and reads back", ""),
            VerifyPhase::ReadOnly => ("Reads back what was written to", "verify_only=1\n"),
        };
        format!(
            "# {does} the first {bytes} bytes of a file, with a checksum in every block.\n\
             # Made for fio {fio}; any from {FIO_OLDEST} on can run it:\n\
             #     fio --output-format=json+ FILE\n\n\
             [global]\n{common}bs={block}\niodepth={iodepth}\nrw=randwrite\nsize={bytes}\n\
             group_reporting=1\n\
             verify=crc32c\ndo_verify=1\nverify_fatal=1\nverify_state_save=0\n{only}\
             \n[verify]\nfilename={name}\n",
            common = common(self.engine, self.cache, self.seed),
            name = escaped(&self.file),
        )
    }

    /// Looks whether the file is there and large enough, on the machine this runs on.
    ///
    /// # Errors
    /// Names the file and its size.
    pub fn check_file(&self) -> Result<(), FioError> {
        check_size(&self.file, self.bytes)
    }
}

/// Reads all that fio has printed: how many bytes it has read and found right.
///
/// # Errors
/// What fio said, if it failed, such as the block with the wrong checksum.
pub fn parse_verify(text: &str) -> Result<u64, FioError> {
    let (document, said) = last_document(text)?;
    let group = document.group()?;
    if group.error != 0 {
        return Err(FioError::Failed { said: said_or_errno(said, group.error) });
    }
    match (group.read.io_bytes, said.is_empty()) {
        (0, true) => Err(FioError::Idle { seconds: 0.0 }),
        (0, false) => Err(FioError::Failed { said }),
        (bytes, _) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bytes: u64, engine: Engine) -> Result<VerifyJob, FioError> {
        let block = BlockBytes::try_from(4096).unwrap();
        VerifyJob::new("/dev/vdb", block, bytes, engine, CacheMode::Direct, 1)
    }

    #[test]
    fn whole_blocks_within_bounds_are_verified() {
        assert_eq!(job(4096, Engine::IoUring).unwrap().bytes(), 4096);
        assert_eq!(job(10_000, Engine::IoUring).unwrap().bytes(), 8192);
        assert_eq!(job(VERIFY_BYTES_MAX, Engine::IoUring).unwrap().bytes(), VERIFY_BYTES_MAX);
        for bytes in [0, 4095, VERIFY_BYTES_MAX + 1] {
            let message = job(bytes, Engine::IoUring).unwrap_err().to_string();
            assert!(message.contains(&format!("verification of {bytes} bytes")), "{message}");
        }
    }

    #[test]
    fn phases_and_engines_differ_in_their_lines() {
        let version = FIO_OLDEST;
        let job = |engine| job(8192, engine).unwrap();
        let text = job(Engine::Libaio).file(version, VerifyPhase::WriteAndRead);
        for line in ["size=8192", "bs=4096", "iodepth=16", "verify=crc32c", "filename=/dev/vdb"] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("verify_only") && !text.contains("norandommap"), "{text}");
        let text = job(Engine::Psync).file(version, VerifyPhase::ReadOnly);
        for line in ["iodepth=1", "verify_only=1"] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
