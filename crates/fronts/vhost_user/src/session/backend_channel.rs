//! The message about the back end's own channel.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::debug;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use super::Session;
use crate::{BackendChannel, Device};

impl<D: Device> Session<D> {
    /// Whether the front end may send a channel.
    pub(crate) fn expects_channel(&self) -> bool {
        self.protocol & Protocol::BACKEND_REQ.bits() != 0
    }

    /// What the next message brings.
    pub(crate) fn set_arriving(&mut self, socket: Option<OwnedFd>) {
        self.incoming_channel = socket;
    }

    /// From now on the device may speak by itself (SET_BACKEND_REQ_FD). The library has found that it is a
    /// stream socket.
    pub fn adopt_channel(&mut self) {
        let Some(socket) = self.incoming_channel.take() else {
            // It came in two parts. Nobody does that, and nothing but news is lost.
            debug!("the channel that a front end sent was not seen");
            return;
        };
        self.set_channel(socket);
    }

    pub(super) fn set_channel(&mut self, socket: OwnedFd) {
        let channel = Arc::new(BackendChannel::new(socket));
        self.channel = Some(Arc::clone(&channel));
        self.device.set_channel(channel);
    }
}
