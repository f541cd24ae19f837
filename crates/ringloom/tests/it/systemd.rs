//! The units of `contrib/systemd`, run by a real systemd: start, guests that live through kills, upgrades in place and a
//! daemon that stands still, the end, and an image that is missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::Bench;
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;
use testkit::systemd::Systemd;

use crate::support::{ringloom, with};

const QUEUES: u16 = 2;
const LIMIT: Duration = Duration::from_secs(30);
const UNIT: &str = "ringloom@vm1";
const IMAGE: &str = "/srv/vm1.img";
const SOCKET: &str = "/run/ringloom/vm1/disk.sock";

/// What a test changes of the unit: less to wait for.
const FASTER: &str = "[Service]\nWatchdogSec=11\nRestartSec=100ms\n";

const CONFIGURATION: &str = r#"
image = "/srv/vm1.img"
socket = "/run/ringloom/vm1/disk.sock"
iothreads = 2
num-queues = 2
socket-mode = "0660"
socket-group = "kvm"
"#;

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

/// A system on which the units are installed as a package would.
fn installed(bench: &Bench) -> Result<Systemd> {
    let binary = Path::new(env!("CARGO_BIN_EXE_ringloom"));
    let system = Systemd::boot(bench, &[(binary, "/usr/bin/ringloom")])?;
    for (from, to) in [
        ("ringloom@.service", "/etc/systemd/system/ringloom@.service"),
        ("ringloom@.socket", "/etc/systemd/system/ringloom@.socket"),
        ("../sysusers.d/ringloom.conf", "/etc/sysusers.d/ringloom.conf"),
    ] {
        std::fs::create_dir_all(system.path(to).parent().context("a directory")?)?;
        std::fs::copy(units().join(from), system.path(to)).with_context(|| from.to_owned())?;
    }
    system.succeed(&["groupadd", "-f", "kvm"])?;
    system.succeed(&["systemd-sysusers"])?;
    for directory in ["/etc/ringloom", "/etc/systemd/system/ringloom@.service.d"] {
        std::fs::create_dir_all(system.path(directory))?;
    }
    std::fs::write(system.path("/etc/systemd/system/ringloom@.service.d/faster.conf"), FASTER)?;
    std::fs::write(system.path("/etc/ringloom/vm1.toml"), CONFIGURATION)?;
    for image in [IMAGE, "/srv/vm4.img"] {
        image::create_sparse(&system.path(image), Survivor::disk_bytes(QUEUES))?;
        system.succeed(&["chown", "ringloom:", image])?;
    }
    system.succeed(&["systemctl", "daemon-reload"])?;
    Ok(system)
}

fn main_process(system: &Systemd, unit: &str) -> Result<String> {
    system.property(unit, "MainPID")
}

/// Waits for another main process than this one, which serves.
fn wait_for_another(system: &Systemd, unit: &str, old: &str) -> Result<String> {
    let what = format!("another process than {old}");
    poll_until(&what, LIMIT, || {
        let (process, state) = (main_process(system, unit)?, system.property(unit, "ActiveState")?);
        Ok((state == "active" && process != old && process != "0").then_some(process))
    })
    .with_context(|| system.journal(unit).unwrap_or_default())
}

/// Requests until the server is gone; then goes on with the next.
fn live_through(
    client: &mut Survivor,
    rng: &mut Rng,
    end: impl FnOnce() -> Result<()>,
) -> Result<()> {
    client.submit(rng)?;
    end()?;
    poll_until("the end of the server", LIMIT, || {
        client.submit(rng)?;
        Ok((client.collect()? == Collected::Gone).then_some(()))
    })?;
    poll_until("the next server", LIMIT, || Ok(client.reconnect().ok()))?;
    client.drain()
}

