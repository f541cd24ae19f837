//! Backups that compress what they write: what is in the image is what the disk was, as qemu-img sees it, and takes as much room as
//! with qemu-storage-daemon.

use std::os::unix::fs::{FileExt, MetadataExt};

use testkit::rng::Rng;

use super::*;
use crate::control::monitor;

/// What qemu-img counts in an image, which has to be whole.
fn counted(bench: &Bench, image: &str) -> Result<Value> {
    let said = qemu_img(bench, &format!("check --output=json -f qcow2 {image}"))?;
    serde_json::from_str(&said).with_context(|| said.clone())
}

fn compressed_clusters(bench: &Bench, image: &str) -> Result<u64> {
    let counted = counted(bench, image)?;
    ensure!(counted["leaks"].is_null() && counted["corruptions"].is_null(), "{counted}");
    Ok(counted["compressed-clusters"].as_u64().unwrap_or(0))
}

/// An image for a disk of so many bytes as a node of its name.
fn add_image(
    qmp: &mut QmpClient,
    bench: &Bench,
    name: &str,
    (options, bytes): (&str, u64),
) -> Result<()> {
    qemu_img(bench, &format!("create -q -f qcow2 -o {options} {name} {bytes}"))?;
    let node = json!({
        "driver": "qcow2", "node-name": name, "discard": "unmap",
        "file": {"driver": "file", "filename": bench.text(name)},
    });
    qmp.execute("blockdev-add", &node).map(drop)
}

/// While guests write, to images of all kinds, which have something already or not.
fn under_writing_guests(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        let mut last = 0;
        for (round, options) in [
            "compat=1.1",
            "cluster_size=2M",
            "cluster_size=512",
            "compression_type=zstd,extended_l2=on,cluster_size=128k",
            "refcount_bits=1",
        ]
        .into_iter()
        .enumerate()
        {
            add_image(&mut place.qmp, &place.bench, "a-copy", (options, BYTES))?;
            // The second time there is something that is written over.
            for speed in [0, 32 << 20] {
                let told = json!({"compress": true, "speed": speed});
                place.qmp.execute("blockdev-backup", &backup("a", &told))?;
                let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
                ensure!(end["error"].is_null() && end["len"] == end["offset"], "{options}: {end}");
            }
            place.del("a-copy")?;
            ensure!(compressed_clusters(&place.bench, "a-copy")? > 0, "{options}: none");
            qemu_img(&place.bench, "convert -f qcow2 -O raw a-copy flat")?;
            let found = last_write(&std::fs::read(place.bench.path("flat"))?)?;
            ensure!(found >= last, "round {round}: {found} after {last}");
            last = found;
            std::fs::remove_file(place.bench.path("a-copy"))?;
        }
        Ok(())
    })?;
    place.end()
}

#[test]
fn backups_are_compressed_while_guests_write() {
    with(&ringloom(), under_writing_guests);
}

/// A disk of text, of bytes that do not shrink, and of holes, each so many bytes or a multiple; its end is none.
fn write_disk(bench: &Bench, unit: usize) -> Result<u64> {
    let mut rng = Rng::new(0xc0de);
    let file = std::fs::File::create(bench.path("disk"))?;
    let mut at = 0;
    for round in 0..60 {
        let count = (1 + rng.index(163_840 / unit)) * unit;
        let mut part = vec![0; count];
        match round % 3 {
            0 => rng.fill(&mut part),
            1 => {
                let word = format!("line {round} of a text; ");
                part = word.as_bytes().iter().copied().cycle().take(count).collect();
            }
            _ => part.clear(),
        }
        file.write_all_at(&part, at)?;
        at += count as u64;
    }
    file.write_all_at(&[7; 1536], at)?;
    Ok(at + 1536)
}

