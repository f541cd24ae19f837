//! `--nbd-server` and `nbd-server-start`: where the NBD server listens, and whom it serves.
//!
//! Limits: 100 connections unless another number is said, as in QEMU.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use exports::{SocketOptions, check_socket_path, descriptor_number};
use serde_json::{Map, Value, json};
use syntax::{
    ArgumentError, INET_KEYS, INET_LATER, Key, Keys, OptionFields, UNIX_KEYS, UNIX_LATER, Union,
    ValueType, optional, parse_number, read_address_families, required,
};

/// How many connections there may be at the same time if nothing is said.
const CONNECTIONS_MAX: u32 = 100;

/// How long a client may take until it has chosen an export if nothing is said.
const HANDSHAKE_SECONDS_MAX: u32 = 10;

/// The keys besides the address.
const COMMON: &[Key] = &[
    optional("handshake-max-seconds", ValueType::Number),
    optional("max-connections", ValueType::Number),
    optional("tls-authz", ValueType::Text),
    optional("tls-creds", ValueType::Text),
];

/// The keys of `--nbd-server`.
pub static NBD_SERVER: Keys = Keys {
    of: "--nbd-server",
    supported: &[&[required("addr", ValueType::Union(&ADDR))], COMMON],
    later: &[],
};

/// The keys of `nbd-server-start`, whose address has its values one level deeper.
pub static NBD_SERVER_START: Keys = Keys {
    of: "nbd-server-start",
    supported: &[&[required("addr", ValueType::Union(&LEGACY_ADDR))], COMMON],
    later: &[],
};

static ADDR: Union = Union {
    tag: "type",
    default: None,
    branches: &[("fd", FD), ("inet", INET), ("unix", UNIX)],
    later: &["vsock"],
};

const FD: Keys = Keys {
    of: "addr.type=fd",
    supported: &[&[required("type", ValueType::Text)], FD_KEYS],
    later: &[],
};

const INET: Keys = Keys {
    of: "addr.type=inet",
    supported: &[&[required("type", ValueType::Text)], INET_KEYS],
    later: &[INET_LATER],
};

const UNIX: Keys = Keys {
    of: "addr.type=unix",
    supported: &[&[required("type", ValueType::Text)], UNIX_KEYS],
    later: &[UNIX_LATER],
};

static LEGACY_ADDR: Union = Union {
    tag: "type",
    default: None,
    branches: &[("inet", LEGACY_INET), ("unix", LEGACY_UNIX)],
    later: &["fd", "vsock"],
};

const LEGACY_INET: Keys = Keys {
    of: "nbd-server-start of type inet",
    supported: &[&[
        required("type", ValueType::Text),
        required("data", ValueType::Object(&INET_DATA)),
    ]],
    later: &[],
};

const LEGACY_UNIX: Keys = Keys {
    of: "nbd-server-start of type unix",
    supported: &[&[
        required("type", ValueType::Text),
        required("data", ValueType::Object(&UNIX_DATA)),
    ]],
    later: &[],
};

static INET_DATA: Keys =
    Keys { of: "an address of type inet", supported: &[INET_KEYS], later: &[INET_LATER] };

static UNIX_DATA: Keys =
    Keys { of: "an address of type unix", supported: &[UNIX_KEYS], later: &[UNIX_LATER] };

const FD_KEYS: &[Key] = &[required("str", ValueType::Text)];

/// What the NBD server is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdServerOptions {
    /// Where it listens.
    pub address: ListenAddress,
    /// How many connections there may be at the same time; `None` is as many as descriptors allow.
    pub connections_max: Option<u32>,
    /// How many seconds a client may take until it has chosen an export; `None` is as long as it likes, while nobody else
    /// needs the place.
    pub handshake_seconds_max: Option<u32>,
    /// The credentials with which it does TLS; without them it does not.
    pub tls_creds: Option<String>,
    /// The rules that say which certificates of clients may come.
    pub tls_authz: Option<String>,
}

/// Where the NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Inet(InetAddress),
    /// A UNIX socket.
    Unix(SocketOptions),
    /// A descriptor of this process at which a stream socket listens already.
    Descriptor(RawFd),
}

