//! A disk of an NBD server that is named by its URI, as a node.
//!
//! Not here: what the server says of it (`nbd_client`). `nbds` needs credentials, which only a node can name.

use anyhow::{Result, bail, ensure};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

/// The port of NBD, if none is named.
const PORT: &str = "10809";

/// The node of an URI, as `--blockdev` has it; `None` of what is no NBD URI.
pub fn node_of_uri(text: &str) -> Result<Option<Value>> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    match scheme {
        "nbd" => inet(text, rest).map(Some),
        "nbd+unix" => unix(text, rest).map(Some),
        "nbds" | "nbds+unix" => {
            bail!("{text}: TLS needs credentials, which cannot be named here: without it, say nbd")
        }
        _ => Ok(None),
    }
}

fn inet(text: &str, rest: &str) -> Result<Value> {
    ensure!(!rest.contains(['?', '#']), "{text}: a query is only known of nbd+unix");
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    ensure!(!authority.contains('@'), "{text}: NBD knows no users");
    let (host, port) = match authority.strip_prefix('[') {
        Some(literal) => {
            let Some((host, behind)) = literal.split_once(']') else {
                bail!("{text}: the address has no ']'")
            };
            ensure!(
                behind.is_empty() || behind.starts_with(':'),
                "{text}: ':' and a port after ']'"
            );
            (host, behind.strip_prefix(':').unwrap_or(PORT))
        }
        None => authority.split_once(':').unwrap_or((authority, PORT)),
    };
    ensure!(!host.is_empty(), "{text}: the host is missing");
    ensure!(port.parse::<u16>().is_ok_and(|port| port > 0), "{text}: '{port}' is no port");
    let server = json!({"type": "inet", "host": decoded(text, host)?, "port": port});
    Ok(node(&server, &decoded(text, export)?))
}

fn unix(text: &str, rest: &str) -> Result<Value> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let Some(export) = place.strip_prefix('/') else {
        bail!("{text}: expected nbd+unix:///EXPORT?socket=PATH")
    };
    let socket = match query.split_once('=') {
        Some(("socket", path)) if !path.is_empty() && !path.contains('&') => path,
        _ => bail!("{text}: expected ?socket=PATH and nothing else"),
    };
    let server = json!({"type": "unix", "path": decoded(text, socket)?});
    Ok(node(&server, &decoded(text, export)?))
}

fn node(server: &Value, export: &str) -> Value {
    json!({"driver": "nbd", "server": server, "export": export, "discard": "unmap"})
}

fn decoded(text: &str, part: &str) -> Result<String> {
    match percent_decode_str(part).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_no_text) => bail!("{text}: '{part}' is no UTF-8 when it is decoded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, server: &Value, export: &str) {
        let found = node_of_uri(text).unwrap().unwrap();
        assert_eq!((&found["server"], &found["export"]), (server, &json!(export)), "{text}");
        assert_eq!(found["driver"], "nbd");
    }

    #[track_caller]
    fn refused(text: &str, sentence: &str) {
        let error = node_of_uri(text).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
    }

    #[test]
    fn uris_are_those_of_the_nbd_specification() {
        let inet = |host: &str, port: &str| json!({"type": "inet", "host": host, "port": port});
        check("nbd://example.com", &inet("example.com", PORT), "");
        check("nbd://example.com/", &inet("example.com", PORT), "");
        check("nbd://192.0.2.1:7/a/b%20c", &inet("192.0.2.1", "7"), "a/b c");
        check("nbd://[2001:db8::1]:10810/x", &inet("2001:db8::1", "10810"), "x");
        check("nbd://[::1]/x", &inet("::1", PORT), "x");
        let unix = |path: &str| json!({"type": "unix", "path": path});
        check("nbd+unix:///?socket=/run/a.sock", &unix("/run/a.sock"), "");
        check("nbd+unix:///x%3F?socket=/run/a%3Db", &unix("/run/a=b"), "x?");
        for path in ["/srv/a.img", "a.img", "driver=nbd", "rbd://pool/a"] {
            assert_eq!(node_of_uri(path).unwrap(), None);
        }
    }

    #[test]
    fn what_is_wrong_with_an_uri_is_said() {
        refused("nbds://example.com/x", "TLS needs credentials");
        refused("nbd:///x", "the host is missing");
        refused("nbd://h:0/x", "'0' is no port");
        refused("nbd://h:x/x", "'x' is no port");
        refused("nbd://[::1/x", "no ']'");
        refused("nbd://[::1]7/x", "a port after ']'");
        refused("nbd://me@h/x", "no users");
        refused("nbd://h/x?tls-type=psk", "a query");
        refused("nbd+unix://h/x?socket=/a", "expected nbd+unix:///EXPORT");
        refused("nbd+unix:///x", "expected ?socket=PATH");
        refused("nbd+unix:///x?socket=/a&tls-type=psk", "and nothing else");
        refused("nbd+unix:///%ff?socket=/a", "no UTF-8");
    }
}
