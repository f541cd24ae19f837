//! `copy-on-read`: what is read through it comes to stand in the image, as with qemu-storage-daemon, and no write is lost.
//!
//! The same chain of images, the same requests: afterwards `qemu-img map` says the same of the image of either server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::client::{Client, Shape};
use testkit::process::{Bench, Program};
use testkit::rng::Rng;

use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

const SIZE: usize = 4 << 20;

/// A chain, and how it is used.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Chooses what images have and what is asked.
    seed: u64,
    /// The options of the upper images.
    options: &'static str,
    /// More options of the node.
    node: &'static str,
    /// Whether clients write.
    writable: bool,
}

/// Raw `base`, then `one` and `top`: each shorter than the one above.
fn make_chain(bench: &Bench, case: Case) -> Result<()> {
    let rng = &mut Rng::new(case.seed);
    qemu_img(bench, "create -q -f raw base 2M")?;
    let create = |image: &str, below: &str, format: &str, size: &str| {
        let Case { options, .. } = case;
        let line = format!("create -q -f qcow2 -o {options} -b {below} -F {format} {image} {size}");
        qemu_img(bench, &line)
    };
    create("one", "base", "raw", "3M")?;
    create("top", "one", "qcow2", "4M")?;
    for (image, format, sectors) in
        [("base", "raw", 4096), ("one", "qcow2", 6144), ("top", "qcow2", 8192)]
    {
        for byte in 1..8 {
            let start = rng.below(sectors);
            let count = (1 + rng.below(300)).min(sectors - start);
            let what =
                if rng.one_in(4) { "write -z".to_owned() } else { format!("write -P {byte}") };
            let command = format!("{what} {} {}", start * 512, count * 512);
            qemu_io(bench, &["-f", format, "-c", &command, image])?;
        }
    }
    Ok(())
}

fn arguments(bench: &Bench, case: Case) -> Vec<String> {
    let file =
        |name: &str| format!("driver=file,node-name={name}-file,filename={}", bench.text(name));
    let Case { node, writable, .. } = case;
    let nodes = [
        file("base"),
        "driver=raw,node-name=base,file=base-file".to_owned(),
        file("one"),
        "driver=qcow2,node-name=one,file=one-file,backing=base".to_owned(),
        file("top"),
        "driver=qcow2,node-name=top,file=top-file,backing=one".to_owned(),
        format!("driver=copy-on-read,node-name=n,file=top{node}"),
    ];
    let export = format!(
        "vhost-user-blk,id=e,node-name=n,writable={},addr.type=unix,addr.path={}",
        if writable { "on" } else { "off" },
        bench.text("s")
    );
    let nodes = nodes.into_iter().flat_map(|node| ["--blockdev".to_owned(), node]);
    nodes.chain(["--export".to_owned(), export]).collect()
}

/// Reads, and writes if the case has it.
fn work(client: &mut Client, case: Case, model: &mut [u8]) -> Result<()> {
    let rng = &mut Rng::new(case.seed ^ 0xc0);
    for round in 0..60 {
        let sectors = SIZE / 512;
        let start = rng.index(sectors);
        let longest = 1 << rng.below(9);
        let count = (1 + rng.index(longest)).min(sectors - start);
        let bytes = start * 512..(start + count) * 512;
        let offset = u64::try_from(bytes.start)?;
        if case.writable && rng.one_in(4) {
            let data = vec![0x40 | u8::try_from(round)?; bytes.len()];
            client.write(offset, &data, 0)?;
            model[bytes].copy_from_slice(&data);
        } else {
            let found = client.read(offset, bytes.len(), 0)?;
            ensure!(found == model[bytes.clone()], "wrong bytes in {bytes:?}");
        }
    }
    Ok(())
}

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    depth: u64,
    zero: bool,
    present: bool,
}

/// The ranges of an image, each with its end.
type Map = Vec<(u64, u64, Kind)>;