/// An address of TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InetAddress {
    /// A name or number; empty is all addresses of the host.
    pub host: String,
    /// The port; 0 is any.
    pub port: u16,
    /// Whether addresses of IPv4 are used.
    pub ipv4: bool,
    /// Whether addresses of IPv6 are used.
    pub ipv6: bool,
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(InetAddress { host, port, .. }) if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Self::Inet(InetAddress { host, port, .. }) => write!(f, "{host}:{port}"),
            Self::Unix(socket) => write!(f, "{}", socket.path.display()),
            Self::Descriptor(number) => write!(f, "descriptor {number}"),
        }
    }
}

impl NbdServerOptions {
    /// A server at that address, with what there is if nothing else is said.
    pub fn at(address: ListenAddress) -> Self {
        Self {
            address,
            connections_max: Some(CONNECTIONS_MAX),
            handshake_seconds_max: Some(HANDSHAKE_SECONDS_MAX),
            tls_creds: None,
            tls_authz: None,
        }
    }

    /// The path of its UNIX socket, if that is what it listens on.
    pub fn path(&self) -> Option<&Path> {
        match &self.address {
            ListenAddress::Unix(socket) => Some(&socket.path),
            ListenAddress::Inet(_) | ListenAddress::Descriptor(_) => None,
        }
    }

    /// Gives its UNIX socket permission bits and a group, if it has one.
    pub fn set_rights(&mut self, (mode, group): &(Option<u32>, Option<String>)) {
        if let ListenAddress::Unix(socket) = &mut self.address {
            (socket.mode, socket.group) = (*mode, group.clone());
        }
    }

    /// Reads the argument of `--nbd-server`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        let mut fields = OptionFields::parse(text, "")?;
        fields.check_keys(&NBD_SERVER)?;
        let missing = ArgumentError::Missing(fields.path("addr"));
        let (kind, mut addr) = fields.union("addr")?.ok_or(missing)?;
        let address = ListenAddress::read(kind, &mut addr)?;
        Self::read(address, &mut fields)
    }

    /// Takes the arguments of `nbd-server-start` out of these fields.
    pub fn read_legacy(mut fields: OptionFields) -> Result<Self, ArgumentError> {
        fields.check_keys(&NBD_SERVER_START)?;
        let missing = ArgumentError::Missing(fields.path("addr"));
        let (kind, mut addr) = fields.union("addr")?.ok_or(missing)?;
        let missing = ArgumentError::Missing(addr.path("data"));
        let mut data = addr.object("data")?.ok_or(missing)?;
        let address = ListenAddress::read(kind, &mut data)?;
        Self::read(address, &mut fields)
    }

    fn read(address: ListenAddress, fields: &mut OptionFields) -> Result<Self, ArgumentError> {
        let mut number = |key: &'static str, default: u32| -> Result<_, ArgumentError> {
            Ok(Some(fields.number_u32(key)?.unwrap_or(default)).filter(|it| *it > 0))
        };
        Ok(Self {
            address,
            connections_max: number("max-connections", CONNECTIONS_MAX)?,
            handshake_seconds_max: number("handshake-max-seconds", HANDSHAKE_SECONDS_MAX)?,
            tls_creds: fields.text("tls-creds")?,
            tls_authz: fields.text("tls-authz")?,
        })
    }

    /// The same as JSON, from which it is read again. Rights of the socket are not in it.
    pub fn written(&self) -> Map<String, Value> {
        let addr = match &self.address {
            ListenAddress::Inet(InetAddress { host, port, ipv4, ipv6 }) => json!({
                "type": "inet", "host": host, "port": port.to_string(), "ipv4": ipv4, "ipv6": ipv6,
            }),
            ListenAddress::Unix(socket) => {
                json!({"type": "unix", "path": socket.path.to_string_lossy()})
            }
            ListenAddress::Descriptor(number) => json!({"type": "fd", "str": number.to_string()}),
        };
        let mut written = Map::new();
        written.insert("addr".to_owned(), addr);
        written.insert("max-connections".to_owned(), self.connections_max.unwrap_or(0).into());
        let seconds = self.handshake_seconds_max.unwrap_or(0);
        written.insert("handshake-max-seconds".to_owned(), seconds.into());
        for (key, id) in [("tls-creds", &self.tls_creds), ("tls-authz", &self.tls_authz)] {
            if let Some(id) = id {
                written.insert(key.to_owned(), id.as_str().into());
            }
        }
        written
    }
}

