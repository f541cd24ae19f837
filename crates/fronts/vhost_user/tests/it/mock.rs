//! A device that writes down what it is asked for.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{Access, ByteCount, DiskSize};
use vhost_user::{
    BackendChannel, DescriptorCloseRisk, Device, DeviceError, QueueIndex, RingStart, StartResult,
};
use virtio::{BlkConfig, CacheMode, Features, MemoryRules, RingBase, RingDirtyLog, RingLayout};

/// What the session asked the device for, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A queue was started, from this base.
    Start(u16, u32),
    Stop(u16),
    /// Whether there was a descriptor.
    Call(u16, bool),
    Cache(CacheMode),
    /// Whether there was a log.
    Log(u16, bool),
}

#[derive(Default)]
pub(crate) struct Record {
    pub(crate) asked: Vec<Asked>,
    pub(crate) served: HashMap<u16, RingStart>,
    /// A queue that cannot be served.
    pub(crate) unfit: Option<u16>,
    /// Whether no queue can be served before a pause.
    pub(crate) postpones: bool,
    /// A queue that cannot be stopped.
    pub(crate) stuck: Option<u16>,
    /// The mode, if it was ever set.
    pub(crate) cache: Option<CacheMode>,
    /// Whether nothing can be made durable.
    pub(crate) lossy: bool,
    /// Looks at what is noted whenever the mode is set.
    pub(crate) on_cache: Option<Box<dyn Fn() -> u8 + Send>>,
    /// What was seen then.
    pub(crate) noted: Vec<u8>,
    /// What may be told to the front end.
    pub(crate) channel: Option<Arc<BackendChannel>>,
    /// How many descriptors its session may hold.
    pub(crate) descriptors_max: Option<usize>,
    /// The queues that were ready before there was any memory.
    pub(crate) lacking: Vec<u16>,
    /// How often it was let rest.
    pub(crate) rests: usize,
}

/// A device of 256 queues; a clone is the same device.
#[derive(Clone, Default)]
pub(crate) struct Mock(Arc<Mutex<Record>>, Arc<MemoryRules>);

pub(crate) const CONFIG: BlkConfig = BlkConfig {
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

/// All features with split rings.
pub(crate) fn split_features() -> Features {
    CONFIG.features().without(Features::RING_PACKED)
}

/// How far a served ring gets until it is stopped, in both halves of the base of a packed one.
pub(crate) const PROGRESS: u16 = 10;

impl Mock {
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().expect("no test thread panics with it")
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.record().asked)
    }
}

impl Device for Mock {
    fn features(&self) -> Features {
        CONFIG.features()
    }

    fn queues_max(&self) -> u16 {
        256
    }

    fn config(&self, chosen: Features) -> Vec<u8> {
        let cache = self.cache_mode().shown_to(chosen);
        BlkConfig { cache, ..CONFIG }.to_bytes().to_vec()
    }

    fn descriptors_max(&self) -> usize {
        self.record().descriptors_max.unwrap_or(usize::MAX)
    }

    fn memory_rules(&self) -> &Arc<MemoryRules> {
        &self.1
    }

    fn inspect_descriptors(
        &mut self,
        _: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, DeviceError> {
        Ok(DescriptorCloseRisk::None)
    }

    fn set_channel(&mut self, channel: Arc<BackendChannel>) {
        self.record().channel = Some(channel);
    }

    fn announced_size(&self) -> Option<DiskSize> {
        None
    }

    fn set_announced_size(&mut self, _: DiskSize) {}

    fn no_memory_shared(&mut self, queue: QueueIndex) {
        self.record().lacking.push(queue.0);
    }

    fn cache_mode(&self) -> CacheMode {
        self.record().cache.unwrap_or(CONFIG.cache)
    }

    fn set_cache_mode(&mut self, mode: CacheMode) -> Result<(), DeviceError> {
        let mut record = self.record();
        record.asked.push(Asked::Cache(mode));
        assert!(record.served.is_empty(), "rings are served while the mode changes");
        record.cache = Some(mode);
        let noted = record.on_cache.as_ref().map(|look| look());
        record.noted.extend(noted);
        if record.lossy {
            return Err(DeviceError::CacheMode(Box::from("the disk is gone")));
        }
        Ok(())
    }

    fn start(&mut self, queue: QueueIndex, start: RingStart) -> Result<StartResult, DeviceError> {
        let mut record = self.record();
        let at = start.setup.base.0;
        record.asked.push(Asked::Start(queue.0, at));
        if record.postpones {
            return Ok(StartResult::Postponed);
        }
        if record.unfit == Some(queue.0) {
            let source = Box::from("no thread takes it");
            return Err(DeviceError::Start { queue, source });
        }
        assert!(record.served.insert(queue.0, start).is_none(), "queue {queue} was started twice");
        Ok(StartResult::Served)
    }

    fn stop(&mut self, queue: QueueIndex) -> Result<RingBase, DeviceError> {
        let mut record = self.record();
        record.asked.push(Asked::Stop(queue.0));
        if record.stuck == Some(queue.0) {
            let source = Box::from("a request does not end");
            return Err(DeviceError::Stop { queue, source });
        }
        let start = record.served.remove(&queue.0).expect("it was started");
        let (base, progress) = (start.setup.base.0, u32::from(PROGRESS));
        Ok(RingBase(match start.setup.layout {
            RingLayout::Split => base.wrapping_add(progress) & 0xffff,
            RingLayout::Packed => base + progress + (progress << 16),
        }))
    }

    fn rings_stopped(&mut self) -> Result<(), DeviceError> {
        let mut record = self.record();
        // One that could not be stopped counts as stopped.
        let stuck = record.stuck;
        let are_stopped = record.served.keys().all(|queue| Some(*queue) == stuck);
        assert!(are_stopped, "rings are served while the device rests");
        record.rests += 1;
        Ok(())
    }

    fn set_call(&mut self, queue: QueueIndex, call: Option<OwnedFd>) {
        let mut record = self.record();
        assert!(record.served.contains_key(&queue.0), "it is served");
        record.asked.push(Asked::Call(queue.0, call.is_some()));
    }

    fn set_log(&mut self, queue: QueueIndex, log: Option<RingDirtyLog>) {
        let mut record = self.record();
        record.asked.push(Asked::Log(queue.0, log.is_some()));
        record.served.get_mut(&queue.0).expect("it is served").log = log;
    }
}

/// Whether two descriptors are of one eventfd: what is written to one is seen by the other.
pub(crate) fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    let readable = |fd: &dyn AsFd| {
        let fd = fd.as_fd();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).expect("it is open") > 0
    };
    assert!(!readable(&one) && !readable(&other), "nobody has written yet");
    rustix::io::write(&one, &1_u64.to_ne_bytes()).expect("it takes a number");
    let seen = readable(&other);
    rustix::io::read(&one, &mut [0; 8]).expect("it holds a number");
    seen
}
