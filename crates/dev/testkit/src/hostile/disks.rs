//! What the daemon of a campaign serves: three disks of bystanders and one for each way of attacking, all on the same
//! two iothreads.
//!
//! Invariants: an attacker has a disk for itself, since an export serves one client at a time. The disks of attacks with
//! images have what makes them costly: nothing in them, pieces as small as they get, clusters as large as they get,
//! tables that name no cluster, and storage that does not answer.
//! Limits: [`SHREDS_BYTES`] and the like; all files are sparse.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::STALL_MAX;
use super::bystander::P99_ALWAYS;
use crate::client::RingLayout;
use crate::crash::format::{Format, qemu_img};
use crate::image;
use crate::process::Bench;
use crate::rawring::Survivor;
use crate::slow_disk::{Delays, SlowDisk};

/// Queues of each bystander; one on each iothread.
pub(super) const QUEUES: u16 = 2;
/// Queues of the disks under attack.
pub(super) const VICTIM_QUEUES: u32 = 2;
/// Bytes of a plain disk under attack.
pub(super) const RAW_BYTES: u64 = 4 << 20;
/// Bytes of the disks that are read in pieces of 2 GiB.
const LARGE_BYTES: u64 = 4 << 30;
/// Bytes of the disk with every second subcluster: a single read may name all of them.
const SHREDS_BYTES: u64 = 2 << 30;
/// Bytes of the disk with compressed clusters.
pub(super) const COMPRESSED_BYTES: u64 = 32 << 20;
/// Where the first bystander's disk lies in its file.
const WINDOW_OFFSET: u64 = 64 << 10;
/// A cluster's place in an entry of an L2 table.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;

/// A disk under attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Victim {
    /// A plain file.
    Raw,
    /// Another one.
    Other,
    /// Nothing, which reads as zeroes.
    Null,
    /// A qcow2 image without a cluster.
    Empty,
    /// A qcow2 image that has every second subcluster.
    Shreds,
    /// A qcow2 image with compressed clusters of 2 MiB.
    Compressed,
    /// A qcow2 image with tables that name no cluster.
    Damaged,
    /// A disk that can hang.
    Hanging,
}

impl Victim {
    const ALL: [Self; 8] = [
        Self::Raw,
        Self::Other,
        Self::Null,
        Self::Empty,
        Self::Shreds,
        Self::Compressed,
        Self::Damaged,
        Self::Hanging,
    ];

    fn id(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Other => "other",
            Self::Null => "null",
            Self::Empty => "empty",
            Self::Shreds => "shreds",
            Self::Compressed => "compressed",
            Self::Damaged => "damaged",
            Self::Hanging => "hanging",
        }
    }
}

/// Whether images of bystanders are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    Usual,
    Off,
}

/// A bystander's disk.
#[derive(Clone, Debug)]
pub(super) struct Calm {
    pub(super) name: &'static str,
    pub(super) layout: RingLayout,
    /// The file that is locked.
    pub(super) image: PathBuf,
    format: Format,
    /// What requests may take at the 99th percentile in any case.
    pub(super) p99_always: Duration,
    /// Where the disk begins in a plain file.
    offset: u64,
    keys: String,
}

