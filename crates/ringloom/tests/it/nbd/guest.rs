//! Linux's own client of NBD, in a guest: four connections, a file system, fio with verification, a server that is killed.
//!
//! `RINGLOOM_NBD_KILLS=N` sets how often it is killed. If nobody says, that is not done: on a busy machine the guest's own program
//! for it has twice not come back in time, for a reason that is not known.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::poll_until;
use testkit::guest::{Equipment, Guest};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::report::skipped;

use super::disk;
use crate::support::{ringloom, stop, with};

/// About 15 s under TCG on two cores; the rest is for a loaded machine.
const LIMIT: Duration = Duration::from_secs(240);
/// The same for each kill.
const KILL_LIMIT: Duration = Duration::from_secs(60);
const KILLS_VARIABLE: &str = "RINGLOOM_NBD_KILLS";
const CONNECTIONS: usize = 4;
/// How long the guest writes before a kill.
const WORK_TIME: Duration = Duration::from_secs(2);
/// What the guest prints when it begins to write.
const WRITES_NOW: &str = "@@writes";
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

/// Brings the guest's network up.
const LINK: &str = "section link sh -c 'ip link set lo up; ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up; ip route add default \
                    via 10.0.2.2'\n";

/// What nbd-client (3.24) cannot: gives a device that waits new connections, over netlink (`NBD_CMD_RECONFIGURE`), and says how
/// long it waits. Arguments: number of the device, port, name of the export, connections, seconds.
const RECONNECT: &str = r#"
my ($device, $port, $name, $count, $seconds) = @ARGV;
# A server that dies in the handshake may never be heard of again.
alarm 5;
sub attribute { my ($type, $data) = @_; pack('SSa*x![4]', 4 + length $data, $type, $data) }
socket(my $netlink, 16, 3, 16) or die "netlink: $!";
sub request {
    my ($family, $flags, $command, $attributes) = @_;
    my $body = pack('CCS', $command, 1, 0) . $attributes;
    syswrite($netlink, pack('LSSLL', 16 + length $body, $family, $flags, 1, 0) . $body) or die "send: $!";
    sysread($netlink, my $answer, 65536) or die "receive: $!";
    my $error = unpack('x4S', $answer) == 2 ? -unpack('x16l', $answer) : 0;
    $! = $error, die "command $command: $!" if $error;
    $answer;
}
my $families = substr(request(16, 1, 3, attribute(2, "nbd\0")), 20);
my $family;
while (length $families >= 4) {
    my ($length, $type) = unpack('SS', $families);
    $family = unpack('x4S', $families) if $type == 1;
    $families = substr($families, ($length + 3) & ~3);
}
sub take { my ($socket, $count) = @_; my $data = ''; while (length $data < $count) { sysread($socket, $data, $count - length $data, length $data) or exit 1 } $data }
my (@sockets, $items);
for (1..$count) {
    socket(my $socket, 2, 1, 0) or die "socket: $!";
    connect($socket, pack('Sna4x8', 2, $port, pack('C4', 10, 0, 2, 2))) or exit 1;
    take($socket, 18);
    syswrite($socket, pack('Na8NNa*', 3, 'IHAVEOPT', 1, length $name, $name));
    take($socket, 10);
    push @sockets, $socket;
    $items .= attribute(1, attribute(1, pack('L', fileno $socket)));
}
my $attributes = attribute(1, pack('L', $device)) . attribute(8, pack('Q', $seconds));
$attributes .= attribute(7, $items) if $count;
request($family, 5, 3, $attributes);
"#;

/// The same with what gives a device new connections.
fn killed_equipment() -> Equipment {
    Equipment { programs: &["nbd-client", "fio", "mkfs.ext4", "perl"], ..equipment() }
}

