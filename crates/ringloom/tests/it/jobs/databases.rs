//! Databases in a guest that work while their disk is kept, copied and moved: what they had told to be committed is there, and
//! what was copied is whole.
//!
//! The guest runs PostgreSQL, with checksums of its pages, and SQLite. Each writes transactions that move money between
//! accounts and number themselves; the console tells which ones were committed. Meanwhile the disk has a snapshot, a backup and a
//! mirror with a switch. Another guest restores the snapshot and the backup: the databases recover, no number is missing, and
//! the money is what it was.
//!
//! `cargo xtask databases --rounds N` has that many such guests, `cargo xtask test` one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::RingLayout;
use testkit::deadline::poll_until;
use testkit::guest::{Console, Equipment, Guest, RunningGuest, find_program};
use testkit::process::{Bench, Server};
use testkit::qmp::QmpClient;
use testkit::report::{note, skipped};

use super::campaign::number_from;
use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const SIZE: &str = "320M";

/// Set by `cargo xtask databases`.
const ROUNDS_VARIABLE: &str = "RINGLOOM_DATABASE_ROUNDS";

/// How long a guest may take to boot and start its databases, to commit some transactions, and to end.
const LIMIT: Duration = Duration::from_secs(300);

/// Transactions of each database between two jobs.
const BETWEEN: u64 = 30;

/// What all accounts have together.
const MONEY: u64 = 1000;

/// Starts PostgreSQL on a disk that is mounted at `/mnt`, asks both databases what they have, and stops it.
const FUNCTIONS: &str = r#"
psql() { chroot /mnt psql -h /tmp -U nobody -d postgres -v ON_ERROR_STOP=1 -P pager=off -qAt "$@"; }
sqlite() { chroot /mnt sqlite3 -batch /sqlite/db; }
start() {
  mount -t ext4 $1 /mnt && mount -t proc proc /mnt/proc && mount -t devtmpfs dev /mnt/dev || return 1
  chroot /mnt su -s /bin/sh nobody -c 'exec postgres -D /data' > /tmp/postgres.log 2>&1 &
  tries=0
  until psql -c 'select 1' > /dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { cat /tmp/postgres.log; return 1; }
    sleep 0.3
  done
}
stop_all() {
  kill -INT $(head -n 1 /mnt/data/postmaster.pid)
  wait
  umount /mnt/dev && umount /mnt/proc && umount /mnt
}
ask_pg() { psql -c 'select count(*), max(n), (select sum(v) from a), count(distinct md5(text)) from t'; }
ask_sq() { echo 'pragma integrity_check; select count(*), max(n), (select sum(v) from a), 1 from t;' | sqlite; }
"#;

/// Fills both databases until the console says `stop`.
const WORK: &str = r#"
section start start /dev/vda
TABLES='create table t(n integer primary key, text text); create table a(id integer primary key, v integer);'
psql -c "$TABLES" -c 'insert into a select g, 100 from generate_series(0, 9) g'
(echo 'pragma journal_mode=wal; pragma synchronous=full;'; echo "$TABLES"
 for id in 0 1 2 3 4 5 6 7 8 9; do echo "insert into a values($id, 100);"; done) | sqlite
transactions() {
  n=0
  while [ ! -e /tmp/stop ]; do
    n=$((n + 1))
    echo "begin; update a set v = v - 1 where id = $((n % 10)); update a set v = v + 1 where id = $(((n + 3) % 10));"
    echo "insert into t values($n, '$2'); commit; select '$1 $n';"
  done
}
TEXT=$(head -c 400 /dev/zero | tr '\0' x)
transactions pg "$TEXT" | psql > /dev/ttyS0 2>&1 &
PG=$!
(echo 'pragma synchronous=full;'; transactions sq "$TEXT") | sqlite > /dev/ttyS0 2>&1 &
SQ=$!
while read -r line < /dev/ttyS0; do [ "$line" = stop ] && break; done
touch /tmp/stop
wait $PG $SQ
section pg_end ask_pg
section sq_end ask_sq
section stop stop_all
"#;