/// What QEMU says of the image, without places in files; neighbours that are alike are one.
fn map(bench: &Bench) -> Result<Map> {
    let said = qemu_img(bench, "map -f qcow2 --output=json top")?;
    let ranges: Vec<Value> = serde_json::from_str(&said)?;
    let mut map = Map::new();
    for range in ranges {
        let number = |name: &str| range[name].as_u64().context("a number");
        let (start, count) = (number("start")?, number("length")?);
        let (depth, has) = (number("depth")?, |name: &str| range[name] == true);
        // Whether data have holes in the file below is another matter.
        let zero = has("zero") && !has("data");
        // Zeroes behind the end of the backing file are marked by the peer; here they need no mark.
        let present = has("present") || zero && depth == 0;
        // Which parts of the raw file are holes depends on what is in the page cache, too.
        let zero = zero && depth < 2;
        let kind = Kind { depth, zero, present };
        match map.last_mut() {
            Some((_, end, last)) if *last == kind => *end = start + count,
            Some(_) | None => map.push((start, start + count, kind)),
        }
    }
    Ok(map)
}

/// The chain before it is served and after that.
fn served(program: &Program, case: Case) -> Result<[Map; 2]> {
    let bench = Bench::new()?;
    make_chain(&bench, case)?;
    qemu_img(&bench, "convert -f qcow2 -O raw top before")?;
    let mut model = std::fs::read(bench.path("before"))?;
    let (socket, before) = (bench.path("s"), map(&bench)?);
    let server = program.start(&arguments(&bench, case), std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    work(&mut client, case, &mut model).with_context(|| server.log())?;
    drop(client);
    stop(server, &[socket.as_path() as &Path])?;
    qemu_img(&bench, "check -q -f qcow2 top")?;
    qemu_img(&bench, "convert -f qcow2 -O raw top after")?;
    ensure!(std::fs::read(bench.path("after"))? == model, "other bytes are in the image");
    let after = map(&bench)?;
    ensure!(after != before, "nothing was copied");
    Ok([before, after])
}

#[track_caller]
fn check(case: Case) {
    let mut maps = Vec::new();
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| {
            let [_, after] = served(program, case).with_context(|| format!("{case:?}"))?;
            maps.push(after);
            Ok(())
        });
    }
    // Zeroes of some subclusters of a cluster are data here, or nothing where the backing file reads as zeroes, too.
    if let [theirs, ours] = &maps[..]
        && !case.options.contains("extended_l2")
    {
        assert_eq!(theirs, ours, "{case:?}");
    }
}

#[test]
fn what_is_read_is_copied_as_by_the_peer() {
    let plain = "cluster_size=64k";
    for (seed, options) in
        [(1, plain), (2, "cluster_size=4k"), (3, "extended_l2=on,cluster_size=128k")]
    {
        check(Case { seed, options, node: "", writable: false });
        check(Case { seed: seed + 10, options, node: "", writable: true });
    }
    check(Case { seed: 21, options: plain, node: ",read-only=on", writable: false });
}

/// Of the peer's daemon a read of this chain returns wrong bytes.
#[test]
fn what_is_below_bottom_is_not_copied() {
    const CLUSTER: usize = 64 << 10;
    let case = Case { seed: 22, options: "cluster_size=64k", node: ",bottom=one", writable: false };
    with(&ringloom(), |program| {
        let depth = |map: &Map, at: u64| {
            map.iter().find(|(_, end, _)| at < *end).map(|(_, _, kind)| kind.depth)
        };
        let [before, after] = served(program, case)?;
        for at in (0..4 << 20).step_by(CLUSTER) {
            let depths = [&before, &after].map(|map| depth(map, at));
            ensure!(depths[0] != Some(2) || depths[1] == Some(2), "{at}: {depths:?}");
        }
        ensure!(before.iter().any(|(_, _, kind)| kind.depth == 2), "all is above the base");
        Ok(())
    });
}
