//! The fence around privileges: no capabilities, and no way to get any.
//!
//! Threads: capabilities and no_new_privs hold for a thread and those that it starts later, so each
//! thread gives its own up; [`unconfined`] finds those that did not.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The capabilities there may ever be: their sets have 64 bits.
const CAPABILITIES_MAX: u32 = 64;

/// Takes all capabilities from the calling thread and from everything it will start or execute.
pub(super) fn give_up() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    for number in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Not this kernel's. Or not ours to drop: nothing is gained any more in any case.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        // Kernels before 4.3 have none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let nothing = CapabilitySet::empty();
    let sets = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// The threads of this process, without the calling one, that have not given their privileges up.
pub(super) fn unconfined() -> io::Result<Vec<String>> {
    let own = rustix::thread::gettid().as_raw_pid().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        if entry.file_name().to_str() == Some(&own) {
            continue;
        }
        match std::fs::read_to_string(entry.path().join("status")) {
            Ok(status) if is_confined(&status) => {}
            Ok(status) => found.push(field(&status, "Name").unwrap_or("?").to_owned()),
            // It has ended meanwhile; ESRCH if it did so while it was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether a thread with this `/proc/PID/task/TID/status` (proc_pid_status(5)) has no capabilities and gets none.
fn is_confined(status: &str) -> bool {
    let is_empty = |name| {
        field(status, name).is_some_and(|set| u64::from_str_radix(set, 16).is_ok_and(|it| it == 0))
    };
    field(status, "NoNewPrivs") == Some("1")
        && ["CapInh", "CapPrm", "CapEff"].into_iter().all(is_empty)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let of_line = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim);
    status.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: &str, expected: bool) {
        assert_eq!(is_confined(status), expected, "{status}");
    }

    #[test]
    fn a_thread_is_confined_if_it_has_nothing_and_gets_nothing() {
        let of = |eff: &str, prm: &str, nnp: &str| {
            format!(
                "Name:\tIO t0\nCapInh:\t0000000000000000\nCapPrm:\t{prm}\nCapEff:\t{eff}\n\
                 CapBnd:\t000001ffffffffff\nNoNewPrivs:\t{nnp}\nSeccomp:\t0\n"
            )
        };
        let (none, some) = ("0000000000000000", "0000000000000002");
        check(&of(none, none, "1"), true);
        check(&of(none, none, "0"), false);
        check(&of(some, some, "1"), false);
        check(&of(none, some, "1"), false);
        check("Name:\tIO t0\nNoNewPrivs:\t1\n", false);
        check("", false);
    }

    #[test]
    fn threads_that_gave_nothing_up_are_found_by_name() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("bold".to_owned());
        let thread = thread.spawn(move || {
            ready.send(()).unwrap();
            // Ends with an error, when the test does.
            let _ended = wait.recv();
        });
        started.recv().unwrap();
        assert!(unconfined().unwrap().iter().any(|name| name == "bold"));
        drop(done);
        thread.unwrap().join().unwrap();
    }
}
