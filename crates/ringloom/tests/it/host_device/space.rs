//! Discards and zeroes: what they leave, whoever looks, and what room they give back.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Request, Segment, Shape, Status, Unmap};
use testkit::model::{self, DiskModel, Plan};
use testkit::rng::Rng;

use super::{Bed, RIGS, on};

const MIB: u64 = 1 << 20;
const DISK_BYTES: usize = 8 << 20;

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; DISK_BYTES];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// The room that the image has on the host, in MiB.
fn room(bed: &Bed) -> Result<u64> {
    let found = std::fs::metadata(&bed.image).context("look at the image")?;
    Ok(found.blocks() * 512 / MIB)
}

#[track_caller]
fn execute(client: &mut Client, queue: usize, request: &Request) -> Result<()> {
    let status = client.execute(queue, request)?;
    ensure!(status == Status::Ok, "{request:?}: {status:?}");
    Ok(())
}

#[test]
fn discards_and_zeroes_are_seen_by_guest_and_host_and_give_room_back() {
    on(&RIGS, |rig| {
        let mut expected = content(0xd15c);
        let bed = Bed::new(rig, &expected, ",discard=unmap")?;
        let mut client = Client::connect(&bed.socket, Shape { queues: 2, ..Shape::small() })?;
        // From now on the host's page cache has all of the device.
        ensure!(bed.as_the_host_sees_it()? == expected, "before");
        ensure!(room(&bed)? == 8, "the image has all its room");
        let zeroes = |offset, unmap| Request::WriteZeroes { offset, length: MIB, unmap };
        for (queue, request, place, left) in [
            (0, Request::Discard { offset: MIB, length: MIB }, 1, 7),
            (1, zeroes(3 * MIB, Unmap::Allowed), 3, 6),
            (0, zeroes(5 * MIB, Unmap::Forbidden), 5, 6),
        ] {
            execute(&mut client, queue, &request)?;
            let range = place << 20..(place + 1) << 20;
            // A loop device makes zeroes of a discard.
            expected[range].fill(0);
            ensure!(bed.as_the_host_sees_it()? == expected, "{request:?}: the host sees the past");
            ensure!(room(&bed)? == left, "{request:?}: {} MiB are left", room(&bed)?);
        }
        // What is written there afterwards stays.
        let data = client.memory();
        data.write(0, &[0xab; 4096]);
        let segments = vec![Segment { offset: 0, length: 4096 }];
        execute(&mut client, 1, &Request::Write { offset: MIB + 512, segments })?;
        execute(&mut client, 0, &Request::Flush)?;
        let at = (1 << 20) + 512;
        expected[at..at + 4096].fill(0xab);
        ensure!(bed.as_the_host_sees_it()? == expected, "the write after the discard");
        let found = client.read(0, DISK_BYTES / 16, 0)?;
        ensure!(found == expected[..found.len()], "the guest sees something else");
        Ok(())
    });
}

#[test]
fn without_discard_unmap_no_room_is_given_back() {
    on(&RIGS[..1], |rig| {
        let bed = Bed::new(rig, &content(1), "")?;
        let mut client = Client::connect(&bed.socket, Shape { queues: 2, ..Shape::small() })?;
        execute(&mut client, 0, &Request::Discard { offset: 0, length: MIB })?;
        ensure!(bed.as_the_host_sees_it()? == content(1), "something was discarded");
        let (length, unmap) = (MIB, Unmap::Allowed);
        execute(&mut client, 0, &Request::WriteZeroes { offset: 0, length, unmap })?;
        ensure!(room(&bed)? == 8, "{} MiB are left", room(&bed)?);
        ensure!(bed.as_the_host_sees_it()?[..1 << 20].iter().all(|byte| *byte == 0), "zeroes");
        Ok(())
    });
}

#[test]
fn a_random_load_with_discards_keeps_every_byte_on_every_engine() {
    on(&RIGS, |rig| {
        let plan = Plan { seed: 0xb10c, operations: 3000, depth: 8, block_bytes: 512 };
        let mut model = DiskModel::new(content(plan.seed));
        let bed = Bed::new(rig, &content(plan.seed), ",discard=unmap")?;
        let shape = Shape { queues: 2, memory_bytes: plan.memory_bytes(2), ..Shape::small() };
        let mut client = Client::connect(&bed.socket, shape)?;
        let done = model::run(&mut client, &mut model, &plan)
            .with_context(|| format!("log: {}", bed.server.log()))?;
        ensure!(done.discards > 50 && done.write_zeroes > 50, "{done:?}");
        model::verify_through(&mut client, &model)?;
        execute(&mut client, 0, &Request::Flush)?;
        model.check(0, &bed.as_the_host_sees_it()?).context("as the host sees it")
    });
}
