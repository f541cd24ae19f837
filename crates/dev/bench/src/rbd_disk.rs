//! An image of a Ceph cluster, the run's own unless one is named, and fio as its client.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::{NamedTempFile, TempPath};
use testkit::ceph::{self, Cluster, Store};

use crate::cpus::ProcessCpus;
use crate::disks::DISK_BYTES;
use crate::measure::Values;
use crate::refill::connections::read_fio;
use crate::results::Metric;
use crate::rows::Load;

/// The pool and the image that are measured on. What the image held is overwritten.
pub(crate) const POOL: &str = ceph::POOL;
pub(crate) const IMAGE: &str = "ringloom-bench";

/// The image; it is removed with the value.
#[derive(Debug)]
pub(crate) struct RbdDisk {
    conf: TempPath,
    /// Ends with the value, after the image.
    _own: Option<Cluster>,
}

impl RbdDisk {
    /// Fills the image with the bytes of a file, in the cluster of this configuration or in one of its own.
    pub(crate) fn make(conf: Option<&Path>, file: &Path) -> Result<Self> {
        let (cluster, conf) = match conf {
            Some(conf) => (None, conf.to_path_buf()),
            None => {
                let cluster = Cluster::start(Store::Memory)?;
                let conf = cluster.conf();
                (Some(cluster), conf)
            }
        };
        let text = fs::read_to_string(&conf).with_context(|| conf.display().to_string())?;
        let own = NamedTempFile::with_prefix("rl-bench-").context("make a file")?;
        // All are compared without a cache in the client.
        fs::write(own.path(), format!("{text}\n[client]\nrbd cache = false\n"))?;
        let disk = Self { conf: own.into_temp_path(), _own: cluster };
        // Of a run that was killed.
        drop(disk.remove());
        let image = format!("{POOL}/{IMAGE}");
        let mut import = disk.rbd(&["import", "--no-progress"]);
        let output = import.arg(file).arg(image).output().context("start rbd")?;
        ensure!(output.status.success(), "rbd: {}", String::from_utf8_lossy(&output.stderr));
        Ok(disk)
    }

    /// The configuration of the cluster's clients.
    pub(crate) fn conf(&self) -> &Path {
        &self.conf
    }

    fn rbd(&self, words: &[&str]) -> Command {
        let mut command = Command::new("rbd");
        command.arg("--conf").arg(&self.conf).args(words);
        command
    }

    fn remove(&self) -> Result<()> {
        let image = format!("{POOL}/{IMAGE}");
        self.rbd(&["rm", "--no-progress", &image]).output().map(drop).context("start rbd")
    }

    /// fio does the same with librbd on the CPUs of servers, all from one thread.
    pub(crate) fn fio(&self, load: &Load, runtime: Duration, cpus: &ProcessCpus) -> Result<Values> {
        let mut command = Command::new("fio");
        command.args(["--name=rbd", "--ioengine=rbd", "--clientname=admin"]);
        command.arg(format!("--pool={POOL}")).arg(format!("--rbdname={IMAGE}"));
        command.arg(format!("--rw={}", load.operation)).arg(format!("--bs={}", load.block.get()));
        command.arg(format!("--iodepth={}", load.depth * load.rings));
        command.arg(format!("--size={DISK_BYTES}")).env("CEPH_CONF", &self.conf);
        let result = cpus.as_server(|| read_fio(&mut command, runtime))??;
        Ok(Values::from([(Metric::RequestsPerS, result.rate)]))
    }
}

impl Drop for RbdDisk {
    fn drop(&mut self) {
        // It lies in a cluster for measurements.
        drop(self.remove());
    }
}
