//! Images with damaged tables, opened and used: requests fail or do what they say, and nothing panics or
//! goes on for ever.

use anyhow::{Result, ensure};
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::node::Guest;
use crate::qemu;

const DISK: u64 = 16 << 20;

fn word(file: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(file[at..at + 8].try_into().expect("8 bytes"))
}

/// Where the words of tables are: of the first level, and of what they name.
fn words_of_tables(file: &[u8], cluster: usize) -> Result<[Vec<usize>; 2]> {
    let (mut first_level, mut places) = (vec![40, 48], Vec::new());
    for table in [word(file, 40), word(file, 48)] {
        let first = usize::try_from(table)?;
        for at in (first..first + cluster.min(512)).step_by(8) {
            let below = usize::try_from(word(file, at) & 0x00ff_ffff_ffff_fe00)?;
            if below > 0 {
                first_level.push(at);
                places.extend((below..below + cluster).step_by(8));
            }
        }
    }
    Ok([first_level, places])
}

fn damage(file: &mut [u8], places: &[Vec<usize>; 2], random: &mut Rng) {
    let length = file.len() as u64;
    for _ in 0..=random.below(3) {
        let places = &places[usize::from(!random.one_in(4))];
        let at = places[random.index(places.len())];
        let old = word(file, at);
        let value = match random.below(6) {
            0 => old ^ (1 << random.below(64)),
            1 => random.next_u64(),
            2 => (random.below(length) & !0x1ff) | (1 << 63),
            3 => word(file, places[random.index(places.len())]),
            4 => (1 << 62) | random.below(length),
            _ => old.wrapping_add(1 << random.below(32)),
        };
        file[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
}

/// Uses the disk; how many requests succeeded and how many failed.
fn use_disk(guest: &mut Guest, random: &mut Rng) -> Result<(u32, u32)> {
    let (mut succeeded, mut failed) = (0, 0);
    for _ in 0..12 {
        let count = 512 * (1 + random.index(200));
        let at = random.below((DISK - count as u64) / 512) * 512;
        let mut bytes = vec![0; count];
        random.fill(&mut bytes);
        let result = guest.write(at, &bytes);
        if result.is_err() {
            failed += 1;
            continue;
        }
        succeeded += 1;
        // What was told to be written is there, unless its table is found damaged since.
        if let Ok(read) = guest.read(at, count) {
            ensure!(read[..] == bytes[..], "{count} bytes at {at} are something else");
        }
    }
    Ok((succeeded, failed))
}

/// How many images were opened and refused, how many requests succeeded and failed.
fn check(options: &str, cluster: usize, rounds: u64) -> Result<[u32; 4]> {
    let bench = Bench::new()?;
    let directory = bench.path("");
    for line in [
        &["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", "16M"][..],
        &["qemu-io", "-f", "qcow2", "-c", "write 0 3M", "-c", "write 9M 100k", "a.qcow2"],
        &["qemu-img", "snapshot", "-c", "one", "a.qcow2"],
        &["qemu-io", "-f", "qcow2", "-c", "write 1M 500k", "-c", "write -z 9M 64k", "a.qcow2"],
    ] {
        qemu::succeeds(&directory, line)?;
    }
    let path = bench.path("a.qcow2");
    let good = std::fs::read(&path)?;
    let places = words_of_tables(&good, cluster)?;
    let (mut opened, mut refused, mut succeeded, mut failed) = (0, 0, 0, 0);
    for seed in 0..rounds {
        let mut random = Rng::new(seed);
        let mut file = good.clone();
        damage(&mut file, &places, &mut random);
        std::fs::write(&path, &file)?;
        match Guest::open(&path) {
            Err(_) => refused += 1,
            Ok(mut guest) => {
                opened += 1;
                let used = use_disk(&mut guest, &mut random);
                let used =
                    used.map_err(|error| error.context(format!("{options}, seed {seed}")))?;
                (succeeded, failed) = (succeeded + used.0, failed + used.1);
            }
        }
    }
    Ok([opened, refused, succeeded, failed])
}

#[test]
fn damaged_tables_make_requests_fail_and_nothing_worse() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let mut all = [0; 4];
    for (options, cluster, rounds) in [
        ("cluster_size=4k", 4096, 80),
        ("cluster_size=512,refcount_bits=64", 512, 30),
        ("cluster_size=16k,extended_l2=on", 16384, 80),
    ] {
        let counts = check(options, cluster, rounds)?;
        all = std::array::from_fn(|at| all[at] + counts[at]);
    }
    let [opened, refused, succeeded, failed] = all;
    ensure!(opened > 50 && refused > 20 && succeeded > 300 && failed > 0, "{all:?}");
    Ok(())
}
