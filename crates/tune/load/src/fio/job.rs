//! A cell as a fio job file.
//!
//! Invariants: a `Job` can be run (its files can be named, the iodepth suits the engine, the rate can
//! be split); every request means the same as in the loads of this project: random offsets are drawn
//! with replacement, a mix draws the direction, sequential jobs go round in slices of their own.
//! Limits: the requests in flight are files × jobs × iodepth; a rate is split to whole requests per
//! second and job, so the sum may differ from the asked rate by half a request per job.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZeroU32;

use crate::fio::error::FioError;
use crate::fio::version::{FIO_OLDEST, FioVersion};
use crate::probe::CacheMode;
use crate::workload::Pattern;
use crate::{Random, Timing, Workload};

/// How fio hands its requests to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// A ring per job.
    IoUring,
    /// Linux AIO; asynchronous only with O_DIRECT.
    Libaio,
    /// `pread` and `pwrite`: one request in flight.
    Psync,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::IoUring, Self::Libaio, Self::Psync];

    /// The name as fio's option `ioengine` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Requests per second of all jobs and files together, started at random moments (Poisson).
///
/// fio takes the time of a request when it starts it: what waits because all of the iodepth is in
/// flight is not seen in the latency but in a rate that is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub NonZeroU32);

/// What one job may do per second in each direction; `None` where it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    reads: Option<u32>,
    writes: Option<u32>,
}

/// A cell that fio runs on one or several files or disks at once.
#[derive(Clone, Debug)]
pub struct Job {
    workload: Workload,
    files: Vec<String>,
    engine: Engine,
    cache: CacheMode,
    timing: Timing,
    share: Option<Share>,
}

impl Job {
    /// Checks that fio can run it. `files` are paths where fio runs; each is a disk or file of at
    /// least the workload's size.
    ///
    /// # Errors
    /// Without files, with a name that a job file cannot hold, or with psync and an iodepth above 1.
    pub fn new(
        workload: Workload,
        files: Vec<String>,
        engine: Engine,
        cache: CacheMode,
        timing: Timing,
    ) -> Result<Self, FioError> {
        let iodepth = workload.shape().iodepth();
        if engine == Engine::Psync && iodepth > 1 {
            return Err(FioError::Psync { iodepth });
        }
        if files.is_empty() {
            return Err(FioError::NoFile);
        }
        if let Some(name) = files.iter().find(|name| !can_be_named(name)) {
            return Err(FioError::Name { name: name.clone() });
        }
        Ok(Self { workload, files, engine, cache, timing, share: None })
    }

    /// Limits all jobs together.
    ///
    /// # Errors
    /// If a job would have less than one request per second in a direction.
    pub fn with_rate(self, rate: Rate) -> Result<Self, FioError> {
        let streams = u64::from(self.workload.shape().jobs()) * self.files.len() as u64;
        let iops = rate.0.get();
        let reads = self.workload.shape().operation().read_percent();
        let part = |percent: u8| match percent {
            0 => Ok(None),
            percent => {
                let all = u64::from(iops) * u64::from(percent);
                let each = (all + 50 * streams) / (100 * streams); // Rounds to the nearest.
                let each = u32::try_from(each).expect("a part of a rate is no more than the rate");
                if each == 0 { Err(FioError::Rate { iops, streams }) } else { Ok(Some(each)) }
            }
        };
        let share = Share { reads: part(reads)?, writes: part(100 - reads)? };
        Ok(Self { share: Some(share), ..self })
    }

    /// The job file. `fio` is the version that will run it; it is told in a comment.
    #[must_use]
    pub fn file(&self, fio: FioVersion) -> String {
        let mut text = self.comment(fio);
        let shape = self.workload.shape();
        let block = shape.block().get();
        text.push_str("[global]\n");
        text.push_str(&common(self.engine, self.cache, self.workload.seed()));
        line(&mut text, "bs", block);
        line(&mut text, "numjobs", shape.jobs());
        line(&mut text, "iodepth", shape.iodepth());
        text.push_str(&self.pattern());
        // Reports: one for all jobs of a file, latencies from submission to completion, in bins.
        text.push_str("group_reporting=1\nlat_percentiles=1\nclat_percentiles=0\n");
        text.push_str("time_based=1\n");
        line(&mut text, "ramp_time", milliseconds(self.timing.ramp));
        line(&mut text, "runtime", milliseconds(self.timing.runtime));
        if let Some(share) = self.share {
            text.push_str(&limits(share));
        }
        for (number, name) in (1_u32..).zip(&self.files) {
            write!(text, "\n[disk{number}]\n").expect("a string takes all");
            line(&mut text, "filename", escaped(name));
            if number > 1 {
                text.push_str("new_group=1\n");
            }
        }
        text
    }

