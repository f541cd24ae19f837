//! Names of hosts that were looked up before the fences were up: behind them nobody can be asked.
//!
//! Threads: any; blocks as long as a name is looked up.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard};

/// Names of hosts and their addresses.
#[derive(Debug, Default)]
pub struct KnownHosts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<String, Vec<IpAddr>>,
    is_closed: bool,
}

impl KnownHosts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// From now on no name is looked up that is not known.
    pub fn close(&self) {
        self.state().is_closed = true;
    }

    /// The addresses of a host: of a number that, of a name those that were found first.
    pub fn look_up(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(number) = host.parse() {
            return Ok(vec![number]);
        }
        let mut state = self.state();
        if let Some(known) = state.known.get(host) {
            return Ok(known.clone());
        }
        if state.is_closed {
            let why = "behind the fences no name is looked up; say the number, or have the line name the host";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        // The port is of no account.
        let found: Vec<IpAddr> = (host, 0).to_socket_addrs()?.map(|it| it.ip()).collect();
        state.known.insert(host.to_owned(), found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_once_and_behind_the_fences_not_at_all() {
        let hosts = KnownHosts::default();
        let found = hosts.look_up("localhost").unwrap();
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty());
        hosts.close();
        assert_eq!(hosts.look_up("localhost").unwrap(), found);
        assert_eq!(hosts.look_up("::1").unwrap(), [IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])]);
        let refused = hosts.look_up("host.invalid").unwrap_err();
        assert!(refused.to_string().contains("behind the fences"), "{refused}");
    }
}
