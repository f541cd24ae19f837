//! The in-flight region, as a front end keeps it for the next server.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::Result;

use super::message::{FrontEnd, request};

/// The region in which servers note what is in flight.
#[derive(Debug)]
pub(super) struct Inflight {
    fd: OwnedFd,
    /// The payload that says how large it is and what for.
    description: Vec<u8>,
}

impl Inflight {
    pub(super) fn get(front_end: &FrontEnd, queues: u16, size: u16) -> Result<Self> {
        let mut payload = vec![0; 16];
        payload.extend(queues.to_le_bytes());
        payload.extend(size.to_le_bytes());
        payload.extend([0; 4]);
        let (description, fd) = front_end.ask_fd(request::GET_INFLIGHT_FD, &payload)?;
        Ok(Self { fd, description })
    }

    pub(super) fn set(&self, front_end: &FrontEnd) -> Result<()> {
        front_end.must(request::SET_INFLIGHT_FD, &self.description, &[self.fd.as_fd()])
    }
}
