//! Four disks, four answers: the work disk, memory, a delay, and a disk that the kernel throttles. Each names what limits the rate.
//!
//! Other tests on the machine may take the CPUs: then that is what is said, and no more is asked of the answer.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::report::{note, skipped};

use super::{LIMIT, OUT, Ran, Rig, with_rig};
use crate::support::is_root;

/// One cell in the default search, briefly.
const SHORT: &str = "--subject client,host --op randread --bs 4k --size 64M --runtime 0.3 --ramp 0.1 --repeats 3-4 --seed 5";
/// What is said where other tests had the CPUs.
const DISTURBED: &str = "Other programs on the CPUs of the host limit the rate";
/// What the CPUs are the limit of.
const BY_CPU: [&str; 4] = [
    "The CPUs of the host limit the rate",
    "The threads that serve the disk limit the rate",
    "The CPUs of the client limit the rate",
    "The number of queues limits the rate",
];

/// What is right where iothreads gain nothing: the fewest are taken unless more are shown to gain or to take less CPU.
const NONE: &str = "Use no iothread";

/// What limits the rate, and what is recommended: the sentences without the line breaks of a terminal.
fn said(ran: &Ran) -> Result<(String, String)> {
    ensure!(ran.status.code() == Some(0), "{ran:?}");
    let text = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = |of: &str| {
        let begin =
            text.find(of).with_context(|| format!("{of:?} is missing in: {}", ran.stdout))?;
        let begin = text[..begin].rfind(". ").map_or(begin, |end| end + 2);
        Ok::<_, anyhow::Error>(text[begin..].split(". ").next().unwrap_or_default().to_owned())
    };
    let limit = sentence(" the rate")?;
    let answer = text[text.find("Use ").context("nothing is recommended")?..].to_owned();
    note(&format!("{limit}. {answer}"));
    Ok((limit, answer))
}

/// Measures, and once more if that goes wrong: runs as short as these are disturbed by other tests and by neighbours of the host.
fn twice(rig: &Rig, measured: impl Fn() -> Result<()>) -> Result<()> {
    let Err(error) = measured() else { return Ok(()) };
    note(&format!("disturbed: {error:#}"));
    std::fs::remove_dir_all(rig.path(OUT))?;
    measured()
}

/// One of these must limit the rate, and then this must be recommended, if anything; unless other programs had the CPUs.
fn check_measured(rig: &Rig, line: &str, limits: &[&str], expected: Option<&str>) -> Result<()> {
    twice(rig, || {
        let (limit, answer) = said(&rig.measure(line)?)?;
        if limit.contains(DISTURBED) {
            return Ok(());
        }
        ensure!(limits.iter().any(|it| limit.contains(it)), "{limit}");
        ensure!(expected.is_none_or(|it| answer.starts_with(it)), "{answer}");
        Ok(())
    })
}

#[test]
fn behind_a_delay_more_requests_in_flight_would_help_and_iothreads_do_not() {
    with_rig(|rig| {
        // Few in flight, so that four times as many find a CPU beside other tests.
        check_measured(
            rig,
            &format!("{SHORT} --delay 2ms --iodepth 4"),
            &["Latency limits the rate"],
            Some(NONE),
        )
    });
}

#[test]
fn in_memory_the_disk_is_not_the_limit() {
    with_rig(|rig| {
        let file = tempfile::Builder::new().tempfile_in("/dev/shm").context("a file in memory")?;
        std::fs::write(file.path(), vec![0x5a; 64 << 20])?;
        let line = SHORT.replace("--size 64M", &file.path().to_string_lossy());
        // Where others wake on the CPUs in between, each request waits for a thread: that is latency.
        let limits = [&BY_CPU[..], &["Latency limits the rate"]];
        check_measured(rig, &line, &limits.concat(), None)
    });
}

#[test]
fn on_the_work_disk_a_limit_is_named() {
    with_rig(|rig| {
        let limits = [&BY_CPU[..], &["The disk limits the rate", "Latency limits the rate"]];
        check_measured(rig, SHORT, &limits.concat(), None)
    });
}

#[test]
fn a_throttled_disk_is_the_limit_and_no_iothread_helps() {
    with_rig(|rig| {
        if !is_root() {
            skipped("a throttled disk needs root");
            return Ok(());
        }
        let Some(throttle) = Throttle::new(&rig.path(""), 3000)? else {
            skipped("the kernel cannot throttle the disk of this directory (cgroup v1, blkio)");
            return Ok(());
        };
        twice(rig, || {
            let tuning = rig.start(SHORT)?;
            throttle.add(tuning.server.pid())?;
            // A throttle is exact, so others on the CPUs do not matter.
            let (limit, answer) = said(&tuning.end(LIMIT)?)?;
            ensure!(limit.contains("The disk limits the rate"), "{limit}");
            ensure!(answer.starts_with(NONE), "{answer}");
            Ok(())
        })
    });
}

/// A cgroup whose processes read so many times per second at most.
struct Throttle(PathBuf);

impl Throttle {
    /// On the disk below a directory; `None` where the kernel cannot.
    fn new(directory: &Path, reads_per_second: u32) -> Result<Option<Self>> {
        let device = directory.metadata().context("look at the directory")?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let below = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
        let whole =
            if below.join("partition").exists() { below.join("../dev") } else { below.join("dev") };
        let group =
            Path::new("/sys/fs/cgroup/blkio").join(format!("ringloom-{}", std::process::id()));
        let Ok(number) = std::fs::read_to_string(whole) else { return Ok(None) };
        if std::fs::create_dir(&group).is_err() {
            return Ok(None);
        }
        let throttle = Self(group);
        let rule = format!("{} {reads_per_second}", number.trim());
        let written = std::fs::write(throttle.0.join("blkio.throttle.read_iops_device"), rule);
        Ok(written.is_ok().then_some(throttle))
    }

    fn add(&self, pid: u32) -> Result<()> {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).context("throttle the command")
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // All its processes have ended.
        std::fs::remove_dir(&self.0)
            .unwrap_or_else(|error| note(&format!("a cgroup is left: {error}")));
    }
}
