//! qemu-storage-daemon, driven as far as it has the commands.

use anyhow::{Result, ensure};
use testkit::image;
use testkit::process::{Bench, Program};

use super::{check, check_refused, json, said};
use crate::control::monitor_socket;
use crate::support::with;

fn the_peer_is_driven(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = monitor_socket(&bench);
    image::create_sparse(&bench.path("disk.img"), 64 << 20)?;
    image::create_sparse(&bench.path("free.img"), 64 << 20)?;
    let chardev = format!("socket,id=qmp,path={},server=on,wait=off", socket.display());
    let export = format!(
        "vhost-user-blk,id=vm1,node-name=disk,writable=on,addr.type=unix,addr.path={},iothread=t0",
        bench.text("vm1.sock")
    );
    let line = [
        "--chardev",
        &chardev,
        // Its answers go over several lines.
        "--monitor",
        "chardev=qmp,pretty=on",
        "--object",
        "iothread,id=t0",
        "--object",
        "throttle-group,id=tg,x-iops-total=2000",
        "--blockdev",
        "file,node-name=disk,filename=disk.img",
        "--blockdev",
        "file,node-name=free,filename=free.img",
        "--export",
        &export,
    ];
    let program = program.clone().in_directory(bench.path(""));
    let mut server = program.start(&line.map(str::to_owned), std::slice::from_ref(&socket))?;
    let listed = "\
EXPORT  NODE    SIZE  STATE  IMAGE
vm1     disk  64 MiB  rw     disk.img
";
    check(&bench, &socket, "list", listed)?;
    check(&bench, &socket, "throttle tg iops-total=10", "throttle group tg: iops-total=10\n")?;
    check_refused(
        &bench,
        &socket,
        "throttle tg iops-read=10",
        1,
        "cannot be used at the same time",
    )?;
    let shown = said(&bench, &socket, "show vm1")?;
    ensure!(shown.contains("\n  disk  file    rw     64 MiB "), "{shown}");
    check(&bench, &socket, "polling", "IOTHREAD  POLL-NS\nt0          32768\n")?;
    // It crashes if a node is resized below an export that has no client.
    check(&bench, &socket, "resize free +64M", "node free: 64 MiB -> 128 MiB\n")?;
    check(&bench, &socket, "resize free 32M --shrink", "node free: 128 MiB -> 32 MiB\n")?;
    let version = json(&bench, &socket, "qmp query-version")?;
    ensure!(version["qemu"]["major"] == 10, "{version}");
    check_refused(&bench, &socket, "qmp nonsense", 1, "The command nonsense has not been found")?;
    check_refused(&bench, &socket, "move vm1:0 t0", 1, "ringloom-move-queue has not been found")?;
    check(&bench, &socket, "iothread add t1", "iothread t1 has started\n")?;
    check(&bench, &socket, "export del vm1", "export vm1 is gone\n")?;
    check(&bench, &socket, "quit", "the daemon finishes what is open and leaves\n")?;
    server.wait_for_leave().map(drop)
}

#[test]
fn qemu_storage_daemon_is_driven() {
    with(&Program::qemu_storage_daemon(), the_peer_is_driven);
}