/// The same job: what was compressed, what room the image takes, and which bytes are data.
fn of_program(program: &Program, options: &str, over: bool) -> Result<(u64, u64, String)> {
    let bench = Bench::new()?;
    // What the peer copies at once is 64 KiB at least, and zeroes that it reads are data for it.
    let is_small = options.contains("cluster_size=4k");
    let bytes = write_disk(&bench, if is_small { 65536 } else { 4096 })?;
    let mut arguments = monitor(&bench);
    if program.name() != "ringloom" {
        arguments.truncate(4);
    }
    let server = program.start(&arguments, &[monitor_socket(&bench)])?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let disk = json!({"driver": "file", "node-name": "d", "filename": bench.text("disk")});
    qmp.execute("blockdev-add", &disk)?;
    add_image(&mut qmp, &bench, "t", (options, bytes))?;
    if over {
        let group = json!({"qom-type": "throttle-group", "id": "g"});
        qmp.execute("object-add", &group)?;
        let filter = json!({
            "driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "t",
        });
        qmp.execute("blockdev-add", &filter)?;
    }
    let target = if over { "f" } else { "t" };
    let job = json!({
        "job-id": "j", "device": "d", "target": target, "sync": "full", "compress": true,
    });
    qmp.execute("blockdev-backup", &job)?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
    ensure!(end["error"].is_null() && end["len"] == end["offset"], "{end}");
    drop(qmp);
    stop(server, &[&monitor_socket(&bench)])?;
    qemu_img(&bench, "compare -q -f raw -F qcow2 disk t")?;
    let map = qemu_img(&bench, "map --output=json -f qcow2 t")?;
    let map: Value = serde_json::from_str(&map)?;
    // Which bytes are data, and how they are stored; not where.
    let mut runs: Vec<(u64, Value)> = Vec::new();
    for run in map.as_array().into_iter().flatten() {
        let what = json!([run["data"], run["compressed"]]);
        let count = run["length"].as_u64().unwrap_or(0);
        match runs.last_mut() {
            Some((before, same)) if *same == what => *before += count,
            _ => runs.push((count, what)),
        }
    }
    let room = std::fs::metadata(bench.path("t"))?.blocks() * 512;
    Ok((compressed_clusters(&bench, "t")?, room, format!("{runs:?}")))
}

fn as_the_peer(ringloom: &Program, peer: &Program) -> Result<()> {
    for (options, over) in [
        ("compat=1.1", false),
        ("compat=0.10,cluster_size=4k", false),
        ("compression_type=zstd,cluster_size=256k", true),
        ("cluster_size=2M,extended_l2=on", false),
    ] {
        let (expected, room_there, map_there) =
            of_program(peer, options, over).with_context(|| format!("the peer, {options}"))?;
        let (found, room, map) =
            of_program(ringloom, options, over).with_context(|| options.to_owned())?;
        ensure!(found > 0, "{options}: nothing is compressed");
        ensure!(found == expected, "{options}: {found} clusters, and {expected} with the peer");
        ensure!(map == map_there, "{options}: {map}, and with the peer {map_there}");
        let is_close = room <= room_there + room_there / 20 + (256 << 10);
        ensure!(is_close, "{options}: {room} bytes, and {room_there} with the peer");
    }
    Ok(())
}

#[test]
fn as_much_is_compressed_as_with_the_peer() {
    with(&Program::qemu_storage_daemon(), |peer| as_the_peer(&ringloom(), peer));
}

