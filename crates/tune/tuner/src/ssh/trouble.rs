//! What to tell the user when ssh fails. Pure.

use std::path::Path;

use anyhow::{Error, anyhow};

use super::Address;

/// A connection that did not come about; `said` is what ssh said.
pub(super) fn refused(address: &Address, config: Option<&Path>, said: &str) -> Error {
    let config = config.map(|path| path.display().to_string());
    let by_hand = address.by_hand(config.as_deref());
    if said.contains("HOST IDENTIFICATION HAS CHANGED") {
        return anyhow!(
            "{address} has another host key than before: if that is right, remove the old one (ssh-keygen -R {})",
            address.host()
        );
    }
    if said.contains("Host key verification failed") {
        return anyhow!(
            "the host key of {address} is not known: log in once by hand to accept it ({by_hand})"
        );
    }
    if said.contains("Permission denied") || said.contains("Too many authentication failures") {
        return anyhow!(
            "{address} refuses the login: a key that asks for nothing is needed, passwords are not \
             typed here; this must work by itself: {by_hand} true"
        );
    }
    let said = last_line(said);
    anyhow!("{address} cannot be reached: {said}; try it by hand: {by_hand}")
}

/// A connection that was there.
pub(super) fn lost(address: &Address, said: &str) -> Error {
    let said = last_line(said);
    anyhow!("the connection to {address} is lost: {said}")
}

/// The last word of ssh, which is why it ended.
fn last_line(said: &str) -> &str {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .next_back()
        .map_or("ssh does not say why", |line| line.strip_prefix("ssh: ").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        let address: Address = "ssh://root@vm1/dev/vdb".parse().unwrap();
        for (said, expected) in [
            (
                "No ED25519 host key is known for vm1 and you have requested strict checking.\r\n\
                 Host key verification failed.\r\n",
                "the host key of guest root@vm1 is not known: log in once by hand to accept it (ssh root@vm1)",
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nHost key verification failed.\r\n",
                "ssh-keygen -R vm1",
            ),
            ("root@vm1: Permission denied (publickey,password).\r\n", "refuses the login"),
            (
                "ssh: connect to host vm1 port 22: Connection refused\r\n",
                "guest root@vm1 cannot be reached: connect to host vm1 port 22: Connection refused; try",
            ),
            ("", "cannot be reached: ssh does not say why"),
        ] {
            let message = refused(&address, None, said).to_string();
            assert!(message.contains(expected), "{message}");
        }
        let message = refused(&address, Some(Path::new("/c")), "Permission denied").to_string();
        assert!(message.contains("ssh -F /c root@vm1 true"), "{message}");
    }

    #[test]
    fn a_lost_connection_quotes_ssh() {
        let address: Address = "ssh://vm1/dev/vdb".parse().unwrap();
        let message = lost(&address, "Connection to vm1 closed by remote host.\r\n").to_string();
        let expected =
            "the connection to guest vm1 is lost: Connection to vm1 closed by remote host.";
        assert_eq!(message, expected);
    }
}
