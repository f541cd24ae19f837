//! The subject `client`: a vhost-user front end on the crate `virtio-driver`, which nobody here wrote.
//!
//! The tuner calls `connect` and then `Connection::run`. Each job has a queue of its own and sleeps
//! for completions as a guest does: notifications off while it drains, on and checked again before
//! it sleeps in a read of the queue's call eventfd.
//!
//! Invariants: the queues never outlive the transport that holds their memory (`Connection` drops
//! them first); buffers lie in one region the daemon was told of.
//! Threads: set-up runs on a helper thread, because a silent daemon would block it for ever.
//! Limits: three descriptors per request, so a ring has at most 1024 (`IODEPTH_MAX` is 256).
#![expect(unsafe_code, reason = "virtio-driver takes addresses of memory")]

mod arrivals;
mod spin;

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkTransport, VirtioFeatureFlags,
};

use crate::buffers::Buffers;
use crate::conduct::{Continuation, TICK, Timing, Watch, conduct};
use crate::drive::{Ended, Engine, Outcome};
use crate::workload::Access;
use crate::{Direction, LoadError, Sample, Workload};

pub(crate) use spin::{Spinning, spin_with};

/// The most jobs a client can have: one queue each, and an export has at most 256.
pub const QUEUES_MAX: u16 = 256;
const DESCRIPTORS_PER_REQUEST: u16 = 3;
/// Small rings are what a guest never has; QEMU's default is 128.
const RING_SIZE_MIN: u16 = 128;
const SECTOR_BYTES: u64 = 512;

/// A front end that is connected and has its queues and memory set up.
pub struct Connection {
    // The order is that of dropping: the queues point into memory of the transport.
    queues: Vec<VirtioBlkQueue<'static, u16>>,
    transport: Box<VirtioBlkTransport>,
    buffers: Arc<Buffers>,
    workload: Workload,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("workload", &self.workload).finish_non_exhaustive()
    }
}

/// Connects to an export and prepares one queue per job.
///
/// # Errors
/// If nobody listens (`SetUp` with the kind `NotFound` or `ConnectionRefused`), the export does not
/// fit the workload, or the watch stops the attempt. In that last case a helper thread stays blocked
/// until the daemon closes the connection: the caller ends the daemon.
pub fn connect(
    socket: &Path,
    workload: &Workload,
    watch: &mut dyn Watch,
) -> Result<Connection, LoadError> {
    let (answer, answers) = channel();
    let (socket, workload) = (socket.to_path_buf(), *workload);
    thread::spawn(move || {
        // A refused send means that the caller has given up; the connection closes by itself.
        answer.send(Connection::open(&socket, workload)).unwrap_or_default();
    });
    wait_for(&answers, watch)
}

