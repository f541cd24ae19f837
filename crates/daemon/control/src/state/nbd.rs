//! The NBD server of the daemon: opened before the fences are up, started behind them; opened and stopped by commands.
//!
//! Threads: the first one.

use std::sync::Arc;

use credentials::X509Credentials;
use graph::TlsCredsOptions;
use nbd_server::{ListenAddress, ListenGrant, NbdLoad, NbdServer, NbdServerOptions, ServerTls};
use sandbox::Sandbox;

use super::{BuildError, ControlError, DaemonState};
use crate::running_export::RunningExport;

/// The NBD server cannot do TLS as it is to. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum NbdTlsError {
    /// No such object.
    #[error("No TLS credentials with id '{0}'")]
    NoCredentials(String),
    /// Another kind of object.
    #[error("Object with id '{0}' is not TLS credentials")]
    OtherObject(String),
    /// Credentials of the other side.
    #[error("Expecting TLS credentials with a server endpoint: '{0}' has endpoint=client")]
    ClientCredentials(String),
    /// No such rules.
    #[error("there is no authz object with id '{0}'")]
    NoAuthorization(String),
    /// Rules about certificates that nobody asks for.
    #[error("tls-authz needs tls-creds: without TLS nobody has an identity")]
    AuthorizationAlone,
}

impl DaemonState {
    /// Listens as the NBD server. Clients can connect from now on, and wait. Blocks while a name is looked up.
    pub fn open_nbd_server(&mut self, options: &NbdServerOptions) -> Result<(), BuildError> {
        assert!(self.nbd_server.is_none(), "there is one NBD server");
        let tls = self.server_tls(options)?;
        self.nbd_server = Some(NbdServer::listen(options, tls, &self.nbd_catalog, &self.clock)?);
        Ok(())
    }

    /// What the server does TLS with, if it does.
    fn server_tls(&self, options: &NbdServerOptions) -> Result<Option<ServerTls>, NbdTlsError> {
        let authorization = options.tls_authz.as_ref().map(|id| {
            let found = self.authorizations.get(id).cloned();
            found.ok_or_else(|| NbdTlsError::NoAuthorization(id.clone()))
        });
        let authorization = authorization.transpose()?;
        let Some(id) = &options.tls_creds else {
            return match &options.tls_authz {
                Some(_) => Err(NbdTlsError::AuthorizationAlone),
                None => Ok(None),
            };
        };
        match self.credentials.get(id) {
            Some(X509Credentials::Server(config)) => {
                Ok(Some(ServerTls { config: Arc::clone(config), authorization }))
            }
            Some(X509Credentials::Client(_)) => Err(NbdTlsError::ClientCredentials(id.clone())),
            None if self.objects.contains_key(id) => Err(NbdTlsError::OtherObject(id.clone())),
            None => Err(NbdTlsError::NoCredentials(id.clone())),
        }
    }

    /// Reads credentials, with the password of their key if it has one. Blocks.
    pub(super) fn load_credentials(
        &self,
        id: &str,
        options: &TlsCredsOptions,
    ) -> Result<X509Credentials, BuildError> {
        let password = options.password.as_ref().map(|secret| {
            let missing = || BuildError::NoSecret { object: id.to_owned(), secret: secret.clone() };
            self.graph.secret(secret).ok_or_else(missing)
        });
        let password = password.transpose()?.map(graph::Secret::bytes);
        let failed = |source| BuildError::Credentials { object: id.to_owned(), source };
        options.files.load(password).map_err(failed)
    }

    /// Accepts NBD clients from now on, on a thread behind the fences, if there is a server.
    pub fn start_nbd_server(&mut self) -> Result<(), BuildError> {
        let Some(server) = &mut self.nbd_server else { return Ok(()) };
        let started = Sandbox::start_inside(self.sandbox.as_deref(), || server.start());
        Ok(started.map_err(BuildError::ConfineNbd)??)
    }

    /// Opens and starts the NBD server, kept. There is none, or it is an error.
    pub fn start_nbd_server_at_run_time(
        &mut self,
        options: &NbdServerOptions,
    ) -> Result<(), ControlError> {
        if self.nbd_server.is_some() {
            return Err(ControlError::NbdServerRuns);
        }
        self.check_may_listen(options)?;
        let mut options = options.clone();
        options.set_rights(&self.socket_rights);
        self.open_nbd_server(&options)?;
        let started = self.start_nbd_server().map_err(ControlError::from);
        started.and_then(|()| self.keep()).inspect_err(|_| self.nbd_server = None)
    }

    /// Where commands may have the server listen on TCP, behind the fences.
    pub fn allow_listening(&mut self, grants: Vec<ListenGrant>) {
        self.listen_grants = grants;
    }

    fn check_may_listen(&self, options: &NbdServerOptions) -> Result<(), ControlError> {
        let ListenAddress::Inet(inet) = &options.address else { return Ok(()) };
        if self.sandbox.is_none() || self.listen_grants.iter().any(|grant| grant.allows(inet)) {
            return Ok(());
        }
        Err(ControlError::MayNotListen { address: options.address.clone() })
    }

    /// Ends all NBD exports and the server, kept. Returns the ids of the exports. Blocks as long as their requests in flight.
    pub fn stop_nbd_server_at_run_time(&mut self) -> Result<Vec<String>, ControlError> {
        if self.nbd_server.is_none() {
            return Err(ControlError::NoNbdServer);
        }
        let exports = self.exports.iter().filter(|it| matches!(it, RunningExport::Nbd(_)));
        let ids: Vec<String> = exports.map(|export| export.disk().id.clone()).collect();
        let removed: Vec<_> = ids.iter().map(|id| self.remove_export(id)).collect();
        self.nbd_server = None;
        self.keep()?;
        removed.into_iter().collect::<Result<(), _>>()?;
        Ok(ids)
    }

    /// How many clients the NBD server has, if there is one.
    pub fn nbd_load(&self) -> Option<NbdLoad> {
        self.nbd_server.as_ref().map(NbdServer::load)
    }

    /// What the NBD server was made of, if there is one.
    pub fn nbd_server(&self) -> Option<&NbdServerOptions> {
        self.nbd_server.as_ref().map(NbdServer::options)
    }
}
