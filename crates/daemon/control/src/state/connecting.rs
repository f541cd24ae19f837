//! Which servers nodes of commands may connect to, behind the fences.
//!
//! Invariants: what the daemon allows here is no more than what the fences let through, but for the hosts, which landlock does
//! not know. Threads: the first one.

use std::path::PathBuf;

use graph::{Blockdev, ConnectGrant, ServerAddress};

use super::{ControlError, DaemonState};

/// The servers that nodes of commands may connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectRights {
    /// Those of the nodes of the line.
    pub of_line: Vec<ServerAddress>,
    /// Those of `--allow-connect`.
    pub grants: Vec<ConnectGrant>,
    /// Directories below which there are UNIX sockets that may be connected to, without links.
    pub below: Vec<PathBuf>,
}

impl ConnectRights {
    /// Whether that server may be connected to.
    pub fn allow(&self, address: &ServerAddress) -> bool {
        let is_below = || {
            let ServerAddress::Unix(path) = address else { return false };
            // Of a socket that is not there its directory is looked at.
            let real = path.canonicalize().or_else(|_missing| {
                let directory = path.parent().unwrap_or(path).canonicalize()?;
                Ok::<_, std::io::Error>(directory.join(path.file_name().unwrap_or_default()))
            });
            real.is_ok_and(|real| self.below.iter().any(|below| real.starts_with(below)))
        };
        self.of_line.contains(address)
            || self.grants.iter().any(|grant| grant.allows(address))
            || is_below()
    }
}

impl DaemonState {
    /// Where nodes of commands may connect to from now on, behind the fences. Names of hosts are looked up, for the last
    /// time. Blocks as long as that takes.
    pub fn allow_connecting(&mut self, rights: ConnectRights) {
        if self.sandbox.is_none() {
            return;
        }
        for ConnectGrant { host, .. } in &rights.grants {
            if let Err(error) = self.graph.hosts().look_up(host) {
                tracing::warn!("--allow-connect: cannot look up {host}: {error}");
            }
        }
        self.graph.hosts().close();
        self.connect_rights = Some(rights);
    }

    /// Whether a command may use all servers, and the fences let all servers through that a node and those inside it connect to.
    pub(super) fn check_may_connect(&self, blockdev: &Blockdev) -> Result<(), ControlError> {
        let nodes = blockdev.nodes();
        let is_given = |server: &&ServerAddress| matches!(server, ServerAddress::Descriptor(_));
        if nodes.iter().filter_map(|node| node.server()).any(|server| is_given(&server)) {
            return Err(ControlError::DescriptorAtRunTime);
        }
        let Some(rights) = &self.connect_rights else { return Ok(()) };
        if nodes.iter().any(|node| node.joins_cluster()) {
            return Err(ControlError::ClusterAtRunTime);
        }
        let mut servers = nodes.iter().filter_map(|node| node.server());
        match servers.find(|server| !rights.allow(server)) {
            Some(server) => Err(ControlError::MayNotConnect { address: server.clone() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_allowed_by_the_line_or_by_their_directory() {
        let place = tempfile::tempdir().unwrap();
        let below = place.path().canonicalize().unwrap();
        let of_line = vec![ServerAddress::Unix("/run/elsewhere/nbd".into())];
        let rights = ConnectRights { of_line, grants: Vec::new(), below: vec![below.clone()] };
        let allows = |path: PathBuf| rights.allow(&ServerAddress::Unix(path));
        assert!(allows("/run/elsewhere/nbd".into()));
        assert!(allows(below.join("a")));
        assert!(!allows("/run/elsewhere/other".into()));
        std::os::unix::fs::symlink("/run/other", below.join("link")).unwrap();
        assert!(!allows(below.join("../other")));
    }
}
