//! Somebody else who wants to write to an image that is served, and waits for its lock all the time.
//!
//! Invariants: it waits in the kernel, so it gets the lock however short the moment is in which nobody has it; it gives
//! it back at once.
//! Threads: its own, which sleeps in the kernel until the daemon has ended.

#![expect(unsafe_code, reason = "fcntl takes its lock through a pointer")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::service::{Phase, Service};
use crate::deadline::now;
use crate::rawring::Span;

/// The byte of an image that whoever writes has locked (QEMU's protocol: 100 and the number of the permission).
const WRITE_BYTE: i64 = 101;
/// The rest after a lock that was had, so that a daemon that starts gets it.
const REST: Duration = Duration::from_millis(50);

/// Waits for the lock of an image as long as the campaign lasts; each time it gets it is a suspicion.
pub(super) fn wait(image: &Path, service: &Service) -> Result<()> {
    let file = File::options().read(true).write(true).open(image);
    let file = file.with_context(|| format!("open {}", image.display()))?;
    while service.goes_on(Phase::Rest) {
        lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK).context("wait for the lock")?;
        let at = now();
        lock(&file, libc::F_OFD_SETLK, libc::F_UNLCK).context("give the lock back")?;
        let image: PathBuf = image.file_name().map(PathBuf::from).unwrap_or_default();
        let what = format!("{}: somebody else got the lock of it", image.display());
        service.suspect(what, Span { start: at, end: at });
        service.rest(REST, Phase::Rest);
    }
    Ok(())
}

fn lock(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<()> {
    let mut range = libc::flock {
        l_type: libc::c_short::try_from(kind).expect("a small constant"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: WRITE_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    loop {
        // SAFETY: both commands read one `struct flock`, which is there and outlives the call.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) };
        match io::Error::last_os_error() {
            _ if result == 0 => return Ok(()),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}
