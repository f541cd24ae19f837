//! A fio job file of the user as cells: what it says of the requests is taken, and what ringloom cannot do so is refused by its
//! name, so that nothing of it is passed over.
//!
//! The command line reads it (`JobFile::read`); `settings` has its cells, which all subjects then run, with fio or without.
//!
//! Invariants: a file that is accepted means the same to fio, but for the disk, the time, and offsets that may repeat. fio runs
//! the jobs of a file at the same time, cells are run one by one: so each job but the first must have `stonewall`.
//! Limits: `BYTES_MAX` of text, `JOBS_MAX` jobs.

use std::fs::File;
use std::io::Read as _;

use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use load::{BlockBytes, Shape};

use crate::cell::Cell;
use crate::lists::sorted;
use crate::settings::GuestEngine;
use crate::units::{Bytes, printable};

/// Job files that people write have some hundred bytes.
const BYTES_MAX: u64 = 64 << 10;
/// More than are worth a sweep; the largest has 144 cells.
const JOBS_MAX: usize = 64;
/// What a message shows of a line.
const SHOWN: usize = 60;

/// What stands in the way of a measurement, and what to do instead.
const REFUSED: [(&str, &str); 6] = [
    (
        "filename filename_format directory opendir nrfiles size filesize io_size io_limit offset \
         offset_increment fill_device fill_fs file_append create_only",
        "the disk and what is used of it are the measurement's: name it as PATH, or say --size",
    ),
    (
        "runtime timeout time_based ramp_time loops startdelay start_delay number_ios",
        "the time is that of --runtime, --ramp and --repeats",
    ),
    (
        "exec_prerun exec_postrun exec ioscheduler cpus_allowed cpumask numa_cpu_nodes uid gid",
        "nothing is run or set on the host for a load; --pin-vcpus and --numa-node are for guests",
    ),
    (
        "output output-format status-interval log_avg_msec write_bw_log write_lat_log write_iops_log \
         write_iolog read_iolog",
        "what is reported is ringloom's: results.jsonl has it",
    ),
    (
        "rate rate_iops rate_min rate_process thinktime latency_target",
        "a load that waits is another one: tune curve has fixed rates",
    ),
    ("client server remote-config", "another machine is measured with --guest"),
];

/// The jobs of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// One for each section that is measured.
    pub cells: Vec<Cell>,
    /// The engine that all jobs name, if they name one.
    pub engine: Option<GuestEngine>,
}

/// What the lines of a section, and of those that are for all, say of a job.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    rw: String,
    read_percent: u8,
    block: Bytes,
    jobs: u16,
    iodepth: u16,
    engine: Option<GuestEngine>,
    stonewall: bool,
}

impl Default for Job {
    fn default() -> Self {
        let (rw, block) = ("read".to_owned(), Bytes(4096));
        Self { rw, read_percent: 50, block, jobs: 1, iodepth: 1, engine: None, stonewall: false }
    }
}

impl JobFile {
    /// Of a file; a pipe is one, too.
    ///
    /// # Errors
    /// If it cannot be read, is too long or no text, and as `parse`.
    pub fn read(path: &str) -> Result<Self, String> {
        let read = || {
            let mut bytes = Vec::new();
            File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > BYTES_MAX {
                bail!("it has more than {BYTES_MAX} bytes, which no job file needs");
            }
            let text = String::from_utf8(bytes).context("it is no text")?;
            Self::parse(&text)
        };
        read().map_err(|error| format!("{error:#}"))
    }

