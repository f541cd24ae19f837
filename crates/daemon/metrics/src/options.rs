//! `--metrics`: where metrics are served.
//!
//! Invariants: an address that other hosts can reach is taken only if that was asked for: who reads metrics is not asked who
//! it is, and what it reads is not encrypted.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use exports::{SocketOptions, check_socket_path};
use syntax::{ArgumentError, Hint, nearest, socket_mode};

/// The rights of a UNIX socket for metrics if they are not said: as of a monitor's.
pub const METRICS_MODE: u32 = 0o600;

/// What starts a UNIX socket's address.
const UNIX: &str = "unix:";

const FORM: &str = "unix:PATH[,mode=MODE][,group=GROUP] or the number of an address with a port, as 127.0.0.1:9476 or \
                    [::1]:9476";

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A UNIX socket.
    Unix(SocketOptions),
    /// TCP.
    Inet(SocketAddr),
}

/// What `--metrics` and `--metrics-insecure` ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsOptions {
    /// Where they are served.
    pub address: MetricsAddress,
}

/// An address that metrics are not served at.
#[derive(Debug, thiserror::Error)]
enum MetricsOptionsError {
    /// Others can reach it.
    #[error(
        "{0} can be reached from other hosts, and metrics are neither encrypted nor guarded by a password: give an \
         address of this host alone (127.0.0.1, [::1], unix:PATH), or add --metrics-insecure"
    )]
    Exposed(SocketAddr),
    /// A right that is none.
    #[error("mode expects permission bits in octal, 0 to 0777, not '{0}'")]
    Mode(String),
    /// No group.
    #[error("group expects a group")]
    Group,
    /// Probably a right that is misspelt.
    #[error("a socket has no '{key}'{}: after its path come mode=MODE and group=GROUP", Hint(*nearest))]
    Key {
        /// As written.
        key: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
}

impl MetricsOptions {
    /// Reads the argument of `--metrics`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        let address = match text.strip_prefix(UNIX) {
            Some(rest) => MetricsAddress::Unix(unix(rest)?),
            None => {
                MetricsAddress::Inet(text.parse().ok().ok_or(ArgumentError::ExpectsAlone(FORM))?)
            }
        };
        Ok(Self { address })
    }

    /// Refuses an address that other hosts can reach.
    pub fn check_is_local(&self) -> Result<(), ArgumentError> {
        match &self.address {
            MetricsAddress::Inet(address) if !address.ip().to_canonical().is_loopback() => {
                Err(ArgumentError::own(MetricsOptionsError::Exposed(*address)))
            }
            MetricsAddress::Inet(_) | MetricsAddress::Unix(_) => Ok(()),
        }
    }

    /// The path of its UNIX socket, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match &self.address {
            MetricsAddress::Unix(socket) => Some(&socket.path),
            MetricsAddress::Inet(_) => None,
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => write!(f, "{UNIX}{}", socket.path.display()),
            Self::Inet(address) => write!(f, "{address}"),
        }
    }
}

/// Reads `PATH[,mode=MODE][,group=GROUP]`, the rights in any order.
fn unix(text: &str) -> Result<SocketOptions, ArgumentError> {
    let (mut path, mut mode, mut group) = (text, None, None);
    while let Some((rest, last)) = path.rsplit_once(',') {
        if let Some(text) = last.strip_prefix("mode=") {
            mode = Some(octal(text)?);
        } else if let Some(text) = last.strip_prefix("group=") {
            if text.is_empty() {
                return Err(ArgumentError::own(MetricsOptionsError::Group));
            }
            group = Some(text.to_owned());
        } else if let Some((key, _)) = last.split_once('=') {
            let nearest = nearest(key, ["mode", "group"]);
            return Err(ArgumentError::own(MetricsOptionsError::Key {
                key: key.to_owned(),
                nearest,
            }));
        } else {
            break;
        }
        path = rest;
    }
    let path = check_socket_path(path.into())?;
    Ok(SocketOptions { mode: Some(mode.unwrap_or(METRICS_MODE)), group, ..SocketOptions::at(path) })
}

fn octal(text: &str) -> Result<u32, ArgumentError> {
    socket_mode(text).ok_or_else(|| ArgumentError::own(MetricsOptionsError::Mode(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let found = MetricsOptions::parse(text).and_then(|options| {
            options.check_is_local()?;
            Ok(options)
        });
        match (found, expected) {
            (Ok(options), Ok(expected)) => assert_eq!(options.address.to_string(), expected),
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{text}: {error}");
            }
            (found, expected) => panic!("{text}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn addresses_of_this_host_are_taken_and_others_refused_with_a_reason() {
        check("127.0.0.1:9476", Ok("127.0.0.1:9476"));
        check("127.8.0.1:0", Ok("127.8.0.1:0"));
        check("[::1]:9476", Ok("[::1]:9476"));
        check("[::ffff:127.0.0.1]:9476", Ok("[::ffff:127.0.0.1]:9476"));
        check("unix:/run/m.sock", Ok("unix:/run/m.sock"));
        for exposed in ["0.0.0.0:9476", "[::]:9476", "192.0.2.1:9476", "[::ffff:10.0.0.1]:1"] {
            check(exposed, Err("can be reached from other hosts, and metrics are neither"));
        }
        for wrong in ["", "9100", "localhost:9476", "127.0.0.1", "[::1]", "/run/m", "::1:9476"] {
            check(wrong, Err("expects unix:PATH"));
        }
        check("unix:", Err(""));
    }

    #[test]
    fn a_socket_has_rights_of_its_own() {
        let rights = |text| match MetricsOptions::parse(text).unwrap().address {
            MetricsAddress::Unix(socket) => (socket.path, socket.mode, socket.group),
            MetricsAddress::Inet(address) => panic!("{address} is no socket"),
        };
        assert_eq!(rights("unix:a"), ("a".into(), Some(0o600), None));
        let group = Some("prometheus".to_owned());
        assert_eq!(
            rights("unix:a,b,mode=0660,group=prometheus"),
            ("a,b".into(), Some(0o660), group.clone())
        );
        assert_eq!(rights("unix:a,group=prometheus,mode=666"), ("a".into(), Some(0o666), group));
        check("unix:a,mode=8", Err("mode expects permission bits in octal, 0 to 0777, not '8'"));
        check("unix:a,mode=+7", Err("not '+7'"));
        check("unix:a,group=", Err("group expects a group"));
        check("unix:a,gruop=p", Err("a socket has no 'gruop'; did you mean 'group'?: after its"));
        check("unix:a,mode=0660,owner=p,group=g", Err("a socket has no 'owner': after its path"));
    }
}
