//! virtio-blk requests of any shape, held against a second decoder that works on plain bytes.

use block::{
    Access, Buffers, ByteCount, DiskSize, Durability, FailKind, Operation, Outcome, ZeroTerms,
};
use virtio::{
    BlkRequestKind, BlkRules, Chain, DATA_BYTES_MAX, GuestAddress, MalformedRequest,
    RANGE_SECTORS_MAX, TranslationHint, decode, status_byte, write_id, write_status,
};

use crate::guest::{GUEST, Guest, LARGE};
use crate::input::Input;

/// The most buffers on either side.
const BUFFERS_MAX: u8 = 24;

/// The input has the rules, the buffers and the memory.
pub fn blk_decode(data: &[u8]) {
    Guest::with(|guest| {
        let mut input = Input::new(data);
        let rules = rules(&mut input);
        let mut chain = Chain::default();
        buffers(guest, &mut input, &mut chain.readable);
        buffers(guest, &mut input, &mut chain.writable);
        guest.write(GUEST, input.rest());
        check(guest, &rules, chain);
    });
}

fn rules(input: &mut Input<'_>) -> BlkRules {
    let shape = input.u8();
    let pick = |bit: u8| shape & bit != 0;
    let size = if pick(0x10) { input.u64() } else { u64::from(input.u16()) * 512 };
    BlkRules {
        size: DiskSize(ByteCount(size)),
        access: if pick(1) { Access::ReadOnly } else { Access::ReadWrite },
        durability: if pick(2) { Durability::Stable } else { Durability::Cached },
        discard: !pick(4),
        write_zeroes: !pick(8),
    }
}

fn buffers(guest: &Guest, input: &mut Input<'_>, buffers: &mut Buffers) {
    let mut hit = TranslationHint::default();
    for _ in 0..input.u8() % BUFFERS_MAX {
        let shape = input.u8();
        let (address, bytes) = match shape & 3 {
            0 => (GUEST + u64::from(input.u8()), u32::from(input.u8())),
            1 => (GUEST + u64::from(input.u8()), u32::from(shape >> 2) * 16),
            2 => (GUEST + u64::from(input.u16()), u32::from(shape >> 2) * 512),
            _ => (LARGE, input.u32()),
        };
        let mut found = Vec::new();
        let translated =
            guest.memory.translate(GuestAddress(address), bytes, &mut hit, |it| found.push(it));
        if translated.is_ok() {
            found.into_iter().for_each(|segment| buffers.push(segment));
        }
    }
}

/// The first readable bytes: a header, a range, and one byte that is too much.
struct Head {
    bytes: [u8; 33],
    count: usize,
}

fn check(guest: &Guest, rules: &BlkRules, mut chain: Chain) {
    let mut head = Head { bytes: [0; 33], count: chain.readable.count() };
    chain.readable.copy_to(0, &mut head.bytes);
    let writable = chain.writable.count();
    let last = chain.writable.segments().last().map(|it| it.base().addr().get() + it.count() - 1);

    let request = match decode(&mut chain, rules) {
        Ok(request) => request,
        Err(MalformedRequest::Status) => return assert_eq!(writable, 0),
        Err(MalformedRequest::Header { bytes }) => {
            assert_eq!(bytes, head.count);
            return assert!(writable > 0 && bytes < 16);
        }
    };
    assert!(writable > 0 && head.count >= 16);
    assert_eq!(Some(request.status.base().addr().get()), last, "the status is the last byte");
    assert_eq!(request.status.count(), 1);
    guest.check(&chain.readable);
    guest.check(&chain.writable);
    assert_eq!(chain.writable.count(), writable - 1);
    let expected = head.expected(rules, writable as u64 - 1);
    assert_eq!(Told::of(request.kind), expected, "{rules:?}");
    if matches!(request.kind, BlkRequestKind::Disk(Operation::Write(..))) {
        assert_eq!(chain.readable.count(), head.count - 16, "the data stay in the chain");
    }
    answer(guest, &mut chain, request.kind, request.status);
}

