//! Which image a node is, and how its client of the cluster is configured.
//!
//! Where it stands: on the thread that opens a node, before the client connects. Files are read here and names of hosts
//! looked up, because the threads that connect can do neither behind the fences.
//!
//! Invariants: what the daemon relies on is set last, whatever the configuration file says: no cache in this process, no
//! call that waits on an iothread, and a lock that is broken blocklists its owner ([`check_image_options`] looks whether the
//! image or its pool says otherwise).

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::cluster::{CallError, Cluster};
use crate::keyring;
use crate::library::Functions;
use crate::node::RbdOpenError;

/// How long the client tries to reach a monitor, in seconds, unless its configuration says otherwise than Ceph's default.
const CONNECT_SECONDS: &str = "30";
const CEPHS_CONNECT_SECONDS: &str = "300";

/// The port of monitors that is asked for where a name has none.
const MONITOR_PORT: u16 = 6789;

/// What has to hold for an image, option by option: in Ceph 16 and later.
const REQUIRED: &[(&str, &str)] = &[
    ("rbd_cache", "false"),
    ("rbd_persistent_cache_mode", "disabled"),
    ("rbd_non_blocking_aio", "true"),
    ("rbd_blocklist_on_break_lock", "true"),
];

/// An image, and how the client that opens it is configured.
#[derive(Debug, Clone)]
pub struct RbdOptions {
    /// The pool.
    pub pool: String,
    /// The name space in the pool; empty for the pool's own.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot of the image, if it is one.
    pub snapshot: Option<String>,
    /// The configuration file; without it those of the usual places are read that are there.
    pub conf: Option<PathBuf>,
    /// The client's name, without `client.`.
    pub user: Option<String>,
    /// How the client shows who it is: any of these.
    pub authentication: Vec<String>,
    /// The client's key.
    pub key: Option<ClientKey>,
    /// The monitors: hosts, and ports.
    pub monitors: Vec<(String, u16)>,
}

/// A key in base64, which nothing shows.
#[derive(Clone)]
pub struct ClientKey(pub String);

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(…)")
    }
}

impl RbdOptions {
    /// What messages call the image.
    pub fn name(&self) -> String {
        let Self { pool, namespace, image, snapshot, .. } = self;
        let namespace = if namespace.is_empty() { "" } else { &format!("{namespace}/") };
        let snapshot = snapshot.as_ref().map_or(String::new(), |it| format!("@{it}"));
        format!("rbd:{pool}/{namespace}{image}{snapshot}")
    }

    /// A client that is configured and not connected. Blocks.
    pub(crate) fn client(&self) -> Result<Cluster, RbdOpenError> {
        let functions = Functions::load()?;
        let user = self.user.as_deref().unwrap_or("admin");
        let cluster = Cluster::new(functions, user).map_err(RbdOpenError::Client)?;
        let set = |option: &'static str, value: &str| {
            let failed = |source| RbdOpenError::Option { option, value: value.to_owned(), source };
            cluster.set(option, value).map_err(failed)
        };
        self.read_configuration(&cluster)?;
        // What is set counts for more than what a file says.
        if cluster.get("client_mount_timeout").is_ok_and(|text| text == CEPHS_CONNECT_SECONDS) {
            set("client_mount_timeout", CONNECT_SECONDS)?;
        }
        if !self.authentication.is_empty() {
            set("auth_client_required", &self.authentication.join(";"))?;
        }
        if let Some(ClientKey(key)) = self.key.clone().or_else(|| keyring::find_key(&cluster, user))
        {
            // A key that is wrong is not shown.
            cluster.set("key", &key).map_err(RbdOpenError::Key)?;
        }
        let monitors = if self.monitors.is_empty() {
            looked_up(&cluster.get("mon_host").map_err(RbdOpenError::Client)?)?
        } else {
            let addresses = self.monitors.iter().map(|(host, port)| look_up(host, *port));
            Some(addresses.collect::<Result<Vec<_>, _>>()?.join(","))
        };
        if let Some(monitors) = monitors {
            set("mon_host", &monitors)?;
        }
        for (option, value) in REQUIRED {
            match cluster.set(option, value) {
                // Ceph 15 and older call some of them otherwise, or do not have them.
                Ok(()) | Err(CallError { errno: Errno::NOENT, .. }) => {}
                Err(source) => {
                    let value = (*value).to_owned();
                    return Err(RbdOpenError::Option { option, value, source });
                }
            }
        }
        Ok(cluster)
    }

    fn read_configuration(&self, cluster: &Cluster) -> Result<(), RbdOpenError> {
        let path = self.conf.as_ref().map(|path| path.to_string_lossy().into_owned());
        match cluster.read_file(path.as_deref()) {
            // Without one that is named, none has to be there.
            Err(CallError { errno: Errno::NOENT, .. }) if path.is_none() => Ok(()),
            result => result.map_err(|source| {
                let path = path.unwrap_or_else(|| "of the usual places".to_owned());
                RbdOpenError::Configuration { path, source }
            }),
        }
    }
}