impl Calm {
    /// The bytes of the disk, which nobody serves.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = self.format.read(&self.image)?;
        let offset = usize::try_from(self.offset).context("an offset")?;
        Ok(bytes.split_off(offset))
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Disks {
    bench: Bench,
    /// Where two of the bystanders' images are, in memory, so that a busy host disk says nothing about the daemon.
    _memory: TempDir,
    pub(super) calm: Vec<Calm>,
    /// What the hanging disk stands on; without root there is none.
    pub(super) slow: Option<SlowDisk>,
}

impl Disks {
    pub(super) fn make(locking: Locking) -> Result<Self> {
        let bench = Bench::new()?;
        let memory = tempfile::Builder::new().prefix("rl-").tempdir_in("/dev/shm");
        let memory = memory.context("make a directory in memory")?;
        let calm = make_calm(&bench, memory.path(), locking)?;
        let path = |victim: Victim| bench.path(victim.id());
        for victim in [Victim::Raw, Victim::Other] {
            let length = usize::try_from(RAW_BYTES).context("small")?;
            image::create_filled(&path(victim), length, 0x51)?;
        }
        let create = |victim: Victim, options: &str, bytes: u64| {
            let words: Vec<&str> =
                ["create", "-q", "-f", "qcow2"].into_iter().chain(options.split(' ')).collect();
            qemu_img(&words, &[&path(victim), Path::new(&bytes.to_string())])
        };
        create(Victim::Empty, "-o cluster_size=64k", LARGE_BYTES)?;
        create(Victim::Shreds, "-o extended_l2=on,preallocation=metadata", SHREDS_BYTES)?;
        change_entries(&path(Victim::Shreds), 16, |entry| entry[1] = 0x5555_5555)?;
        create(Victim::Damaged, "-o preallocation=metadata", RAW_BYTES)?;
        change_entries(&path(Victim::Damaged), 8, |entry| entry[0] |= 512)?;
        make_compressed(&bench, &path(Victim::Compressed))?;
        let slow = match rustix::process::geteuid().is_root() {
            false => None,
            true => {
                let file = path(Victim::Hanging);
                image::create_sparse(&file, RAW_BYTES)?;
                let delays = Delays { long_one_in: 1000, ..Delays::default() };
                Some(SlowDisk::new(&file, &bench.path("slow"), delays)?)
            }
        };
        Ok(Self { bench, _memory: memory, calm, slow })
    }

    fn victims(&self) -> impl Iterator<Item = Victim> {
        let can_hang = self.slow.is_some();
        Victim::ALL.into_iter().filter(move |it| can_hang || *it != Victim::Hanging)
    }

    /// A directory for what attackers need.
    pub(super) fn bench(&self) -> &Bench {
        &self.bench
    }

    pub(super) fn socket(&self, victim: Victim) -> PathBuf {
        self.bench.path(&format!("{}.sock", victim.id()))
    }

    pub(super) fn calm_socket(&self, calm: &Calm) -> PathBuf {
        self.bench.path(&format!("{}.sock", calm.name))
    }

    /// Where the daemon listens.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        let calm = self.calm.iter().map(|calm| self.calm_socket(calm));
        calm.chain(self.victims().map(|victim| self.socket(victim))).collect()
    }

    fn keys(&self, victim: Victim) -> String {
        let file = self.bench.text(victim.id());
        match victim {
            Victim::Raw => format!("driver=file,filename={file},cache.direct=on"),
            Victim::Other => format!("driver=file,filename={file}"),
            Victim::Null => format!("driver=null-co,size={LARGE_BYTES},read-zeroes=on"),
            Victim::Empty | Victim::Shreds | Victim::Compressed | Victim::Damaged => {
                format!("driver=qcow2,file.driver=file,file.filename={file}")
            }
            Victim::Hanging => {
                let device = self.slow.as_ref().expect("it is there").device();
                format!("driver=host_device,filename={},cache.direct=on", device.display())
            }
        }
    }

