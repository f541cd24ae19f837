//! Every byte where RAID0 has it, and stripes that cannot be.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Request, Segment, Shape, Status};
use testkit::image;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::Bench;

use super::{Stripe, same};
use crate::support::{ringloom, ringloom_without_io_uring, stop, with};

const QUEUES: usize = 2;

fn stripe<'a>(bench: &'a Bench, members: usize, chunk: usize) -> Stripe<'a> {
    // Whole blocks behind the last whole chunk are not used.
    let member = (4 << 20) + 4096;
    Stripe { bench, id: "s".to_owned(), members, chunk, member, direct: "on" }
}

fn check_model(stripe: &Stripe<'_>, program: &testkit::process::Program) -> Result<()> {
    let seed = 0x570 + stripe.members as u64;
    stripe.create(seed)?;
    let before = stripe.content()?;
    let plan = Plan { seed, operations: 4000, depth: 16, block_bytes: 512 };
    let mut model = DiskModel::new(before);
    let server = stripe.serve(program, QUEUES)?;
    let memory_bytes = plan.memory_bytes(QUEUES);
    let shape = Shape { queues: QUEUES, memory_bytes, ..Shape::small() };
    let mut client = Client::connect(&stripe.socket(), shape)?;
    let summary = model::run(&mut client, &mut model, &plan)
        .with_context(|| format!("log: {}", server.log()))?;
    ensure!(summary.discards > 0 && summary.write_zeroes > 0, "no discard: {summary:?}");
    model::verify_through(&mut client, &model)?;
    drop(client);
    stop(server, &[&stripe.socket()])?;
    model.check(0, &stripe.content()?).context("the members' files")
}

#[test]
fn a_stripe_under_load_never_returns_a_wrong_byte() {
    for (members, chunk, direct) in [(2, 4096, "on"), (3, 12288, "off"), (5, 64 << 10, "on")] {
        with(&ringloom(), |program| {
            let bench = Bench::new()?;
            check_model(&Stripe { direct, ..stripe(&bench, members, chunk) }, program)
        });
    }
    with(&ringloom_without_io_uring(), |program| {
        let bench = Bench::new()?;
        check_model(&stripe(&bench, 2, 4096), program)
    });
}

/// More pieces for each child than the kernel takes in one call.
#[test]
fn a_request_over_thousands_of_chunks_moves_every_byte() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let stripe = Stripe { member: 16 << 20, ..stripe(&bench, 2, 4096) };
        stripe.create(7)?;
        let server = stripe.serve(program, 1)?;
        let count = 24 << 20;
        let shape = Shape { memory_bytes: count, ..Shape::small() };
        let mut client = Client::connect(&stripe.socket(), shape)?;
        let at = 4096 * 5;
        let content = stripe.content()?;
        same(&client.read(at as u64, count, 0)?, &content[at..][..count], "read")?;
        let bytes: Vec<u8> = content[..count].iter().map(|byte| !byte).collect();
        client.write(at as u64, &bytes, 0)?;
        client.flush()?;
        same(&stripe.content()?[at..][..count], &bytes, "write")?;
        drop(client);
        stop(server, &[&stripe.socket()]).map(drop)
    });
}

#[test]
fn a_request_over_more_chunks_than_an_answer_has_pieces_is_unsupported() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let stripe = Stripe { member: 131 << 20, ..stripe(&bench, 2, 4096) };
        for member in 0..2 {
            image::create_sparse(&stripe.image(member), stripe.member as u64)?;
        }
        let server = stripe.serve(program, 1)?;
        let segment = Segment { offset: 0, length: 4 << 20 };
        let shape = Shape { memory_bytes: segment.length, ..Shape::small() };
        let mut client = Client::connect(&stripe.socket(), shape)?;
        // The same memory again and again: 256 MiB, and more.
        for (count, expected) in [(64, Status::Ok), (65, Status::Unsupported)] {
            let read = Request::Read { offset: 0, segments: vec![segment; count] };
            let status = client.execute(0, &read)?;
            ensure!(status == expected, "{count} times 4 MiB: {status:?}");
        }
        drop(client);
        stop(server, &[&stripe.socket()]).map(drop)
    });
}

#[test]
fn stripes_that_cannot_be_are_refused() {
    let limit = Duration::from_secs(20);
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let stripe = stripe(&bench, 3, 64 << 10);
        stripe.create(3)?;
        let refused = |arguments: &[String], expected: &str| -> Result<()> {
            let exit = program.refusal(arguments, limit)?;
            ensure!(exit.status.code() == Some(1), "{exit:?}");
            ensure!(exit.stderr.contains(expected), "no {expected:?}: {exit:?}");
            ensure!(!stripe.socket().exists(), "a socket is left");
            Ok(())
        };
        image::create_sparse(&stripe.image(1), 3 << 20)?;
        let sentence = "node s: children of unequal size: s/children.0 has 4198400 bytes, \
                        s/children.1 has 3145728 bytes";
        refused(&stripe.arguments(1), sentence)?;
        image::create_sparse(&stripe.image(1), 60 << 10)?;
        let sentence =
            "node s: the node s/children.1 has 61440 bytes, fewer than one chunk of 65536";
        refused(&stripe.arguments(1), sentence)?;
        image::create_sparse(&stripe.image(1), 4 << 20)?;
        // A stripe over a child that cannot be written is one that cannot.
        let read_only: Vec<String> = stripe
            .arguments(1)
            .iter()
            .map(|word| {
                word.replace("children.1.driver", "children.1.read-only=on,children.1.driver")
            })
            .collect();
        refused(&read_only, "cannot export read-only node 's' as writable")?;
        // As they are now they fit.
        let server = stripe.serve(program, 1)?;
        stop(server, &[&stripe.socket()]).map(drop)
    });
}
