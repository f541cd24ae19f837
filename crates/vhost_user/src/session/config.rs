//! The messages about the configuration space.

use super::Session;
use crate::{Device, Refusal};

/// Where Cloud Hypervisor puts the configuration space: the device's registers in its own address
/// space come first. qemu-storage-daemon answers it from the start as well.
const CLOUD_HYPERVISOR_OFFSET: usize = 0x100;

impl<D: Device> Session<D> {
    /// Exactly `count` bytes of the configuration space from `offset` on, with zeroes behind its
    /// end (GET_CONFIG). Front ends of different age ask for more than there is.
    pub fn config(&self, offset: u32, count: u32) -> Vec<u8> {
        let config = self.device.config();
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

    /// No field is writable (SET_CONFIG).
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::ConfigReadOnly { offset, bytes: bytes.len() })
    }
}
