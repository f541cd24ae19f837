//! What a result of the kernel means for its operation: over, to be started again, or how far it got.
//!
//! Where it stands: [`crate::Kernel`] asks for every completion, of whatever engine. Pure but for the
//! count of retries in the operation.
//! Limits: [`RETRIES_MAX`] retries.

use rustix::io::Errno;

use crate::IoFailure;
use crate::in_flight::{EngineOrWorker, InFlightOp, IoKind};

/// How often an operation is submitted again after EINTR, EAGAIN or, where a range is changed, EBUSY before that is its
/// result.
pub(crate) const RETRIES_MAX: u8 = 100;

/// What a result means for its operation: retry it, go on with the rest, or it is finished.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CompletionVerdict {
    Retry,
    Partial(usize),
    Final(Result<(), IoFailure>),
}

/// What an operation fails with that was taken back before it was begun ([`crate::Kernel::withdraw`]).
pub(crate) const WITHDRAWN: Errno = Errno::CANCELED;

/// Whether an operation has failed because it was taken back before it was begun.
pub fn is_withdrawn(failure: IoFailure) -> bool {
    matches!(failure, IoFailure::Errno { errno, .. } if errno == WITHDRAWN)
}

/// The error of a negative result.
pub(crate) fn errno_of(result: i64) -> Errno {
    i32::try_from(-result).map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Judges the result of a call or a completion: a count of bytes or a negative errno.
pub(crate) fn classify(parked: &mut InFlightOp, result: i64) -> CompletionVerdict {
    let offset = parked.offset;
    let Ok(count) = usize::try_from(result) else {
        let errno = errno_of(result);
        let passing = match errno {
            Errno::INTR => true,
            Errno::AGAIN => {
                parked.stage = EngineOrWorker::Waits;
                true
            }
            // Of a device, the kernel takes what is changed out of its page cache, which others may be writing to just now.
            Errno::BUSY => matches!(parked.work, IoKind::Space(_)),
            _ => false,
        };
        if passing && parked.retries < RETRIES_MAX {
            parked.retries += 1;
            return CompletionVerdict::Retry;
        }
        return CompletionVerdict::Final(Err(IoFailure::Errno { offset, errno }));
    };
    match parked.work {
        IoKind::Sync | IoKind::Space(_) | IoKind::Extent(_) => CompletionVerdict::Final(Ok(())),
        IoKind::Read | IoKind::Write(_) if count > 0 => CompletionVerdict::Partial(count),
        IoKind::Read => CompletionVerdict::Final(Err(IoFailure::EndOfFile { offset })),
        IoKind::Write(_) => {
            CompletionVerdict::Final(Err(IoFailure::Errno { offset, errno: Errno::IO }))
        }
    }
}
