//! Runs a target on files, without the engine: to look at a crash under a debugger.

use std::env;
use std::io;

/// Runs the target on each file that the command line names.
pub fn replay(target: fn(&[u8])) -> io::Result<()> {
    for path in env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(())
}
