//! The status byte: how a virtio-blk request ended, as the guest reads it (virtio 1.2, 5.2.6).

#![expect(unsafe_code, reason = "writes one byte of guest memory")]

use block::{FailKind, Outcome, Segment};

/// VIRTIO_BLK_S_OK.
const OK: u8 = 0;
/// VIRTIO_BLK_S_IOERR.
const IOERR: u8 = 1;
/// VIRTIO_BLK_S_UNSUPP.
const UNSUPP: u8 = 2;

/// The guest's code for an outcome.
pub fn status_byte(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Done => OK,
        Outcome::Failed(FailKind::Unsupported) => UNSUPP,
        Outcome::Failed(
            FailKind::Io
            | FailKind::NoSpace
            | FailKind::ReadOnly
            | FailKind::OutOfRange
            | FailKind::Malformed
            | FailKind::Cancelled,
        ) => IOERR,
    }
}

/// Writes the status byte of a request. To be done before its chain is returned.
pub fn write_status(status: Segment, byte: u8) {
    assert!(status.count() > 0, "`decode` takes a status of one byte");
    // SAFETY: the segment is mapped and writable for its length, at least one byte, by the promise
    // of `Segment::new`: its request has not completed yet.
    unsafe { status.base().write_volatile(byte) };
}