/// Whether all holds for an image that this daemon relies on.
pub(crate) fn check_image_options(options: &[(String, String)]) -> Result<(), RbdOpenError> {
    for (name, required) in REQUIRED {
        let found = options.iter().find(|(known, _)| known == name);
        if let Some((_, value)) = found.filter(|(_, value)| value != required) {
            return Err(RbdOpenError::ImageOption { option: name, value: value.clone(), required });
        }
    }
    Ok(())
}

/// The value of `mon_host` with addresses instead of names, if there are any names. Blocks.
fn looked_up(hosts: &str) -> Result<Option<String>, RbdOpenError> {
    let parts: Vec<&str> = split(hosts);
    if !parts.iter().any(|part| is_name(part)) {
        return Ok(None);
    }
    let address = |part: &&str| match part {
        part if !is_name(part) => Ok((*part).to_owned()),
        part => match part.rsplit_once(':') {
            Some((host, port)) => look_up(host, port.parse().unwrap_or(MONITOR_PORT)),
            None => look_up(part, MONITOR_PORT),
        },
    };
    Ok(Some(parts.iter().map(address).collect::<Result<Vec<_>, _>>()?.join(",")))
}

/// The monitors of `mon_host`; one with several addresses is in brackets.
fn split(hosts: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let parts = hosts.split(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && [',', ';', ' '].contains(&letter)
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Whether it is no address, alone or with its port or protocol.
fn is_name(part: &str) -> bool {
    let has_protocol = ["v1:", "v2:", "any:"].iter().any(|protocol| part.starts_with(protocol));
    let is_address = part.parse::<std::net::IpAddr>().is_ok() || part.parse::<SocketAddr>().is_ok();
    !part.starts_with('[') && !has_protocol && !is_address
}

/// The address of a monitor. Blocks.
fn look_up(host: &str, port: u16) -> Result<String, RbdOpenError> {
    let failed = |source| RbdOpenError::Monitor { host: host.to_owned(), source };
    let mut found = (host, port).to_socket_addrs().map_err(failed)?;
    let none = || failed(std::io::ErrorKind::AddrNotAvailable.into());
    found.next().map(|address| address.to_string()).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_monitors_are_looked_up() {
        for addresses in [
            "",
            "10.0.0.1",
            "10.0.0.1:6789,[::1]:6789",
            "[v2:10.0.0.1:3300,v1:10.0.0.1:6789] v1:10.0.0.2:6789",
        ] {
            assert_eq!(looked_up(addresses).unwrap(), None, "{addresses}");
        }
        assert_eq!(split("[v2:a,v1:b],c d"), ["[v2:a,v1:b]", "c", "d"]);
        let found = looked_up("localhost:1234,10.0.0.1").unwrap().unwrap();
        assert!(["127.0.0.1:1234,10.0.0.1", "[::1]:1234,10.0.0.1"].contains(&&*found), "{found}");
        let error = looked_up("no-such-host.invalid").unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn an_image_that_is_cached_is_refused() {
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let others = option("rbd_qos_iops_limit", "0");
        assert!(check_image_options(&[others.clone(), option("rbd_cache", "false")]).is_ok());
        let error = check_image_options(&[others, option("rbd_cache", "true")]).unwrap_err();
        assert!(error.to_string().contains("rbd_cache"), "{error}");
    }
}
