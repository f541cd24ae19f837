//! Which cells are measured with which contenders, and which are left out and why.
//!
//! Invariants: every cell has at least one contender; a count of iothreads above the jobs of a cell
//! is never measured, because each job has one queue and a queue is served by one thread.

use anyhow::{Context, Result, bail};
use load::{BlockBytes, Shape, Workload};

use crate::args::{Settings, Subject};
use crate::cell::{Cell, Contender, Iothreads};

/// Whether write cells are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    Allowed,
    Skipped,
}

/// A cell and who runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) cell: Cell,
    pub(crate) contenders: Vec<Contender>,
}

/// All that will be measured once per repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) entries: Vec<Entry>,
    /// Write cells left out because the disk must not be changed.
    pub(crate) skipped: Vec<Cell>,
    /// Counts left out because a number of jobs cannot use them.
    pub(crate) pruned: Vec<Pruned>,
}

/// Counts of iothreads above a number of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) jobs: u16,
    pub(crate) iothreads: Vec<Iothreads>,
}

impl Matrix {
    /// Builds the matrix for a disk.
    ///
    /// # Errors
    /// If a cell cannot be run, or nothing would be measured.
    pub(crate) fn new(settings: &Settings, disk_bytes: u64, writes: Writes) -> Result<Self> {
        let (skipped, cells): (Vec<Cell>, Vec<Cell>) = cells(settings)?
            .into_iter()
            .partition(|cell| writes == Writes::Skipped && cell.writes());
        for cell in &cells {
            Workload::new(cell.shape(), disk_bytes, settings.seed)
                .with_context(|| format!("cell {cell}"))?;
        }
        let entry = |cell: &Cell| {
            let contenders = contenders(settings, cell.shape().jobs());
            (!contenders.is_empty()).then_some(Entry { cell: *cell, contenders })
        };
        let entries: Vec<_> = cells.iter().filter_map(entry).collect();
        if entries.is_empty() && skipped.is_empty() {
            bail!("no cell has as many jobs as the fewest iothreads asked for: raise --jobs");
        }
        if entries.is_empty() {
            bail!(
                "all cells write: allow that with --destructive (all data is lost), or add --op randread"
            );
        }
        Ok(Self { entries, skipped, pruned: pruned(settings) })
    }

    /// The runs of one repeat.
    pub(crate) fn runs_per_repeat(&self) -> usize {
        self.entries.iter().map(|entry| entry.contenders.len()).sum()
    }

    /// Takes the host out; false if nothing is left.
    pub(crate) fn without_host(&mut self) -> bool {
        for entry in &mut self.entries {
            entry.contenders.retain(|contender| *contender != Contender::Host);
        }
        self.entries.retain(|entry| !entry.contenders.is_empty());
        !self.entries.is_empty()
    }
}

fn cells(settings: &Settings) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for op in &settings.op {
        for &bs in &settings.bs {
            for &jobs in &settings.jobs {
                for &iodepth in &settings.iodepth {
                    let block = BlockBytes::try_from(u64::from(bs))?;
                    cells.push(Cell::new(Shape::new(op.parse()?, block, jobs, iodepth)?));
                }
            }
        }
    }
    Ok(cells)
}

fn contenders(settings: &Settings, jobs: u16) -> Vec<Contender> {
    let mut contenders = Vec::new();
    if settings.subject.contains(&Subject::Host) {
        contenders.push(Contender::Host);
    }
    if settings.subject.contains(&Subject::Client) {
        let useful = settings.iothreads.iter().filter(|iothreads| iothreads.count() <= jobs);
        contenders.extend(useful.map(|&iothreads| Contender::Client { iothreads }));
    }
    contenders
}

fn pruned(settings: &Settings) -> Vec<Pruned> {
    if !settings.subject.contains(&Subject::Client) {
        return Vec::new();
    }
    let above = |jobs: u16| -> Vec<Iothreads> {
        settings.iothreads.iter().copied().filter(|n| n.count() > jobs).collect()
    };
    let all = settings.jobs.iter().map(|&jobs| Pruned { jobs, iothreads: above(jobs) });
    all.filter(|pruned| !pruned.iothreads.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::settings;

    fn matrix(line: &str, writes: Writes) -> Result<Matrix> {
        Matrix::new(&settings(line, 2), 1 << 30, writes)
    }

    fn names(matrix: &Matrix) -> Vec<String> {
        let name = |entry: &Entry| {
            let contenders: Vec<_> = entry.contenders.iter().map(ToString::to_string).collect();
            format!("{}: {}", entry.cell, contenders.join(" "))
        };
        matrix.entries.iter().map(name).collect()
    }

    #[test]
    fn the_default_is_small() {
        let matrix = matrix("", Writes::Allowed).unwrap();
        assert_eq!(
            names(&matrix),
            [
                "randread 4k jobs=2 iodepth=16: host none 1 2",
                "randread 64k jobs=2 iodepth=16: host none 1 2",
                "randwrite 4k jobs=2 iodepth=16: host none 1 2",
                "randwrite 64k jobs=2 iodepth=16: host none 1 2",
            ]
        );
        assert_eq!(matrix.runs_per_repeat(), 16);
        assert!(matrix.skipped.is_empty() && matrix.pruned.is_empty());
    }

    #[test]
    fn a_disk_that_must_not_change_is_only_read() {
        let matrix = matrix("--op randread,80/20,write --bs 4k", Writes::Skipped).unwrap();
        assert_eq!(names(&matrix), ["randread 4k jobs=2 iodepth=16: host none 1 2"]);
        let skipped: Vec<_> = matrix.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(skipped, ["80/20 4k jobs=2 iodepth=16", "write 4k jobs=2 iodepth=16"]);
    }

    #[test]
    fn counts_above_the_jobs_are_pruned_per_cell() {
        let line = "--op read --bs 4k --jobs 1,4 --iothreads none,1,2,8 --iodepth 1";
        let matrix = matrix(line, Writes::Allowed).unwrap();
        assert_eq!(
            names(&matrix),
            ["read 4k jobs=1 iodepth=1: host none 1", "read 4k jobs=4 iodepth=1: host none 1 2"]
        );
        let pruned: Vec<_> = matrix.pruned.iter().map(|p| (p.jobs, p.iothreads.len())).collect();
        assert_eq!(pruned, [(1, 2), (4, 1)]);
    }

    #[test]
    fn an_empty_matrix_is_an_error() {
        let error = matrix("--op write", Writes::Skipped).unwrap_err().to_string();
        assert!(error.contains("--destructive"), "{error}");
        let line = "--subject client --iothreads 4 --jobs 2";
        let error = matrix(line, Writes::Allowed).unwrap_err().to_string();
        assert!(error.contains("--jobs"), "{error}");
    }

    #[test]
    fn a_disk_too_small_for_a_cell_names_the_cell() {
        let settings = settings("--bs 1M --op read --jobs 4", 2);
        let error = Matrix::new(&settings, 3 << 20, Writes::Allowed).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.starts_with("cell read 1M jobs=4"), "{message}");
        assert!(message.contains("too small"), "{message}");
    }
}
