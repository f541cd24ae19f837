//! A device that checks what the session asks of it.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{Access, ByteCount, DiskSize};
use vhost_user::{
    BackendChannel, DescriptorCloseRisk, Device, DeviceError, QueueIndex, RingStart, StartResult,
};
use virtio::{BlkConfig, CacheMode, Features, MemoryRules, Ring, RingBase, RingDirtyLog};

const CONFIG: BlkConfig = BlkConfig {
    size: DiskSize(ByteCount(1 << 20)),
    logical_block: 512,
    physical_block: 512,
    queues: 256,
    access: Access::ReadWrite,
    discard: true,
    discard_granularity: 512,
    unmap: true,
    write_zeroes: true,
    cache: CacheMode::WriteBack,
};

/// All that a driver may choose.
pub(super) fn features() -> Features {
    CONFIG.features()
}

#[derive(Default)]
struct Record {
    served: HashMap<u16, Ring>,
    /// Starts and stops to go until one fails.
    good: Option<u8>,
    failed: bool,
    /// The mode, if it was ever set.
    cache: Option<CacheMode>,
}

/// A clone is the same device.
#[derive(Clone, Default)]
pub(crate) struct Mock {
    record: Arc<Mutex<Record>>,
    queues: u16,
    rules: Arc<MemoryRules>,
}

impl Mock {
    pub(crate) fn new(shape: u8) -> Self {
        let record =
            Record { good: (shape & 0x10 != 0).then_some(shape >> 5), ..Record::default() };
        let queues = if shape & 8 == 0 { 256 } else { 3 };
        Self { record: Arc::new(Mutex::new(record)), queues, rules: Arc::default() }
    }

    /// Checks that nothing is left after the session.
    pub(crate) fn check_end(&self) {
        assert!(self.record().served.is_empty(), "all rings are stopped");
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("a run has one thread")
    }
}

impl Record {
    /// Whether the next start or stop fails.
    fn fails(&mut self) -> bool {
        let fails = self.good == Some(0);
        self.good = self.good.and_then(|good| good.checked_sub(1));
        self.failed |= fails;
        fails
    }
}

impl Device for Mock {
    fn features(&self) -> Features {
        features()
    }

    fn queues_max(&self) -> u16 {
        self.queues
    }

    fn config(&self, chosen: Features) -> Vec<u8> {
        let cache = self.cache_mode().shown_to(chosen);
        BlkConfig { cache, ..CONFIG }.to_bytes().to_vec()
    }

    fn descriptors_max(&self) -> usize {
        usize::MAX
    }

    fn memory_rules(&self) -> &Arc<MemoryRules> {
        &self.rules
    }

    fn inspect_descriptors(
        &mut self,
        _: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, DeviceError> {
        Ok(DescriptorCloseRisk::None)
    }

    /// No run has anything to tell.
    fn set_channel(&mut self, _: Arc<BackendChannel>) {}

    fn announced_size(&self) -> Option<DiskSize> {
        None
    }

    fn set_announced_size(&mut self, _: DiskSize) {}

    fn no_memory_shared(&mut self, queue: QueueIndex) {
        assert!(queue.0 < self.queues, "queue {queue} exists");
    }

    fn cache_mode(&self) -> CacheMode {
        self.record().cache.unwrap_or(CONFIG.cache)
    }

    fn set_cache_mode(&mut self, mode: CacheMode) -> Result<(), DeviceError> {
        let mut record = self.record();
        assert!(record.served.is_empty(), "rings are served while the mode changes");
        assert!(!record.failed, "the session ends after an error");
        record.cache = Some(mode);
        if record.fails() {
            return Err(DeviceError::CacheMode(Box::from("the disk is gone")));
        }
        Ok(())
    }

    fn start(&mut self, queue: QueueIndex, start: RingStart) -> Result<StartResult, DeviceError> {
        let mut record = self.record();
        assert!(queue.0 < self.queues, "queue {queue} exists");
        assert!(!record.failed, "the session ends after an error");
        if record.fails() {
            return Err(DeviceError::Start { queue, source: Box::from("no room") });
        }
        let mut ring = match &start.inflight {
            // The region may tell of another ring.
            Some(inflight) => Ring::tracked(start.memory, start.setup, inflight)
                .map_err(|source| DeviceError::Start { queue, source: source.into() })?,
            None => Ring::new(start.memory, start.setup).expect("the session has checked it"),
        };
        ring.set_log(start.log);
        assert!(record.served.insert(queue.0, ring).is_none(), "queue {queue} was started twice");
        Ok(StartResult::Served)
    }

    fn stop(&mut self, queue: QueueIndex) -> Result<RingBase, DeviceError> {
        let mut record = self.record();
        let ring = record.served.remove(&queue.0).expect("it was started");
        if record.fails() {
            return Err(DeviceError::Stop { queue, source: Box::from("a request does not end") });
        }
        Ok(ring.base())
    }

    fn rings_stopped(&mut self) -> Result<(), DeviceError> {
        let mut record = self.record();
        assert!(record.served.is_empty(), "rings are served while the device rests");
        if record.fails() {
            return Err(DeviceError::Rest(Box::from("the disk is gone")));
        }
        Ok(())
    }

    fn set_call(&mut self, queue: QueueIndex, _call: Option<OwnedFd>) {
        assert!(self.record().served.contains_key(&queue.0), "it is served");
    }

    fn set_log(&mut self, queue: QueueIndex, log: Option<RingDirtyLog>) {
        // Marks all that the device writes of the ring.
        self.record().served.get_mut(&queue.0).expect("it is served").set_log(log);
    }
}
