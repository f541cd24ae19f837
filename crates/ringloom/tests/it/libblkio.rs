//! libblkio, as QEMU and fio use it, on every queue of a disk.

use anyhow::{Result, ensure};
use testkit::libblkio::LibblkioDisk;
use testkit::process::{Bench, Program};
use testkit::rng::Rng;

use crate::support::{Disk, Iothreads, ringloom, ringloom_without_io_uring, stop, with};

const QUEUES: usize = 4;
const IMAGE_BYTES: usize = 4 << 20;

fn check(program: &Program, iothreads: Iothreads) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads, ..Disk::new(&bench, "e0", QUEUES) };
    let mut expected = disk.create(IMAGE_BYTES, 7)?;
    let server = disk.serve(program)?;
    let mut client = LibblkioDisk::connect(&disk.socket(), 4, 1 << 20)?;
    ensure!(client.capacity_bytes() == IMAGE_BYTES as u64, "{client:?}");
    let mut random = Rng::new(0xb1);
    for round in 0..400 {
        let queue = round % QUEUES;
        let start = usize::try_from(random.below(1000))? * 4096;
        let count = 4096 << random.below(4);
        let range = start..(start + count).min(IMAGE_BYTES);
        match round % 3 {
            0 => {
                let byte = u8::try_from(random.below(256))?;
                expected[range.clone()].fill(byte);
                client.write(queue, start as u64, &expected[range])?;
            }
            1 => {
                expected[range.clone()].fill(0);
                client.write_zeroes(queue, start as u64, range.len() as u64)?;
            }
            _ => {
                let found = client.read(queue, start as u64, range.len())?;
                ensure!(found == expected[range.clone()], "round {round}: {range:?} differs");
            }
        }
    }
    client.flush(0)?;
    drop(client);
    stop(server, &[&disk.socket()])?;
    ensure!(std::fs::read(disk.image())? == expected, "the image differs");
    Ok(())
}

#[test]
fn libblkio_reads_what_it_wrote_through_two_iothreads() {
    with(&ringloom(), |program| check(program, Iothreads::Two));
}

#[test]
fn libblkio_reads_what_it_wrote_on_a_host_without_io_uring() {
    with(&ringloom_without_io_uring(), |program| check(program, Iothreads::Two));
}

#[test]
fn libblkio_reads_what_it_wrote_through_the_peer() {
    with(&Program::qemu_storage_daemon(), |program| check(program, Iothreads::One));
}