    /// Looks whether all files are there and large enough, on the machine this runs on.
    ///
    /// # Errors
    /// Names the file that is missing, or smaller than the workload's disk.
    pub fn check_files(&self) -> Result<(), FioError> {
        self.files.iter().try_for_each(|name| check_size(name, self.workload.disk_bytes()))
    }

    fn comment(&self, fio: FioVersion) -> String {
        let shape = self.workload.shape();
        let writes = if shape.operation().writes() { "# It overwrites the files.\n" } else { "" };
        format!(
            "# {operation} with blocks of {block} bytes, {jobs} jobs × iodepth {iodepth} on each of \
             {files} files.\n{writes}\
             # Made for fio {fio}; any from {FIO_OLDEST} on can run it:\n\
             #     fio --output-format=json+ FILE\n\n",
            operation = shape.operation(),
            block = shape.block().get(),
            jobs = shape.jobs(),
            iodepth = shape.iodepth(),
            files = self.files.len(),
        )
    }

    fn pattern(&self) -> String {
        let operation = self.workload.shape().operation();
        let slice = self.workload.slice_bytes();
        let reads = operation.read_percent();
        match (operation.pattern(), reads) {
            (Pattern::Random, 1..=99) => {
                format!("rw=randrw\nrwmixread={reads}\nsize={slice}\nnorandommap=1\n")
            }
            (Pattern::Random, _) => format!("rw={operation}\nsize={slice}\nnorandommap=1\n"),
            (Pattern::Sequential, _) => {
                format!("rw={operation}\nsize={slice}\noffset_increment={slice}\n")
            }
        }
    }
}

/// What jobs for measuring and for verifying share.
pub(super) fn common(engine: Engine, cache: CacheMode, seed: u64) -> String {
    let direct = match cache {
        CacheMode::Direct => 1,
        CacheMode::Buffered => 0,
    };
    // fio multiplies the seed by the number of the job: 0 would make all jobs alike, and small seeds
    // the second job of one the first of another. It reads seeds as signed numbers.
    let seed = Random::new(seed).next_u64() >> 1 | 1;
    format!(
        "ioengine={engine}\ndirect={direct}\nthread=1\n\
         # The same offsets for the same seed, drawn anew for each request.\n\
         randrepeat=0\nrandseed={seed}\nrandom_generator=tausworthe64\n{KEEP_FILES}"
    )
}

/// Without `create_on_open`, fio removes a file that is smaller than `size` and makes a new one.
const KEEP_FILES: &str = "# Never create or remove a file.\n\
                          allow_file_create=0\ncreate_on_open=1\n\
                          # The first error ends the run.\n\
                          exitall_on_error=1\n";

fn limits(share: Share) -> String {
    let part = |each: Option<u32>| each.map(|each| each.to_string()).unwrap_or_default();
    let (reads, writes) = (part(share.reads), part(share.writes));
    format!("# For each job: reads, writes.\nrate_iops={reads},{writes}\nrate_process=poisson\n")
}

fn line(text: &mut String, option: &str, value: impl fmt::Display) {
    writeln!(text, "{option}={value}").expect("a string takes all");
}

fn milliseconds(duration: std::time::Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// `#` and `;` start comments even inside a line, `$` expansions, and fio knows no quotes.
pub(super) fn can_be_named(name: &str) -> bool {
    let refused = |c: char| c.is_control() || "#;$\"\\".contains(c);
    !name.is_empty() && name.trim() == name && !name.contains(refused)
}

/// fio separates names by colons.
pub(super) fn escaped(name: &str) -> String {
    name.replace(':', "\\:")
}

/// fio reads past the end of a small file without a word, and extends it when it writes.
pub(super) fn check_size(name: &str, needed: u64) -> Result<(), FioError> {
    let failed = |error| FioError::run(format!("find the size of {name}"), error);
    let found =
        File::open(name).and_then(|mut file| file.seek(SeekFrom::End(0))).map_err(failed)?;
    if found < needed {
        return Err(FioError::Small { name: name.to_owned(), found, needed });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
