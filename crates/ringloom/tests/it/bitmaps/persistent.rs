//! Bitmaps in qcow2 images: made, read and judged by qemu-img and qemu-storage-daemon, both ways.

use std::fs;
use std::time::Duration;

use testkit::deadline::poll_until;

use super::*;
use crate::control::state;
use crate::support::qemu_img;

/// A daemon with the image `a.qcow2` of a bench as node `d`.
fn with_image(program: &Program, bench: Bench) -> Result<Daemon> {
    let file = json!({"driver": "file", "filename": bench.text("a.qcow2")});
    let node = json!({"driver": "qcow2", "node-name": "d", "file": file, "discard": "unmap"});
    Daemon::start_with(program, bench, node)
}

/// What qemu-img says of the bitmaps: flags and names.
fn info(bench: &Bench) -> Result<String> {
    let info: Value = serde_json::from_str(&qemu_img(bench, "info -U --output=json a.qcow2")?)?;
    let all = &info["format-specific"]["data"]["bitmaps"];
    let all = all.as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = all
        .iter()
        .map(|it| format!("{} {} {}", it["name"], it["flags"], it["granularity"]))
        .collect();
    all.sort();
    Ok(all.join("; "))
}

/// Ends a daemon; its files.
fn ended(daemon: Daemon) -> Result<Bench> {
    let Daemon { bench, server, .. } = daemon;
    stop(server, &[])?;
    remove_sockets(&bench);
    qemu_img(&bench, "check a.qcow2")?;
    Ok(bench)
}

/// The next program makes its own.
fn remove_sockets(bench: &Bench) {
    for socket in ["qmp.sock", "nbd.sock"] {
        let _may_be_gone = fs::remove_file(bench.path(socket));
    }
}

/// What is known of the bitmaps while a client uses the image.
fn seen(program: &Program, bench: Bench) -> Result<(Vec<(Value, Value)>, Bench)> {
    let mut daemon = with_image(program, bench)?;
    daemon.export()?;
    let mut bitmaps = daemon.bitmaps()?;
    bitmaps.sort_by_key(|(bitmap, _)| bitmap["name"].to_string());
    daemon.run("block-export-del", json!({"id": "d", "mode": "hard"}))?;
    Ok((bitmaps, ended(daemon)?))
}

/// Whether the other program is there.
fn peer() -> Option<Program> {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return None;
    }
    Some(peer)
}

/// Has one program after the other record in the same image; what each of them sees in the end.
fn relay(peer: &Program, cluster: u64, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let bench = Bench::new()?;
    qemu_img(&bench, &format!("create -q -f qcow2 -o cluster_size={cluster} a.qcow2 {DISK}"))?;
    qemu_img(&bench, "bitmap --add a.qcow2 made")?;
    qemu_img(&bench, "bitmap --add --disable -g 512 a.qcow2 off")?;
    let mut bench = bench;
    for (round, program) in [ringloom(), peer.clone(), ringloom(), ringloom()].iter().enumerate() {
        let mut daemon = with_image(program, bench)?;
        daemon.export()?;
        daemon.bitmap("add", &json!({"name": format!("r{round}"), "persistent": true}))?;
        daemon.bitmap("add", &json!({"name": "volatile"}))?;
        daemon.writes(&some_changes(&mut rng))?;
        if round == 2 {
            daemon.bitmap("merge", &json!({"target": "off", "bitmaps": ["made", "r0"]}))?;
            daemon.bitmap("clear", &json!({"name": "r0"}))?;
            daemon.bitmap("remove", &json!({"name": "r1"}))?;
        }
        daemon.run("block-export-del", json!({"id": "d", "mode": "hard"}))?;
        bench = ended(daemon)?;
        ensure!(!info(&bench)?.contains("in-use"), "{}", info(&bench)?);
    }
    let names = info(&bench)?;
    ensure!(["made", "off", "r0", "r2", "r3"].iter().all(|it| names.contains(it)), "{names}");
    ensure!(!names.contains("r1") && !names.contains("volatile"), "{names}");
    let (expected, bench) = seen(peer, bench)?;
    let (found, bench) = seen(&ringloom(), bench)?;
    ensure!(expected == found, "{expected:?}, ringloom: {found:?}");
    ensure!(info(&bench)? == names, "{} was {names}", info(&bench)?);
    // All of them can be removed, and nothing leaks.
    let mut daemon = with_image(&ringloom(), bench)?;
    for name in ["made", "off", "r0", "r2", "r3"] {
        // No client uses the image.
        daemon.bitmap("remove", &json!({"name": name}))?;
    }
    let bench = ended(daemon)?;
    ensure!(info(&bench)?.is_empty(), "{}", info(&bench)?);
    qemu_img(&bench, "bitmap --add a.qcow2 again")?;
    qemu_img(&bench, "check a.qcow2").map(drop)
}

#[test]
fn both_programs_go_on_with_the_bitmaps_of_an_image() {
    let Some(peer) = peer() else { return };
    for (seed, cluster) in (0..).zip([65536, 512, 4096, 65536]) {
        relay(&peer, cluster, seed)
            .unwrap_or_else(|error| panic!("clusters of {cluster}, seed {seed}: {error:#}"));
    }
}

