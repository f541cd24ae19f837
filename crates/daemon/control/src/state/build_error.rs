//! Why a daemon cannot be built as its command line, or a command, asks.

use credentials::{CredentialError, RuleFileError};
use exports::{ExportClaimError, ExportError, SocketError};
use graph::{GraphError, ModelError, SecretError};
use iothread::SpawnError;
use kernel_io::CpuList;
use nbd_server::NbdServerError;

use super::{ExportedBitmapError, NbdTlsError};

/// The daemon could not be built as the command line asks.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An iothread could not be started.
    #[error(transparent)]
    Iothread(#[from] SpawnError),
    /// A node could not be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An object or an export does not fit what there is.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Credentials cannot be used.
    #[error("tls-creds-x509 {object}")]
    Credentials {
        /// Their id.
        object: String,
        /// Why.
        #[source]
        source: CredentialError,
    },
    /// The password of a key is not there.
    #[error("tls-creds-x509 {object}: there is no secret with id '{secret}'")]
    NoSecret {
        /// Whose key.
        object: String,
        /// The secret.
        secret: String,
    },
    /// Rules about who may come cannot be read.
    #[error("{object}")]
    Rules {
        /// Their id.
        object: String,
        /// Why.
        #[source]
        source: RuleFileError,
    },
    /// A secret is not to be had.
    #[error("secret {secret}")]
    Secret {
        /// Its id.
        secret: String,
        /// Why.
        #[source]
        source: SecretError,
    },
    /// An export cannot show a bitmap.
    #[error(transparent)]
    Bitmap(#[from] ExportedBitmapError),
    /// An export could not claim its node.
    #[error(transparent)]
    Claim(#[from] ExportClaimError),
    /// An export's socket could not be made.
    #[error("export {export}")]
    Socket {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: SocketError,
    },
    /// What places the rings of a pool could not be started.
    #[error("iothread-pool {pool}: cannot start a thread")]
    Placer {
        /// The pool.
        pool: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A pool cannot run on its CPUs.
    #[error("iothread-pool {pool}: cannot run on CPUs {cpus}")]
    Cpus {
        /// The pool.
        pool: String,
        /// Its CPUs.
        cpus: CpuList,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An export's thread could not be confined.
    #[error("export {export}: its thread cannot be confined")]
    Confine {
        /// The export.
        export: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// An export could not be started.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The thread of the NBD server could not be confined.
    #[error("NBD server: its thread cannot be confined")]
    ConfineNbd(#[source] std::io::Error),
    /// The NBD server cannot do TLS as it is to.
    #[error("NBD server")]
    NbdTls(#[from] NbdTlsError),
    /// The NBD server could not be started.
    #[error(transparent)]
    NbdServer(#[from] NbdServerError),
}
