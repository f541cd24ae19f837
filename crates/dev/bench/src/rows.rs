//! What is measured: the rows of the table of figures, and the full matrix.
//!
//! Invariants: a row's name says everything about it and is unique. Pure.

pub(crate) mod qcow2;

use crate::disks::DISK_BYTES;
use crate::images::Image;
use crate::refill::{Fairness, Layer};
use load::{BlockBytes, Operation, Shape, Workload};

/// The seed of all offsets and times of arrival.
pub(crate) const SEED: u64 = 0x7269_6e67;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Null,
    Tmpfs,
    Work,
    /// A raw file of holes on tmpfs.
    Sparse {
        bytes: u64,
    },
    /// A qcow2 image on tmpfs.
    Image(Image),
    /// The image of rows that are called `qcow2`, as the disk of an NBD server.
    RemoteImage,
    /// An image of a Ceph cluster.
    ClusterImage,
}

impl Disk {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Null | Self::Tmpfs | Self::Work | Self::RemoteImage | Self::ClusterImage => {
                DISK_BYTES
            }
            Self::Sparse { bytes } => bytes,
            Self::Image(image) => image.bytes(),
        }
    }

    /// Whether it takes memory as it is written.
    pub(crate) fn is_sparse(self) -> bool {
        match self {
            Self::Null | Self::Tmpfs | Self::Work | Self::RemoteImage | Self::ClusterImage => false,
            Self::Sparse { .. } => true,
            Self::Image(image) => image.is_sparse(),
        }
    }
}

/// How the client learns of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    Polling,
    Sleeping,
    /// Polling, while requests arrive at random times.
    Arrivals {
        per_second: u32,
    },
}

/// A load on one export.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    pub(crate) disk: Disk,
    pub(crate) operation: Operation,
    pub(crate) block: BlockBytes,
    pub(crate) depth: u16,
    pub(crate) rings: u16,
    pub(crate) client: Client,
}

impl Load {
    pub(crate) fn workload(&self, disk_bytes: u64) -> Workload {
        self.checked(self.rings, self.depth, disk_bytes)
    }

    /// The same number of requests in flight from one thread, for the bare host.
    pub(crate) fn host_workload(&self, disk_bytes: u64) -> Workload {
        self.checked(1, self.rings * self.depth, disk_bytes)
    }

