//! The messages about the configuration space.

use virtio::{CacheMode, WRITEBACK_OFFSET};

use super::{PROTOCOL_FEATURES, Session};
use crate::{Device, MessageRefusal};

/// Where Cloud Hypervisor puts the configuration space: the device's registers in its own address
/// space come first. qemu-storage-daemon answers it from the start as well.
const CLOUD_HYPERVISOR_OFFSET: usize = 0x100;

impl<D: Device> Session<D> {
    /// Exactly `count` bytes of the configuration space from `offset` on, with zeroes behind its
    /// end (GET_CONFIG). Front ends of different age ask for more than there is.
    pub fn config(&mut self, offset: u32, count: u32) -> Vec<u8> {
        let config = self.device.config(self.features.without(PROTOCOL_FEATURES));
        self.record_announced_size();
        let start = match offset as usize {
            CLOUD_HYPERVISOR_OFFSET => 0,
            offset => offset.min(config.len()),
        };
        let mut answer = vec![0; count as usize];
        for (to, from) in answer.iter_mut().zip(&config[start..]) {
            *to = *from;
        }
        answer
    }

    /// Only `writeback` is writable (SET_CONFIG). The rings pause during a switch, so that each
    /// request is served in one mode, and none of the old mode is in flight when the front end hears
    /// that the mode has changed (virtio 1.2, 5.2.6.2 leaves those requests undefined). That the driver
    /// has not chosen CONFIG_WCE does not matter: the front end may not have told us yet.
    /// An in-flight region knows of write-through before this returns, of write-back when the
    /// message was answered ([`Self::answered`]).
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), MessageRefusal> {
        let mode = match (offset as usize, bytes) {
            (WRITEBACK_OFFSET, &[byte]) => CacheMode::from_byte(byte),
            _ => return Err(MessageRefusal::ConfigReadOnly { offset, bytes: bytes.len() }),
        };
        if mode == self.device.cache_mode() {
            return Ok(());
        }
        self.record_before_switch(mode);
        self.pause_all()?;
        self.device.set_cache_mode(mode)?;
        self.start_all_ready()
    }
}
