//! The operator's sentences about failed operations, at a bounded rate for each iothread.
//!
//! Invariants: a sentence names the file or node, the operation, the place and the error; what was left out
//! is counted and told, at the latest when the iothread ends.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Clock, FailKind, LogRateLimit, Node, Operation};
use kernel_io::IoFailure;

use crate::io_request::RequestPhase;

/// Why storage failed an operation: an I/O error, an earlier failed sync, or storage that was given up or left to
/// another process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StorageFailureCause {
    /// The kernel, or the end of the file.
    Failure(IoFailure),
    /// A sync that failed before: nobody knows what it lost.
    EarlierSync,
    /// Whoever waited for the storage does so no more.
    GivenUp,
    /// Changes that were abandoned, which may still be carried out.
    Unfenced,
    /// Another process goes on with the file.
    Foreign,
}

/// Logs failed operations, at a limited rate.
#[derive(Debug)]
pub(crate) struct FailureReporter {
    clock: Arc<dyn Clock>,
    /// About what the host does.
    failures: LogRateLimit,
    /// About what lanes and guests do: no guest keeps the operator from hearing of the host.
    refusals: LogRateLimit,
}

impl FailureReporter {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (failures, refusals) = (LogRateLimit::default(), LogRateLimit::default());
        Self { clock, failures, refusals }
    }

    /// Logs what happened to the medium of that name, if there is room for it. If not: after what time to call
    /// [`FailureReporter::report_suppressed`].
    pub(crate) fn failed(
        &mut self,
        medium: &str,
        operation: Operation,
        phase: RequestPhase,
        cause: StorageFailureCause,
    ) -> Option<Duration> {
        let now = self.clock.now();
        say(&mut self.failures, now, || sentence(medium, operation, phase, cause))
    }

    /// The same of a request that the lane of a node has refused.
    pub(crate) fn refused(
        &mut self,
        node: &dyn Node,
        operation: Operation,
        kind: FailKind,
    ) -> Option<Duration> {
        let now = self.clock.now();
        let what =
            || format!("{}: {} failed: {}", display_name(node), place(operation), reason(kind));
        say(&mut self.refusals, now, what)
    }

    /// The same of a request that its front end has made no operation of.
    pub(crate) fn refused_by_front(
        &mut self,
        node: &dyn Node,
        what: &dyn fmt::Display,
        kind: FailKind,
    ) -> Option<Duration> {
        let now = self.clock.now();
        let sentence = || format!("{}: {what} failed: {}", display_name(node), reason(kind));
        say(&mut self.refusals, now, sentence)
    }

    /// Tells how many sentences were left out, if none came after them. If it is too early: after what
    /// time to try again.
    pub(crate) fn report_suppressed(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let mut wait: Option<Duration> = None;
        for rate in [&mut self.failures, &mut self.refusals] {
            let Some(due) = rate.due() else { continue };
            if now < due {
                let left = due.saturating_duration_since(now);
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
            } else if let Some(left_out) = rate.admit(now) {
                tell(left_out);
            }
        }
        wait
    }
}

impl Drop for FailureReporter {
    fn drop(&mut self) {
        tell(self.failures.forget_left_out() + self.refusals.forget_left_out());
    }
}

/// Says it, if there is room. If not: after what time to tell that it was left out.
fn say(
    rate: &mut LogRateLimit,
    now: Instant,
    sentence: impl FnOnce() -> String,
) -> Option<Duration> {
    // Whoever was told to come back comes.
    let nobody_comes = rate.due().is_none();
    match rate.admit(now) {
        None if nobody_comes => rate.due().map(|due| due.saturating_duration_since(now)),
        None => None,
        Some(left_out) => {
            let sentence = sentence();
            if left_out == 0 {
                tracing::warn!("{sentence}");
            } else {
                tracing::warn!("{sentence} (and {left_out} more that were not logged)");
            }
            None
        }
    }
}

fn tell(left_out: u64) {
    if left_out > 0 {
        tracing::warn!("{left_out} more failed requests were not logged");
    }
}

