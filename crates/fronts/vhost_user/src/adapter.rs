//! From the message types of the vhost crate to the session's methods.
//!
//! Not here: any decision. The crate checks the form of messages and that the protocol feature
//! they belong to was chosen; the session decides.

use std::fs::File;
use std::io;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use virtio::{Features, GuestAddress, InflightDescription, RegionSpec, RingAddresses};

use crate::{Device, MessageRefusal, Session};

/// The crate carries a refusal inside its own error; `serve` takes it out again.
fn refused(refusal: MessageRefusal) -> Error {
    Error::ReqHandlerError(io::Error::other(refusal))
}

fn not_offered<T>(message: &'static str) -> Result<T> {
    Err(refused(MessageRefusal::NotOffered { message }))
}

fn spec(region: &VhostUserMemoryRegion) -> RegionSpec {
    RegionSpec {
        guest: GuestAddress(region.guest_phys_addr),
        bytes: region.memory_size,
        user_address: region.user_addr,
        file_offset: region.mmap_offset,
    }
}

impl<D: Device> VhostUserBackendReqHandlerMut for Session<D> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.disable_all().map_err(refused)
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset().map_err(refused)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.features().0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        Self::set_features(self, Features(features)).map_err(refused)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        // The crate has checked that there are as many files as regions.
        let regions = files
            .into_iter()
            .zip(regions)
            .map(|(file, region)| (file.into(), spec(region)))
            .collect();
        self.set_memory(regions).and_then(|()| self.check_descriptors()).map_err(refused)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.set_ring_size(index, num).map_err(refused)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let logged_at = is_logged.then_some(GuestAddress(log));
        let addresses = RingAddresses { descriptors, available, used };
        self.set_ring_addresses(index, addresses, logged_at).map_err(refused)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.set_ring_base(index, base).map_err(refused)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.stop_ring(index).map_err(refused)?;
        Ok(VhostUserVringState::new(index, base.0))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.map(File::into);
        self.set_kick(index.into(), kick).and_then(|()| self.check_descriptors()).map_err(refused)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(File::into);
        self.set_call(index.into(), call).and_then(|()| self.check_descriptors()).map_err(refused)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = fd.map(File::into);
        self.set_error(index.into(), error).and_then(|()| self.check_descriptors()).map_err(refused)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(self.protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        Self::set_protocol_features(self, features).map_err(refused)
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues_max().into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.set_enabled(index, enable).map_err(refused)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        // The crate lets no more than 4096 bytes be asked for.
        Ok(self.config(offset, size))
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Self::set_config(self, offset, buf).map_err(refused)
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {
        self.adopt_channel();
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        not_offered("GPU_SET_SOCKET")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered("GET_SHARED_OBJECT")
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *inflight;
        let (bytes, fd) = self.create_inflight(num_queues, queue_size).map_err(refused)?;
        // A copy of what was asked, with its padding: that of a new one would be whatever was in memory.
        let mut answer = *inflight;
        (answer.mmap_size, answer.mmap_offset) = (bytes, 0);
        Ok((answer, fd.into()))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        self.set_inflight(InflightDescription {
            queues: num_queues,
            queue_size,
            bytes: mmap_size,
            offset: mmap_offset,
            file: file.into(),
        })
        .map_err(refused)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(self.regions_max())
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let added = self.add_region(fd.into(), spec(region));
        added.and_then(|()| self.check_descriptors()).map_err(refused)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.remove_region(&spec(region)).map_err(refused)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        not_offered("SET_DEVICE_STATE_FD")
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered("CHECK_DEVICE_STATE")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered("GET_SHMEM_CONFIG")
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        self.set_log(file.into(), log.mmap_size, log.mmap_offset).map_err(refused)
    }
}
