//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

/// Compares ringloom with qemu-storage-daemon and the bare host, alternating, one server at a time.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask bench", version)]
pub struct Args {
    /// The rows of the table of figures; the default
    #[arg(long)]
    pub quick: bool,
    /// Every disk, operation, block size, depth, client and number of rings; takes hours
    #[arg(long, conflicts_with = "quick")]
    pub full: bool,
    /// Only these rows, of all that `--full --list` shows; a final * stands for the rest of a name
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub rows: Vec<String>,
    /// Print the names of the rows and end
    #[arg(long)]
    pub list: bool,
    /// How often each row is measured with every contender
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub pairs: u32,
    /// Length of one sample
    #[arg(long, default_value_t = 0.5, value_name = "S")]
    pub seconds: f64,
    /// Where the results are saved, after every row
    #[arg(long, value_name = "FILE.json")]
    pub out: Option<PathBuf>,
    /// Compare two saved runs and end
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"])]
    pub compare: Vec<PathBuf>,
    /// The ringloom under test
    #[arg(long, default_value = "target/release/ringloom", value_name = "PATH")]
    pub ringloom: PathBuf,
    /// Its peer
    #[arg(long, default_value = "qemu-storage-daemon", value_name = "PATH")]
    pub qsd: PathBuf,
    /// Directory for the file on the work disk
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    pub work: PathBuf,
    /// Configuration of a Ceph cluster, for the rows `rbd-*`: they fill an image in its pool `rbd`; default: a cluster of
    /// this run's own, a monitor and an OSD in memory
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// CPUs of the servers, such as 1 or 2-3; default: the upper half
    #[arg(long, value_name = "LIST")]
    pub server_cpus: Option<String>,
    /// CPUs of the client and the bare host; default: the lower half
    #[arg(long, value_name = "LIST")]
    pub client_cpus: Option<String>,
    /// Serve so many requests of a self-refilling ring on a null disk, print the time, and end: what
    /// a profiler is run on
    #[arg(long, value_name = "REQUESTS", conflicts_with_all = ["full", "rows", "list", "compare"])]
    pub profile: Option<u64>,
}

impl Args {
    /// The length of a sample.
    pub(crate) fn sample(&self) -> Result<Duration> {
        let seconds = self.seconds;
        ensure!((0.001..=3600.0).contains(&seconds), "--seconds {seconds}: between 0.001 and 3600");
        Ok(Duration::from_secs_f64(seconds))
    }
}
