//! Where a server is, as it was written and as it is connected to.
//!
//! Invariants: names of hosts are looked up once, before the fences are up, and kept.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::known_hosts::KnownHosts;

/// Where a server is, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// TCP.
    Inet {
        /// A name or a number.
        host: String,
        /// The port.
        port: u16,
        /// Whether addresses of IPv4 are used.
        ipv4: bool,
        /// Whether addresses of IPv6 are used.
        ipv6: bool,
    },
    /// A UNIX socket.
    Unix(PathBuf),
    /// A connection that the process was started with, at that descriptor.
    Descriptor(RawFd),
}

/// Where a server is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerEndpoint {
    /// These addresses, one after the other. There is one at least.
    Inet(Vec<SocketAddr>),
    /// A UNIX socket.
    Unix(PathBuf),
    /// Nowhere: there is the connection that the process was started with, and no other one.
    Given,
}

impl ServerAddress {
    /// Looks the name of the host up, if it is one. Blocks.
    pub(crate) fn resolve(&self, hosts: &KnownHosts) -> io::Result<ServerEndpoint> {
        match self {
            Self::Unix(path) => Ok(ServerEndpoint::Unix(path.clone())),
            Self::Descriptor(_) => Ok(ServerEndpoint::Given),
            Self::Inet { host, port, ipv4, ipv6 } => {
                let is_wanted = |it: &IpAddr| if it.is_ipv4() { *ipv4 } else { *ipv6 };
                let found = hosts.look_up(host)?.into_iter().filter(is_wanted);
                let mut found: Vec<_> = found.map(|it| SocketAddr::new(it, *port)).collect();
                found.dedup();
                if found.is_empty() {
                    let why = "it has no address of a family that may be used";
                    return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
                }
                Ok(ServerEndpoint::Inet(found))
            }
        }
    }

    /// How messages name an export of this server: as an NBD URI.
    pub fn uri(&self, export: &str) -> String {
        match self {
            Self::Inet { .. } => format!("nbd://{self}/{export}"),
            Self::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
            // There is no URI for it.
            Self::Descriptor(_) => format!("'{export}' at {self}"),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Inet { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Descriptor(number) => write!(f, "descriptor {number}"),
        }
    }
}

/// A server of TCP that commands may connect to (`--allow-connect`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectGrant {
    /// A name or a number.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl ConnectGrant {
    /// Reads `HOST:PORT`, where an address of IPv6 stands in brackets; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']')?,
            None if host.contains([':', '/']) => return None,
            None => host,
        };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    /// Whether it allows that server. Names are compared as they are written.
    pub fn allows(&self, address: &ServerAddress) -> bool {
        let ServerAddress::Inet { host, port, .. } = address else { return false };
        let number = |text: &str| text.parse::<IpAddr>().ok();
        let is_same = match (number(host), number(&self.host)) {
            (Some(one), Some(other)) => one == other,
            (_, _) => host.eq_ignore_ascii_case(&self.host),
        };
        is_same && *port == self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(host: &str, ipv4: bool, ipv6: bool) -> ServerAddress {
        ServerAddress::Inet { host: host.to_owned(), port: 10809, ipv4, ipv6 }
    }

    #[test]
    fn numbers_need_no_look_up_and_families_may_be_left_out() {
        let found = inet("127.0.0.1", true, true).resolve(&KnownHosts::default()).unwrap();
        assert_eq!(found, ServerEndpoint::Inet(vec!["127.0.0.1:10809".parse().unwrap()]));
        let refused = inet("127.0.0.1", false, true).resolve(&KnownHosts::default()).unwrap_err();
        assert!(refused.to_string().contains("family"), "{refused}");
    }

    #[test]
    fn messages_name_server_and_export() {
        assert_eq!(inet("::1", true, true).uri("disk"), "nbd://[::1]:10809/disk");
        let unix = ServerAddress::Unix("/run/nbd".into());
        assert_eq!(unix.uri("a"), "nbd+unix:///a?socket=/run/nbd");
        assert_eq!(ServerAddress::Descriptor(3).uri("a"), "'a' at descriptor 3");
    }

    #[track_caller]
    fn check_grant(text: &str, host: &str, allows: bool) {
        let grant = ConnectGrant::parse(text).unwrap();
        assert_eq!(grant.allows(&inet(host, true, true)), allows, "{text}, {host}");
    }

    #[test]
    fn a_grant_is_for_one_host_and_port() {
        check_grant("10.0.0.1:10809", "10.0.0.1", true);
        check_grant("10.0.0.1:10809", "10.0.0.2", false);
        check_grant("10.0.0.1:10810", "10.0.0.1", false);
        check_grant("[::1]:10809", "0:0:0:0:0:0:0:1", true);
        check_grant("Disks.example:10809", "disks.example", true);
        for wrong in ["10809", ":10809", "host", "host:0", "host:65536", "::1:10809", "[::1:1"] {
            assert_eq!(ConnectGrant::parse(wrong), None, "{wrong}");
        }
    }
}