/// Restores what is on both disks.
const RESTORE: &str = r#"
for disk in vda vdb; do
  section start_$disk start /dev/$disk
  section pg_$disk ask_pg
  section sq_$disk ask_sq
  section stop_$disk stop_all
done
"#;

/// A daemon that serves these nodes to a guest, each by a socket named as it.
fn serve(bench: &Bench, nodes: &[(&str, serde_json::Value)]) -> Result<Server> {
    let mut line = [monitor(bench), state(bench)].concat();
    line.extend(["--named-files", "on"].map(str::to_owned));
    let mut sockets = vec![monitor_socket(bench)];
    for id in ["t0", "t1"] {
        line.extend(["--object".to_owned(), format!("iothread,id={id}")]);
    }
    for (name, node) in nodes {
        let export = format!(
            "vhost-user-blk,id={name},node-name={name},writable=on,addr.type=unix,addr.path={},num-queues=2,\
             iothread.0=t0,iothread.1=t1",
            bench.text(&format!("{name}.sock"))
        );
        line.extend(["--blockdev".to_owned(), node.to_string(), "--export".to_owned(), export]);
        sockets.push(bench.path(&format!("{name}.sock")));
    }
    ringloom().start(&line, &sockets)
}

fn node(bench: &Bench, driver: &str, name: &str) -> serde_json::Value {
    let file = json!({"driver": "file", "filename": bench.text(name), "discard": "unmap"});
    match driver {
        "file" => json!({
            "driver": "file", "node-name": name, "filename": bench.text(name), "discard": "unmap",
        }),
        _ => json!({"driver": driver, "node-name": name, "file": file, "discard": "unmap"}),
    }
}

fn guest(bench: &Bench, disks: &[&str], script: &str) -> Result<RunningGuest> {
    let disks = disks.iter().map(|name| bench.path(&format!("{name}.sock"))).collect();
    let script = format!("{FUNCTIONS}{script}");
    let guest = Guest { disks, queues: 2, layout: RingLayout::Split, script };
    guest.boot_with(&Equipment::bare(), bench)
}

/// The last transactions that both databases have told to be committed.
fn committed(guest: &RunningGuest) -> [u64; 2] {
    let text = guest.console_text();
    ["pg ", "sq "].map(|name| {
        let numbers = text.lines().filter_map(|line| line.trim().strip_prefix(name)?.parse().ok());
        numbers.max().unwrap_or(0)
    })
}

/// Waits until both have committed so many transactions more; gives what they have then.
fn work(guest: &RunningGuest) -> Result<[u64; 2]> {
    let before = committed(guest);
    let all = poll_until("transactions", LIMIT, || {
        let now = committed(guest);
        Ok((0..2).all(|it| now[it] >= before[it] + BETWEEN).then_some(now))
    });
    all.with_context(|| Console::new(&guest.console_text()).tail())
}

/// What the databases had, as a guest has reported it: no number is missing, none that was told before is, and the money is there.
fn check(console: &Console, suffix: &str, told: [u64; 2]) -> Result<[u64; 2]> {
    let mut found = [0; 2];
    for (place, name) in ["pg", "sq"].iter().enumerate() {
        let text = console.success(&format!("{name}_{suffix}"))?;
        let last = text.lines().last().context("an answer")?;
        ensure!(*name == "pg" || text.starts_with("ok"), "{suffix}: {text}");
        let numbers: Vec<u64> = last
            .split('|')
            .map(|word| word.trim().parse().with_context(|| text.clone()))
            .collect::<Result<_>>()?;
        let [count, last, money, texts] = numbers[..] else { anyhow::bail!("{text}") };
        ensure!(count == last, "{name} {suffix}: {count} transactions, and the last is {last}");
        ensure!(money == MONEY, "{name} {suffix}: all accounts have {money}");
        ensure!(texts == 1, "{name} {suffix}: {texts} different texts");
        ensure!(last >= told[place], "{name} {suffix}: {last} of {} that were told", told[place]);
        found[place] = last;
    }
    Ok(found)
}

