//! Which cells are measured with which contenders on which variants, and what is left out and why.
//!
//! Invariants: every entry has at least one contender. A count of iothreads that no queue is left for is never
//! measured: a client's job has one queue, a guest's disk as many as `--queues` says, and a queue is served by one thread.

use anyhow::{Context, Result, bail};
use load::{BlockBytes, Shape, Workload};

use crate::cell::Cell;
use crate::contender::{Contender, Iothreads, Subject};
use crate::lists::unique;
use crate::settings::LoadKind;
use crate::settings::{Mode, Settings, Thoroughness};
use crate::units::counted;
use crate::variant::{Device, Layers, Variant};
use crate::weights;

/// Whether the disk may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It may.
    Allowed,
    /// It may not: what would write is left out.
    Skipped,
}

/// The most jobs of the client: it has a queue for each, and an export has so many.
const CLIENT_JOBS_MAX: u16 = 256;

/// Where more iothreads cannot help, these numbers are measured.
const FEW: u16 = 2;
const LARGE_BLOCK: u32 = 1 << 20;

/// Cells and who runs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The storage below.
    pub variant: Variant,
    /// One cell; for the hysteresis probe the low and the high one.
    pub cells: Vec<Cell>,
    /// What is compared there, the host first.
    pub contenders: Vec<Contender>,
}

/// All that will be measured once per repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// In the order in which they are measured.
    pub entries: Vec<Entry>,
    /// Write cells left out because the disk must not be changed.
    pub skipped: Vec<Cell>,
    /// What else is left out, a sentence each.
    pub pruned: Vec<String>,
}

impl Entry {
    /// The most jobs of its cells.
    pub fn jobs_max(&self) -> u16 {
        self.cells.iter().map(|cell| cell.shape().jobs()).max().unwrap_or(1)
    }
}

impl Matrix {
    /// Builds the matrix for a disk.
    ///
    /// # Errors
    /// If a cell cannot be run, or nothing would be measured.
    pub fn new(
        settings: &Settings,
        layers: &dyn Fn(&Variant) -> Layers,
        disk_bytes: u64,
        writes: Writes,
    ) -> Result<Self> {
        let (skipped, cells): (Vec<Cell>, Vec<Cell>) = cells(settings)?
            .into_iter()
            .partition(|cell| writes == Writes::Skipped && cell.writes());
        for cell in &cells {
            Workload::new(cell.shape(), disk_bytes, settings.seed)
                .with_context(|| format!("cell {cell}"))?;
        }
        let mut pruned = Vec::new();
        let mut entries = Vec::new();
        for variant in &settings.variants {
            for cells in groups(settings.mode, &cells) {
                let place = Conditions { variant, layers: &layers(variant), writes };
                let contenders = contenders(settings, &place, &cells, &mut pruned);
                if !contenders.is_empty() {
                    entries.push(Entry { variant: *variant, cells, contenders });
                }
            }
        }
        if entries.is_empty() && skipped.is_empty() {
            let reasons = pruned.join("; ");
            bail!(
                "nothing is left to measure: {reasons}; raise --jobs or --queues, or name others"
            );
        }
        if entries.is_empty() {
            bail!(
                "all cells write: allow that with --destructive (all data is lost), or add --op randread"
            );
        }
        let measured: Vec<Cell> = entries.iter().flat_map(|entry| &entry.cells).copied().collect();
        if let Some(cell) = skipped.first().filter(|_| settings.profile.is_some()) {
            bail!(
                "--profile: {cell} writes, and without it that is another load: --destructive allows it \
                 (all data is lost)"
            );
        }
        weights::check(&settings.weights, &measured, &skipped)?;
        Ok(Self { entries, skipped, pruned })
    }

    /// Takes the host out; false if nothing is left.
    pub fn without_host(&mut self) -> bool {
        for entry in &mut self.entries {
            entry.contenders.retain(|contender| *contender != Contender::HOST);
        }
        self.entries.retain(|entry| !entry.contenders.is_empty());
        !self.entries.is_empty()
    }

