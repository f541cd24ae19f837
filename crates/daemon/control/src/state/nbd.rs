//! The NBD server of the daemon: opened before the fences are up, started behind them; opened and stopped by commands.
//!
//! Threads: the first one.

use nbd_server::{ListenAddress, ListenGrant, NbdServer, NbdServerOptions};

use super::{BuildError, ControlError, DaemonState};
use crate::running_export::RunningExport;

impl DaemonState {
    /// Listens as the NBD server. Clients can connect from now on, and wait. Blocks while a name is looked up.
    pub fn open_nbd_server(&mut self, options: &NbdServerOptions) -> Result<(), BuildError> {
        assert!(self.nbd_server.is_none(), "there is one NBD server");
        self.nbd_server = Some(NbdServer::listen(options, &self.nbd_catalog, &self.clock)?);
        Ok(())
    }

    /// Accepts NBD clients from now on, on a thread behind the fences, if there is a server.
    pub fn start_nbd_server(&mut self) -> Result<(), BuildError> {
        let Some(server) = &mut self.nbd_server else { return Ok(()) };
        match &self.sandbox {
            Some(sandbox) => {
                let started = sandbox.inside(|| server.start());
                started.map_err(BuildError::ConfineNbd)??;
            }
            None => server.start()?,
        }
        Ok(())
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

    /// What the NBD server was made of, if there is one.
    pub fn nbd_server(&self) -> Option<&NbdServerOptions> {
        self.nbd_server.as_ref().map(NbdServer::options)
    }
}
