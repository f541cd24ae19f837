//! Messages of a front end, right in form where the input does not say otherwise (vhost-user,
//! "Front-end message types").

use super::device::features;
use crate::input::Input;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const GET_CONFIG: u32 = 24;
const SET_CONFIG: u32 = 25;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

/// RESET_OWNER, GET_QUEUE_NUM, RESET_DEVICE, GET_MAX_MEM_SLOTS and their like, without payload.
const PLAIN: [u32; 8] = [1, 3, 4, 15, 17, 34, 36, 43];

const PROTOCOL_FEATURES: u64 = 1 << 30;
/// VIRTIO_F_RING_PACKED.
const RING_PACKED: u64 = 1 << 34;
/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;
/// MQ, LOG_SHMFD, REPLY_ACK, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
const ALL_PROTOCOL_FEATURES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;
const NEED_REPLY: u32 = 8;
const NO_DESCRIPTOR: u64 = 0x100;

/// The size of the file that all memory is mapped from.
pub(crate) const FILE_BYTES: u64 = 1 << 20;
/// The distance between two regions, for the guest and in the front end.
const STRIDE: u64 = 1 << 24;
/// Where they start in the front end.
const USER: u64 = 0x7000_0000;

/// A descriptor that comes with a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attached {
    Memory,
    Event,
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    code: u32,
    flags: u32,
    payload: Vec<u8>,
    pub(super) attached: Vec<Attached>,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn state(queue: u32, number: u32) -> Vec<u8> {
    [queue.to_le_bytes(), number.to_le_bytes()].concat()
}

/// Guest address, size, front-end address and file offset of one of a few regions.
fn region(place: u8) -> Vec<u8> {
    let index = u64::from(place & 7);
    let bytes = if place & 8 == 0 { FILE_BYTES } else { FILE_BYTES / 4 };
    let offset = if place & 0x10 == 0 { 0 } else { 0x1800 };
    let guest = if place & 0x20 == 0 { index * STRIDE } else { u64::MAX - index * STRIDE };
    words(&[guest, bytes - offset, USER + index * STRIDE, offset])
}

/// Where a ring lies, spread over the first regions, with room for 64 descriptors.
fn addresses(queue: u32, place: u16) -> Vec<u8> {
    let user = USER + u64::from(place & 3) * STRIDE + u64::from(place >> 2) * 16;
    let mut payload = state(queue, 0);
    payload.extend(words(&[user, user + 0x2000, user + 0x1000, 0]));
    payload
}

/// A queue that exists, or any.
fn queue(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        255 => input.u32(),
        small => u32::from(small & 3),
    }
}

/// Up to so many, or any.
fn small_or_any(input: &mut Input<'_>, small_max: u32) -> u32 {
    match input.u8() {
        255 => input.u32(),
        small => u32::from(small).min(small_max),
    }
}

impl Message {
    fn new(code: u32, payload: Vec<u8>) -> Self {
        Self { code, flags: 0, payload, attached: Vec::new() }
    }

    fn with(self, attached: Attached) -> Self {
        Self { attached: vec![attached], ..self }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let bytes = u32::try_from(self.payload.len()).expect("messages are small");
        let mut message = [self.code, 1 | self.flags, bytes].map(u32::to_le_bytes).concat();
        message.extend(&self.payload);
        message
    }

    /// Everything before the first ring: features and one region of memory.
    pub(super) fn negotiation(packed: bool) -> Vec<Self> {
        let mut chosen = features().0 | PROTOCOL_FEATURES;
        if !packed {
            chosen &= !RING_PACKED;
        }
        let table = [state(1, 0), region(0)].concat();
        vec![
            Self::new(GET_FEATURES, Vec::new()),
            Self::new(GET_PROTOCOL_FEATURES, Vec::new()),
            Self::new(SET_PROTOCOL_FEATURES, words(&[ALL_PROTOCOL_FEATURES])),
            Self::new(SET_OWNER, Vec::new()),
            Self::new(SET_FEATURES, words(&[chosen])),
            Self::new(SET_MEM_TABLE, table).with(Attached::Memory),
        ]
    }

    /// Everything that a ring needs to be served.
    fn start(input: &mut Input<'_>) -> [Self; 5] {
        let (queue, exponent, place) = (queue(input), input.u8() % 8, input.u16());
        [
            Self::new(SET_VRING_NUM, state(queue, 1 << exponent)),
            Self::new(SET_VRING_BASE, state(queue, 0)),
            Self::new(SET_VRING_ADDR, addresses(queue, place)),
            Self::new(SET_VRING_KICK, words(&[queue.into()])).with(Attached::Event),
            Self::new(SET_VRING_ENABLE, state(queue, 1)),
        ]
    }

