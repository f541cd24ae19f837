//! Two small processes around an agent: the one that a pod is made of, and the one that becomes fio.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, getppid, set_parent_process_death_signal, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Keeps a container alive until SIGTERM, and takes leave of processes that others have left behind: the first process of a
/// container inherits them.
///
/// # Errors
/// If signals cannot be heard.
pub(crate) fn hold() -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    for signal in &mut signals {
        if signal != SIGCHLD {
            break;
        }
        // One signal may stand for several children. Without any it is an error, which ends the loop, too.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
    Ok(())
}

/// Becomes a program that the kernel kills once the thread ends that has started this process, which is one of `parent`.
///
/// The program must not change its user, which would take the signal away. This process has one thread.
///
/// # Errors
/// It returns only if it fails: the parent is gone already, or the program cannot be started.
pub(crate) fn become_fio(parent: u32, words: &[OsString]) -> io::Error {
    let Some((program, words)) = words.split_first() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "no program is named");
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // It may have died before the line above.
    let is_there = |it: Pid| u32::try_from(it.as_raw_nonzero().get()).is_ok_and(|it| it == parent);
    if !getppid().is_some_and(is_there) {
        return io::Error::other("the agent is gone");
    }
    Command::new(program).args(words).exec()
}
