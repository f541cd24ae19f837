//! One connection for each iothread, or one for all.

use anyhow::{Result, ensure};
use testkit::process::{Bench, Program};

use super::{line, nbdkit, node};
use crate::nbd::{socket, start, tool, uri};
use crate::support::{ringloom, stop, with};

/// Two iothreads with two checked clients each, on a server that allows several connections or one.
fn check(program: &Program, kit: &[&str]) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = nbdkit(&bench, kit)?;
    let threads = ["--object", "iothread,id=t0", "--object", "iothread,id=t1"];
    let mut words: Vec<String> = threads.iter().map(|word| (*word).to_owned()).collect();
    let iothreads = ",iothread.0=t0,iothread.1=t1";
    words.extend(line(&bench, &node(&bench, ",reconnect-delay=30"), iothreads));
    let ours = start(program, &bench, &words)?;
    verify(&bench, 4, 4)?;
    stop(ours, &[&socket(&bench)])?;
    kit.kill()
}

/// A load of fio that reads back what it has written, from so many clients, each in as many MiB of its own. No two of its
/// writes overlap while they are in flight.
pub(crate) fn verify(bench: &Bench, clients: u32, mebibytes: u32) -> Result<()> {
    let (uri, jobs) = (uri(bench, "x"), format!("--numjobs={clients}"));
    let size = format!("--size={mebibytes}M");
    let offset = format!("--offset_increment={mebibytes}M");
    let said = tool(
        "fio",
        &[
            "--name=v",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randrepeat=0",
            &jobs,
            &size,
            &offset,
            "--loops=2",
        ],
    )?;
    ensure!(!said.contains("verify:") && said.contains("err= 0"), "{said}");
    Ok(())
}

#[test]
fn several_iothreads_have_a_connection_each() {
    with(&ringloom(), |program| check(program, &["memory", "64M"]));
}

#[test]
fn several_iothreads_share_the_connection_of_a_server_that_allows_one() {
    // Another one would be refused by the limit.
    let one = [
        "--filter=multi-conn",
        "--filter=limit",
        "memory",
        "64M",
        "multi-conn-mode=disable",
        "limit=1",
    ];
    with(&ringloom(), |program| check(program, &one));
}