fn script(port: u16) -> String {
    format!(
        "{LINK}\
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

/// A guest that writes while its server is killed.
fn killed_script(port: u16, loops: u32) -> String {
    format!(
        "{LINK}\
         section attach nbd-client 10.0.2.2 {port} /dev/nbd0 -name a -connections {CONNECTIONS} -block-size 4096 -timeout 3\n\
         section patience perl /reconnect 0 {port} a 0 100\n\
         section mkfs mkfs.ext4 -q -F -E nodiscard /dev/nbd0\n\
         section mount mount -t ext4 /dev/nbd0 /mnt\n\
         cat > /tmp/job.fio <<EOF\n\
[global]\nioengine=psync\nthread\ndirect=1\nrw=randwrite\nbs=16k\nsize=2m\nverify=crc32c\nverify_fatal=1\n\
do_verify=1\nrandseed=7\nrate_iops=50,50\nloops={loops}\n[a]\nfilename=/mnt/a\n[b]\nfilename=/mnt/b\n[c]\nfilename=/mnt/c\nEOF\n\
         while sleep 1; do perl /reconnect 0 {port} a {CONNECTIONS} 100 2>&1; done &\n\
         echo {WRITES_NOW}\n\
         section fio fio --output-format=terse /tmp/job.fio\n\
         section known sh -c \"printf '%s' '{KNOWN}' > /mnt/known\"\n\
         section unmount umount /mnt\n\
         section messages sh -c \"dmesg | grep -c 'reconnected socket'\"\n\
         section errors sh -c \"! dmesg | grep -i 'I/O error'\"\n\
         sync"
    )
}

/// What a server of both tests is started with, and where it listens.
fn server_line(bench: &Bench) -> Result<(Vec<String>, u16)> {
    image::create_sparse(&bench.path("a.img"), 64 << 20)?;
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
    line.extend(disk(bench, "a", ",iothread.0=t0,iothread.1=t1"));
    Ok((line, port))
}

fn start_listening(program: &Program, line: &[String]) -> Result<Server> {
    let server = program.start(line, &[])?;
    server.wait_for_log("NBD server: listening", Duration::from_secs(10))?;
    Ok(server)
}

/// What a guest wrote is on its disk, whose file system is sound.
fn check_image(bench: &Bench) -> Result<()> {
    let path = bench.path("a.img");
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

fn a_guest_uses_it(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (line, port) = server_line(&bench)?;
    let server = start_listening(program, &line)?;
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
        log.matches("NBD client").count() >= 2 * CONNECTIONS,
        "not four connections that came and left: {log}"
    );
    check_image(&bench)
}

/// The guest waits for a server that was killed, and goes on with the next one: no request fails, nothing is lost.
fn a_guest_goes_on(program: &Program, kills: u32) -> Result<()> {
    let bench = Bench::new()?;
    let (line, port) = server_line(&bench)?;
    let mut server = start_listening(program, &line)?;
    let reconnect = bench.path("reconnect");
    std::fs::write(&reconnect, RECONNECT)?;
    let equipment =
        Equipment { files: vec![("reconnect".to_owned(), reconnect)], ..killed_equipment() };
    let script = killed_script(port, kills);
    let guest = Guest { disks: Vec::new(), queues: 1, layout: RingLayout::Split, script };
    let running = guest.boot_with(&equipment, &bench)?;
    running.wait_for(WRITES_NOW, LIMIT)?;
    for kill in 0..kills {
        server.wait_while_running(WORK_TIME)?;
        server.kill()?;
        server = start_listening(program, &line)?;
        poll_until("the guest to come again", KILL_LIMIT, || {
            let come = server.log().matches(" has come").count();
            Ok((come >= CONNECTIONS).then_some(()))
        })
        .with_context(|| format!("kill {kill}: {}", server.log()))?;
    }
    let console = running.wait(LIMIT + KILL_LIMIT * kills).with_context(|| server.log())?;
    let steps =
        ["link", "attach", "patience", "mkfs", "mount", "fio", "known", "unmount", "errors"];
    for step in steps {
        console.success(step).with_context(|| console.tail())?;
    }
    let again: usize = console.success("messages")?.parse()?;
    ensure!(
        again >= usize::try_from(kills)?,
        "{again} connections were replaced: {}",
        console.tail()
    );
    stop(server, &[])?;
    check_image(&bench)
}

#[test]
fn linux_uses_a_disk_by_four_connections() {
    if let Some(reason) = equipment().missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), a_guest_uses_it);
}

#[test]
fn linux_goes_on_when_its_server_is_killed() {
    let Ok(kills) = std::env::var(KILLS_VARIABLE) else { return };
    let kills = kills.parse().expect("a number of kills");
    if let Some(reason) = killed_equipment().missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |program| a_guest_goes_on(program, kills));
}
