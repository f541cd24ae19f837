//! `ssh://[USER@]HOST[:PORT]/DEVICE`: where a guest is and which disk of it is meant. Pure.
//!
//! Invariants: no part can be taken for an option of ssh or for a command by a shell.

use std::fmt;
use std::str::FromStr;

/// A guest and a disk in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    user: Option<String>,
    /// A name, a name of the user's configuration, or an address; IPv6 without its brackets.
    host: String,
    port: Option<u16>,
    device: String,
}

/// Why it is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--guest {text}: {what}; valid is ssh://[USER@]HOST[:PORT]/DEVICE, such as ssh://root@vm1/dev/vdb"
)]
pub(crate) struct BadAddress {
    text: String,
    what: String,
}

impl Address {
    /// The disk, by its name in the guest.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// For the command line of ssh: options, the end of options, the host.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(user) = &self.user {
            words.extend(["-l".to_owned(), user.clone()]);
        }
        if let Some(port) = self.port {
            words.extend(["-p".to_owned(), port.to_string()]);
        }
        words.extend(["--".to_owned(), self.host.clone()]);
        words
    }

    /// The command with which a user logs in by hand.
    pub(super) fn by_hand(&self, config: Option<&str>) -> String {
        let mut words = vec!["ssh".to_owned()];
        words.extend(config.map(|config| format!("-F {config}")));
        words.extend(self.port.map(|port| format!("-p {port}")));
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        words.push(format!("{user}{}", self.host));
        words.join(" ")
    }
}

impl fmt::Display for Address {
    /// Without the device: how messages name the guest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "guest ")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match (&self.port, self.host.contains(':')) {
            (None, _) => f.write_str(&self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|what| BadAddress { text: text.to_owned(), what })
    }
}

fn parse(text: &str) -> Result<Address, String> {
    let rest = text.strip_prefix("ssh://").ok_or("it does not begin with ssh://")?;
    let slash = rest.find('/').ok_or("the disk is missing")?;
    let (place, device) = rest.split_at(slash);
    let (user, place) = match place.rsplit_once('@') {
        None => (None, place),
        Some((user, place)) => (Some(checked_user(user)?), place),
    };
    let (host, port) = split_port(place)?;
    Ok(Address { user, host: checked_host(host)?, port, device: checked_device(device)? })
}

fn checked_user(user: &str) -> Result<String, String> {
    if user.contains(':') {
        return Err("passwords are not taken, set a key up".to_owned());
    }
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-+\\@".contains(c);
    if user.is_empty() || user.starts_with('-') || !user.chars().all(is_legal) {
        return Err(format!("'{user}' is no name of a user"));
    }
    Ok(user.to_owned())
}

/// A port stands behind a name, or behind the bracket of an IPv6 address.
fn split_port(place: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("the bracket has no end")?;
            match (port, port.strip_prefix(':')) {
                ("", _) => (host, None),
                (_, Some(port)) => (host, Some(port)),
                (_, None) => return Err(format!("'{port}' stands behind the address")),
            }
        }
        None if place.matches(':').count() > 1 => {
            return Err(format!("an IPv6 address stands in brackets: [{place}]"));
        }
        None => match place.split_once(':') {
            None => (place, None),
            Some((host, port)) => (host, Some(port)),
        },
    };
    let number = |port: &str| port.parse().ok().filter(|&port| port > 0);
    let port = port
        .map(|port| number(port).ok_or_else(|| format!("'{port}' is no port (1 to 65535)")))
        .transpose()?;
    Ok((host, port))
}

fn checked_host(host: &str) -> Result<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    if host.starts_with('-') || !host.chars().all(is_legal) {
        return Err(format!("'{host}' is no name of a host"));
    }
    Ok(host.to_owned())
}

/// The same names that a job file of fio can hold.
fn checked_device(device: &str) -> Result<String, String> {
    if device.trim_end_matches('/').is_empty() {
        return Err("the disk is missing".to_owned());
    }
    let is_illegal = |c: char| c.is_control() || "#;$\"\\'`".contains(c);
    if device.chars().any(is_illegal) || device.ends_with(' ') {
        return Err(format!(
            "{device:?} cannot stand in a fio job: no control characters, no # ; $ \" ' ` \\ and no \
             space at its end"
        ));
    }
    Ok(device.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_the_words_of_ssh() {
        for (text, words, device, name) in [
            ("ssh://vm1/dev/vdb", "-- vm1", "/dev/vdb", "guest vm1"),
            (
                "ssh://root@vm1:2222/dev/vdb",
                "-l root -p 2222 -- vm1",
                "/dev/vdb",
                "guest root@vm1:2222",
            ),
            ("ssh://[fe80::1%eth0]/d", "-- fe80::1%eth0", "/d", "guest fe80::1%eth0"),
            (
                "ssh://a.b@[::1]:22/dev/mapper/x-y",
                "-l a.b -p 22 -- ::1",
                "/dev/mapper/x-y",
                "guest a.b@[::1]:22",
            ),
            (
                "ssh://me@corp.com@vm/disk a",
                "-l me@corp.com -- vm",
                "/disk a",
                "guest me@corp.com@vm",
            ),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.words().join(" ").as_str(), address.device()), (words, device));
            assert_eq!(address.to_string(), name);
        }
    }

    #[test]
    fn a_bad_address_is_refused_with_what_is_wrong() {
        for (text, what) in [
            ("vm1:/dev/vdb", "does not begin with ssh://"),
            ("ssh://vm1", "the disk is missing"),
            ("ssh://vm1/", "the disk is missing"),
            ("ssh:///dev/vdb", "the host is missing"),
            ("ssh://-oProxyCommand=x/dev/vdb", "'-oProxyCommand=x' is no name of a host"),
            ("ssh://a b/dev/vdb", "'a b' is no name of a host"),
            ("ssh://@vm1/dev/vdb", "'' is no name of a user"),
            ("ssh://-l@vm1/dev/vdb", "'-l' is no name of a user"),
            ("ssh://root:secret@vm1/dev/vdb", "passwords are not taken"),
            ("ssh://vm1:0/dev/vdb", "'0' is no port"),
            ("ssh://vm1:65536/dev/vdb", "'65536' is no port"),
            ("ssh://vm1:/dev/vdb", "'' is no port"),
            ("ssh://::1/dev/vdb", "stands in brackets: [::1]"),
            ("ssh://[::1/dev/vdb", "the bracket has no end"),
            ("ssh://[::1]22/dev/vdb", "'22' stands behind"),
            ("ssh://vm1/dev/$(x)", "cannot stand in a fio job"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(what), "{text}: {message}");
            assert!(message.contains("ssh://[USER@]HOST[:PORT]/DEVICE"), "{message}");
        }
    }

    #[test]
    fn the_command_by_hand_can_be_pasted() {
        let address: Address = "ssh://root@vm1:2222/dev/vdb".parse().unwrap();
        assert_eq!(address.by_hand(None), "ssh -p 2222 root@vm1");
        assert_eq!(address.by_hand(Some("c")), "ssh -F c -p 2222 root@vm1");
    }
}