    fn checked(&self, jobs: u16, depth: u16, disk_bytes: u64) -> Workload {
        let shape =
            Shape::new(self.operation, self.block, jobs, depth).expect("rows are in bounds");
        Workload::new(shape, disk_bytes, SEED).expect("the disks are larger than any row")
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Servers, and the bare host where there is a file.
    Load(Load),
    /// Ringloom with `iothread=auto`, on one and on two iothreads, with all CPUs.
    Auto(Load),
    /// Self-refilling rings, on one and on two iothreads.
    Refill(Disk),
    /// A self-refilling ring on null disks, with a layer above them and without.
    Layer(Layer),
    /// So many self-refilling rings that write to a disk with a dirty bitmap, and to the same without one.
    Bitmap { disk: Disk, rings: u16 },
    /// Self-refilling rings on one node with a layer, on one and on two iothreads.
    SharedLayer(Layer),
    /// Rings of depth 1 alone and beside a saturated one.
    Fairness(Fairness),
    /// 8 exports of 16 connected rings and nothing to do.
    Idle,
    /// Requests of one ring after another program has had the server's CPU.
    AfterOthers,
    /// So many self-refilling rings on a null disk that go to and fro between two iothreads.
    Moves(u16),
    /// Anonymous memory of a server after a load on 64 rings of 256.
    Memory,
    /// Starting on an image.
    Opening(Image),
    /// fio's NBD client on a connection.
    Nbd(Disk),
    /// Self-refilling NBD connections on a null disk, on one and on two iothreads.
    Connections(u16),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// What must be reached, in words; empty for most rows of the full matrix.
    pub(crate) wanted: &'static str,
}

fn load_row(load: Load, wanted: &'static str) -> Row {
    let disk = match load.disk {
        Disk::Null => "null",
        Disk::Tmpfs => "tmpfs",
        Disk::Work => "work",
        Disk::Sparse { .. } => "literature-raw",
        Disk::Image(image) => image.name,
        Disk::RemoteImage => "qcow2-on-nbd",
        Disk::ClusterImage => "rbd",
    };
    let client = match load.client {
        Client::Polling => "polling".to_owned(),
        Client::Sleeping => "sleeping".to_owned(),
        Client::Arrivals { per_second } => format!("poisson{per_second}"),
    };
    let block = match load.block.get() {
        bytes if bytes < 1 << 10 => bytes.to_string(),
        bytes if bytes < 1 << 20 => format!("{}k", bytes >> 10),
        bytes => format!("{}m", bytes >> 20),
    };
    let Load { operation, depth, rings, .. } = load;
    let name = format!("{disk}-{operation}-{block}-d{depth}-r{rings}-{client}");
    Row { name, kind: Kind::Load(load), wanted }
}

fn load(disk: Disk, operation: &str, block: u64, depth: u16, rings: u16, client: Client) -> Load {
    let operation = operation.parse().expect("an operation of fio");
    let block = BlockBytes::try_from(block).expect("a block size of the matrix");
    Load { disk, operation, block, depth, rings, client }
}

fn special(name: &str, kind: Kind, wanted: &'static str) -> Row {
    Row { name: name.to_owned(), kind, wanted }
}

/// So many rings of depth 1 beside one that reads blocks of so many bytes.
fn fairness(name: &str, disk: Disk, quiet: u16, block: usize, wanted: &'static str) -> Row {
    special(name, Kind::Fairness(Fairness { disk, quiet, block }), wanted)
}

/// The rows of the table of figures.
pub(crate) fn quick() -> Vec<Row> {
    use Client::{Arrivals, Polling, Sleeping};
    let read = |disk, depth, client| load(disk, "randread", 4096, depth, 1, client);
    let tmpfs = |operation| load(Disk::Tmpfs, operation, 4096, 64, 1, Polling);
    let pair = |disk, depth| load(disk, "randread", 4096, depth, 2, Sleeping);
    let worth = "CPU at most that of qsd, and 1.25 × that without iothread at its rate";
    let (poisson, work) = (Arrivals { per_second: 20_000 }, "0.95 × host, lowest 0.90");
    let mut rows = vec![
        load_row(read(Disk::Null, 64, Polling), "5 × qsd, 300 ns of CPU"),
        load_row(read(Disk::Null, 1, Polling), "5 × qsd"),
        load_row(read(Disk::Null, 1, Sleeping), "2 × qsd"),
        load_row(read(Disk::Null, 16, Sleeping), "2 × qsd"),
        load_row(tmpfs("randread"), "2.5 × qsd, 0.85 × host"),
        load_row(tmpfs("randwrite"), "2.5 × qsd, 0.85 × host"),
        load_row(read(Disk::Work, 1, Polling), work),
        load_row(read(Disk::Work, 16, Polling), work),
        load_row(read(Disk::Work, 64, Polling), work),
        load_row(pair(Disk::Work, 1), worth),
        load_row(pair(Disk::Work, 16), worth),
        load_row(pair(Disk::Work, 64), worth),
        load_row(read(Disk::Null, 4, poisson), "0.5 × CPU of qsd, p99 not worse"),
        special("refill-null", Kind::Refill(Disk::Null), "two threads 1.85 × one"),
        special("layer-stripe", Kind::Layer(Layer::Stripe), "0.70 × without"),
        special("layer-delay", Kind::Layer(Layer::Delay), "0.70 × without"),
        special("layer-throttle", Kind::Layer(Layer::Throttle), "0.70 × without"),
        special("refill-throttle", Kind::SharedLayer(Layer::Throttle), "two threads 1.8 × one"),
        special("move-1", Kind::Moves(1), "p99 of a pause 200 µs"),
        special("move-16", Kind::Moves(16), "p99 of a pause 400 µs"),
        fairness("fairness-null", Disk::Null, 1, 4096, "p99 at most 3 × alone"),
        fairness("fairness-tmpfs", Disk::Tmpfs, 1, 4096, "p99 at most 3 × alone"),
        special("idle", Kind::Idle, "20 ms of CPU in 10 s"),
        special("memory", Kind::Memory, "32 MiB"),
        special("after-others", Kind::AfterOthers, "0.8 of the rate before"),
    ];
    let remote = load(Disk::RemoteImage, "randread", 4096, 16, 1, Sleeping);
    rows.push(load_row(remote, "2 × qsd"));
    rows.push(special("nbd-null", Kind::Nbd(Disk::Null), "2 × qsd, 0.5 × its CPU"));
    rows.push(special("nbd-tmpfs", Kind::Nbd(Disk::Tmpfs), "2 × qsd, 0.5 × its CPU"));
    rows.push(special("nbd-refill", Kind::Connections(4), "two threads 1.8 × one"));
    rows.extend(qcow2::quick());
    let disks = [
        ("auto-null", Disk::Null),
        ("auto-tmpfs", Disk::Tmpfs),
        ("auto-work", Disk::Work),
        ("auto-qcow2", Disk::Image(qcow2::FULL)),
    ];
    rows.extend(disks.map(|(name, disk)| {
        let load = load(disk, "randread", 4096, 16, 4, Sleeping);
        special(name, Kind::Auto(load), "0.97 × the better of 1 and 2 threads, CPU within 10 %")
    }));
    rows
}

/// Every combination; those of `quick` come first.
pub(crate) fn full() -> Vec<Row> {
    let mut rows = quick();
    rows.extend(qcow2::literature_rows());
    for operation in ["randread", "randwrite"] {
        for (depth, rings) in [(1, 1), (16, 1), (64, 1), (1, 4), (16, 4), (64, 4)] {
            let load = load(Disk::ClusterImage, operation, 4096, depth, rings, Client::Sleeping);
            rows.push(load_row(load, "1 × qsd, 0.7 × its CPU without librbd's, 0.95 × host (fio)"));
        }
    }
    rows.push(special("refill-tmpfs", Kind::Refill(Disk::Tmpfs), ""));
    for (disk, name) in [(Disk::Null, "null"), (Disk::Tmpfs, "tmpfs")] {
        for rings in [1, 4] {
            let kind = Kind::Bitmap { disk, rings };
            rows.push(special(&format!("bitmap-{name}-r{rings}"), kind, "0.98 × without"));
        }
    }
    for (disk, name) in [(Disk::Null, "null"), (Disk::Tmpfs, "tmpfs"), (Disk::Work, "work")] {
        rows.push(fairness(&format!("fairness-{name}-4"), disk, 4, 4096, ""));
        for (block, size) in [(64 << 10, "64k"), (1 << 20, "1m")] {
            rows.push(fairness(&format!("fairness-{name}-{size}"), disk, 1, block, ""));
        }
    }
    rows.push(fairness("fairness-work", Disk::Work, 1, 4096, ""));
    let poisson = Client::Arrivals { per_second: 20_000 };
    rows.push(load_row(load(Disk::Tmpfs, "randread", 4096, 4, 1, poisson), ""));
    for disk in [Disk::Null, Disk::Tmpfs, Disk::Work] {
        for client in [Client::Polling, Client::Sleeping] {
            for operation in ["randread", "randwrite"] {
                for block in [512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
                    for (depth, rings) in
                        [(1, 1), (16, 1), (64, 1), (16, 2), (64, 2), (64, 4), (1, 4)]
                    {
                        let row = load_row(load(disk, operation, block, depth, rings, client), "");
                        if rows.iter().all(|known| known.name != row.name) {
                            rows.push(row);
                        }
                    }
                }
            }
        }
    }
    rows
}

/// The rows with one of these names; a name may end with `*`.
pub(crate) fn chosen(rows: Vec<Row>, names: &[String]) -> Result<Vec<Row>, String> {
    let fits = |name: &str, pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    if let Some(unknown) = names.iter().find(|name| rows.iter().all(|row| !fits(&row.name, name))) {
        return Err(format!("no row is called {unknown}; --full --list shows all"));
    }
    let named = |row: &Row| names.iter().any(|name| fits(&row.name, name));
    Ok(rows.into_iter().filter(named).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_quick_is_part_of_full() {
        let names: Vec<_> = full().into_iter().map(|row| row.name).collect();
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(quick().iter().all(|row| names.contains(&row.name)));
    }

    #[test]
    fn every_load_is_within_bounds() {
        for row in full() {
            if let Kind::Load(load) = row.kind {
                load.workload(load.disk.bytes());
                load.host_workload(DISK_BYTES);
            }
        }
    }

    #[test]
    fn rows_are_chosen_by_name_or_by_its_start() {
        let count = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            chosen(full(), &names).map(|rows| rows.len())
        };
        assert_eq!(count(&["idle"]), Ok(1));
        assert_eq!(count(&["refill-*", "memory"]), Ok(5));
        assert!(count(&["idle", "nonsense"]).unwrap_err().contains("nonsense"));
    }
}
