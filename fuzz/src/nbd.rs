//! What a client of the NBD server sends: before it has chosen an export, and after that.
//!
//! Not here: sockets and iothreads. Requests are answered at once, and replies are written but not sent.

use block::{
    Access, BlockStatus, ByteCount, Capacity, DiskSize, Durability, FailKind, Operation, Outcome,
    SECTOR_BYTES, StatusRuns,
};
use nbd::{
    BlockSizes, ExportCatalog, ExportOffer, ExportSummary, HeaderStyle, MetaContext, MetaContexts,
    NbdConnection, NbdConnectionSetup, NbdTransport, Negotiation, NegotiationProgress,
    NegotiationStep, ProtocolString, SENT_BYTES_MAX, TlsPolicy, TransmissionFlags,
    TransmissionSettings,
};
use request_path::{FrontEnd, NewRequest, RequestAction};

use crate::input::Input;

const DISK_BYTES: u64 = 64 << 20;

/// Two strings and what is around them.
const REPLY_BYTES_MAX: usize = 16 << 10;

struct Exports;

impl ExportCatalog for Exports {
    fn list(&self) -> Vec<ExportSummary> {
        let offers = ["disk", "4k"].into_iter().filter_map(|name| self.find(name));
        offers
            .map(|ExportOffer { name, description, .. }| ExportSummary { name, description })
            .collect()
    }

    fn find(&self, name: &str) -> Option<ExportOffer> {
        let (name, block) = match name {
            "" | "disk" => ("disk", 512),
            "4k" => ("4k", 4096),
            _ => return None,
        };
        Some(ExportOffer {
            name: ProtocolString::new(name).ok()?,
            description: ProtocolString::new("a disk").ok(),
            size: DiskSize(ByteCount(DISK_BYTES + 700)),
            access: Access::ReadWrite,
            block_sizes: BlockSizes::of_block(block),
            allocation_depth: block == 512,
            bitmaps: Vec::new(),
            multi_conn: true,
        })
    }
}

/// The first byte says how TLS is treated, the second one into how large pieces the others are split.
pub fn nbd_negotiation(data: &[u8]) {
    let mut input = Input::new(data);
    let tls =
        [TlsPolicy::None, TlsPolicy::Offered, TlsPolicy::Required][usize::from(input.u8() % 3)];
    let size = usize::from(input.u8()).max(1);
    let bytes = input.rest();
    let split = talk(tls, bytes.chunks(size));
    if tls == TlsPolicy::None {
        let whole = talk(tls, bytes.chunks(bytes.len().max(1)));
        assert_eq!(split, whole, "it depends on how it is split");
    }
}

/// What is said to the client, and how that ends.
fn talk<'a>(tls: TlsPolicy, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, String) {
    let mut negotiation = Negotiation::new(tls);
    let (mut said, mut is_encrypted) = (negotiation.greeting(), false);
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        let NegotiationProgress { output, step } = negotiation.receive(piece, &Exports);
        assert!(output.len() <= SENT_BYTES_MAX + REPLY_BYTES_MAX, "{} bytes", output.len());
        said.extend(output);
        match step {
            NegotiationStep::More => {}
            NegotiationStep::StartTls => {
                assert!(tls != TlsPolicy::None && !is_encrypted);
                is_encrypted = true;
                negotiation.encrypted();
            }
            NegotiationStep::Aborted => return (said, "aborted".to_owned()),
            NegotiationStep::Failed(fault) => return (said, fault.to_string()),
            NegotiationStep::Transmission { settings, mut received } => {
                assert!(tls != TlsPolicy::Required || is_encrypted, "plain");
                assert!(settings.size.0.0.is_multiple_of(SECTOR_BYTES));
                assert!(settings.contexts.is_empty() || settings.style >= HeaderStyle::Structured);
                pieces.for_each(|piece| received.extend_from_slice(piece));
                return (said, format!("{settings:?} {}", received.len()));
            }
        }
    }
    (said, String::new())
}

