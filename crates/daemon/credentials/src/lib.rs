//! X.509 credentials for TLS from the files that QEMU uses, and rules for who may come with which certificate.
//!
//! Where it stands: objects of the daemon are made of it; servers and clients of protocols use what comes out.
//!
//! Not here: sockets and handshakes, and how objects are written (`graph`).

#![forbid(unsafe_code)]

mod authorization;
mod certificate;
mod elliptic_key;
mod x509;

pub use authorization::{
    Authorization, AuthorizationList, AuthorizationRule, IdentityMatch, RuleFileError, RulePolicy,
};
pub use certificate::{CertificateError, distinguished_name};
pub use x509::{CredentialError, TlsEndpoint, X509Credentials, X509Files};
