//! Backups of one transaction: what the graph knows of them, results that count together, and what comes to the disk itself.

use super::*;

/// The graph knows all jobs of a transaction: none of their nodes can go.
fn all_are_known(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    let mut actions = Vec::new();
    for disk in ["a", "b"] {
        place.add_target(&format!("{disk}-copy"))?;
        let data = backup(disk, &json!({"speed": 65536}));
        actions.push(json!({"type": "blockdev-backup", "data": data}));
    }
    place.qmp.execute("transaction", &json!({"actions": actions}))?;
    let graph = place.qmp.execute("x-debug-query-block-graph", &json!({}))?;
    for disk in ["a", "b"] {
        let mut nodes = graph["nodes"].as_array().into_iter().flatten();
        let is_job = |node: &&Value| node["type"] == "block-job" && node["name"] == disk;
        nodes.find(is_job).with_context(|| format!("job {disk}: {graph}"))?;
        let target = json!({"node-name": format!("{disk}-copy")});
        let (_, why) = place.qmp.refused("blockdev-del", &target)?;
        ensure!(why.contains("job"), "{why}");
    }
    for disk in ["a", "b"] {
        place.qmp.execute("block-job-cancel", &json!({"device": disk}))?;
        place.event("BLOCK_JOB_CANCELLED", disk)?;
        place.del(&format!("{disk}-copy"))?;
    }
    place.end()
}

#[test]
fn the_graph_knows_all_jobs_of_a_transaction() {
    with(&ringloom(), all_are_known);
}

