//! What is copied from a snapshot need not be kept any more (`discard-source`), and what a bitmap does not mark need not be kept at all
//! (`bitmap` of `copy-before-write`): the same commands, given to qemu-storage-daemon.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::control::monitor;

const SIZE: u64 = 1 << 20;

/// A daemon with a disk `f`, a place `t` for what is kept of it, and an NBD server.
struct Fleeced {
    bench: Bench,
    server: Server,
    qmp: QmpClient,
}

impl Fleeced {
    fn new(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        image::create_filled(&bench.path("f"), usize::try_from(SIZE)?, 0xd15)?;
        let mut arguments = monitor(&bench);
        if program.name() != "ringloom" {
            arguments.truncate(4);
        }
        let server = program.start(&arguments, &[monitor_socket(&bench)])?;
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let address = json!({"type": "unix", "data": {"path": bench.text("nbd")}});
        qmp.execute("nbd-server-start", &json!({"addr": address}))?;
        let mut place = Self { bench, server, qmp };
        for name in ["t", "copy"] {
            image::create_sparse(&place.bench.path(name), SIZE)?;
        }
        for name in ["f", "t", "copy"] {
            let filename = place.bench.text(name);
            let node = json!({
                "driver": "file", "node-name": name, "filename": filename, "discard": "unmap",
            });
            place.qmp.execute("blockdev-add", &node)?;
        }
        Ok(place)
    }

    fn export(&mut self, node: &str, writable: bool) -> Result<()> {
        let export = json!({"type": "nbd", "id": node, "node-name": node, "writable": writable});
        self.qmp.execute("block-export-add", &export).map(drop)
    }

    fn del_export(&mut self, node: &str) -> Result<()> {
        self.qmp.execute("block-export-del", &json!({"id": node, "mode": "hard"}))?;
        self.qmp.event("BLOCK_EXPORT_DELETED").map(drop)
    }

    /// Keeps the disk as it is from now on, as node `a`, and lets guests write above it.
    fn keep(&mut self, bitmap: &Value) -> Result<Vec<u8>> {
        let mut kept = json!({
            "driver": "copy-before-write", "node-name": "c", "file": "f", "target": "t",
            "discard": "unmap",
        });
        if !bitmap.is_null() {
            kept["bitmap"] = bitmap.clone();
        }
        self.qmp.execute("blockdev-add", &kept)?;
        let shown = json!({
            "driver": "snapshot-access", "node-name": "a", "file": "c", "discard": "unmap",
        });
        self.qmp.execute("blockdev-add", &shown)?;
        self.export("c", true)?;
        Ok(std::fs::read(self.bench.path("f"))?)
    }

    /// Whether qemu-io could do that with an export.
    fn io(&self, export: &str, command: &str) -> Result<bool> {
        let uri = format!("nbd+unix:///{export}?socket={}", self.bench.text("nbd"));
        let mut qemu_io = std::process::Command::new("qemu-io");
        if command.starts_with("read") {
            qemu_io.arg("-r");
        }
        let output = qemu_io.args(["-f", "raw", &uri, "-c", command]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(output.status.success() && !said.contains("failed"))
    }

    fn end(self) -> Result<()> {
        let Self { bench, server, qmp } = self;
        drop(qmp);
        // The peer leaves the socket of its NBD server behind.
        stop(server, &[&monitor_socket(&bench)]).map(drop)
    }
}

fn by_bitmap(program: &Program) -> Result<()> {
    let mut place = Fleeced::new(program)?;
    let bitmap = json!({"node": "f", "name": "b"});
    place.qmp.execute("block-dirty-bitmap-add", &bitmap)?;
    place.export("f", true)?;
    ensure!(place.io("f", "write -P 7 64k 4k")? && place.io("f", "write -P 7 512k 70k")?);
    place.del_export("f")?;
    let instant = place.keep(&bitmap)?;
    place.export("a", false)?;
    // Nothing depends on it any more.
    place.qmp.execute("block-dirty-bitmap-remove", &bitmap)?;
    ensure!(place.io("c", "write -P 9 60k 100k")? && place.io("c", "write -P 9 500k 100k")?);
    for read in ["read -P 7 64k 4k", "read -P 7 512k 70k", "read 582k 58k", "read 68k 60k"] {
        ensure!(place.io("a", read)?, "{}: {read}", program.name());
    }
    // Those who are not marked are not kept.
    for read in ["read 0 64k", "read 64k 65k", "read 128k 4k", "read 640k 4k", "read 1020k 4k"] {
        ensure!(!place.io("a", read)?, "{}: {read}", program.name());
    }
    let kept = std::fs::read(place.bench.path("t"))?;
    for cluster in [1, 8, 9] {
        let bytes = cluster << 16..(cluster + 1) << 16;
        ensure!(kept[bytes.clone()] == instant[bytes], "{}: {cluster}", program.name());
    }
    ensure!(kept[2 << 16..8 << 16].iter().all(|byte| *byte == 0), "others were copied");
    place.end()
}

fn discarded(program: &Program) -> Result<()> {
    let mut place = Fleeced::new(program)?;
    let instant = place.keep(&Value::Null)?;
    place.export("a", false)?;
    ensure!(place.io("c", "write -P 9 60k 300k")?, "{}", program.name());
    let blocks =
        |place: &Fleeced| -> Result<u64> { Ok(std::fs::metadata(place.bench.path("t"))?.blocks()) };
    ensure!(blocks(&place)? >= 300 << 1, "{}: nothing was kept", program.name());
    let job = json!({
        "job-id": "j", "device": "a", "target": "copy", "sync": "full", "discard-source": true,
    });
    place.qmp.execute("blockdev-backup", &job)?;
    let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
    ensure!(end["error"].is_null() && end["len"] == SIZE, "{end}");
    ensure!(std::fs::read(place.bench.path("copy"))? == instant, "{}", program.name());
    ensure!(blocks(&place)? == 0, "{}: {} blocks are kept", program.name(), blocks(&place)?);
    // Neither what was kept can be read any more, nor what never changed.
    ensure!(!place.io("a", "read 64k 4k")? && !place.io("a", "read 800k 4k")?);
    ensure!(place.io("c", "read -P 9 60k 300k")? && place.io("c", "write -P 3 800k 4k")?);
    ensure!(blocks(&place)? == 0, "{}: what nobody needs was copied", program.name());
    place.end()
}

/// The same of both daemons.
fn of_both(check: fn(&Program) -> Result<()>) {
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, check);
    }
}

#[test]
fn what_a_bitmap_does_not_mark_is_not_kept() {
    of_both(by_bitmap);
}

#[test]
fn what_was_copied_from_a_snapshot_is_not_kept_any_more() {
    of_both(discarded);
}
