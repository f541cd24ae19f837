//! The polling client's own ceiling: a device in this process that completes everything at once.
//!
//! The client is the real one and negotiates over a real socket with a thread that knows just enough
//! of vhost-user. The device then runs on the client's thread, between its turns, and moves heads
//! from the available to the used ring, so that what is measured is the client.
//!
//! Invariants: the front end is in this process, so its ring addresses are ours; they are used only
//! while the queues exist.
//! Limits: answers only what `virtio-driver` asks; moves no data and writes no status.
#![expect(unsafe_code, reason = "a device works on the memory of its rings")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::client::{Spinning, connect, spin_with};
use crate::conduct::{Timing, Watch};
use crate::drive::{Ended, Engine};
use crate::workload::Access;
use crate::{LoadError, Sample, Workload};

// Messages of the vhost-user specification.
const GET_FEATURES: u32 = 1;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const GET_PROTOCOL_FEATURES: u32 = 15;
const GET_QUEUE_NUM: u32 = 17;
const GET_CONFIG: u32 = 24;
const GET_MAX_MEM_SLOTS: u32 = 36;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const PAYLOAD_BYTES_MAX: u32 = 512;

/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX and, of virtio-blk, MQ.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 12;
/// MQ, REPLY_ACK, CONFIG, CONFIGURE_MEM_SLOTS.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 9 | 1 << 15;
const QUEUES: u64 = 256;
/// Where the number of queues stands in the configuration space (virtio 1.2, 5.2.4).
const CONFIG_QUEUES: usize = 34;

/// Runs the workload with the polling client against a device that costs next to nothing. `socket`
/// is a path where nothing is yet.
///
/// # Errors
/// If the socket cannot be made, or as `Connection::spin`.
pub fn ceiling(
    socket: &Path,
    workload: &Workload,
    timing: Timing,
    watch: &mut dyn Watch,
) -> Result<Sample, LoadError> {
    let listener = UnixListener::bind(socket)
        .map_err(|error| LoadError::set_up(format!("listen on {}", socket.display()), error))?;
    let (sender, rings) = channel();
    thread::spawn(move || answer_all(&listener, &sender));
    let connection = connect(socket, workload, watch)?;
    let mut devices: Vec<_> = rings.try_iter().map(Device::new).collect();
    let mut devices = devices.drain(..);
    spin_with(connection, timing, watch, |client| Looped {
        client,
        device: devices.next().expect("the front end has set every ring up"),
    })
}

/// Answers one front end until it closes. An error ends the connection, which the front end tells.
fn answer_all(listener: &UnixListener, rings: &Sender<Ring>) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut size = 0;
    loop {
        let [request, flags, length] = read_words(&mut stream)?;
        if length > PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; usize::try_from(length).expect("at most 512")];
        stream.read_exact(&mut payload)?;
        let value = match request {
            GET_FEATURES => Some(FEATURES),
            GET_PROTOCOL_FEATURES => Some(PROTOCOL_FEATURES),
            GET_QUEUE_NUM | GET_MAX_MEM_SLOTS => Some(QUEUES),
            GET_CONFIG => {
                fill_config(&mut payload);
                reply(&mut stream, request, &payload)?;
                continue;
            }
            SET_VRING_NUM => {
                size = u16::try_from(word(&payload, 4)).map_err(io::Error::other)?;
                (flags & NEED_REPLY != 0).then_some(0)
            }
            SET_VRING_ADDR => {
                let ring =
                    Ring { size, used: double(&payload, 16), available: double(&payload, 24) };
                rings.send(ring).map_err(io::Error::other)?;
                (flags & NEED_REPLY != 0).then_some(0)
            }
            _ => (flags & NEED_REPLY != 0).then_some(0),
        };
        if let Some(value) = value {
            reply(&mut stream, request, &value.to_ne_bytes())?;
        }
    }
}

/// A disk of the largest size, with many queues; the rest is zero.
fn fill_config(payload: &mut [u8]) {
    /// Offset, size and flags stand before the configuration space.
    const HEADER: usize = 12;
    payload[HEADER..HEADER + 8].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    let queues = u16::try_from(QUEUES).expect("256").to_le_bytes();
    payload[HEADER + CONFIG_QUEUES..HEADER + CONFIG_QUEUES + 2].copy_from_slice(&queues);
}

fn reply(stream: &mut UnixStream, request: u32, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut message = Vec::new();
    for word in [request, REPLY | 1, length] {
        message.extend(word.to_ne_bytes());
    }
    message.extend(payload);
    stream.write_all(&message)
}

fn read_words(stream: &mut UnixStream) -> io::Result<[u32; 3]> {
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes)?;
    Ok([0, 4, 8].map(|at| word(&bytes, at)))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn double(bytes: &[u8], at: usize) -> usize {
    let value = u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    usize::try_from(value).expect("64-bit host")
}

/// A ring as SET_VRING_NUM and SET_VRING_ADDR describe it.
#[derive(Debug)]
struct Ring {
    size: u16,
    available: usize,
    used: usize,
}

struct Device {
    ring: Ring,
    next: u16,
}

impl Device {
    fn new(ring: Ring) -> Self {
        Self { ring, next: 0 }
    }

    /// Moves everything available to the used ring, and asks for no kicks.
    fn step(&mut self) {
        let Ring { size, available, used } = self.ring;
        let until = u16::from_le(field(available + 2).load(Ordering::Acquire));
        if until == self.next {
            return;
        }
        while self.next != until {
            let place = usize::from(self.next % size);
            let head = field(available + 4 + place * 2).load(Ordering::Relaxed);
            field(used + 4 + place * 8).store(head, Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
        }
        field(used + 2).store(self.next.to_le(), Ordering::Release);
        let event = self.next.wrapping_sub(1).to_le();
        field(used + 4 + usize::from(size) * 8).store(event, Ordering::Relaxed);
    }
}

/// A 16-bit field of a ring.
fn field(address: usize) -> &'static AtomicU16 {
    let pointer = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: `from_ptr` needs an aligned, mapped field that lives and is accessed atomically. It
    // belongs to a ring of the front end in this process, whose queue the caller holds; the
    // reference is dropped by then. The other side is this thread.
    unsafe { AtomicU16::from_ptr(pointer) }
}

struct Looped {
    client: Spinning,
    device: Device,
}

impl Engine for Looped {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        self.client.submit(slot, access)
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        self.client.flush()
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.device.step();
        self.client.wait(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{BlockBytes, Continuation, Shape};

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
    fn the_client_runs_against_itself() {
        let directory = tempfile::tempdir().unwrap();
        let block = BlockBytes::try_from(4096).unwrap();
        let shape = Shape::new("randread".parse().unwrap(), block, 2, 16).unwrap();
        let workload = Workload::new(shape, 1 << 30, 1).unwrap();
        let runtime = Duration::from_millis(20);
        let timing = Timing { ramp: Duration::ZERO, runtime };
        let socket = directory.path().join("s");
        let sample = ceiling(&socket, &workload, timing, &mut Patient).unwrap();
        assert!(sample.operations > 1000, "{sample:?}");
    }
}