    /// Whether any contender is of this subject.
    pub fn has(&self, subject: Subject) -> bool {
        let mut all = self.entries.iter().flat_map(|entry| &entry.contenders);
        all.any(|contender| contender.subject() == subject)
    }
}

fn cells(settings: &Settings) -> Result<Vec<Cell>> {
    if !settings.cells.is_empty() {
        return Ok(settings.cells.clone());
    }
    let mut cells = Vec::new();
    for op in &settings.op {
        for &bs in &settings.bs {
            for &iodepth in &settings.iodepth {
                for &jobs in &settings.jobs {
                    let block = BlockBytes::try_from(u64::from(bs))?;
                    cells.push(Cell::new(Shape::new(op.parse()?, block, jobs, iodepth)?));
                }
            }
        }
    }
    Ok(cells)
}

/// What is measured together: a cell, or the two levels of a probe, whose jobs are pairs (`Settings::check`).
fn groups(mode: Mode, cells: &[Cell]) -> Vec<Vec<Cell>> {
    let size = match mode {
        Mode::Sweep | Mode::Curve | Mode::Sizes => 1,
        Mode::Hysteresis => 2,
    };
    cells.chunks(size).map(<[Cell]>::to_vec).collect()
}

/// What decides who can be measured on a variant.
struct Conditions<'a> {
    variant: &'a Variant,
    layers: &'a Layers,
    writes: Writes,
}

impl Conditions<'_> {
    fn fits(&self, contender: Contender, cells: &[Cell]) -> Result<(), String> {
        let Self { variant, layers, writes } = *self;
        let subject = contender.subject();
        variant.fits(subject, contender.iothreads().map_or(0, Iothreads::count), layers)?;
        let reads = cells.iter().any(|cell| cell.shape().operation().read_percent() > 0);
        let is_ide = variant.device == Device::Ide;
        let reason = if variant.image.is_empty() && reads {
            "reading an image that is empty touches no disk: only cells that write are measured on it"
        } else if is_ide && cells.len() > 1 {
            "an ide disk goes with its guest, so a probe would begin anew with every phase"
        } else if is_ide && writes == Writes::Skipped {
            "QEMU's ide disks are never read-only: --destructive allows it to open PATH for writing"
        } else {
            let mut cells = cells.iter();
            return cells
                .try_for_each(|cell| variant.fits_iodepth(subject, cell.shape().iodepth()));
        };
        Err(reason.to_owned())
    }
}

fn contenders(
    settings: &Settings,
    place: &Conditions<'_>,
    cells: &[Cell],
    pruned: &mut Vec<String>,
) -> Vec<Contender> {
    let jobs = cells.iter().map(|cell| cell.shape().jobs()).max().unwrap_or(1);
    let is_own = settings.load == LoadKind::Own;
    let mut contenders = Vec::new();
    let mut note = |sentence: String| {
        if !pruned.contains(&sentence) {
            pruned.push(sentence);
        }
    };
    for &subject in &settings.subject {
        let counts = counts(subject, place.variant, settings);
        let mut idle = Vec::new();
        let queues = queues(subject, jobs, settings).saturating_mul(place.variant.disks);
        for iothreads in counts {
            let contender = Contender::new(subject, iothreads);
            if subject == Subject::Client && jobs > CLIENT_JOBS_MAX {
                note(format!("client has at most {CLIENT_JOBS_MAX} jobs, not {jobs}"));
            } else if subject == Subject::Host && is_own && place.variant.disks_in_all() > 1 {
                note("host: the client's own load drives one disk, --load fio several".to_owned());
            } else if let Some(reason) = no_auto(subject, iothreads, settings) {
                note(format!("{contender}: {reason}"));
            } else if iothreads.count() > queues {
                idle.push(iothreads.to_string());
            } else if settings.search == Thoroughness::Stages
                && iothreads.count() > FEW
                && let Some(reason) = few_are_enough(place.variant, cells)
            {
                note(format!("more than {FEW} iothreads {reason} (--full measures them)"));
            } else if let Err(reason) = place.fits(contender, cells) {
                note(format!("{contender}: {reason}"));
            } else {
                contenders.push(contender);
            }
        }
        if !idle.is_empty() {
            let queues = counted(queues.into(), "queue");
            note(format!("{subject} with {} iothreads: it has {queues}", idle.join(", ")));
        }
    }
    contenders.sort_unstable();
    contenders
}

