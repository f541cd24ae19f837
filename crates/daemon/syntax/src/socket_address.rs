//! The keys of addresses of sockets, as QEMU's `SocketAddress` has them; options differ in what stands around them.

use crate::{ArgumentError, Key, OptionFields, ValueType, optional, required};

/// The keys of an address of TCP.
pub const INET_KEYS: &[Key] = &[
    required("host", ValueType::Text),
    required("port", ValueType::Text),
    optional("ipv4", ValueType::Flag),
    optional("ipv6", ValueType::Flag),
];

/// The keys of an address of TCP that ringloom does not have.
pub const INET_LATER: &[&str] = &[
    "keep-alive",
    "keep-alive-count",
    "keep-alive-idle",
    "keep-alive-interval",
    "mptcp",
    "numeric",
    "to",
];

/// The keys of a UNIX socket's address.
pub const UNIX_KEYS: &[Key] = &[required("path", ValueType::Text)];

/// The keys of a UNIX socket's address that ringloom does not have.
pub const UNIX_LATER: &[&str] = &["abstract", "tight"];

/// Whether addresses of IPv4, and of IPv6, are used. As in QEMU: what is said of one counts for the other.
pub fn read_address_families(fields: &mut OptionFields) -> Result<(bool, bool), ArgumentError> {
    let (ipv4, ipv6) = (fields.flag("ipv4")?, fields.flag("ipv6")?);
    Ok((ipv4.unwrap_or(ipv6 != Some(true)), ipv6.unwrap_or(ipv4 != Some(true))))
}

/// The mode of a socket: permission bits in octal, with or without a leading zero.
pub fn socket_mode(text: &str) -> Option<u32> {
    // `from_str_radix` would take a sign.
    let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|mode| all_digits && *mode <= 0o777)
}
