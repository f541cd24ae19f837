//! `--object`: iothreads.
//!
//! Not here: the other objects of qemu-storage-daemon; they are refused by name.

use super::fault::Fault;
use super::fields::{Fields, Keys};
use super::names::is_identifier;
use super::plan::{IothreadObject, PollOptions};

/// The object types that work.
const SUPPORTED: &[&str] = &["iothread"];

/// The object types that qemu-storage-daemon has and ringloom does not have yet.
const LATER: &[&str] = &[
    "authz-list",
    "authz-listfile",
    "authz-pam",
    "authz-simple",
    "main-loop",
    "pr-manager-helper",
    "secret",
    "secret_keyring",
    "thread-context",
    "throttle-group",
    "tls-cipher-suites",
    "tls-creds-anon",
    "tls-creds-psk",
    "tls-creds-x509",
];

/// The keys of an iothread.
pub(super) const IOTHREAD: Keys = Keys {
    of: "--object iothread",
    supported: &[&["qom-type", "id", "poll-max-ns", "poll-grow", "poll-shrink"]],
    later: &[&["aio-max-batch", "thread-pool-max", "thread-pool-min"]],
};

/// Reads the argument of `--object`.
pub(super) fn parse(text: &str) -> Result<IothreadObject, Fault> {
    let mut fields = Fields::parse(text, "qom-type")?;
    let kind = fields.required_text("qom-type")?;
    if LATER.contains(&kind.as_str()) {
        let accepted = SUPPORTED.to_vec();
        return Err(Fault::ValueNotYet { key: "object type".to_owned(), value: kind, accepted });
    }
    if !SUPPORTED.contains(&kind.as_str()) {
        return Err(fields.unknown_value("qom-type", kind, SUPPORTED));
    }
    fields.check_keys(&IOTHREAD)?;
    let id = fields.required_text("id")?;
    if !is_identifier(&id) {
        return Err(Fault::NotAnIdentifier { key: "id", value: id });
    }
    let polling = PollOptions {
        max_ns: fields.number("poll-max-ns")?,
        grow: factor("poll-grow", fields.number("poll-grow")?.unwrap_or(0))?,
        shrink: factor("poll-shrink", fields.number("poll-shrink")?.unwrap_or(0))?,
    };
    Ok(IothreadObject { id, polling })
}

/// A factor of polling; what is more than a million is no factor that anybody wants.
fn factor(key: &'static str, value: u64) -> Result<u32, Fault> {
    const MAX: u32 = 1_000_000;
    let fits = u32::try_from(value).ok().filter(|factor| *factor <= MAX);
    fits.ok_or(Fault::Expects { key: key.to_owned(), expected: "a number up to 1000000" })
}