/// The numbers of iothreads that a subject is measured with. Block sizes are compared once for each server: where ringloom places
/// queues by itself, QEMU's own devices have one iothread, if they know any.
fn counts(subject: Subject, variant: &Variant, settings: &Settings) -> Vec<Iothreads> {
    let own = |iothreads: &Iothreads| match (settings.mode, subject, variant.device) {
        (Mode::Sizes, Subject::VmQemu, device) if iothreads.is_auto() => match device {
            Device::VirtioBlk | Device::VirtioScsi => Iothreads::new(1),
            Device::Nvme | Device::Ide => Iothreads::NONE,
        },
        _ => *iothreads,
    };
    if !subject.counts_iothreads() {
        return vec![Iothreads::NONE];
    }
    unique(settings.iothreads.iter().map(own))
}

/// Why `auto` is not measured, if it is that.
fn no_auto(subject: Subject, iothreads: Iothreads, settings: &Settings) -> Option<&'static str> {
    match subject {
        _ if !iothreads.is_auto() => None,
        Subject::VmQemu | Subject::VmKubevirt => Some("QEMU places no queues by itself"),
        Subject::VmRingloom if settings.guest.pin_iothreads.is_some() => Some(
            "--pin-iothreads binds iothreads that are there from the start, and these come later",
        ),
        Subject::Client | Subject::VmRingloom | Subject::Host | Subject::VmGiven | Subject::Pod => {
            None
        }
    }
}

/// Why numbers above `FEW` are not worth measuring: one job of one disk keeps one vCPU busy, which uses one queue; large blocks
/// keep the disk busy, not the threads. In all 48 cells of one job of the published sweep one iothread was enough. The disks of a
/// guest share its iothreads, and each has all jobs.
fn few_are_enough(variant: &Variant, cells: &[Cell]) -> Option<&'static str> {
    if variant.disks == 1 && cells.iter().all(|cell| cell.shape().jobs() == 1) {
        return Some("for one job");
    }
    let is_large = |cell: &Cell| cell.shape().block().get() >= LARGE_BLOCK;
    cells.iter().all(is_large).then_some("for blocks of 1M and more")
}

/// Whether numbers above these few were left out of a cell in which this is the highest.
pub fn is_worth_few(variant: &Variant, cell: &Cell, highest: Iothreads) -> bool {
    highest.count() <= FEW && few_are_enough(variant, std::slice::from_ref(cell)).is_some()
}