    /// What the daemon is started with.
    pub(super) fn line(&self) -> Vec<String> {
        let mut line: Vec<String> =
            ["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(str::to_owned).into();
        let mut serve = |id: &str, keys: &str, socket: &Path| {
            let socket = socket.display();
            line.extend(["--blockdev".to_owned(), format!("{keys},node-name=node-{id}")]);
            let export = format!(
                "type=vhost-user-blk,id={id},node-name=node-{id},addr.type=unix,addr.path={socket},\
                 writable=on,num-queues=2,iothread.0=t0,iothread.1=t1"
            );
            line.extend(["--export".to_owned(), export]);
        };
        for calm in &self.calm {
            serve(calm.name, &calm.keys, &self.calm_socket(calm));
        }
        for victim in self.victims() {
            serve(victim.id(), &self.keys(victim), &self.socket(victim));
        }
        line
    }

    /// The same line with a mistake in what is served to a bystander: another part of its file, or another one's.
    pub(super) fn wrong_line(&self, which: u64) -> Vec<String> {
        let (right, wrong) = match which % 2 {
            0 => (format!("offset={WINDOW_OFFSET}"), "offset=0".to_owned()),
            _ => ("packed.img".to_owned(), "elsewhere.img".to_owned()),
        };
        self.line().iter().map(|word| word.replace(&right, &wrong)).collect()
    }
}

fn make_calm(bench: &Bench, memory: &Path, locking: Locking) -> Result<Vec<Calm>> {
    let bytes = Survivor::disk_bytes(QUEUES);
    let file = |name: &str| -> Result<PathBuf> {
        let path = memory.join(name);
        image::create_sparse(&path, bytes).map(|()| path)
    };
    let locking = match locking {
        Locking::Usual => "",
        Locking::Off => ",locking=off",
    };
    let window = bench.path("window.img");
    image::create_sparse(&window, WINDOW_OFFSET + bytes)?;
    let packed = file("packed.img")?;
    file("elsewhere.img")?;
    let base = file("base.img")?;
    let overlay = memory.join("overlay.img");
    let options = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
    qemu_img(&options, &[&base, &overlay])?;
    let calm = |name, layout, format, image: &PathBuf, keys| {
        // On a disk that attackers use as well, a percentile says more about that disk than about the daemon.
        let (offset, p99_always) =
            if name == "window" { (WINDOW_OFFSET, STALL_MAX) } else { (0, P99_ALWAYS) };
        Calm { name, layout, image: image.clone(), format, p99_always, offset, keys }
    };
    let window_keys = format!(
        "driver=raw,offset={WINDOW_OFFSET},size={bytes},file.driver=file,file.filename={}{}",
        window.display(),
        locking.replace(',', ",file.")
    );
    let packed_keys = format!("driver=file,filename={},cache.direct=on{locking}", packed.display());
    let overlay_keys = format!(
        "driver=qcow2,file.driver=file,file.filename={},cache.direct=on,backing.driver=raw,\
         backing.file.driver=file,backing.file.filename={}",
        overlay.display(),
        base.display()
    );
    Ok(vec![
        calm("window", RingLayout::Split, Format::Raw, &window, window_keys),
        calm("packed", RingLayout::Packed, Format::Raw, &packed, packed_keys),
        calm("overlay", RingLayout::Split, Format::Overlay, &overlay, overlay_keys),
    ])
}

/// Clusters of 2 MiB, each half random: as large as they get, and still compressed.
fn make_compressed(bench: &Bench, image: &Path) -> Result<()> {
    let plain = bench.path("plain.img");
    let length = usize::try_from(COMPRESSED_BYTES).context("small")?;
    let mut bytes = vec![0; length];
    let mut random = crate::rng::Rng::new(0x52);
    for cluster in bytes.chunks_mut(2 << 20) {
        random.fill(&mut cluster[..1 << 20]);
    }
    image::create_with(&plain, &bytes)?;
    let options = [
        "convert",
        "-c",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "-o",
        "cluster_size=2M,compression_type=zstd",
    ];
    qemu_img(&options, &[&plain, image])
}

/// Changes all entries of all L2 tables of an image, which have so many bytes each.
fn change_entries(image: &Path, bytes: usize, change: impl Fn(&mut [u64])) -> Result<()> {
    let file = File::options().read(true).write(true).open(image).context("open the image")?;
    let mut header = [0; 48];
    file.read_exact_at(&mut header, 0).context("read the header")?;
    let half = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let word = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let (cluster, tables, l1) = (1_usize << half(20), half(36), word(40));
    for table in 0..u64::from(tables) {
        let mut place = [0; 8];
        file.read_exact_at(&mut place, l1 + table * 8).context("read the L1 table")?;
        let place = u64::from_be_bytes(place) & PLACE;
        ensure!(place != 0, "an L2 table is missing");
        let mut content = vec![0; cluster];
        file.read_exact_at(&mut content, place).context("read an L2 table")?;
        for entry in content.chunks_exact_mut(bytes) {
            let mut words: Vec<u64> = entry
                .chunks_exact(8)
                .map(|word| u64::from_be_bytes(word.try_into().expect("eight bytes")))
                .collect();
            if words[0] & PLACE != 0 {
                change(&mut words);
            }
            for (part, word) in entry.chunks_exact_mut(8).zip(words) {
                part.copy_from_slice(&word.to_be_bytes());
            }
        }
        file.write_all_at(&content, place).context("write an L2 table")?;
    }
    Ok(())
}
