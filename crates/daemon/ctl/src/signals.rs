//! Signals that end a word which has something to take back first.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag that SIGINT, SIGTERM and SIGHUP raise. A second one ends the process at once.
pub(crate) fn interrupts() -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&raised))?;
        signal_hook::flag::register(signal, Arc::clone(&raised))?;
    }
    Ok(raised)
}
