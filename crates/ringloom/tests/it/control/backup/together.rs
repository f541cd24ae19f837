//! Backups of one transaction: what the graph knows of them, and results that count together.

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