impl ListenAddress {
    fn read(kind: &str, fields: &mut OptionFields) -> Result<Self, ArgumentError> {
        if kind == "unix" {
            let path = check_socket_path(fields.required_text("path")?.into())?;
            return Ok(Self::unix(path));
        }
        if kind == "fd" {
            return Ok(Self::Descriptor(descriptor_number(&fields.required_text("str")?)?));
        }
        let port = fields.required_text("port")?;
        let (ipv4, ipv6) = read_address_families(fields)?;
        Ok(Self::Inet(InetAddress {
            host: fields.required_text("host")?,
            port: read_port(&port).ok_or(ArgumentError::Expects {
                key: fields.path("port"),
                expected: "the number of a port",
            })?,
            ipv4,
            ipv6,
        }))
    }

    /// A UNIX socket at that path.
    pub fn unix(path: PathBuf) -> Self {
        Self::Unix(SocketOptions::at(path))
    }

    /// Reads `HOST:PORT`, where an address of IPv6 stands in brackets; `None` if it is none.
    pub fn parse_inet(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']')?,
            None if host.contains([':', '/']) => return None,
            None => host,
        };
        let port = read_port(port)?;
        Some(Self::Inet(InetAddress { host: host.to_owned(), port, ipv4: true, ipv6: true }))
    }
}

/// Where a command may have the NBD server listen (`--allow-listen`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenGrant {
    /// An address of this host; `None` is any.
    pub host: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

impl ListenGrant {
    /// Reads `[HOST:]PORT`, where the host is a number, of IPv6 in brackets; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => {
                let host =
                    host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
                (Some(host.parse().ok()?), port)
            }
            None => (None, text),
        };
        Some(Self { host, port: read_port(port).filter(|port| *port > 0)? })
    }

    /// Whether it allows that address. Names of hosts cannot be looked up behind the fences, so only numbers are.
    pub fn allows(&self, InetAddress { host, port, .. }: &InetAddress) -> bool {
        let host = host.parse::<IpAddr>().ok();
        *port == self.port && host.is_some() && (self.host.is_none() || self.host == host)
    }
}

fn read_port(text: &str) -> Option<u16> {
    parse_number(text).and_then(|port| u16::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (NbdServerOptions::parse(text), expected) {
            (Ok(options), Ok(expected)) => {
                assert_eq!(Value::Object(options.written()).to_string(), expected);
                let again = NbdServerOptions::parse(expected).unwrap();
                assert_eq!(again, options);
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (found, expected) => panic!("{text}: {found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn addresses_and_limits_are_read_and_written() {
        check(
            "addr.type=unix,addr.path=/run/nbd,max-connections=0",
            Ok(
                r#"{"addr":{"path":"/run/nbd","type":"unix"},"handshake-max-seconds":10,"max-connections":0}"#,
            ),
        );
        check(
            "addr.type=inet,addr.host=::1,addr.port=10809,addr.ipv6=on",
            Ok(
                r#"{"addr":{"host":"::1","ipv4":false,"ipv6":true,"port":"10809","type":"inet"},"handshake-max-seconds":10,"max-connections":100}"#,
            ),
        );
        check(
            "addr.type=inet,addr.host=h,addr.port=nbd",
            Err("parameter 'addr.port' expects the number of a port"),
        );
        check("max-connections=1", Err("parameter 'addr' is missing"));
    }

    #[track_caller]
    fn check_short(text: &str, expected: Option<&str>) {
        let shown = ListenAddress::parse_inet(text).map(|it| it.to_string());
        assert_eq!(shown.as_deref(), expected, "{text}");
    }

    #[test]
    fn a_host_with_a_port_is_no_path() {
        check_short("localhost:10809", Some("localhost:10809"));
        check_short("[::1]:1", Some("[::1]:1"));
        check_short(":0", Some(":0"));
        check_short("/run/a:1", None);
        check_short("a:b", None);
        check_short("::1:1", None);
    }
}
