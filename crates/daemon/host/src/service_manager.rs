//! What a service manager is told (sd_notify(3)): that the daemon is ready, that it ends, that it goes on in another
//! process, and that it is alive.
//!
//! Invariants: the socket is connected before there are fences, and telling never waits. A manager that does not hear loses
//! what it was told, and nothing else.
//! Threads: any.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The variable that names its socket: a path, or a name with `@` in front of it.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The variable that says within how many microseconds it expects to hear that the daemon is alive.
const WATCHDOG_MICROSECONDS: &str = "WATCHDOG_USEC";

/// The variable that says which process is meant by that, if one is.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// The variable that says which process it has started itself, and not one of that.
const STARTED_PROCESS: &str = "SYSTEMD_EXEC_PID";

/// The service manager that has started this process.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
    is_deaf: AtomicBool,
}

impl ServiceManager {
    /// The one that the environment names, if it does. Fails if nobody listens there.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address_of(&name)?)?;
        socket.set_nonblocking(true)?;
        let watchdog = watchdog_of(|name| env::var(name).ok(), std::process::id());
        Ok(Some(Self { socket, watchdog, is_deaf: AtomicBool::new(false) }))
    }

    /// Whether one has started this process itself, and waits until it is told that this process is ready.
    pub fn waits_for_this() -> bool {
        let is_this = |named: String| named.parse() == Ok(std::process::id());
        env::var_os(SOCKET).is_some_and(|name| !name.is_empty())
            && env::var(STARTED_PROCESS).is_ok_and(is_this)
    }

    /// Within which time it expects to hear that this process is alive, if it said so to this process. One that is started
    /// beside the daemon to take its place is not told.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Tells it something: lines of `KEY=VALUE`, as sd_notify(3) lists them. Does not wait.
    pub fn tell(&self, lines: &str) {
        match self.socket.send(lines.as_bytes()) {
            Ok(_) => self.is_deaf.store(false, Ordering::Relaxed),
            Err(error) => {
                if !self.is_deaf.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the service manager cannot be told {lines:?}: {error}");
                }
            }
        }
    }
}

fn address_of(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{SOCKET}={} is neither a path nor an abstract name", name.display()),
        )),
    }
}

fn watchdog_of(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    let is_other = |named: String| named.parse() != Ok(process);
    if variable(WATCHDOG_PROCESS).is_some_and(is_other) {
        return None;
    }
    let microseconds = variable(WATCHDOG_MICROSECONDS)?.parse().ok()?;
    Some(Duration::from_micros(microseconds)).filter(|limit| !limit.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Option<u64>) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(watchdog_of(variable, 7), expected.map(Duration::from_secs), "{variables:?}");
    }

    #[test]
    fn a_watchdog_is_of_the_process_that_it_names() {
        check(&[], None);
        check(&[("WATCHDOG_USEC", "30000000")], Some(30));
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "7")], Some(30));
        check(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "8")], None);
        check(&[("WATCHDOG_USEC", "0")], None);
        check(&[("WATCHDOG_USEC", "soon")], None);
    }

    #[test]
    fn sockets_have_paths_or_abstract_names() {
        let address = |name: &str| address_of(OsStr::new(name));
        assert!(address("/run/x").unwrap().as_pathname().is_some());
        assert_eq!(address("@x").unwrap().as_abstract_name(), Some(&b"x"[..]));
        assert!(address("x").is_err());
    }
}
