//! The object type `tls-creds-x509`: certificates and keys for TLS, in a directory.
//!
//! Not here: what is done with them (`credentials`); `tls-creds-anon` and `tls-creds-psk`, which are refused by name.

use std::path::Path;

use credentials::{TlsEndpoint, X509Files};
use serde_json::{Map, Value};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional};

use super::{OBJECT_KEYS, ObjectKind, ObjectType};
use crate::model::TLS_CREDS_X509;

/// The only priority: what rustls has by itself.
const PRIORITY: &str = "NORMAL";

/// `qom-type=tls-creds-x509`.
pub(super) const ENTRY: ObjectType = ObjectType {
    name: TLS_CREDS_X509,
    keys: Keys {
        of: "--object tls-creds-x509",
        supported: &[
            OBJECT_KEYS,
            &[
                optional("dir", ValueType::Text),
                optional("endpoint", ValueType::Word(&["client", "server"])),
                optional("passwordid", ValueType::Text),
                optional("priority", ValueType::Text),
                optional("sanity-check", ValueType::Flag),
                optional("verify-peer", ValueType::Flag),
            ],
        ],
        later: &[],
    },
    read,
};

/// Where certificates and keys are, and with what a key is encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsCredsOptions {
    /// Where they are, and for which side.
    pub files: X509Files,
    /// The secret with the password of the key, if it has one.
    pub password: Option<String>,
}

/// A value that credentials cannot have.
#[derive(Debug, thiserror::Error)]
enum TlsCredsError {
    /// Other algorithms than those that are there.
    #[error(
        "parameter priority: '{0}' is not supported; ciphers are those of TLS 1.2 and 1.3 that rustls has"
    )]
    Priority(String),
    /// Nobody says where they are.
    #[error("parameter dir is missing")]
    NoDirectory,
}

impl TlsCredsOptions {
    pub(super) fn directory(&self) -> &Path {
        &self.files.directory
    }

    pub(super) fn written(&self) -> Map<String, Value> {
        let X509Files { directory, endpoint, verify_peer, sanity_check } = &self.files;
        let endpoint = match endpoint {
            TlsEndpoint::Client => "client",
            TlsEndpoint::Server => "server",
        };
        let mut written = Map::new();
        let mut put = |key: &str, value: Value| drop(written.insert(key.to_owned(), value));
        put("dir", directory.to_string_lossy().into());
        put("endpoint", endpoint.into());
        put("verify-peer", (*verify_peer).into());
        put("sanity-check", (*sanity_check).into());
        if let Some(password) = &self.password {
            put("passwordid", password.as_str().into());
        }
        written
    }
}

fn read(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    if let Some(priority) = fields.text("priority")?.filter(|it| it != PRIORITY) {
        return Err(ArgumentError::own(TlsCredsError::Priority(priority)));
    }
    let directory = fields.text("dir")?;
    let directory = directory.ok_or_else(|| ArgumentError::own(TlsCredsError::NoDirectory))?;
    let endpoint = match fields.word("endpoint")? {
        Some("server") => TlsEndpoint::Server,
        // As in QEMU.
        Some(_) | None => TlsEndpoint::Client,
    };
    let files = X509Files {
        directory: directory.into(),
        endpoint,
        verify_peer: fields.flag("verify-peer")?.unwrap_or(true),
        sanity_check: fields.flag("sanity-check")?.unwrap_or(true),
    };
    let password = fields.text("passwordid")?;
    Ok(ObjectKind::TlsCredsX509(TlsCredsOptions { files, password }))
}
