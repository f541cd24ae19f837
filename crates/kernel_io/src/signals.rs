//! Signals that ask a process to end: the second one is not asked to wait for what the first has begun.

#![expect(unsafe_code, reason = "what a handler may do is for its author to know")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// From now on this signal ends the process at once, with 128 and its number, if the process is impatient, and makes it
/// impatient otherwise.
///
/// Both in one step: several threads may be in the handler at the same time, each for a signal of its own, and only one
/// of them may have been the first.
///
/// # Errors
/// If there is no such signal, or none that can be caught.
pub fn leave_if_impatient(signal: i32, impatient: &Arc<AtomicBool>) -> io::Result<()> {
    let impatient = Arc::clone(impatient);
    let handler = move || {
        if impatient.swap(true, Ordering::SeqCst) {
            signal_hook::low_level::exit(128 + signal);
        }
    };
    // SAFETY: the handler swaps an atomic and may call `_exit`, both of which signal-safety(7) allows; neither panics.
    unsafe { signal_hook::low_level::register(signal, handler) }?;
    Ok(())
}