fn make_disk(bench: &Bench) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/jobs/databases/make-disk.sh");
    let output = Command::new("sh")
        .args([Path::new(script), &bench.path("made"), &bench.path("base"), Path::new(SIZE)])
        .output()
        .context("sh")?;
    ensure!(output.status.success(), "make-disk.sh: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// One round; gives what was found.
fn round() -> Result<String> {
    let bench = Bench::new()?;
    make_disk(&bench)?;
    qemu_img(&bench, "create -q -f qcow2 -b base -F raw disk")?;
    qemu_img(&bench, &format!("create -q -f qcow2 moved {SIZE}"))?;
    qemu_img(&bench, &format!("create -q -f raw backup {SIZE}"))?;
    let server = serve(&bench, &[("disk", node(&bench, "qcow2", "disk"))])?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let mut running = guest(&bench, &["disk"], WORK)?;
    let at_snapshot = work(&running)?;
    let snapshot = json!({
        "node-name": "disk", "snapshot-file": bench.text("top"), "snapshot-node-name": "top",
    });
    qmp.execute("blockdev-snapshot-sync", &snapshot)?;
    let at_backup = work(&running)?;
    qmp.execute("blockdev-add", &node(&bench, "file", "backup"))?;
    let backup = json!({"job-id": "b", "device": "top", "target": "backup", "sync": "full"});
    qmp.execute("blockdev-backup", &backup)?;
    qmp.event("BLOCK_JOB_COMPLETED")?;
    let before_mirror = work(&running)?;
    qmp.execute("blockdev-add", &node(&bench, "qcow2", "moved"))?;
    let mirror = json!({"job-id": "m", "device": "top", "target": "moved", "sync": "full"});
    qmp.execute("blockdev-mirror", &mirror)?;
    qmp.event("BLOCK_JOB_READY")?;
    qmp.execute("job-complete", &json!({"id": "m"}))?;
    qmp.event("BLOCK_JOB_COMPLETED")?;
    let at_end = work(&running)?;
    running.type_line("stop")?;
    let console = running.wait(LIMIT).with_context(|| server.log())?;
    let end = check(&console, "end", at_end)?;
    drop(qmp);
    stop(server, &[&bench.path("disk.sock")])?;
    for image in ["disk", "top", "moved"] {
        qemu_img(&bench, &format!("check -q -f qcow2 {image}"))?;
    }
    // Recovery writes.
    qemu_img(&bench, "create -q -f qcow2 -b disk -F qcow2 restored")?;
    std::fs::remove_file(bench.path("state"))?;
    let disks = [("backup", "file"), ("restored", "qcow2"), ("moved", "qcow2")];
    let nodes = disks.map(|(name, driver)| (name, node(&bench, driver, name)));
    let server = serve(&bench, &nodes[..2])?;
    let restoring = guest(&bench, &["backup", "restored"], RESTORE)?;
    let console = restoring.wait(LIMIT).with_context(|| server.log())?;
    let backup = check(&console, "vda", at_backup)?;
    let kept = check(&console, "vdb", at_snapshot)?;
    stop(server, &[&bench.path("backup.sock"), &bench.path("restored.sock")])?;
    let in_order = (0..2).all(|it| kept[it] <= at_backup[it] && backup[it] <= before_mirror[it]);
    ensure!(in_order, "{kept:?} in the snapshot, {at_backup:?}, {backup:?} in the backup");
    Ok(format!(
        "PostgreSQL and SQLite had {kept:?} of {at_snapshot:?} told when the snapshot was made, {backup:?} of {at_backup:?} \
         in the backup, {end:?} of {at_end:?} at the end"
    ))
}

/// Why there can be no such guest here, if so.
fn missing() -> Option<String> {
    let programs = ["psql", "sqlite3", "setpriv", "mkfs.ext4"];
    let lacking = programs.iter().find(|name| find_program(name).is_none());
    lacking.map(|name| format!("{name} is not installed")).or_else(|| Equipment::bare().missing())
}

#[test]
fn databases_go_on_and_recover() {
    if let Some(reason) = missing() {
        return skipped(&reason);
    }
    for number in 0..number_from(ROUNDS_VARIABLE, 1) {
        match round() {
            Ok(what) => note(&what),
            Err(error) => panic!("round {number}: {error:#}"),
        }
    }
}