/// A bitmap of a daemon that was killed is never trusted.
fn killed() -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 8M")?;
    qemu_img(&bench, "bitmap --add a.qcow2 made")?;
    let mut daemon = with_image(&ringloom(), bench)?;
    daemon.export()?;
    daemon.bitmap("add", &json!({"name": "young", "persistent": true}))?;
    daemon.writes(&["write 0 64k".to_owned()])?;
    daemon.server.kill()?;
    let Daemon { bench, server, .. } = daemon;
    drop(server);
    ensure!(info(&bench)? == r#""made" ["in-use","auto"] 65536"#, "{}", info(&bench)?);
    poll_until("the locks of a killed daemon", Duration::from_secs(30), || {
        // What was taken ahead leaks with it.
        Ok(qemu_img(&bench, "check -q -r leaks a.qcow2").ok())
    })?;
    remove_sockets(&bench);
    let mut daemon = with_image(&ringloom(), bench)?;
    daemon.export()?;
    let nodes = daemon.run("query-named-block-nodes", json!({"flat": true}))?;
    let mut nodes = nodes.as_array().context("nodes")?.iter();
    let node = nodes.find(|node| node["node-name"] == "d").context("the node")?;
    let bitmap = &node["dirty-bitmaps"][0];
    ensure!(bitmap["inconsistent"] == true && bitmap["recording"] == false, "{bitmap}");
    for verb in ["clear", "enable", "disable"] {
        let refused = daemon.bitmap(verb, &json!({"name": "made"}));
        let refused = refused.err().context("it is inconsistent")?.to_string();
        let sentence = "Bitmap 'made' is inconsistent and cannot be used";
        ensure!(refused.contains(sentence), "{refused}");
    }
    daemon.writes(&["write 64k 64k".to_owned()])?;
    daemon.run("block-export-del", json!({"id": "d", "mode": "hard"}))?;
    let bench = ended(daemon)?;
    ensure!(info(&bench)? == r#""made" ["in-use","auto"] 65536"#, "{}", info(&bench)?);
    let mut daemon = with_image(&ringloom(), bench)?;
    daemon.bitmap("remove", &json!({"name": "made"}))?;
    let bench = ended(daemon)?;
    ensure!(info(&bench)?.is_empty(), "{}", info(&bench)?);
    Ok(())
}

#[test]
fn a_bitmap_of_a_killed_daemon_can_only_be_removed() {
    if peer().is_none() {
        return;
    }
    killed().unwrap_or_else(|error| panic!("{error:#}"));
}

/// A daemon gets an NBD server, and an image as node `d`.
fn begin_nbd(daemon: &mut Daemon) -> Result<()> {
    let address = json!({"type": "unix", "data": {"path": daemon.nbd_socket()}});
    daemon.run("nbd-server-start", json!({"addr": address}))?;
    let file = json!({"driver": "file", "filename": daemon.bench.text("a.qcow2")});
    daemon.run("blockdev-add", json!({"driver": "qcow2", "node-name": "d", "file": file}))?;
    Ok(())
}

/// An export that is kept shows what is left of its bitmaps.
fn shown_again() -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 8M")?;
    let arguments = [monitor(&bench), state(&bench)].concat();
    let start = |bench: &Bench| ringloom().start(&arguments, &[monitor_socket(bench)]);
    let server = start(&bench)?;
    let client = QmpClient::connect(&monitor_socket(&bench))?;
    let mut daemon = Daemon { bench, server, client };
    begin_nbd(&mut daemon)?;
    daemon.bitmap("add", &json!({"name": "stored", "persistent": true}))?;
    daemon.bitmap("add", &json!({"name": "lost"}))?;
    let export = json!({
        "type": "nbd", "id": "d", "node-name": "d", "writable": true,
        "bitmaps": ["stored", {"node": "d", "name": "lost"}],
    });
    daemon.run("block-export-add", export)?;
    daemon.writes(&["write 64k 64k".to_owned()])?;
    for round in 0..2 {
        let Daemon { bench, server, client } = daemon;
        drop(client);
        stop(server, &[])?;
        let server = start(&bench)?;
        let client = QmpClient::connect(&monitor_socket(&bench))?;
        daemon = Daemon { bench, server, client };
        let said = "export d: does not show bitmap 'lost' any more: Dirty bitmap 'lost' not found";
        daemon.server.wait_for_log(said, Duration::from_secs(10))?;
        let nodes = daemon.run("query-named-block-nodes", json!({"flat": true}))?;
        let mut nodes = nodes.as_array().context("nodes")?.iter();
        let node = nodes.find(|node| node["node-name"] == "d").context("the node")?;
        let bitmaps = &node["dirty-bitmaps"];
        let is_shown = bitmaps[0]["name"] == "stored" && bitmaps[0]["busy"] == true;
        ensure!(is_shown && bitmaps[0]["count"] == 65536, "round {round}: {bitmaps}");
    }
    ended(daemon).map(drop)
}

/// What is wrong with a bitmap that is there is no reason to leave it out: its client would take everything for clean.
fn not_left_out() -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 8M")?;
    qemu_img(&bench, "bitmap --add --disable a.qcow2 stored")?;
    let arguments = [monitor(&bench), state(&bench)].concat();
    let server = ringloom().start(&arguments, &[monitor_socket(&bench)])?;
    let client = QmpClient::connect(&monitor_socket(&bench))?;
    let mut daemon = Daemon { bench, server, client };
    begin_nbd(&mut daemon)?;
    let export = json!({"type": "nbd", "id": "d", "node-name": "d", "bitmaps": ["stored"]});
    daemon.run("block-export-add", export)?;
    let bench = ended(daemon)?;
    qemu_img(&bench, "bitmap --enable a.qcow2 stored")?;
    let refused = ringloom().refusal(&arguments, Duration::from_secs(10))?;
    let said = "Enabled bitmap 'stored' incompatible with readonly export";
    ensure!(refused.stderr.contains(said), "{refused:?}");
    Ok(())
}

#[test]
fn an_export_that_is_kept_leaves_no_bitmap_out_that_is_there() {
    not_left_out().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn an_export_that_is_kept_shows_what_is_left_of_its_bitmaps() {
    shown_again().unwrap_or_else(|error| panic!("{error:#}"));
}
