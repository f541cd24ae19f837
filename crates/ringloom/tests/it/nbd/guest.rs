//! Linux's own client of NBD, in a guest: four connections, a file system, fio with verification, a server that is killed.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::guest::{Equipment, Guest};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use super::disk;
use crate::support::{ringloom, stop, with};

/// About 15 s under TCG on two cores; the rest is for a loaded machine.
const LIMIT: Duration = Duration::from_secs(240);
const KNOWN: &str = "these bytes came over nbd";

/// What the guest has besides: the client, and a network that leads to this machine.
fn equipment() -> Equipment {
    Equipment {
        programs: &["nbd-client", "fio", "mkfs.ext4"],
        modules: &["virtio_net", "nbd"],
        arguments: ["-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0"]
            .map(str::to_owned)
            .to_vec(),
        ..Equipment::default()
    }
}

fn script(port: u16) -> String {
    format!(
        "section link sh -c 'ip link set lo up; ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up; \
         ip route add default via 10.0.2.2'\n\
         section attach nbd-client 10.0.2.2 {port} /dev/nbd0 -name a -connections 4 -block-size 4096\n\
         section size cat /sys/block/nbd0/size\n\
         section mkfs mkfs.ext4 -q -F -E nodiscard /dev/nbd0\n\
         section mount mount -t ext4 /dev/nbd0 /mnt\n\
         cat > /tmp/job.fio <<EOF\n\
[global]\nioengine=psync\nthread\ndirect=1\nrw=randwrite\nbs=16k\nsize=2m\nverify=crc32c\nverify_fatal=1\n\
do_verify=1\nrandseed=7\n[a]\nfilename=/mnt/a\n[b]\nfilename=/mnt/b\n[c]\nfilename=/mnt/c\nEOF\n\
         section fio fio --output-format=terse /tmp/job.fio\n\
         section trim sh -c 'rm /mnt/a; sync; fstrim -v /mnt || true'\n\
         section known sh -c \"printf '%s' '{KNOWN}' > /mnt/known\"\n\
         section unmount umount /mnt\n\
         section detach nbd-client -d /dev/nbd0\n\
         sync"
    )
}

fn a_guest_uses_it(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let path = bench.path("a.img");
    image::create_sparse(&path, 64 << 20)?;
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut line = vec![
        "--nbd-server".to_owned(),
        format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"),
        "--object".to_owned(),
        "iothread,id=t0".to_owned(),
        "--object".to_owned(),
        "iothread,id=t1".to_owned(),
    ];
    line.extend(disk(&bench, "a", ",iothread.0=t0,iothread.1=t1"));
    let server = program.start(&line, &[])?;
    server.wait_for_log("NBD server: listening", Duration::from_secs(10))?;
    let guest =
        Guest { disks: Vec::new(), queues: 1, layout: RingLayout::Split, script: script(port) };
    let running = guest.boot_with(&equipment(), &bench)?;
    let console = running.wait(LIMIT).with_context(|| server.log())?;
    for step in ["link", "attach", "mkfs", "mount", "fio", "trim", "known", "unmount", "detach"] {
        console.success(step).with_context(|| console.tail())?;
    }
    let sectors: u64 = console.success("size")?.parse()?;
    ensure!(sectors * 512 == 64 << 20, "{sectors} sectors in the guest");
    let log = stop(server, &[])?;
    ensure!(
        log.matches("NBD client").count() >= 8,
        "not four connections that came and left: {log}"
    );
    let fsck = Command::new("e2fsck").args(["-fn"]).arg(&path).output().context("e2fsck")?;
    ensure!(fsck.status.success(), "e2fsck: {}", String::from_utf8_lossy(&fsck.stdout));
    let bytes = std::fs::read(&path)?;
    let known = KNOWN.as_bytes();
    ensure!(
        bytes.windows(known.len()).any(|part| part == known),
        "what the guest wrote is not there"
    );
    Ok(())
}

#[test]
fn linux_uses_a_disk_by_four_connections() {
    if let Some(reason) = equipment().missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), a_guest_uses_it);
}