/// A target whose flushes fail as long as the file `broken` is there.
fn add_unflushable(place: &mut Place, name: &str) -> Result<Server> {
    let (socket, disk) = (place.bench.path("kit.sock"), place.bench.text("kit.img"));
    image::create_sparse(&place.bench.path("kit.img"), BYTES)?;
    let broken = place.bench.text("broken");
    let words = [
        "eval".to_owned(),
        format!("get_size=echo {BYTES}"),
        format!("pread=dd if={disk} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        format!("pwrite=dd of={disk} seek=$4 conv=notrunc oflag=seek_bytes status=none"),
        format!("flush=if test -e {broken}; then echo EIO it is broken >&2; exit 1; fi"),
        "can_write=exit 0".to_owned(),
        "can_flush=exit 0".to_owned(),
    ];
    let path = place.bench.text("kit.sock");
    let options = ["-f", "--exit-with-parent", "-U", &path];
    let kit = Program::named("nbdkit", "nbdkit", &options).start(&words, &[socket])?;
    let server = json!({"type": "unix", "path": path});
    let node = json!({"driver": "nbd", "node-name": name, "server": server});
    place.qmp.execute("blockdev-add", &node)?;
    Ok(kit)
}

/// Results that count together: a target that cannot be made durable at the end leaves the bitmap of the other job what it had.
fn all_or_none(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    place.add_target("a-copy")?;
    let mut kit = add_unflushable(&mut place, "b-copy")?;
    place.qmp.execute("block-dirty-bitmap-add", &json!({"node": "a", "name": "b0"}))?;
    let mut client = Client::connect(&place.bench.path("a.sock"), Shape::small())?;
    client.write(0, &stamp(1), 0)?;
    let (dirty, _) = dirty_bytes(&mut place)?;
    ensure!(dirty > 0, "nothing is dirty");
    for is_broken in [true, false] {
        let since = json!({"sync": "incremental", "bitmap": "b0", "auto-finalize": false});
        // The last one is finished first.
        let actions = json!([
            {"type": "blockdev-backup", "data": backup("b", &json!({"auto-finalize": false}))},
            {"type": "blockdev-backup", "data": backup("a", &since)},
        ]);
        let grouped = json!({"completion-mode": "grouped"});
        let arguments = json!({"actions": actions, "properties": grouped});
        place.qmp.execute("transaction", &arguments)?;
        for _ in ["a", "b"] {
            place.qmp.event("BLOCK_JOB_PENDING")?;
        }
        if is_broken {
            std::fs::write(place.bench.path("broken"), "")?;
        }
        place.qmp.execute("job-finalize", &json!({"id": "a"}))?;
        let (dirty_now, is_busy) = dirty_bytes(&mut place)?;
        ensure!(!is_busy, "the bitmap is still in use");
        if is_broken {
            let end = place.event("BLOCK_JOB_COMPLETED", "b")?;
            ensure!(end["error"].as_str().is_some_and(|it| it.contains("flush failed")), "{end}");
            place.event("BLOCK_JOB_CANCELLED", "a")?;
            ensure!(dirty_now == dirty, "{dirty_now} bytes are dirty, and not {dirty}");
            // A target that has lost something once is none any more.
            place.del("b-copy")?;
            kit.kill()?;
            place.add_target("b-copy")?;
        } else {
            for _ in ["a", "b"] {
                let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
                ensure!(end["error"].is_null(), "{end}");
            }
            ensure!(dirty_now == 0, "{dirty_now} bytes are dirty");
        }
        let jobs = place.qmp.execute("query-jobs", &json!({}))?;
        ensure!(jobs == json!([]), "{jobs}");
        client.write(0, &stamp(2), 0)?;
        ensure!(dirty_bytes(&mut place)?.0 == dirty, "the guest's change is not recorded");
    }
    drop(client);
    place.del("b-copy")?;
    place.end()
}

#[test]
fn results_of_grouped_backups_count_all_or_none() {
    with(&ringloom(), all_or_none);
}

/// A disk gets an overlay and is backed up at once, whichever is named first: what the job copies is what is below the overlay.
/// The same with a filter, which leaves again.
fn of_one_disk(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    let group = json!({"qom-type": "throttle-group", "id": "g"});
    place.qmp.execute("object-add", &group)?;
    while_written(&mut place, |place| {
        (0..4).try_for_each(|round| below_an_overlay(place, round))?;
        (0..2).try_for_each(|round| below_a_filter(place, round))?;
        refused(place)
    })?;
    place.end()
}

fn below_an_overlay(place: &mut Place, round: usize) -> Result<()> {
    place.add_target("a-copy")?;
    let snapshot = json!({
        "node-name": "a", "snapshot-file": place.bench.text(&format!("own{round}")),
        "snapshot-node-name": "over", "ringloom-volatile": true,
    });
    let mut actions = vec![
        json!({"type": "blockdev-snapshot-sync", "data": snapshot}),
        json!({"type": "blockdev-backup", "data": backup("a", &json!({}))}),
    ];
    if round % 2 == 1 {
        actions.reverse();
    }
    place.qmp.execute("transaction", &json!({"actions": actions}))?;
    let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
    ensure!(end["error"].is_null() && end["len"] == BYTES, "{end}");
    let copy = place.content("a-copy")?;
    ensure!(copy == place.content("a")?, "round {round}: another instant");
    last_write(&copy)?;
    let commit = json!({"job-id": "c", "device": "over", "ringloom-volatile": true});
    place.qmp.execute("block-commit", &commit)?;
    place.qmp.event("BLOCK_JOB_READY")?;
    place.qmp.execute("job-complete", &json!({"id": "c"}))?;
    let end = place.event("BLOCK_JOB_COMPLETED", "c")?;
    ensure!(end["error"].is_null(), "{end}");
    for node in ["over", "a-copy"] {
        place.del(node)?;
    }
    Ok(())
}

/// Both backups complete, and are of one instant.
fn completed_at_one_instant(place: &mut Place, round: usize) -> Result<()> {
    for _ in ["a", "b"] {
        let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
        ensure!(end["error"].is_null(), "{end}");
    }
    let (a, b) = (last_write(&place.content("a-copy")?)?, last_write(&place.content("b-copy")?)?);
    ensure!(a == b || a == b + 1, "round {round}: not of one instant: {a} and {b}");
    Ok(())
}

fn below_a_filter(place: &mut Place, round: usize) -> Result<()> {
    for name in ["a-copy", "b-copy"] {
        place.add_target(name)?;
    }
    let filter = json!({
        "driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "a",
    });
    place.qmp.execute("blockdev-add", &filter)?;
    let inserted = json!({"node": "a", "filter": "f", "ringloom-volatile": true});
    let backups =
        ["a", "b"].map(|disk| json!({"type": "blockdev-backup", "data": backup(disk, &json!({}))}));
    let insert = json!({"type": "ringloom-insert-filter", "data": inserted});
    let actions = json!({"actions": [backups[0], insert, backups[1]]});
    place.qmp.execute("transaction", &actions)?;
    completed_at_one_instant(place, round)?;
    // It leaves at the instant of another backup.
    for name in ["a-copy", "b-copy"] {
        place.del(name)?;
        place.add_target(name)?;
    }
    let removed = json!({"filter": "f", "ringloom-volatile": true});
    let remove = json!({"type": "ringloom-remove-filter", "data": removed});
    let actions = json!({"actions": [remove, backups[0], backups[1]]});
    place.qmp.execute("transaction", &actions)?;
    completed_at_one_instant(place, round)?;
    for name in ["f", "a-copy", "b-copy"] {
        place.del(name)?;
    }
    Ok(())
}

fn refused(place: &mut Place) -> Result<()> {
    // What is below a source stays, and targets are left alone.
    place.add_target("a-copy")?;
    for node in ["a-copy", "b"] {
        let snapshot = json!({
            "node-name": node, "snapshot-file": place.bench.text("never"),
            "snapshot-node-name": "over", "ringloom-volatile": true,
        });
        let source = if node == "b" { "over" } else { "a" };
        let data = backup(source, &json!({"job-id": "j", "target": "a-copy"}));
        let actions = json!([
            {"type": "blockdev-snapshot-sync", "data": snapshot},
            {"type": "blockdev-backup", "data": data},
        ]);
        let (_, desc) = place.qmp.refused("transaction", &json!({"actions": actions}))?;
        ensure!(desc.contains("of one transaction"), "{desc}");
        ensure!(!place.bench.path("never").exists(), "its file is left");
        ensure!(place.qmp.execute("query-jobs", &json!({}))? == json!([]), "its job is left");
    }
    place.del("a-copy")
}

#[test]
fn a_disk_is_backed_up_at_the_instant_of_a_snapshot_or_filter_of_its_own() {
    with(&ringloom(), of_one_disk);
}
