//! QEMU takes the arguments, maps the queues to the iothreads, and a guest has the queues and the disk.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::RingLayout;
use testkit::guest::{Equipment, Guest};
use testkit::process::Bench;
use testkit::report::skipped;
use tuner::emit::{Backend, Wanted};

use super::{KNOWN, QUEUES, arguments, serve, wanted};
use crate::paused_qemu::Qemu;
use crate::support::{qemu_img, ringloom, stop, with};

/// About 8 s under TCG on two cores; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(240);

fn equipment() -> Equipment {
    Equipment { modules: &["virtio_scsi", "sd_mod"], ..Equipment::bare() }
}

/// Boots a guest with the arguments and looks at its disk.
fn check_guest(bench: &Bench, wanted: &Wanted, disk: &str) -> Result<()> {
    let equipment = Equipment { arguments: arguments(bench, wanted)?, ..equipment() };
    let script = format!(
        "section queues sh -c 'ls -d /sys/block/{disk}/mq/* | wc -l'\n\
         section content head -c {} /dev/{disk}",
        KNOWN.len()
    );
    let (disks, queues) = (Vec::new(), usize::from(QUEUES));
    let guest = Guest { disks, queues, layout: RingLayout::Split, script };
    let console = guest.boot_with(&equipment, bench)?.wait(GUEST_LIMIT)?;
    let queues = console.success("queues")?;
    ensure!(queues == wanted.queues.to_string(), "{queues} queues: {}", console.tail());
    let content = console.success("content")?;
    ensure!(content == KNOWN, "another disk: {content}");
    Ok(())
}