fn guests_live_on(system: &Systemd) -> Result<()> {
    system
        .succeed(&["systemctl", "start", UNIT])
        .with_context(|| system.journal(UNIT).unwrap_or_default())?;
    let first = main_process(system, UNIT)?;
    let mut client = Survivor::connect(&system.path(SOCKET), RingLayout::Split, QUEUES)?;
    let rng = &mut Rng::new(11);
    client.submit(rng)?;
    client.drain()?;
    live_through(&mut client, rng, || {
        system.succeed(&["systemctl", "kill", "-s", "KILL", UNIT]).map(drop)
    })
    .context("a kill")?;
    let second = wait_for_another(system, UNIT, &first)?;
    // An upgrade in place: nobody notices.
    client.submit(rng)?;
    system
        .succeed(&["systemctl", "reload", UNIT])
        .with_context(|| system.journal(UNIT).unwrap_or_default())?;
    let third = wait_for_another(system, UNIT, &second)?;
    client.submit(rng)?;
    client.drain().context("after a reload")?;
    // What cannot take over leaves all as it is.
    let configuration = system.path("/etc/ringloom/vm1.toml");
    std::fs::write(&configuration, CONFIGURATION.replace("queues = 2", "queues = 0"))?;
    ensure!(!system.run(&["systemctl", "reload", UNIT])?.status.success(), "it takes over");
    ensure!(system.property(UNIT, "ActiveState")? == "active", "{}", system.journal(UNIT)?);
    ensure!(main_process(system, UNIT)? == third, "{}", system.journal(UNIT)?);
    std::fs::write(&configuration, CONFIGURATION)?;
    client.submit(rng)?;
    client.drain().context("after a reload that failed")?;
    // A process that stands still says nothing, and is replaced.
    live_through(&mut client, rng, || {
        system.succeed(&["systemctl", "kill", "-s", "STOP", UNIT]).map(drop)
    })
    .context("a process that stands still")?;
    wait_for_another(system, UNIT, &third)?;
    ensure!(system.property(UNIT, "NRestarts")? == "2", "{}", system.journal(UNIT)?);
    let expected = client.expected();
    drop(client);
    system.succeed(&["systemctl", "stop", UNIT])?;
    ensure!(system.property(UNIT, "Result")? == "success", "{}", system.journal(UNIT)?);
    ensure!(std::fs::read(system.path(IMAGE))? == expected, "the disk");
    let journal = system.journal(UNIT)?;
    for said in ["has taken over", "has handed over", "Watchdog timeout", "SIGTERM: stopping"] {
        ensure!(journal.contains(said), "{said:?} is not in {journal}");
    }
    ensure!(journal.contains("io_uring") && !journal.contains("io_uring is not"), "{journal}");
    Ok(())
}

/// A unit whose image is missing says so, and is not tried for ever.
fn fails_clearly(system: &Systemd) -> Result<()> {
    let text = CONFIGURATION.replace("vm1", "vm2");
    std::fs::write(system.path("/etc/ringloom/vm2.toml"), text)?;
    let started = system.run(&["systemctl", "start", "ringloom@vm2"])?;
    ensure!(!started.status.success(), "it serves an image that is not there");
    poll_until("the unit to be given up", LIMIT, || {
        let state = system.property("ringloom@vm2", "ActiveState")?;
        Ok((state == "failed").then_some(()))
    })
    .with_context(|| system.journal("ringloom@vm2").unwrap_or_default())?;
    let journal = system.journal("ringloom@vm2")?;
    ensure!(journal.contains("/srv/vm2.img"), "{journal}");
    let count = journal.matches("/srv/vm2.img").count();
    ensure!(count <= 6, "{count} times: {journal}");
    // One whose configuration is wrong is not tried again at all.
    std::fs::write(system.path("/etc/ringloom/vm3.toml"), "imgae = \"x\"\n")?;
    ensure!(!system.run(&["systemctl", "start", "ringloom@vm3"])?.status.success(), "it serves");
    // Not only for the moment.
    ensure!(system.property("ringloom@vm3", "ActiveState")? == "failed", "it will be tried again");
    ensure!(system.property("ringloom@vm3", "ExecMainStatus")? == "2", "another exit status");
    ensure!(system.property("ringloom@vm3", "NRestarts")? == "0", "it is tried again");
    let journal = system.journal("ringloom@vm3")?;
    ensure!(journal.contains("vm3.toml:1:1") && journal.contains("image"), "{journal}");
    // So is one that contradicts itself.
    let text = format!("{CONFIGURATION}[[object]]\nqom-type = \"iothread\"\nid = \"t\"\n");
    std::fs::write(system.path("/etc/ringloom/vm3.toml"), text)?;
    ensure!(!system.run(&["systemctl", "start", "ringloom@vm3"])?.status.success(), "it serves");
    ensure!(system.property("ringloom@vm3", "ActiveState")? == "failed", "it will be tried again");
    let journal = system.journal("ringloom@vm3")?;
    ensure!(journal.contains("cannot be combined with --object"), "{journal}");
    let text = format!("daemonize = true\n{CONFIGURATION}");
    std::fs::write(system.path("/etc/ringloom/vm3.toml"), text)?;
    ensure!(!system.run(&["systemctl", "start", "ringloom@vm3"])?.status.success(), "it serves");
    ensure!(system.property("ringloom@vm3", "ActiveState")? == "failed", "it will be tried again");
    let journal = system.journal("ringloom@vm3")?;
    ensure!(journal.contains("a service manager has started this process"), "{journal}");
    Ok(())
}

