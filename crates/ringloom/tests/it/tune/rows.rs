//! What stands between load and bytes: devices, images, engines, file systems, each measured once.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;
use testkit::report::skipped;

use super::{
    BRIEF, OUT, Rig, TWO_CPUS, check_sound, contender, emulated, names, number, text, with_guest,
};
use crate::support::is_root;

/// Measures, and compares what was measured: contender, and this field.
fn check_rows(rig: &Rig, line: &str, field: &[&str], expected: &[&str]) -> Result<Vec<Value>> {
    rig.measure(&format!("{BRIEF} {} {line}", emulated()))?;
    let lines = rig.lines()?;
    check_sound(&lines)?;
    let row = |line: &Value| -> Result<String> {
        let fields = field.iter().map(|it| text(line, it)).collect::<Result<Vec<_>>>()?;
        Ok(format!("{} {}", contender(line), fields.join(" ")))
    };
    let rows: BTreeSet<String> = lines.iter().map(row).collect::<Result<_>>()?;
    ensure!(rows.iter().eq(expected.iter()), "{rows:?}");
    ensure!(lines.len() == expected.len(), "{} lines", lines.len());
    Ok(lines)
}

/// Only ide needs a boot of its own. About 30 s.
#[test]
fn every_device_is_plugged_found_and_measured() {
    with_guest(|rig| {
        let devices = "--subject vm:qemu --device virtio-blk,virtio-scsi,nvme,ide";
        let line = format!("{devices} --iothreads none,1 {TWO_CPUS}");
        let expected = [
            "vm:qemu 1 virtio-blk",
            "vm:qemu 1 virtio-scsi",
            "vm:qemu none ide",
            "vm:qemu none nvme",
            "vm:qemu none virtio-blk",
            "vm:qemu none virtio-scsi",
        ];
        let lines = check_rows(rig, &line, &["device"], &expected)?;
        for line in &lines {
            let queues = if line["device"] == "ide" { 1.0 } else { 2.0 };
            ensure!(number(line, "queues")? == queues, "{queues} queues: {line}");
        }
        let logs = names(&rig.path(OUT).join("guests"))?;
        ensure!(logs.len() == 4, "two boots: {logs:?}");
        Ok(())
    });
}

/// The client has ringloom's side without a guest. About 25 s.
#[test]
fn every_image_and_engine_is_measured_with_qemu_and_ringloom() {
    with_guest(|rig| {
        let images = ["qcow2", "qcow2:cluster=2M:preallocation=metadata", "raw"];
        let engines = ["io_uring", "native", "threads"];
        let mut expected = Vec::new();
        for subject in ["client none", "vm:qemu none"] {
            for image in images {
                expected.extend(engines.map(|aio| format!("{subject} {image} {aio}")));
            }
        }
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        let line = format!(
            "--subject client,vm:qemu --iothreads none --image {} --aio {}",
            images.join(","),
            engines.join(",")
        );
        check_rows(rig, &line, &["image", "aio"], &expected).map(drop)
    });
}

/// About 20 s.
#[test]
fn file_systems_are_made_measured_and_removed() {
    if !is_root() {
        skipped("loop devices and mounts need root");
        return;
    }
    with_guest(|rig| {
        let line = "--subject host,vm:qemu --iothreads none --fs ext4,xfs";
        let expected = ["host ext4", "host xfs", "vm:qemu none ext4", "vm:qemu none xfs"];
        check_rows(rig, line, &["fs"], &expected).map(drop)
    });
}