#[track_caller]
fn check(disk: &str, iothreads: &str, change: impl FnOnce(&mut Wanted)) {
    if let Some(reason) = equipment().missing() {
        skipped(&reason);
        return;
    }
    let run = || -> Result<()> {
        let bench = Bench::new()?;
        let mut wanted = wanted(&bench, Backend::QemuIothreads, iothreads)?;
        change(&mut wanted);
        check_mapping(&bench, &wanted)?;
        check_guest(&bench, &wanted, disk)
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

/// Asks QEMU which iothreads it has, and which of them serve the disk.
fn check_mapping(bench: &Bench, wanted: &Wanted) -> Result<()> {
    let words = arguments(bench, wanted)?;
    let lines = std::fs::read_to_string(bench.path("qemu-iothreads/qemu.args"))?;
    let mut qemu = Qemu::start(bench, &lines).with_context(|| format!("{words:#?}"))?;
    let count = wanted.iothreads.to_string().parse().unwrap_or(0);
    let names: Vec<String> = (0..count).map(|number: u16| format!("iothread{number}")).collect();
    let answer = qemu.ask(r#"{"execute":"query-iothreads"}"#)?;
    let answer: Value = serde_json::from_str(&answer)?;
    let found = answer["return"].as_array().context("a list")?;
    let mut found: Vec<_> = found.iter().filter_map(|thread| thread["id"].as_str()).collect();
    found.sort_unstable();
    ensure!(found == names, "{found:?} instead of {names:?}");
    if count > 0 {
        let place = if words.iter().any(|word| word.contains("scsi")) { "scsi0" } else { "vda" };
        let list: Vec<_> = names.iter().map(|name| json!({"iothread": name})).collect();
        let (property, expected) = match names.as_slice() {
            [one] => ("iothread", json!(format!("/objects/{one}"))),
            _ => ("iothread-vq-mapping", json!(list)),
        };
        let path = format!("/machine/peripheral/{place}");
        let arguments = json!({"path": path, "property": property});
        let command = json!({"execute": "qom-get", "arguments": arguments});
        let answer: Value = serde_json::from_str(&qemu.ask(&command.to_string())?)?;
        ensure!(answer["return"] == expected, "{property} is {answer}");
    }
    qemu.quit()
}

#[test]
fn a_guest_on_one_iothread_has_the_queues() {
    check("vda", "1", |_| {});
}

/// Without a boot.
#[test]
fn qemu_gives_virtio_scsi_a_single_iothread() {
    if let Some(reason) = Qemu::missing() {
        skipped(&reason);
        return;
    }
    let run = || -> Result<()> {
        let bench = Bench::new()?;
        let device = "virtio-scsi".parse().context("a device")?;
        check_mapping(&bench, &Wanted { device, ..wanted(&bench, Backend::QemuIothreads, "1")? })
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

#[test]
fn a_guest_on_an_iothread_per_queue_has_the_queues() {
    check("vda", "4", |wanted| {
        wanted.aio = "native".parse().expect("an engine");
    });
}

#[test]
fn a_guest_without_an_iothread_has_the_queues() {
    check("vda", "none", |wanted| wanted.queues = 3);
}

#[test]
fn a_guest_with_virtio_scsi_has_the_queues() {
    check("sda", "2", |wanted| wanted.device = "virtio-scsi".parse().expect("a device"));
}

/// Without a boot: devices, formats and paths.
#[test]
fn qemu_takes_the_arguments_of_every_device_and_path() {
    if let Some(reason) = Qemu::missing() {
        skipped(&reason);
        return;
    }
    let run = || -> Result<()> {
        let bench = Bench::new()?;
        let plain = || wanted(&bench, Backend::QemuIothreads, "none");
        for device in ["nvme", "ide"] {
            let device = device.parse().context("a device")?;
            check_mapping(&bench, &Wanted { device, ..plain()? })?;
        }
        let odd = bench.path("it's a,b \"<&>\" $(x)\\.img");
        std::fs::copy(bench.path("disk.img"), &odd)?;
        let (numa_node, memory_mib) = (Some(0), 128);
        check_mapping(&bench, &Wanted { disk: odd, numa_node, memory_mib, ..plain()? })?;
        qemu_img(&bench, "create -q -f qcow2 disk.qcow2 1M")?;
        let (disk, image) = (bench.path("disk.qcow2"), "qcow2:cache=1M".parse().context("qcow2")?);
        check_mapping(&bench, &Wanted { disk, image, ..plain()? })
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

/// The CPUs that this process may use, the first of them.
fn first_cpu() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status").context("look at this process")?;
    let list = allowed(&status).context("no list of CPUs")?;
    Ok(list.chars().take_while(char::is_ascii_digit).collect())
}

fn allowed(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim)
}

#[test]
fn serve_sh_binds_ringloom_to_the_cpus_of_its_iothreads() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let (by, cpu) = (Backend::Ringloom, first_cpu()?);
        let wanted = Wanted { pin_iothreads: cpu.parse().ok(), ..wanted(&bench, by, "1")? };
        let server = serve(&bench, &wanted, &[])?;
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?;
        for thread in threads {
            let status = std::fs::read_to_string(thread?.path().join("status"))?;
            ensure!(allowed(&status) == Some(&cpu), "not only CPU {cpu}: {status}");
        }
        stop(server, &[&bench.path("s")]).map(drop)
    });
}

#[test]
fn a_guest_on_what_serve_sh_serves_has_the_queues() {
    if let Some(reason) = equipment().missing() {
        skipped(&reason);
        return;
    }
    let run = || -> Result<()> {
        let bench = Bench::new()?;
        let wanted = Wanted { memory_mib: 512, ..wanted(&bench, Backend::Ringloom, "2")? };
        let server = serve(&bench, &wanted, &[])?;
        check_guest(&bench, &wanted, "vda").with_context(|| server.log())?;
        let log = stop(server, &[&bench.path("s")])?;
        let reports = testkit::queue_report::parse(&log);
        let threads: Vec<_> = reports.iter().map(|it| it.iothread.as_str()).collect();
        let (first, second) = ("iothread0", "iothread1");
        ensure!(threads == [first, second, first, second], "{log}");
        Ok(())
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}