/// A socket of systemd's, on which a guest waits that comes before the daemon. The configuration is that of a disk without
/// one, and an upgrade in place goes on with the socket, which is systemd's in the end.
fn is_started_by_a_guest(system: &Systemd) -> Result<()> {
    const UNIT: &str = "ringloom@vm4";
    std::fs::write(
        system.path("/etc/ringloom/vm4.toml"),
        CONFIGURATION.replace("/vm1", "/vm4").replace("socket-group = \"kvm\"\n", ""),
    )?;
    let said = || system.journal(UNIT).unwrap_or_default();
    system.succeed(&["systemctl", "start", "ringloom@vm4.socket"])?;
    let check = ["ringloom", "check", "--config", "/etc/ringloom/vm4.toml"];
    let checked = system.succeed(&check).context("a check")?;
    ensure!(checked.contains("systemd listens there"), "{checked}");
    ensure!(system.property(UNIT, "ActiveState")? == "inactive", "it was started by a question");
    let socket = system.path("/run/ringloom/vm4/disk.sock");
    let mut client = Survivor::connect(&socket, RingLayout::Split, QUEUES)?;
    let rng = &mut Rng::new(5);
    client.submit(rng)?;
    client.drain().with_context(said)?;
    let first = main_process(system, UNIT)?;
    let upgrade = |old: &str| {
        system.succeed(&["systemctl", "reload", UNIT]).with_context(said)?;
        wait_for_another(system, UNIT, old)
    };
    client.submit(rng)?;
    let second = upgrade(&first)?;
    client.submit(rng)?;
    client.drain().context("after a reload")?;
    live_through(&mut client, rng, || {
        system.succeed(&["systemctl", "kill", "-s", "KILL", UNIT]).map(drop)
    })
    .context("a kill")?;
    let third = wait_for_another(system, UNIT, &second)?;
    upgrade(&third)?;
    client.submit(rng)?;
    client.drain().context("after another reload")?;
    // By the journal's own fields.
    let of_export = ["journalctl", "--no-pager", "-o", "cat", "-u", UNIT, "RINGLOOM_EXPORT=vm4"];
    let of_export = system.succeed(&of_export)?;
    ensure!(of_export.contains("export vm4: served again"), "{of_export}");
    ensure!(!of_export.contains("sandbox:"), "{of_export}");
    ensure!(!said().contains("start this daemon first"), "nobody has asked: {}", said());
    let has_handed_over = said().matches("has handed over").count();
    ensure!(has_handed_over == 2, "{}", said());
    // The next client starts it again at the same socket.
    system.succeed(&["systemctl", "stop", UNIT])?;
    ensure!(socket.exists(), "the socket is gone: {}", said());
    poll_until("the next server", LIMIT, || Ok(client.reconnect().ok()))?;
    client.submit(rng)?;
    client.drain().with_context(said)?;
    drop(client);
    system.succeed(&["systemctl", "stop", "ringloom@vm4.socket", UNIT])?;
    ensure!(!socket.exists(), "the socket is still there");
    Ok(())
}

#[test]
fn the_units_serve_under_systemd() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let system = installed(&bench)?;
        guests_live_on(&system)?;
        fails_clearly(&system)?;
        is_started_by_a_guest(&system)
    });
}

#[test]
fn the_units_are_sound_and_closed() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        for name in ["ringloom@.service", "ringloom@.socket"] {
            let text = std::fs::read_to_string(units().join(name))?;
            // It need not be installed here.
            let text = text.replace("/usr/bin/ringloom", env!("CARGO_BIN_EXE_ringloom"));
            let text = text.replace("Documentation=man:ringloom(1)\n", "");
            std::fs::write(bench.path(name), text)?;
        }
        let analyze = |words: &[&str]| {
            let output = Command::new("systemd-analyze").args(words).output().context("it runs")?;
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            anyhow::Ok((output.status.success(), said))
        };
        let (service, socket) = (bench.text("ringloom@.service"), bench.text("ringloom@.socket"));
        let (is_sound, said) = analyze(&["verify", "--man=no", &service, &socket])?;
        ensure!(is_sound && !said.contains("ringloom"), "{said}");
        let words = ["security", "--offline=true", "--threshold=25", "--no-pager", &service];
        let (is_closed, said) = analyze(&words)?;
        ensure!(is_closed, "{said}");
        Ok(())
    });
}