/// Answers as the request path does.
fn answer(guest: &Guest, chain: &mut Chain, kind: BlkRequestKind, status: block::Segment) {
    let mut both = Buffers::default();
    both.push(status);
    if !guest.is_small(&both) || !guest.is_small(&chain.writable) {
        return;
    }
    if kind == BlkRequestKind::GetId {
        let room = chain.writable.count().min(virtio::ID_BYTES);
        assert_eq!(write_id(&mut chain.writable, "a-disk"), room);
    }
    let outcome = match kind {
        BlkRequestKind::Disk(_) | BlkRequestKind::GetId => Outcome::Done,
        BlkRequestKind::Refused(kind) => Outcome::Failed(kind),
    };
    write_status(status, status_byte(outcome));
    let mut byte = [0xff];
    both.copy_to(0, &mut byte);
    assert_eq!(byte, [status_byte(outcome)]);
}

/// What a request is, in plain numbers.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// Name, first byte, bytes, whether stable, whether it may unmap.
    Disk(&'static str, u64, u64, bool, bool),
    Flush,
    GetId,
    Refused(FailKind),
}

impl Told {
    fn of(kind: BlkRequestKind) -> Self {
        let operation = match kind {
            BlkRequestKind::GetId => return Self::GetId,
            BlkRequestKind::Refused(kind) => return Self::Refused(kind),
            BlkRequestKind::Disk(operation) => operation,
        };
        let Some(extent) = operation.extent() else {
            return Self::Flush;
        };
        let unmap = matches!(operation, Operation::WriteZeroes(_, ZeroTerms::UNMAP, _));
        let stable = operation.durability() == Durability::Stable;
        let name = operation.name();
        Self::Disk(name, extent.start().0, extent.count().0, stable, unmap)
    }
}

impl Head {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.bytes[at..at + bytes]);
        u64::from_le_bytes(number)
    }

    /// The same decision as `decode`, from the text of virtio 1.2, 5.2.6, in one place.
    fn expected(&self, rules: &BlkRules, room: u64) -> Told {
        let data = self.count as u64 - 16;
        if [1, 11, 13].contains(&self.number(0, 4)) && rules.access == Access::ReadOnly {
            return Told::Refused(FailKind::ReadOnly);
        }
        let stable = rules.durability == Durability::Stable;
        let told = match self.number(0, 4) {
            0 => self
                .transfer(rules, room)
                .map(|(at, count)| Told::Disk("read", at, count, false, false)),
            1 => self
                .transfer(rules, data)
                .map(|(at, count)| Told::Disk("write", at, count, stable, false)),
            4 => Ok(Told::Flush),
            8 => Ok(Told::GetId),
            11 if rules.discard => self
                .range(rules, data, 0)
                .map(|(at, count)| Told::Disk("discard", at, count, stable, false)),
            13 if rules.write_zeroes => self.range(rules, data, 1).map(|(at, count)| {
                Told::Disk("write-zeroes", at, count, stable, self.number(28, 4) == 1)
            }),
            _ => Err(FailKind::Unsupported),
        };
        told.unwrap_or_else(Told::Refused)
    }

    fn transfer(&self, rules: &BlkRules, count: u64) -> Result<(u64, u64), FailKind> {
        if !count.is_multiple_of(512) || count > DATA_BYTES_MAX {
            return Err(FailKind::Malformed);
        }
        inside(rules, self.number(8, 8), count)
    }

    fn range(&self, rules: &BlkRules, data: u64, flags_max: u64) -> Result<(u64, u64), FailKind> {
        let sectors = self.number(24, 4);
        match data {
            16 => {}
            0..16 => return Err(FailKind::Malformed),
            _ => return Err(FailKind::Unsupported),
        }
        if sectors > RANGE_SECTORS_MAX.into() {
            return Err(FailKind::Malformed);
        }
        let place = inside(rules, self.number(16, 8), sectors * 512)?;
        if self.number(28, 4) > flags_max { Err(FailKind::Unsupported) } else { Ok(place) }
    }
}

fn inside(rules: &BlkRules, sector: u64, count: u64) -> Result<(u64, u64), FailKind> {
    let end = u128::from(sector) * 512 + u128::from(count);
    if end > u128::from(rules.size.0.0) {
        Err(FailKind::OutOfRange)
    } else {
        Ok((sector * 512, count))
    }
}
