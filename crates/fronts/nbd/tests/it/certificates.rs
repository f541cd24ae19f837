//! Certificates for tests, and TLS sessions with them. They were made once, with `openssl`, and end in a hundred years.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/it/certificates", name].iter().collect()
}

/// Where they are.
pub(crate) fn directory() -> String {
    path("").to_str().unwrap().to_owned()
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path(name)).unwrap()
}

/// The server's side of a session.
pub(crate) fn server() -> ServerConnection {
    let key = PrivateKeyDer::from_pem_file(path("server-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate("server-cert.pem")], key)
        .unwrap();
    ServerConnection::new(Arc::new(config)).unwrap()
}

/// The client's.
pub(crate) fn client() -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca-cert.pem")).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}