/// The target of a compressed backup, below a filter, is kept as it was: what that copies is stored as always.
fn only_its_own_target(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let bytes = write_disk(&bench, 4096)?;
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    let disk = json!({"driver": "file", "node-name": "d", "filename": bench.text("disk")});
    qmp.execute("blockdev-add", &disk)?;
    for name in ["t", "scratch"] {
        add_image(&mut qmp, &bench, name, ("compat=1.1", bytes))?;
    }
    qmp.execute("object-add", &json!({"qom-type": "throttle-group", "id": "g"}))?;
    let filter = json!({
        "driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "t",
    });
    qmp.execute("blockdev-add", &filter)?;
    // Whoever reads it has what is put below claimed.
    let address = json!({"type": "unix", "data": {"path": bench.text("nbd")}});
    qmp.execute("nbd-server-start", &json!({"addr": address}))?;
    let export = json!({"type": "nbd", "id": "x", "node-name": "f"});
    qmp.execute("block-export-add", &export)?;
    let mut job = json!({
        "job-id": "j", "device": "d", "target": "f", "sync": "full", "compress": true,
    });
    qmp.execute("blockdev-backup", &job)?;
    qmp.event("BLOCK_JOB_COMPLETED")?;
    // What it writes over is to be text, and not zeroes.
    job["speed"] = (1 << 18).into();
    qmp.execute("blockdev-backup", &job)?;
    let kept = json!({
        "driver": "copy-before-write", "node-name": "kept", "file": "t", "target": "scratch",
    });
    qmp.execute("blockdev-add", &kept)?;
    let inserted = json!({"node": "t", "filter": "kept", "ringloom-volatile": true});
    qmp.execute("ringloom-insert-filter", &inserted)?;
    qmp.execute("block-job-set-speed", &json!({"device": "j", "speed": 0}))?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
    ensure!(end["error"].is_null() && end["len"] == end["offset"], "{end}");
    drop(qmp);
    stop(server, &[&monitor_socket(&bench)])?;
    ensure!(compressed_clusters(&bench, "t")? > 0, "nothing is compressed");
    let found = counted(&bench, "scratch")?;
    ensure!(found["allocated-clusters"].as_u64() > Some(4), "nothing was kept: {found}");
    ensure!(found["compressed-clusters"].as_u64().unwrap_or(0) == 0, "{found}");
    qemu_img(&bench, "compare -q -f raw -F qcow2 disk t").map(drop)
}

#[test]
fn what_a_filter_keeps_of_a_compressed_target_is_stored_as_always() {
    with(&ringloom(), only_its_own_target);
}

/// Clusters that shrink and clusters that do not, by turns: those of a request share a sync.
fn few_syncs(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    const CLUSTER: usize = 4096;
    let mut disk = vec![b'a'; 1 << 20];
    let mut rng = Rng::new(0x5e7);
    disk.chunks_mut(CLUSTER).step_by(2).for_each(|cluster| rng.fill(cluster));
    std::fs::write(bench.path("disk"), &disk)?;
    qemu_img(&bench, "create -q -f qcow2 -o cluster_size=4k t 1M")?;
    // A server's disk does not grow.
    std::fs::File::options().write(true).open(bench.path("t"))?.set_len(4 << 20)?;
    let (socket, log) = (bench.path("kit.sock"), bench.text("kit.log"));
    let words = ["--filter=log", "file", &bench.text("t"), &format!("logfile={log}")];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let options = ["-f", "--exit-with-parent", "-U", &bench.text("kit.sock")];
    let kit = Program::named("nbdkit", "nbdkit", &options).start(&words, &[socket])?;
    let connects = ["--allow-connect", "localhost:1"].map(str::to_owned);
    let (server, mut qmp) = start(program, &bench, &connects, &[])?;
    let file = json!({"driver": "file", "node-name": "d", "filename": bench.text("disk")});
    qmp.execute("blockdev-add", &file)?;
    let place = json!({"type": "unix", "path": bench.text("kit.sock")});
    let target = json!({
        "driver": "qcow2", "node-name": "t", "file": {"driver": "nbd", "server": place},
    });
    qmp.execute("blockdev-add", &target)?;
    let syncs = || -> Result<usize> {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.lines().filter(|line| line.contains(" Flush ")).count())
    };
    let before = syncs()?;
    let job = json!({
        "job-id": "j", "device": "d", "target": "t", "sync": "full", "compress": true,
        "x-perf": {"max-workers": 1},
    });
    qmp.execute("blockdev-backup", &job)?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
    ensure!(end["error"].is_null(), "{end}");
    let count = syncs()? - before;
    // 128 clusters are compressed, in requests of 64 clusters at least.
    ensure!((1..48).contains(&count), "{count} syncs");
    drop(qmp);
    stop(server, &[&monitor_socket(&bench)])?;
    drop(kit);
    qemu_img(&bench, "compare -q -f raw -F qcow2 disk t").map(drop)
}

#[test]
fn compressed_clusters_of_a_request_share_a_sync() {
    with(&ringloom(), few_syncs);
}
