//! The operator's sentences about failed operations, at a bounded rate for each iothread.
//!
//! Invariants: a sentence names the file, the operation, the place and the error; what was left out
//! is counted and told, at the latest when the iothread ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, Operation, SentenceRate};
use kernel_io::IoFailure;

use crate::job::Phase;

/// What kept an operation from succeeding.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    /// The kernel, or the end of the file.
    Failure(IoFailure),
    /// A sync that failed before: nobody knows what it lost.
    EarlierSync,
}

/// Says what failed, not too often.
#[derive(Debug)]
pub(crate) struct Report {
    clock: Arc<dyn Clock>,
    rate: SentenceRate,
}

impl Report {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, rate: SentenceRate::default() }
    }

    /// Logs what happened to a file, if there is room for it. If not: after what time to call
    /// [`Report::catch_up`].
    pub(crate) fn failed(
        &mut self,
        file: &Path,
        operation: Operation,
        phase: Phase,
        trouble: Trouble,
    ) -> Option<Duration> {
        let now = self.clock.now();
        // Whoever was told to come back comes.
        let nobody_comes = self.rate.due().is_none();
        match self.rate.admit(now) {
            None if nobody_comes => {
                return self.rate.due().map(|due| due.saturating_duration_since(now));
            }
            None => {}
            Some(0) => tracing::warn!("{}", sentence(file, operation, phase, trouble)),
            Some(left_out) => {
                let sentence = sentence(file, operation, phase, trouble);
                tracing::warn!("{sentence} (and {left_out} more that were not logged)");
            }
        }
        None
    }

    /// Tells how many sentences were left out, if none came after them. If it is too early: after what
    /// time to try again.
    pub(crate) fn catch_up(&mut self) -> Option<Duration> {
        let (due, now) = (self.rate.due()?, self.clock.now());
        if now < due {
            return Some(due.saturating_duration_since(now));
        }
        if let Some(left_out) = self.rate.admit(now) {
            tell(left_out);
        }
        None
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        tell(self.rate.forget_left_out());
    }
}

fn tell(left_out: u64) {
    if left_out > 0 {
        tracing::warn!("{left_out} more failed requests were not logged");
    }
}

fn sentence(file: &Path, operation: Operation, phase: Phase, trouble: Trouble) -> String {
    let what = match operation.extent() {
        Some(extent) => {
            let (name, count, start) = (operation.name(), extent.count(), extent.start());
            format!("{name} of {count} bytes at byte {start}")
        }
        None => operation.name().to_owned(),
    };
    let why = match (trouble, phase) {
        (Trouble::EarlierSync, _) => {
            "an earlier flush failed, so what was written may be lost; no \
             flush succeeds until the file is opened again"
                .to_owned()
        }
        (Trouble::Failure(IoFailure::Errno { errno, .. }), Phase::Sync) => {
            format!("cannot be made durable: {errno}")
        }
        (Trouble::Failure(IoFailure::Errno { offset, errno }), _) => {
            format!("error at byte {offset}: {errno}")
        }
        (Trouble::Failure(end @ IoFailure::EndOfFile { .. }), _) => end.to_string(),
    };
    format!("disk {}: {what} failed: {why}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ByteCount, ByteOffset, DiskSize, Durability};
    use rustix::io::Errno;

    #[track_caller]
    fn check(operation: Operation, phase: Phase, trouble: Trouble, expected: &str) {
        assert_eq!(sentence(Path::new("/a b"), operation, phase, trouble), expected);
    }

    #[test]
    fn a_sentence_names_file_operation_place_and_error() {
        let extent = DiskSize(ByteCount(1 << 20)).check(ByteOffset(4096), ByteCount(512)).unwrap();
        let offset = ByteOffset(4608);
        let no_space = Trouble::Failure(IoFailure::Errno { offset, errno: Errno::NOSPC });
        let write = Operation::Write(extent, Durability::Stable);
        check(
            write,
            Phase::Transfer,
            no_space,
            "disk /a b: write of 512 bytes at byte 4096 failed: error at byte 4608: No space left on \
             device (os error 28)",
        );
        check(
            write,
            Phase::Sync,
            no_space,
            "disk /a b: write of 512 bytes at byte 4096 failed: cannot be made durable: No space left \
             on device (os error 28)",
        );
        check(
            Operation::Read(extent),
            Phase::Transfer,
            Trouble::Failure(IoFailure::EndOfFile { offset }),
            "disk /a b: read of 512 bytes at byte 4096 failed: the file ends at byte 4608",
        );
        check(
            Operation::Flush,
            Phase::Sync,
            Trouble::EarlierSync,
            "disk /a b: flush failed: an earlier flush failed, so what was written may be lost; no flush \
             succeeds until the file is opened again",
        );
    }
}
