//! `kubevirt.yaml` passes the schema of KubeVirt's VirtualMachine, which `cargo xtask install` fetches.

use anyhow::{Context, Result, ensure};
use testkit::kubevirt::{complaints, missing};
use testkit::process::Bench;
use testkit::report::skipped;
use tuner::emit::{Backend, Wanted};

use super::{wanted, written};

fn with_schema(behaviour: impl FnOnce(&Bench) -> Result<()>) {
    if let Some(reason) = missing() {
        skipped(&reason);
    } else if let Err(error) = Bench::new().and_then(|bench| behaviour(&bench)) {
        panic!("{error:#}");
    }
}

#[test]
fn the_machines_pass_kubevirts_schema() {
    with_schema(|bench| {
        let machines =
            [("virtio-blk", "none"), ("virtio-blk", "4"), ("virtio-scsi", "none"), ("ide", "none")];
        let mut paths = Vec::new();
        for (device, iothreads) in machines {
            let wanted = Wanted {
                device: device.parse().context("a device")?,
                pin_iothreads: "1".parse().ok(),
                ..wanted(bench, Backend::QemuIothreads, iothreads)?
            };
            let path = bench.path(&format!("{device}-{iothreads}.yaml"));
            std::fs::rename(written(bench, &wanted, "kubevirt.yaml")?, &path)?;
            paths.push(path);
        }
        for (path, complaints) in paths.iter().zip(complaints(&paths)?) {
            let text = || std::fs::read_to_string(path).unwrap_or_default();
            ensure!(complaints.is_empty(), "{}: {complaints:?}: {}", path.display(), text());
        }
        Ok(())
    });
}

#[test]
fn the_schema_finds_unknown_fields_and_wrong_values() {
    with_schema(|bench| {
        let wanted = wanted(bench, Backend::QemuIothreads, "4")?;
        let path = written(bench, &wanted, "kubevirt.yaml")?;
        let right = std::fs::read_to_string(&path)?;
        let mistakes = [
            ("supplementalPoolThreadCount: 4", "count: 4", "'count' was unexpected"),
            ("supplementalPoolThreadCount: 4", "supplementalPoolThreadCount: x", "not of type"),
            ("ioThreadsPolicy", "iothreadsPolicy", "'iothreadsPolicy' was unexpected"),
            ("blockMultiQueue: true", "blockMultiQueue: 4", "not of type 'boolean'"),
            ("cache: none", "io_uring: true", "'io_uring' was unexpected"),
            ("        memory:\n          guest: 4096Mi", "        memory: 4Gi", "not of type"),
            ("spec:\n  runStrategy", "status:\n  runStrategy", "'spec' is a required property"),
        ];
        let mut paths = Vec::new();
        for (number, (from, to, _)) in mistakes.iter().enumerate() {
            ensure!(right.contains(from), "{from} is not in {right}");
            let path = bench.path(&format!("{number}.yaml"));
            std::fs::write(&path, right.replacen(from, to, 1))?;
            paths.push(path);
        }
        for ((_, to, complaint), said) in mistakes.iter().zip(complaints(&paths)?) {
            ensure!(said.iter().any(|it| it.contains(complaint)), "with {to}: {said:?}");
        }
        Ok(())
    });
}