fn wait_for(
    answers: &Receiver<Result<Connection, LoadError>>,
    watch: &mut dyn Watch,
) -> Result<Connection, LoadError> {
    loop {
        match answers.recv_timeout(TICK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => {
                if watch.tick() == Continuation::Stop {
                    return Err(LoadError::Stopped);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Stopped),
        }
    }
}

impl Connection {
    fn open(socket: &Path, workload: Workload) -> Result<Self, LoadError> {
        let name = socket.display().to_string();
        if let Some(complaint) = too_many(workload.shape().jobs()) {
            return Err(LoadError::Export { socket: name, complaint });
        }
        let wanted = VirtioFeatureFlags::VERSION_1.bits()
            | VirtioFeatureFlags::RING_EVENT_IDX.bits()
            | VirtioBlkFeatureFlags::RO.bits()
            | VirtioBlkFeatureFlags::MQ.bits()
            // As every guest does: without it all writes would be write-through.
            | VirtioBlkFeatureFlags::FLUSH.bits();
        let transport = VhostUser::new(&name, wanted)
            .map_err(|error| LoadError::set_up(format!("connect to {name}"), error))?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        check_export(&*transport, &workload)
            .map_err(|error| LoadError::set_up(format!("read the configuration of {name}"), error))?
            .map_or(Ok(()), |complaint| Err(LoadError::Export { socket: name, complaint }))?;
        let buffers = Buffers::new(&workload)
            .map_err(|error| LoadError::set_up("allocate the buffers", error))?;
        let (address, bytes) = buffers.region();
        transport
            .map_mem_region(address, bytes, buffers.file().as_raw_fd(), 0)
            .map_err(|error| LoadError::set_up("share the buffers with the daemon", error))?;
        let shape = workload.shape();
        let queues = VirtioBlkQueue::setup_queues(
            &mut *transport,
            usize::from(shape.jobs()),
            ring_size(shape.iodepth()),
        )
        .map_err(|error| LoadError::set_up("set up the queues", error))?;
        Ok(Self { queues, transport, buffers: Arc::new(buffers), workload })
    }

    /// Runs the workload it was connected for and closes the connection.
    ///
    /// # Errors
    /// If a request fails, none completes for a long time, or the watch stops the run.
    pub fn run(self, timing: Timing, watch: &mut dyn Watch) -> Result<Sample, LoadError> {
        let Self { queues, transport, buffers, workload } = self;
        let calls: Vec<_> = (0..queues.len()).map(|q| transport.get_completion_fd(q)).collect();
        let engines = engines(queues, &*transport, &buffers, &workload);
        let makers = engines.into_iter().map(|engine| move || Ok(engine)).collect();
        let wake = || {
            for call in &calls {
                // An eventfd refuses a write only when it is full, and then its reader wakes anyway.
                call.write(1).unwrap_or_default();
            }
        };
        let result = conduct(&workload, timing, watch, makers, &wake);
        drop(transport); // After the engines, which `conduct` has consumed: queues point into it.
        result
    }
}

/// One engine per queue, with notifications off. They must be dropped before the transport.
fn engines(
    queues: Vec<VirtioBlkQueue<'static, u16>>,
    transport: &VirtioBlkTransport,
    buffers: &Arc<Buffers>,
    workload: &Workload,
) -> Vec<ClientEngine> {
    let engine = |(job, mut queue): (u16, VirtioBlkQueue<'static, u16>)| {
        queue.set_used_notif_enabled(false);
        ClientEngine {
            queue,
            kick: transport.get_submission_notifier(usize::from(job)),
            call: transport.get_completion_fd(usize::from(job)),
            buffers: Arc::clone(buffers),
            job,
            block: workload.shape().block().get(),
        }
    };
    (0_u16..).zip(queues).map(engine).collect()
}

/// What is wrong with a number of jobs no export has queues for, if anything.
fn too_many(jobs: u16) -> Option<String> {
    (jobs > QUEUES_MAX).then(|| {
        format!("{jobs} jobs: a client needs a queue for each and has at most {QUEUES_MAX}")
    })
}

/// What of the export does not fit the workload, if anything.
fn check_export(transport: &VirtioBlkTransport, workload: &Workload) -> io::Result<Option<String>> {
    let config: VirtioBlkConfig = transport.get_config()?;
    let shape = workload.shape();
    let capacity = u64::from(config.capacity).saturating_mul(SECTOR_BYTES);
    if capacity < workload.disk_bytes() {
        let expected = workload.disk_bytes();
        return Ok(Some(format!("has {capacity} bytes, the disk {expected}")));
    }
    let queues = virtio_driver::virtio_blk_max_queues(transport)?;
    if queues < usize::from(shape.jobs()) {
        return Ok(Some(format!("has {queues} queues for {} jobs", shape.jobs())));
    }
    let read_only = transport.get_features() & VirtioBlkFeatureFlags::RO.bits() != 0;
    if read_only && shape.operation().writes() {
        return Ok(Some(format!("is read-only, {} writes", shape.operation())));
    }
    Ok(None)
}

fn ring_size(iodepth: u16) -> u16 {
    (iodepth * DESCRIPTORS_PER_REQUEST).next_power_of_two().max(RING_SIZE_MIN)
}

struct ClientEngine {
    queue: VirtioBlkQueue<'static, u16>,
    kick: Box<dyn QueueNotifier>,
    call: Arc<EventFd>,
    buffers: Arc<Buffers>,
    job: u16,
    block: u32,
}

impl ClientEngine {
    fn reap(&mut self, ended: &mut Vec<Ended>) {
        for completion in self.queue.completions() {
            let outcome = match completion.ret {
                0 => Outcome::Done,
                errno => Outcome::Failed(io::Error::from_raw_os_error(-errno)),
            };
            ended.push(Ended { slot: completion.context, outcome });
        }
    }

    /// Sleeps until the daemon notifies. The daemon may have made the shared eventfd non-blocking.
    fn sleep(&self) -> io::Result<()> {
        let Err(error) = self.call.read() else {
            return Ok(());
        };
        if error.kind() == io::ErrorKind::Interrupted {
            return Ok(());
        }
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        let mut readable = [PollFd::new(&self.call, PollFlags::IN)];
        poll(&mut readable, None)?;
        Ok(())
    }
}

impl Engine for ClientEngine {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        let memory = self.buffers.slot(self.job, slot).as_ptr();
        let length = usize::try_from(self.block).expect("a block size fits usize");
        let queued = match access.direction {
            // SAFETY: `read_raw` needs memory of `length` bytes that may be written until the
            // completion. It is a slot of `self.buffers`, free by the contract of `Engine::submit`,
            // and the daemon writes through its own mapping of the memfd.
            Direction::Read => unsafe { self.queue.read_raw(access.offset, memory, length, slot) },
            // SAFETY: `write_raw` needs memory of `length` bytes that stays until the completion;
            // kept as above.
            Direction::Write => unsafe {
                self.queue.write_raw(access.offset, memory, length, slot)
            },
        };
        queued.map_err(|error| LoadError::set_up("queue a request", error))
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        if self.queue.avail_notif_needed() {
            self.kick.notify().map_err(|error| LoadError::set_up("kick the queue", error))?;
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.reap(ended);
        if !ended.is_empty() {
            return Ok(());
        }
        self.queue.set_used_notif_enabled(true);
        if !self.queue.completions().has_next() {
            self.sleep().map_err(|error| LoadError::set_up("wait for the call eventfd", error))?;
        }
        self.queue.set_used_notif_enabled(false);
        self.reap(ended);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_the_whole_iodepth() {
        for (iodepth, size) in [(1, 128), (42, 128), (43, 256), (64, 256), (256, 1024)] {
            assert_eq!(ring_size(iodepth), size, "iodepth {iodepth}");
        }
    }

    struct Patient;

    impl Watch for Patient {
        fn window_opens(&mut self) {}
        fn window_closes(&mut self) {}
        fn tick(&mut self) -> Continuation {
            Continuation::GoOn
        }
        fn second(&mut self, _: &crate::Interval) {}
        fn fifth(&mut self, _: &crate::Fifth) {}
    }

    #[test]
    fn more_jobs_than_queues_are_refused_before_connecting() {
        let block = crate::BlockBytes::try_from(4096).unwrap();
        let shape = crate::Shape::new("randread".parse().unwrap(), block, 257, 1).unwrap();
        let workload = Workload::new(shape, 4 << 20, 1).unwrap();
        let error = connect(Path::new("/nonexistent/s"), &workload, &mut Patient).unwrap_err();
        assert!(error.to_string().contains("257 jobs"), "{error}");
    }

    #[test]
    fn a_missing_socket_is_named() {
        let block = crate::BlockBytes::try_from(4096).unwrap();
        let shape = crate::Shape::new("randread".parse().unwrap(), block, 1, 1).unwrap();
        let workload = Workload::new(shape, 1 << 20, 1).unwrap();
        let error = connect(Path::new("/nonexistent/s"), &workload, &mut Patient).unwrap_err();
        let LoadError::SetUp { what, source } = error else { panic!("unexpected {error}") };
        assert_eq!(what, "connect to /nonexistent/s");
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
    }
}
