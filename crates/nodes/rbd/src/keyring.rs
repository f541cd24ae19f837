//! The key of a client, from the keyring that its configuration names.
//!
//! Where it stands: read before the client connects, because the threads that connect may open no file behind the fences.
//!
//! Limits: [`KEYRING_BYTES_MAX`]; a file that is larger, or cannot be read, has no key, as for Ceph.

use std::fs::File;
use std::io::Read;

use crate::cluster::Cluster;
use crate::options::ClientKey;

/// The most bytes of a keyring that are read.
const KEYRING_BYTES_MAX: u64 = 1 << 20;

/// The key of a client, in base64, unless its configuration has it. Blocks.
pub(crate) fn find_key(cluster: &Cluster, user: &str) -> Option<ClientKey> {
    if cluster.get("key").is_ok_and(|key| !key.is_empty()) {
        return None;
    }
    let files = cluster.get("keyring").ok()?;
    // The first file that is there counts.
    let read = |path: &str| {
        let mut text = String::new();
        let file = File::open(path.trim()).ok()?;
        file.take(KEYRING_BYTES_MAX).read_to_string(&mut text).ok().map(|_| text)
    };
    let text = files.split([',', ';']).find_map(read)?;
    key_of(&text, &format!("client.{user}")).map(|key| ClientKey(key.to_owned()))
}

/// The key of that name in the text of a keyring.
fn key_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut is_section = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            is_section = section.trim() == name;
        } else if let Some((key, value)) = line.split_once('=')
            && is_section
            && key.trim() == "key"
        {
            return Some(value.trim().trim_matches('"'));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_named_client_is_found() {
        let text = "[mon.]\n\tkey = AAA=\n\tcaps mon = \"allow *\"\n[client.admin]\n\tkey = AQB2==\n\
                    # [client.other]\n[ client.vm ]\nkey=\"BBB=\"\n";
        assert_eq!(key_of(text, "client.admin"), Some("AQB2=="));
        assert_eq!(key_of(text, "client.vm"), Some("BBB="));
        assert_eq!(key_of(text, "client.other"), None);
    }
}