    /// Of the text of a file.
    ///
    /// # Errors
    /// The line, or the job and the option, that cannot be measured so, and why.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut global, mut jobs): (Job, Vec<(String, Job)>) = (Job::default(), Vec::new());
        // Before the first section nothing is for anything.
        let mut section: Option<String> = None;
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let name = name
                    .strip_suffix(']')
                    .with_context(|| format!("{}: no ] ends it", shown(line)))?;
                // fio takes all that begin so for it.
                if !name.starts_with("global") {
                    if jobs.iter().any(|(other, _)| other == name) {
                        bail!("[{}] is there twice: name the jobs apart", shown(name));
                    }
                    if jobs.len() == JOBS_MAX {
                        bail!("it has more than {JOBS_MAX} jobs");
                    }
                    jobs.push((name.to_owned(), global.clone()));
                }
                section = Some(name.to_owned());
                continue;
            }
            if line.split_whitespace().next() == Some("include") {
                bail!("{}: only one file is read, so write its lines here", shown(line));
            }
            let name = section.as_deref();
            let name = name.with_context(|| {
                format!("{}: it stands before the first [section]", shown(line))
            })?;
            let job = match jobs.last_mut().filter(|_| !name.starts_with("global")) {
                Some((_, job)) => job,
                None => &mut global,
            };
            job.take(line).with_context(|| format!("[{}] {}", shown(name), shown(line)))?;
        }
        Self::of(&jobs)
    }

    fn of(jobs: &[(String, Job)]) -> Result<Self> {
        if jobs.is_empty() {
            bail!("it has no job: a [name] with lines such as rw=randread and bs=4k");
        }
        let mut cells: Vec<Cell> = Vec::new();
        for (index, (name, job)) in jobs.iter().enumerate() {
            let name = shown(name);
            if index > 0 && !job.stonewall {
                bail!(
                    "[{name}]: fio would run it at the same time as the job before it, and ringloom runs one after the \
                     other: say stonewall in it if that is meant"
                );
            }
            let cell = job.cell().with_context(|| format!("[{name}]"))?;
            if cells.contains(&cell) {
                bail!("[{name}]: an earlier job is the same ({cell})");
            }
            cells.push(cell);
        }
        let engines = sorted(jobs.iter().map(|(_, job)| job.engine.map(GuestEngine::name)));
        if engines.len() > 1 {
            bail!("ioengine: all jobs have the same engine here");
        }
        Ok(Self { cells, engine: jobs[0].1.engine })
    }
}

impl Job {
    /// Takes in `name=value`, or `name` alone.
    fn take(&mut self, line: &str) -> Result<()> {
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (line, None),
        };
        let text = || value.filter(|it| !it.is_empty()).context("a value is missing");
        let is_on = || match value {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(_) => bail!("write 0 or 1"),
        };
        let percent = || text()?.parse().ok().filter(|it| *it <= 100).context("write 0 to 100");
        match name {
            "rw" | "readwrite" => text()?.clone_into(&mut self.rw),
            "rwmixread" => self.read_percent = percent()?,
            "rwmixwrite" => self.read_percent = 100 - percent()?,
            "bs" | "blocksize" => {
                self.block =
                    text()?.parse().context("all requests of a cell have one size, such as 4k")?;
            }
            "numjobs" => self.jobs = text()?.parse().context("write 1 to 1024")?,
            "iodepth" => self.iodepth = text()?.parse().context("write 1 to 256")?,
            "ioengine" => {
                let engine = GuestEngine::from_str(text()?, false).ok();
                self.engine =
                    Some(engine.context("only io_uring, libaio and psync are measured with")?);
            }
            "stonewall" | "wait_for_previous" => self.stonewall = is_on()?,
            "direct" if !is_on()? => bail!("requests go past the page cache: leave it out"),
            "norandommap" if !is_on()? => bail!("offsets may repeat: leave it out"),
            // As it is done anyway, or for a reader.
            "direct" | "norandommap" | "description" => {}
            "group_reporting" => {
                is_on()?;
            }
            other => bail!(refusal(other)),
        }
        Ok(())
    }

    fn cell(&self) -> Result<Cell> {
        let mix = format!("{}/{}", self.read_percent, 100 - self.read_percent);
        let operation = match (&*self.rw, self.read_percent) {
            ("randrw", 100) => "randread",
            ("randrw", 0) => "randwrite",
            ("randrw", _) => &mix,
            ("read" | "write" | "randread" | "randwrite", _) => &self.rw,
            (other, _) => bail!(
                "rw={}: only read, write, randread, randwrite and randrw are measured",
                shown(other)
            ),
        };
        let block = BlockBytes::try_from(self.block.0)?;
        Ok(Cell::new(Shape::new(operation.parse()?, block, self.jobs, self.iodepth)?))
    }
}

/// Why an option is refused.
fn refusal(name: &str) -> &'static str {
    if name.starts_with("verify") || name == "do_verify" {
        return "--verify writes, reads back and compares";
    }
    let known = REFUSED.iter().find(|(names, _)| names.split(' ').any(|other| other == name));
    known
        .map_or("ringloom cannot tell what it does to the measurement: leave it out", |(_, why)| {
            why
        })
}