/// Queues of one disk.
pub fn queues(subject: Subject, jobs: u16, settings: &Settings) -> u16 {
    match subject {
        Subject::Client => jobs,
        Subject::Host | Subject::VmGiven | Subject::Pod => 0,
        // KubeVirt gives a disk one for each CPU.
        Subject::VmKubevirt => settings.guest.vcpus,
        // A guest uses no more than it has CPUs.
        Subject::VmQemu | Subject::VmRingloom => settings.guest.queues.min(settings.guest.vcpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{runs_per_repeat, settings};

    fn matrix(line: &str, writes: Writes) -> Result<Matrix> {
        Matrix::new(&settings(line, 2), &|_| Layers::Kernel, 1 << 30, writes)
    }

    fn names(matrix: &Matrix) -> Vec<String> {
        let name = |entry: &Entry| {
            let contenders: Vec<_> = entry.contenders.iter().map(ToString::to_string).collect();
            format!("{}: {}", entry.cells[0], contenders.join(", "))
        };
        matrix.entries.iter().map(name).collect()
    }

    #[test]
    fn block_sizes_compare_each_server_once() {
        let line =
            "sizes --bs 512,4M --subject host,client,vm:qemu,vm:ringloom --device virtio-blk,nvme";
        assert_eq!(
            names(&matrix(line, Writes::Allowed).unwrap()),
            [
                "randread 512 jobs=1 iodepth=16: host, client auto, vm:qemu 1, vm:ringloom auto",
                "randread 4M jobs=1 iodepth=16: host, client auto, vm:qemu 1, vm:ringloom auto",
                "randread 512 jobs=1 iodepth=16: vm:qemu none",
                "randread 4M jobs=1 iodepth=16: vm:qemu none",
            ]
        );
        let several = matrix("sizes --bs 4k --disks 2", Writes::Allowed).unwrap();
        assert_eq!(names(&several), ["randread 4k jobs=1 iodepth=16: host"]);
        assert!(several.pruned[0].contains("the client drives one disk"), "{:?}", several.pruned);
        let error = matrix("sizes --bs 4k --vms 2 --load own", Writes::Allowed).unwrap_err();
        assert!(error.to_string().contains("--load fio several"), "{error}");
        let small =
            Matrix::new(&settings("sizes", 2), &|_| Layers::Kernel, 1 << 20, Writes::Allowed);
        let error = format!("{:#}", small.unwrap_err());
        assert!(error.contains("too small for 1 jobs with blocks of 2097152 bytes"), "{error}");
    }

    #[test]
    fn the_default_is_small() {
        let matrix = matrix("", Writes::Allowed).unwrap();
        let all = "host, client none, client 1, client 2, client auto";
        assert_eq!(
            names(&matrix),
            [
                format!("randread 4k jobs=2 iodepth=16: {all}"),
                format!("randread 64k jobs=2 iodepth=16: {all}"),
                format!("randwrite 4k jobs=2 iodepth=16: {all}"),
                format!("randwrite 64k jobs=2 iodepth=16: {all}"),
            ]
        );
        assert_eq!(runs_per_repeat(&matrix), 20);
        assert!(matrix.skipped.is_empty() && matrix.pruned.is_empty());
    }

    #[test]
    fn auto_is_measured_where_ringloom_serves_and_can_bind_what_was_asked() {
        let line =
            "--op read --bs 4k --jobs 2 --iothreads 1,auto --subject client,vm:qemu,vm:ringloom";
        let all = "read 4k jobs=2 iodepth=16: client 1, client auto, vm:qemu 1, vm:ringloom 1";
        let free = matrix(line, Writes::Allowed).unwrap();
        assert_eq!(names(&free), [format!("{all}, vm:ringloom auto")]);
        assert_eq!(free.pruned, ["vm:qemu auto: QEMU places no queues by itself"]);
        let bound = matrix(&format!("{line} --pin-iothreads 0"), Writes::Allowed).unwrap();
        assert_eq!(names(&bound), [all]);
        assert!(bound.pruned[1].starts_with("vm:ringloom auto: --pin-iothreads"), "{bound:?}");
    }

    #[test]
    fn a_disk_that_must_not_change_is_only_read() {
        let matrix = matrix("--op randread,80/20,write --bs 4k", Writes::Skipped).unwrap();
        assert_eq!(matrix.entries.len(), 1);
        let skipped: Vec<_> = matrix.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(skipped, ["80/20 4k jobs=2 iodepth=16", "write 4k jobs=2 iodepth=16"]);
    }

    #[test]
    fn counts_without_a_queue_are_pruned_per_cell_and_named() {
        let line =
            "--op read --bs 4k --jobs 1,4 --iothreads none,1,2,8 --iodepth 1 --subject client";
        let matrix = matrix(line, Writes::Allowed).unwrap();
        assert_eq!(
            names(&matrix),
            [
                "read 4k jobs=1 iodepth=1: client none, client 1",
                "read 4k jobs=4 iodepth=1: client none, client 1, client 2"
            ]
        );
        assert_eq!(
            matrix.pruned,
            [
                "client with 2, 8 iothreads: it has 1 queue",
                "client with 8 iothreads: it has 4 queues"
            ]
        );
    }

    #[test]
    fn a_guest_has_queues_of_its_own() {
        let line = "--op read --bs 4k --jobs 1 --iothreads none,2,8 --queues 4 --subject vm:qemu";
        let matrix = matrix(line, Writes::Allowed).unwrap();
        assert_eq!(names(&matrix), ["read 4k jobs=1 iodepth=16: vm:qemu none, vm:qemu 2"]);
    }

    #[test]
    fn the_disks_of_a_guest_share_its_iothreads() {
        let line = "--op read --bs 4k --jobs 1 --vcpus 4 --queues 4 --subject vm:qemu --disks 9";
        let settings = settings(line, 8);
        let nine = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let numbers = ["none", "1", "2", "3", "4"].map(|it| format!("vm:qemu {it}"));
        assert_eq!(names(&nine), [format!("read 4k jobs=1 iodepth=16: {}", numbers.join(", "))]);
        assert!(nine.pruned.is_empty(), "{:?}", nine.pruned);
    }

    #[test]
    fn an_ide_disk_is_left_out_where_nothing_may_be_written() {
        let line = "--op read --subject vm:qemu --device nvme,ide --iothreads none";
        let both = matrix(line, Writes::Allowed).unwrap();
        let one = matrix(line, Writes::Skipped).unwrap();
        assert_eq!((both.entries.len(), one.entries.len()), (4, 2));
        assert!(one.pruned[0].contains("--destructive"), "{:?}", one.pruned);
    }

    #[test]
    fn an_empty_matrix_is_an_error() {
        let error = matrix("--op write", Writes::Skipped).unwrap_err().to_string();
        assert!(error.contains("--destructive"), "{error}");
        let line = "--subject client --iothreads 4 --jobs 2";
        let error = matrix(line, Writes::Allowed).unwrap_err().to_string();
        assert!(error.contains("--jobs") && error.contains("2 queues"), "{error}");
    }

    #[test]
    fn weights_of_cells_that_are_skipped_are_refused() {
        let line = "--op randread,randwrite --weights randread=3,randwrite=1";
        assert!(matrix(line, Writes::Allowed).is_ok());
        let error = matrix(line, Writes::Skipped).unwrap_err().to_string();
        assert!(error.starts_with("--weights randwrite=1: these cells write"), "{error}");
    }

    #[test]
    fn a_profile_of_which_a_part_may_not_be_measured_is_refused() {
        let both = matrix("--profile backup", Writes::Allowed).unwrap();
        assert_eq!(both.entries.len(), 2);
        let error = format!("{:#}", matrix("--profile backup", Writes::Skipped).unwrap_err());
        assert!(error.starts_with("--profile: write 1M jobs=1 iodepth=8 writes"), "{error}");
    }

    #[test]
    fn a_weight_of_0_is_harmless_and_others_are_of_cells_that_are_measured() {
        let of = |weights: &str| {
            let settings = settings(&format!("--op randread --weights {weights}"), 2);
            settings.check()?;
            Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).map(drop)
        };
        of("randread=1,randwrite=0").unwrap();
        of("randread=1,randread:8k=0").unwrap();
        for weight in ["randwrite=1", "randread:8k=1"] {
            let error = of(&format!("randread=1,{weight}")).unwrap_err().to_string();
            assert!(error.contains(&format!("--weights {weight}: no such cell is")), "{error}");
        }
    }

    #[test]
    fn a_probe_has_no_more_jobs_than_the_client() {
        let line = "probe --subject client --jobs 48,480";
        let error = matrix(line, Writes::Allowed).unwrap_err().to_string();
        assert!(error.contains("at most 256 jobs, not 480"), "{error}");
    }

    #[test]
    fn a_disk_too_small_for_a_cell_names_the_cell() {
        let settings = settings("--bs 1M --op read --jobs 4", 2);
        let error =
            Matrix::new(&settings, &|_| Layers::Kernel, 3 << 20, Writes::Allowed).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.starts_with("cell read 1M jobs=4"), "{message}");
        assert!(message.contains("too small"), "{message}");
    }
}
