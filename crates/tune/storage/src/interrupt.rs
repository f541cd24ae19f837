//! Ctrl-C and its relatives: a flag that long work looks at.
//!
//! Limits: every wait of the tuner is bounded and asks the flag every few milliseconds, so that one
//! signal is enough; the child is stopped and the scratch file removed on the way out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The error of a run that a signal ended. The program exits with 130 then.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupted {
    /// Whether a signal is what an error comes from.
    pub fn caused(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| cause.is::<Self>())
    }
}

/// Listens to SIGINT, SIGTERM and SIGHUP while it lives.
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    registrations: Vec<SigId>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// If the handlers cannot be set.
    pub fn listen() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&flag));
        let registrations =
            [SIGINT, SIGTERM, SIGHUP].into_iter().map(register).collect::<io::Result<_>>()?;
        Ok(Self { flag, registrations })
    }

    /// Fails once a signal has come.
    ///
    /// # Errors
    /// `Interrupted`.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.flag.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for registration in self.registrations.drain(..) {
            signal_hook::low_level::unregister(registration);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Interrupt {
    /// One that no signal reaches, for tests.
    pub fn deaf(raised: bool) -> Self {
        Self { flag: Arc::new(AtomicBool::new(raised)), registrations: Vec::new() }
    }

    /// What a signal does, for tests that interrupt in the middle.
    pub fn raise(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_decides() {
        assert!(Interrupt::deaf(false).check().is_ok());
        assert!(Interrupt::deaf(true).check().is_err());
    }
}
