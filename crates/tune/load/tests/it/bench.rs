//! A directory with a file for fio, and how to run a job on it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use load::fio::{Engine, FioError, FioVersion, HostRun, Job, program};
use load::probe::{CacheMode, cache_mode};
use load::{BlockBytes, Shape, Timing, Workload, host};
use tempfile::TempDir;

/// No run of these tests takes longer, on a busy machine either.
const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const BLOCK: u64 = 4096;
pub(crate) const BLOCKS: u64 = 4096;

/// fio, a directory, and in it `disk` of `BLOCKS` blocks.
pub(crate) struct Bench {
    program: PathBuf,
    pub(crate) version: FioVersion,
    pub(crate) directory: TempDir,
}

impl Bench {
    /// `None`, after saying so, if there is no fio.
    pub(crate) fn new() -> Option<Self> {
        match program() {
            Ok((program, version)) => {
                let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                let bench = Self { program, version, directory };
                bench.make("disk", BLOCKS * BLOCK);
                Some(bench)
            }
            Err(error) => {
                skip(&error);
                None
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file full of bytes, so that reads reach the disk.
    pub(crate) fn make(&self, name: &str, bytes: u64) {
        fs::write(self.path(name), vec![0x5a; usize::try_from(bytes).unwrap()]).unwrap();
        File::open(self.path(name)).unwrap().sync_all().unwrap();
    }

    pub(crate) fn cache(&self) -> CacheMode {
        cache_mode(&self.path("disk")).unwrap()
    }

    pub(crate) fn engine(&self) -> Engine {
        match host::available() {
            Ok(()) => Engine::IoUring,
            Err(_refused) => Engine::Libaio,
        }
    }

    /// A job on `disk` and perhaps others, with a short ramp.
    pub(crate) fn job(&self, cell: Cell, files: &[&str]) -> Job {
        let files = files.iter().map(|name| self.path(name).display().to_string()).collect();
        let timing = Timing { ramp: Duration::from_millis(200), runtime: cell.runtime };
        let engine = if cell.iodepth == 1 { Engine::Psync } else { self.engine() };
        Job::new(cell.workload(), files, engine, self.cache(), timing).unwrap()
    }

    pub(crate) fn write_job(&self, text: &str) -> PathBuf {
        let path = self.path("job.fio");
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn start(&self, text: &str, intervals: bool) -> HostRun {
        let job = self.write_job(text);
        HostRun::start(&self.program, &job, self.directory.path(), intervals).unwrap()
    }

    /// Runs a job file to its end; what fio printed.
    pub(crate) fn run(&self, text: &str, intervals: bool) -> String {
        let finished = self.start(text, intervals).wait(LIMIT).unwrap();
        finished.expect("fio ends in time").output
    }

    pub(crate) fn run_job(&self, job: &Job) -> String {
        job.check_files().unwrap();
        self.run(&job.file(self.version), true)
    }
}

#[expect(clippy::print_stdout, reason = "`cargo xtask test` counts what was skipped")]
fn skip(reason: &FioError) {
    println!("skipped: {reason}");
}

/// What a test asks of a load.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) operation: &'static str,
    pub(crate) jobs: u16,
    pub(crate) iodepth: u16,
    pub(crate) runtime: Duration,
    pub(crate) seed: u64,
}

impl Cell {
    pub(crate) fn new(operation: &'static str, jobs: u16, iodepth: u16) -> Self {
        Self { operation, jobs, iodepth, runtime: Duration::from_secs(1), seed: 7 }
    }

    pub(crate) fn workload(self) -> Workload {
        let block = BlockBytes::try_from(BLOCK).unwrap();
        let operation = self.operation.parse().unwrap();
        let shape = Shape::new(operation, block, self.jobs, self.iodepth).unwrap();
        Workload::new(shape, BLOCKS * BLOCK, self.seed).unwrap()
    }
}

/// The numbers of a log of fio, by column.
pub(crate) fn log(path: &Path) -> Vec<[u64; 5]> {
    let text = fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let numbers: Vec<u64> = line.split(',').map(|n| n.trim().parse().unwrap()).collect();
        numbers[..5].try_into().unwrap()
    };
    text.lines().map(row).collect()
}