/// What a message shows of a line of the file.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN).collect();
    printable(&short)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cells(text: &str) -> Vec<String> {
        JobFile::parse(text).unwrap().cells.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn jobs_are_cells() {
        assert_eq!(cells("[a]\n"), ["read 4k jobs=1 iodepth=1"], "fio's defaults");
        let text = "; a comment\n[global]\nioengine=libaio\ndirect=1\niodepth = 16\n\n[pages]\nrw=randrw\nrwmixread=70\nbs=8K\n\
                    numjobs=4\n# another\n[log]\nstonewall\nrw=write\nbs=16k\niodepth=1\n[global]\nbs=1m\n[all]\nstonewall=1\n\
                    rw=randrw\nrwmixwrite=0\ngroup_reporting\n";
        let expected = [
            "70/30 8k jobs=4 iodepth=16",
            "write 16k jobs=1 iodepth=1",
            "randread 1M jobs=1 iodepth=16",
        ];
        assert_eq!(cells(text), expected);
        assert_eq!(JobFile::parse(text).unwrap().engine, Some(GuestEngine::Libaio));
    }

    #[test]
    fn what_cannot_be_measured_so_is_refused_by_its_name() {
        let long = format!("[a]\n{}=1", "x".repeat(1000));
        for (text, parts) in [
            ("", &["it has no job"][..]),
            ("[global]\nbs=4k", &["it has no job"]),
            ("rw=read", &["rw=read: it stands before the first [section]"]),
            ("[a\nrw=read", &["[a: no ] ends it"]),
            ("include other.fio", &["include other.fio: only one file"]),
            ("[a]\n[a]", &["[a] is there twice"]),
            ("[a]\n[b]\nrw=write", &["[b]: fio would run it at the same time", "stonewall"]),
            ("[a]\n[b]\nstonewall", &["[b]: an earlier job is the same (read 4k"]),
            ("[a]\nfilename=/dev/sda", &["[a] filename=/dev/sda: the disk"]),
            ("[a]\nsize=1G", &["[a] size=1G: the disk", "--size"]),
            ("[global]\nruntime=60\n[a]", &["[global] runtime=60: the time", "--runtime"]),
            ("[a]\ntime_based", &["[a] time_based: the time"]),
            ("[a]\nverify=crc32c", &["[a] verify=crc32c: --verify"]),
            ("[a]\nexec_prerun=rm -rf /", &["exec_prerun=rm -rf /: nothing is run"]),
            ("[a]\nzoned = 1", &["[a] zoned = 1: ringloom cannot tell"]),
            ("[a]\nioengine=rbd", &["ioengine=rbd: only io_uring, libaio and psync"]),
            ("[a]\nioengine=psync\n[b]\nstonewall\nrw=write\nioengine=libaio", &["same engine"]),
            ("[a]\nbs=4k,64k", &["bs=4k,64k: all requests of a cell have one size"]),
            ("[a]\nbs=1000", &["[a]: block size 1000: must be a multiple of 512"]),
            ("[a]\nbs", &["[a] bs: a value is missing"]),
            ("[a]\nrw=rw", &["rw=rw: only read, write"]),
            ("[a]\nrw=randread:8", &["rw=randread:8: only read"]),
            ("[a]\nrwmixread=101", &["write 0 to 100"]),
            ("[a]\nnumjobs=0", &["[a]: jobs 0: must be between"]),
            ("[a]\nnumjobs=${N}", &["numjobs=${N}: write 1 to 1024"]),
            ("[a]\niodepth=300", &["iodepth 300: must be between"]),
            ("[a]\ndirect=0", &["direct=0: requests go past the page cache"]),
            ("[a\u{1b}]\nx", &["[a\u{fffd}] x: ringloom cannot tell"]),
            (&long, &["xxx: ringloom cannot tell"]),
        ] {
            let error = format!("{:#}", JobFile::parse(text).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
            assert!(error.len() < 400, "{error}");
        }
        let many: String = (0..=JOBS_MAX).map(|job| format!("[{job}]\nstonewall\n")).collect();
        assert!(JobFile::parse(&many).unwrap_err().to_string().contains("more than 64 jobs"));
    }

    #[test]
    fn a_file_that_is_none_is_refused_and_never_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("job.fio").display().to_string();
        std::fs::write(&path, [0xff, 0xfe, b'[']).unwrap();
        for (path, part) in [
            (&*path, "it is no text"),
            ("/dev/zero", "more than 65536 bytes"),
            ("/no/such", "No such file"),
        ] {
            let error = JobFile::read(path).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(JobFile::read(&directory.path().display().to_string()).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(
            lines in prop::collection::vec(
                prop_oneof![
                    "\\PC{0,20}",
                    "\\[(global|a|b|c)\\]",
                    "(rw|bs|iodepth|numjobs|rwmixread|stonewall|ioengine|direct)( ?= ?(rand)?(rw|read|[0-9]{1,20}|4k|1))?",
                ],
                0..12,
            ),
        ) {
            if let Ok(file) = JobFile::parse(&lines.join("\n")) {
                prop_assert!((1..=JOBS_MAX).contains(&file.cells.len()));
            }
        }
    }
}
