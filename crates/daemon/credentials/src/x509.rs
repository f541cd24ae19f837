//! `tls-creds-x509`: the certificates and keys in a directory, by the names that QEMU gives them.
//!
//! Invariants: what is read is complete: whoever has credentials can do handshakes. Nothing of a key is shown.
//! Threads: any. Not here: who may come with a certificate that counts ([`crate::Authorization`]).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pkcs8::der::Decode;
use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificate::{CertificateError, check_time};
use crate::elliptic_key::with_whole_number;

const CA: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// For which side credentials are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsEndpoint {
    /// Whoever is connected to.
    Server,
    /// Whoever connects.
    Client,
}

/// Where credentials are, and what is asked of the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X509Files {
    /// The directory.
    pub directory: PathBuf,
    /// For which side.
    pub endpoint: TlsEndpoint,
    /// Whether a server asks for a certificate of each client. A client always checks its server's.
    pub verify_peer: bool,
    /// Whether certificates that have expired are refused when they are read.
    pub sanity_check: bool,
}

/// Credentials of one side.
#[derive(Clone)]
pub enum X509Credentials {
    /// Of a server.
    Server(Arc<ServerConfig>),
    /// Of a client.
    Client(Arc<ClientConfig>),
}

impl fmt::Debug for X509Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "X509Credentials::Server(…)",
            Self::Client(_) => "X509Credentials::Client(…)",
        })
    }
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file has nothing of what it should have.
    #[error("{} has no {what}", path.display())]
    Missing {
        /// Which.
        path: PathBuf,
        /// What.
        what: &'static str,
    },
    /// A file is no PEM.
    #[error("{} is not PEM", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// A certificate does not count.
    #[error("{}", path.display())]
    Certificate {
        /// In which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: CertificateError,
    },
    /// A key is encrypted, and nobody says with what.
    #[error("{} is encrypted: passwordid names the secret with its password", .0.display())]
    NoPassword(PathBuf),
    /// The password is not that of the key.
    #[error("{} cannot be decrypted with that password", .0.display())]
    Password(PathBuf),
    /// What was read does not fit together.
    #[error("the credentials in {} cannot be used", directory.display())]
    Tls {
        /// Where.
        directory: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The authorities cannot check anybody.
    #[error("the authorities in {} cannot be used", directory.display())]
    Authorities {
        /// Where.
        directory: PathBuf,
        /// Why.
        #[source]
        source: VerifierBuilderError,
    },
}

