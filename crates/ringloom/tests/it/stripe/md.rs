//! Linux' md and ringloom read what the other one has written: members of several stripes, which a guest makes md
//! arrays of.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, RingLayout, Shape};
use testkit::guest::{self, Equipment, Guest};
use testkit::process::{Bench, Program};
use testkit::report::{note, skipped};

use super::{Stripe, same};
use crate::support::{ringloom, stop, with};

/// About 20 s under TCG on two cores; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
const TRANSFER: usize = 1 << 20;

/// Chunks that are a power of two and such that are not, and members that end in mid-chunk.
fn stripes(bench: &Bench) -> Vec<Stripe<'_>> {
    let shapes = [
        (2, 4 << 10, 1 << 20),
        (3, 12 << 10, 2 << 20),
        (5, 64 << 10, (1 << 20) + (20 << 10)),
        (2, 1 << 20, 5 << 20),
    ];
    let stripe = |(number, (members, chunk, member))| {
        let id = format!("s{number}");
        Stripe { bench, id, members, chunk, member, direct: "on" }
    };
    (0..).zip(shapes).map(stripe).collect()
}

/// Makes an array without superblocks of each stripe's members, tells what is in it, and changes each byte.
fn script(stripes: &[Stripe<'_>]) -> String {
    let mut script = "insmod /modules/md_mod.ko; insmod /modules/raid0.ko\n".to_owned();
    let mut letters = 'a'..='z';
    for (number, stripe) in stripes.iter().enumerate() {
        let Stripe { chunk, members, member, .. } = stripe;
        let kib = member / 1024;
        let mut line = |text: String| writeln!(script, "{text}").expect("a string takes all");
        line(format!("echo md{number} > /sys/module/md_mod/parameters/new_array"));
        line(format!("cd /sys/block/md{number}/md"));
        line("echo none > metadata_version; echo raid0 > level".to_owned());
        line(format!("echo {chunk} > chunk_size; echo {members} > raid_disks"));
        for (slot, letter) in (0..*members).zip(letters.by_ref()) {
            line(format!("cat /sys/block/vd{letter}/dev > new_dev"));
            line(format!("echo {kib} > dev-vd{letter}/size; echo {slot} > dev-vd{letter}/slot"));
        }
        line("echo active > array_state; cd /".to_owned());
        line(format!("section level{number} cat /sys/block/md{number}/md/level"));
        line(format!("section size{number} cat /sys/block/md{number}/size"));
        line(format!("section before{number} md5sum /dev/md{number}"));
        line(format!(
            "section change{number} sh -c \"tr '\\000-\\377' '\\001-\\377\\000' < /dev/md{number} > /tmp/new && \
             dd if=/tmp/new of=/dev/md{number} bs=1M conv=fsync\""
        ));
        line(format!("echo clear > /sys/block/md{number}/md/array_state"));
    }
    script + "section arrays cat /proc/mdstat\n"
}

/// What ringloom reads, or writes.
fn through<T>(
    program: &Program,
    stripe: &Stripe<'_>,
    act: impl FnOnce(&mut Client) -> Result<T>,
) -> Result<T> {
    let server = stripe.serve(program, 1)?;
    let shape = Shape { memory_bytes: TRANSFER, ..Shape::small() };
    let mut client = Client::connect(&stripe.socket(), shape)?;
    let result = act(&mut client).with_context(|| format!("log: {}", server.log()))?;
    drop(client);
    stop(server, &[&stripe.socket()])?;
    Ok(result)
}

fn write(client: &mut Client, content: &[u8]) -> Result<()> {
    for (place, bytes) in content.chunks(TRANSFER).enumerate() {
        client.write((place * TRANSFER) as u64, bytes, 0)?;
    }
    client.flush()
}

fn read(client: &mut Client, count: usize) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    while content.len() < count {
        let length = TRANSFER.min(count - content.len());
        content.extend(client.read(content.len() as u64, length, 0)?);
    }
    Ok(content)
}

/// Boots the guest on the members of all stripes.
fn boot(program: &Program, bench: &Bench, stripes: &[Stripe<'_>]) -> Result<guest::Console> {
    let (mut arguments, mut disks) = (Vec::new(), Vec::new());
    for stripe in stripes {
        for member in 0..stripe.members {
            let (name, file) = (format!("{}-{member}", stripe.id), stripe.image(member));
            let socket = bench.path(&format!("{name}.sock"));
            let (file, path) = (file.display(), socket.display());
            arguments.extend([
                "--blockdev".to_owned(),
                format!("file,node-name={name},filename={file}"),
                "--export".to_owned(),
                format!(
                    "vhost-user-blk,id={name},node-name={name},addr.type=unix,addr.path={path},writable=on"
                ),
            ]);
            disks.push(socket);
        }
    }
    let server = program.start(&arguments, &disks)?;
    let sockets: Vec<_> = disks.iter().map(|path| path.as_path()).collect();
    let guest = Guest {
        disks: disks.clone(),
        queues: 1,
        layout: RingLayout::Split,
        script: script(stripes),
    };
    let console = guest
        .boot_with(&Equipment::bare(), bench)?
        .wait(GUEST_LIMIT)
        .with_context(|| format!("log of the server: {}", server.log()))?;
    stop(server, &sockets)?;
    Ok(console)
}

fn check(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let stripes = stripes(&bench);
    let mut contents = Vec::new();
    for (stripe, seed) in stripes.iter().zip(0x3d..) {
        stripe.create(seed)?;
        // Bytes that no member holds yet.
        let image = bench.path("content.img");
        let content = testkit::image::create_filled(&image, stripe.bytes(), seed * 7 + 1)?;
        through(program, stripe, |client| write(client, &content))?;
        contents.push(content);
    }
    let console = boot(program, &bench, &stripes)?;
    note(&console.success("arrays")?);
    for (number, (stripe, content)) in stripes.iter().zip(&mut contents).enumerate() {
        let level = console.success(&format!("level{number}"))?;
        ensure!(level == "raid0", "array {number} is {level}");
        let sectors: usize = console.success(&format!("size{number}"))?.parse()?;
        ensure!(sectors * 512 == content.len(), "array {number} has {sectors} sectors: {stripe:?}");
        let expected = md5(&bench, content)?;
        let found = console.success(&format!("before{number}"))?;
        ensure!(
            found.starts_with(&expected),
            "md reads other bytes than ringloom wrote: {stripe:?}"
        );
        console.success(&format!("change{number}"))?;
        content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        let found = through(program, stripe, |client| read(client, content.len()))?;
        same(&found, content, "what md wrote")?;
    }
    console.success("script_status").map(drop)
}

fn md5(bench: &Bench, content: &[u8]) -> Result<String> {
    let path = bench.path("md5.img");
    std::fs::write(&path, content).context("write what is to be summed up")?;
    let output = std::process::Command::new("md5sum").arg(&path).output().context("run md5sum")?;
    let text = String::from_utf8(output.stdout).context("md5sum speaks text")?;
    text.split_whitespace().next().map(str::to_owned).context("md5sum said nothing")
}

#[test]
fn md_and_ringloom_read_what_the_other_has_written() {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), check),
    }
}