/// The first byte says what was agreed on, the second one how operations end; the others are requests.
pub fn nbd_transmission(data: &[u8]) {
    let mut input = Input::new(data);
    let (agreed, ends) = (input.u8(), input.u8());
    let size = DiskSize(ByteCount(DISK_BYTES));
    let settings = settings(agreed, size);
    let access = settings.access;
    let Ok((ours, _theirs)) = std::os::unix::net::UnixStream::pair() else { return };
    let connection = NbdConnection::new(NbdConnectionSetup {
        bitmaps: std::sync::Arc::new([]),
        socket: ours.into(),
        settings,
        received: input.rest().to_vec(),
        size: Capacity::new(size).into(),
        durability: Durability::Cached,
        transport: NbdTransport::Plain,
    });
    let Ok(mut connection) = connection else { return };
    let mut taken = 0_u8;
    connection.begin_batch();
    while connection.has_new() {
        let outcome = if (ends >> (taken % 8)) & 1 == 0 {
            Outcome::Done
        } else {
            Outcome::Failed(FailKind::Io)
        };
        let (slot, outcome) = match connection.take() {
            Ok(Some(NewRequest { slot, work, .. })) => (slot, carry_out(work, access, outcome)),
            Ok(None) => continue,
            // What is wrong has a sentence.
            Err(fault) => return assert!(!fault.to_string().is_empty()),
        };
        connection.answer(slot, (), outcome);
        assert!(connection.unpublished() <= connection.slots().into(), "more than there are slots");
        assert!(connection.memory_bytes() <= (65 << 20) + data.len(), "more than its share");
        taken = taken.wrapping_add(1);
    }
}

fn settings(agreed: u8, size: DiskSize) -> TransmissionSettings {
    let style = [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended]
        [usize::from(agreed & 3).min(2)];
    let access = if agreed & 4 == 0 { Access::ReadWrite } else { Access::ReadOnly };
    let mut contexts = MetaContexts::default();
    if agreed & 8 != 0 && style > HeaderStyle::Simple {
        contexts = contexts.with(MetaContext::BaseAllocation);
    }
    if agreed & 16 != 0 && style > HeaderStyle::Simple {
        contexts = contexts.with(MetaContext::AllocationDepth);
    }
    let block_sizes = BlockSizes::of_block(if agreed & 32 == 0 { 512 } else { 4096 });
    let offer = ExportOffer {
        name: ProtocolString::default(),
        description: None,
        size,
        access,
        block_sizes,
        allocation_depth: true,
        bitmaps: Vec::new(),
        multi_conn: agreed & 64 == 0,
    };
    let flags = TransmissionFlags::of(&offer, style, contexts);
    TransmissionSettings { export: offer.name, size, access, style, contexts, block_sizes, flags }
}

/// Does what the engine and a disk do, and checks what they rely on.
fn carry_out(work: RequestAction<'_>, access: Access, outcome: Outcome) -> Outcome {
    match work {
        RequestAction::Disk { operation, memory, .. } => {
            let extent = operation.extent();
            if let Some(extent) = extent {
                let (start, end) = (extent.bytes().start, extent.bytes().end);
                assert!(start < end && end <= DISK_BYTES, "{operation:?}");
                assert!((start | end).is_multiple_of(SECTOR_BYTES), "{operation:?}");
            }
            assert!(access == Access::ReadWrite || !operation.is_change(), "{operation:?}");
            let count = extent.map_or(0, |extent| extent.count().0);
            match operation {
                Operation::Read(_) => {
                    assert_eq!(memory.count() as u64, count);
                    memory.zero(0, memory.count());
                }
                Operation::Write(..) => assert_eq!(memory.count() as u64, count),
                Operation::Status(extent) => {
                    let mut runs = StatusRuns::default();
                    let half = extent.count().0 / 2;
                    runs.add(0, ByteCount(half), BlockStatus::DATA);
                    runs.add(half, ByteCount(extent.count().0 - half), BlockStatus::ZEROES);
                    if let Err(kind) = runs.write(memory) {
                        return Outcome::Failed(kind);
                    }
                }
                Operation::Discard(..) | Operation::WriteZeroes(..) | Operation::Flush => {
                    assert_eq!(memory.count(), 0);
                }
            }
            outcome
        }
        RequestAction::Done => Outcome::Done,
        RequestAction::Refuse { kind, what, .. } => {
            assert!(!what.to_string().is_empty());
            Outcome::Failed(kind)
        }
    }
}