/// The file and the node that a guest's request is about.
fn display_name(node: &dyn Node) -> String {
    match node.image_file() {
        Some(file) => format!("disk {}: node {}", file.display(), node.name()),
        None => format!("node {}", node.name()),
    }
}

/// What is asked, and where.
fn place(operation: Operation) -> String {
    match operation.extent() {
        Some(extent) => {
            let (name, count, start) = (operation.name(), extent.count(), extent.start());
            format!("{name} of {count} bytes at byte {start}")
        }
        None => operation.name().to_owned(),
    }
}

/// What a guest is told, in words.
fn reason(kind: FailKind) -> &'static str {
    match kind {
        FailKind::Io => "input/output error",
        FailKind::NoSpace => "no space left",
        FailKind::ReadOnly => "it is read-only",
        FailKind::OutOfRange => "it reaches behind the end",
        FailKind::Malformed => "it is malformed",
        FailKind::Unsupported => "it is not supported",
        FailKind::Cancelled => "it was cancelled",
    }
}

fn sentence(
    medium: &str,
    operation: Operation,
    phase: RequestPhase,
    cause: StorageFailureCause,
) -> String {
    let what = place(operation);
    let why = match (cause, phase) {
        (StorageFailureCause::GivenUp, _) => {
            "the storage does not answer, and was given up".to_owned()
        }
        (StorageFailureCause::Unfenced, _) => {
            "changes that were given up may still be carried out".to_owned()
        }
        (StorageFailureCause::Foreign, _) => {
            let name = operation.name();
            return format!("disk {medium}: {name} refused: another process owns the image");
        }
        (StorageFailureCause::EarlierSync, _) => {
            "an earlier flush failed, so what was written may be lost; no \
             flush succeeds until the file is opened again"
                .to_owned()
        }
        (StorageFailureCause::Failure(IoFailure::Errno { errno, .. }), RequestPhase::Sync) => {
            format!("cannot be made durable: {errno}")
        }
        (StorageFailureCause::Failure(IoFailure::Errno { offset, errno }), _) => {
            format!("error at byte {offset}: {errno}")
        }
        (StorageFailureCause::Failure(end @ IoFailure::EndOfFile { .. }), _) => end.to_string(),
    };
    format!("disk {medium}: {what} failed: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ByteCount, ByteOffset, DiskSize, Durability};
    use rustix::io::Errno;

    #[track_caller]
    fn check(
        operation: Operation,
        phase: RequestPhase,
        cause: StorageFailureCause,
        expected: &str,
    ) {
        assert_eq!(sentence("/a b", operation, phase, cause), expected);
    }

    #[test]
    fn a_sentence_names_file_operation_place_and_error() {
        let extent = DiskSize(ByteCount(1 << 20)).check(ByteOffset(4096), ByteCount(512)).unwrap();
        let offset = ByteOffset(4608);
        let no_space =
            StorageFailureCause::Failure(IoFailure::Errno { offset, errno: Errno::NOSPC });
        let write = Operation::Write(extent, Durability::Stable);
        check(
            write,
            RequestPhase::Transfer,
            no_space,
            "disk /a b: write of 512 bytes at byte 4096 failed: error at byte 4608: No space left on \
             device (os error 28)",
        );
        check(
            write,
            RequestPhase::Sync,
            no_space,
            "disk /a b: write of 512 bytes at byte 4096 failed: cannot be made durable: No space left \
             on device (os error 28)",
        );
        check(
            Operation::Read(extent),
            RequestPhase::Transfer,
            StorageFailureCause::Failure(IoFailure::EndOfFile { offset }),
            "disk /a b: read of 512 bytes at byte 4096 failed: the file has no byte 4608 any more",
        );
        check(
            Operation::Flush,
            RequestPhase::Sync,
            StorageFailureCause::Foreign,
            "disk /a b: flush refused: another process owns the image",
        );
        check(
            Operation::Flush,
            RequestPhase::Sync,
            StorageFailureCause::EarlierSync,
            "disk /a b: flush failed: an earlier flush failed, so what was written may be lost; no flush \
             succeeds until the file is opened again",
        );
    }
}