    /// Adds the next message, or the few that belong together.
    pub(super) fn take(input: &mut Input<'_>, messages: &mut Vec<Self>) {
        let shape = input.u8();
        let mut message = match shape & 0x1f {
            0 => return messages.extend(Self::start(input)),
            1 => Self::new(SET_FEATURES, words(&[Self::features(input)])),
            2 => Self::new(SET_PROTOCOL_FEATURES, words(&[input.u16().into()])),
            3..6 => Self::memory(shape & 0x1f, input),
            6 | 7 => Self::new(SET_VRING_NUM, state(queue(input), small_or_any(input, 254))),
            8 => Self::new(SET_VRING_BASE, state(queue(input), input.u32())),
            9 | 10 => Self::new(SET_VRING_ADDR, addresses(queue(input), input.u16())),
            11 => Self::new(GET_VRING_BASE, state(queue(input), 0)),
            12..16 => Self::descriptor(shape & 0x1f, input),
            16 | 17 => Self::new(SET_VRING_ENABLE, state(queue(input), small_or_any(input, 1))),
            18 | 19 => Self::config(shape & 1, input),
            23 | 24 => Self::inflight(shape & 1, input),
            20..23 => Self::new(PLAIN[usize::from(input.u8()) % PLAIN.len()], Vec::new()),
            30 => Self::log(input),
            31 => Self::logged(input),
            _ => {
                let code = small_or_any(input, 50);
                let count = usize::from(input.u8() % 64);
                Self::new(code, input.bytes(count).to_vec())
            }
        };
        if shape & 0x20 != 0 {
            message.flags |= NEED_REPLY;
        }
        if shape & 0x40 != 0 {
            message.attached.push(Attached::Event);
        }
        if shape & 0x80 != 0 {
            message.attached.push(Attached::Memory);
        }
        messages.push(message);
    }

    /// All that are offered without some, or any.
    fn features(input: &mut Input<'_>) -> u64 {
        let all = features().0 | PROTOCOL_FEATURES | LOG_ALL;
        match input.u8() {
            255 => input.u64(),
            254 => all & !PROTOCOL_FEATURES,
            253 => all & !RING_PACKED,
            252 => all & !RING_PACKED & !PROTOCOL_FEATURES,
            bit => all & !(1 << (bit % 64)),
        }
    }

    /// A log of up to 64 KiB, enough for 2 GiB of guest memory, or any.
    fn log(input: &mut Input<'_>) -> Self {
        let bytes = match input.u8() {
            255 => input.u64(),
            small => u64::from(small) << 8,
        };
        let offset = u64::from(input.u8());
        Self::new(SET_LOG_BASE, words(&[bytes, offset])).with(Attached::Memory)
    }

    /// A ring whose used ring is logged, near the end of the log or anywhere.
    fn logged(input: &mut Input<'_>) -> Self {
        let mut payload = addresses(queue(input), input.u16());
        payload[4] = 1;
        let at = match input.u8() {
            255 => input.u64(),
            small => u64::from(small) << 20,
        };
        payload[32..].copy_from_slice(&at.to_le_bytes());
        Self::new(SET_VRING_ADDR, payload)
    }

    fn memory(kind: u8, input: &mut Input<'_>) -> Self {
        if kind == 3 {
            let count = input.u8() % 4;
            let mut payload = state(count.into(), 0);
            (0..count).for_each(|_| payload.extend(region(input.u8())));
            let attached = vec![Attached::Memory; count.into()];
            return Self { attached, ..Self::new(SET_MEM_TABLE, payload) };
        }
        let payload = [words(&[0]), region(input.u8())].concat();
        if kind == 4 {
            Self::new(ADD_MEM_REG, payload).with(Attached::Memory)
        } else {
            Self::new(REM_MEM_REG, payload)
        }
    }

    fn descriptor(kind: u8, input: &mut Input<'_>) -> Self {
        let code = match kind {
            12 | 13 => SET_VRING_KICK,
            14 => SET_VRING_CALL,
            _ => SET_VRING_ERR,
        };
        match input.u8() {
            255 => Self::new(code, words(&[input.u64()])),
            index if index & 0x80 != 0 => {
                Self::new(code, words(&[NO_DESCRIPTOR | u64::from(index & 3)]))
            }
            index => Self::new(code, words(&[u64::from(index & 3)])).with(Attached::Event),
        }
    }

    /// A region for a few queues, which lies in the file of all memory and thus holds anything.
    fn inflight(set: u8, input: &mut Input<'_>) -> Self {
        let (place, shape) = (input.u8(), input.u8());
        let bytes = if place & 1 == 0 { FILE_BYTES } else { input.u16().into() };
        let offset = u64::from(place >> 1) * 32;
        let queues = small_or_any(input, 4).to_le_bytes();
        let size = (1_u32 << (shape % 17)).to_le_bytes();
        let mut payload = words(&[bytes.saturating_sub(offset), offset]);
        payload.extend([queues[0], queues[1], size[0], size[1], 0, 0, 0, 0]);
        if set == 0 {
            Self::new(GET_INFLIGHT_FD, payload)
        } else {
            Self::new(SET_INFLIGHT_FD, payload).with(Attached::Memory)
        }
    }

    /// Offset, size and flags in front of the bytes, which are all alike.
    fn config(write: u8, input: &mut Input<'_>) -> Self {
        let (offset, count) = (input.u16(), input.u8());
        let (count, byte) = (count & 0x7f, count >> 7);
        let mut payload = [offset.into(), u32::from(count), 0].map(u32::to_le_bytes).concat();
        payload.resize(payload.len() + usize::from(count), byte);
        Self::new(if write == 0 { GET_CONFIG } else { SET_CONFIG }, payload)
    }
}