impl X509Files {
    /// Reads them now. Blocks. `password` is that of the key, if it has one.
    pub fn load(&self, password: Option<&[u8]>) -> Result<X509Credentials, CredentialError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        match self.endpoint {
            TlsEndpoint::Server => self.load_server(provider, password),
            TlsEndpoint::Client => self.load_client(provider, password),
        }
    }

    /// The files that may be read.
    pub fn files(&self) -> Vec<PathBuf> {
        let (certificate, key) = self.own_names();
        [CA, REVOKED, certificate, key].map(|name| self.directory.join(name)).into()
    }

    fn own_names(&self) -> (&'static str, &'static str) {
        match self.endpoint {
            TlsEndpoint::Server => ("server-cert.pem", "server-key.pem"),
            TlsEndpoint::Client => ("client-cert.pem", "client-key.pem"),
        }
    }

    fn load_server(
        &self,
        provider: Arc<CryptoProvider>,
        password: Option<&[u8]>,
    ) -> Result<X509Credentials, CredentialError> {
        let (chain, key) = self.own(password)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(self.tls())?;
        let builder = if self.verify_peer {
            let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider);
            let verifier = verifier.with_crls(self.revoked()?).build();
            builder.with_client_cert_verifier(verifier.map_err(self.authorities())?)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_single_cert(chain, key).map_err(self.tls())?;
        // Each connection is a handshake of its own: nothing is kept between them.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(X509Credentials::Server(Arc::new(config)))
    }

    fn load_client(
        &self,
        provider: Arc<CryptoProvider>,
        password: Option<&[u8]>,
    ) -> Result<X509Credentials, CredentialError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(self.tls())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(self.roots()?, provider);
        let verifier = verifier.with_crls(self.revoked()?).build().map_err(self.authorities())?;
        let builder = builder.with_webpki_verifier(verifier);
        // A client may have no certificate, as in QEMU.
        let has_own = self.directory.join(self.own_names().0).exists();
        let mut config = if has_own {
            let (chain, key) = self.own(password)?;
            builder.with_client_auth_cert(chain, key).map_err(self.tls())?
        } else {
            builder.with_no_client_auth()
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(X509Credentials::Client(Arc::new(config)))
    }

    fn tls(&self) -> impl Fn(rustls::Error) -> CredentialError {
        let directory = self.directory.clone();
        move |source| CredentialError::Tls { directory: directory.clone(), source }
    }

    fn authorities(&self) -> impl Fn(VerifierBuilderError) -> CredentialError {
        let directory = self.directory.clone();
        move |source| CredentialError::Authorities { directory: directory.clone(), source }
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, CredentialError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(CA)? {
            roots.add(certificate).map_err(self.tls())?;
        }
        Ok(Arc::new(roots))
    }

    /// The certificates in a file; at least one.
    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
        let path = self.directory.join(name);
        let all = read_pem::<CertificateDer<'static>>(&path)?;
        if all.is_empty() {
            return Err(CredentialError::Missing { path, what: "certificate" });
        }
        if self.sanity_check {
            let failed = |source| CredentialError::Certificate { path: path.clone(), source };
            all.iter().try_for_each(|it| check_time(it).map_err(failed))?;
        }
        Ok(all)
    }

    /// What was revoked; there need not be such a file.
    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialError> {
        let path = self.directory.join(REVOKED);
        if path.exists() { read_pem(&path) } else { Ok(Vec::new()) }
    }

    fn own(
        &self,
        password: Option<&[u8]>,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CredentialError> {
        let (certificate, key) = self.own_names();
        let chain = self.certificates(certificate)?;
        let path = self.directory.join(key);
        let bytes = read(&path)?;
        if let Some(encrypted) = encrypted_key(&bytes) {
            let password = password.ok_or_else(|| CredentialError::NoPassword(path.clone()))?;
            let key = decrypt(&encrypted, password).ok_or(CredentialError::Password(path))?;
            return Ok((chain, key));
        }
        match PrivateKeyDer::from_pem_slice(&bytes) {
            Ok(key) => Ok((chain, with_whole_number(key))),
            Err(pem::Error::NoItemsFound) => {
                Err(CredentialError::Missing { path, what: "private key" })
            }
            Err(source) => Err(CredentialError::Pem { path, source }),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialError> {
    std::fs::read(path).map_err(|source| CredentialError::Read { path: path.to_owned(), source })
}

fn read_pem<T: PemObject>(path: &Path) -> Result<Vec<T>, CredentialError> {
    let failed = |source| CredentialError::Pem { path: path.to_owned(), source };
    T::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(failed)
}

/// The encrypted key of a file, if it has one (PKCS #8).
fn encrypted_key(bytes: &[u8]) -> Option<SecretDocument> {
    let text = std::str::from_utf8(bytes).ok()?;
    let begin = text.find("-----BEGIN ENCRYPTED PRIVATE KEY-----")?;
    let (_, document) = SecretDocument::from_pem(text[begin..].trim_end()).ok()?;
    Some(document)
}

fn decrypt(encrypted: &SecretDocument, password: &[u8]) -> Option<PrivateKeyDer<'static>> {
    let key = EncryptedPrivateKeyInfoRef::from_der(encrypted.as_bytes()).ok()?;
    let plain = key.decrypt(password).ok()?;
    Some(with_whole_number(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into()))
}
