//! A Ceph cluster of one machine: a monitor and one OSD on the loopback interface, with rbd's own tools.
//!
//! Where it stands: tests of `driver=rbd` start one, or join the one that other tests of the process use
//! ([`Cluster::shared`]). There is no manager: neither a pool nor an image needs one, and it would take as much memory as all
//! else. That cluster's OSD keeps its bytes in a file (bluestore), so that it comes back with them after it was killed.
//!
//! Invariants: every process is a child and is ended by its own id. Nothing listens but on 127.0.0.1. One test at a time stops
//! processes of a cluster ([`Cluster::outage`]); the others wait for it, as guests do.
//! Limits: [`START_LIMIT`]; `STORE_BYTES` for all images together; a watch of a client that is gone is forgotten after
//! [`WATCH_LIMIT`], where Ceph's own default is 30 s.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::poll_until;
use crate::process::Bench;

/// How long the cluster, or one of its processes, may take until it answers.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// How soon an OSD forgets a client that is gone.
pub const WATCH_LIMIT: Duration = Duration::from_secs(5);

/// The size of the OSD's file, which has holes.
const STORE_BYTES: u64 = 2 << 30;

/// What `ceph` says when a monitor has not told it the commands that there are.
const NO_COMMANDS: &str = "problem getting command descriptions";

/// What an OSD says to which the same has happened.
const WRONG_CLUSTER: &str = "wrong fsid";

/// What an OSD says when it has got through that.
const OSD_STARTS: &str = "done with init";

/// The pool that is there from the beginning.
pub const POOL: &str = "rbd";

/// The cluster that tests of this process share, as long as one of them has it.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

/// Where an OSD keeps its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In a file (bluestore): they are there after it was killed.
    File,
    /// In its memory (memstore), up to 1 GiB: faster, and gone with it.
    Memory,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    place: Bench,
    monitor: Mutex<Option<Process>>,
    osd: Mutex<Option<Process>>,
    outage: Mutex<()>,
}

/// The right to stop processes of a cluster, which has one holder at a time. Dropped, it lets a frozen OSD go on.
#[derive(Debug)]
pub struct Outage<'a> {
    cluster: &'a Cluster,
    _turn: MutexGuard<'a, ()>,
}

/// A process of the cluster, which ends with its owner.
#[derive(Debug)]
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.0), signal).context("signal a process of the cluster")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Cluster {
    /// Why there can be no cluster here, if there can be none.
    pub fn missing() -> Option<String> {
        let is_missing = |program: &&str| {
            let mut version = Command::new(program);
            version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            !version.status().is_ok_and(|status| status.success())
        };
        let programs = ["ceph-mon", "ceph-osd", "ceph", "rbd"];
        programs.into_iter().find(is_missing).map(|name| format!("{name} cannot be started"))
    }

    /// The cluster that the tests of this process share; the first one starts it, and it ends with the last one.
    pub fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return Ok(cluster);
        }
        let cluster = Arc::new(Self::start(Store::File)?);
        *shared = Arc::downgrade(&cluster);
        Ok(cluster)
    }

    /// Starts a cluster and waits until it takes images.
    pub fn start(store: Store) -> Result<Self> {
        let place = Bench::new()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (id, osd_id) = (uuid()?, uuid()?);
        let conf = configuration(place.path("").as_path(), &id, port, store);
        std::fs::write(place.path("ceph.conf"), conf).context("write ceph.conf")?;
        for name in ["mon", "osd"] {
            std::fs::create_dir(place.path(name))?;
        }
        let cluster = Self {
            place,
            monitor: Mutex::default(),
            osd: Mutex::default(),
            outage: Mutex::default(),
        };
        cluster.make_monitor(&id, port)?;
        cluster.start_monitor()?;
        cluster.ceph(&["osd", "new", &osd_id])?;
        cluster.ceph(&["osd", "pool", "create", POOL, "8", "8", "--autoscale-mode=off"])?;
        cluster.run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &osd_id])?;
        cluster.start_osd()?;
        // Returns when the OSD serves the pool.
        cluster.run("rbd", &["pool", "init", POOL])?;
        Ok(cluster)
    }

    fn make_monitor(&self, id: &str, port: u16) -> Result<()> {
        let text = |name| self.place.text(name);
        let (keyring, map) = (text("keyring"), text("monmap"));
        // The commands of an administrator need a key, even where nobody has to show one.
        let keys: [&[&str]; 2] = [
            &["--create-keyring", &keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"],
            &[
                &keyring,
                "--gen-key",
                "-n",
                "client.admin",
                "--cap",
                "mon",
                "allow *",
                "--cap",
                "osd",
                "allow *",
                "--cap",
                "mgr",
                "allow *",
            ],
        ];
        for words in keys {
            self.run("ceph-authtool", words)?;
        }
        let address = format!("[v1:127.0.0.1:{port}]");
        self.run("monmaptool", &["--create", "--fsid", id, "--addv", "a", &address, &map])?;
        let words = ["-i", "a", "--mkfs", "--monmap", &map, "--keyring", &keyring];
        self.run("ceph-mon", &words).map(drop)
    }

    /// The path of the configuration file that its clients read.
    pub fn conf(&self) -> PathBuf {
        self.place.path("ceph.conf")
    }

    /// Runs `ceph` with these arguments; what it printed. What the program asks first is refused now and then by a monitor
    /// that has just agreed on a change; then it has done nothing, and is run again.
    pub fn ceph(&self, words: &[&str]) -> Result<String> {
        poll_until("the monitor to say its commands", START_LIMIT, || {
            match self.run("ceph", words) {
                Err(error) if error.to_string().contains(NO_COMMANDS) => Ok(None),
                result => result.map(Some),
            }
        })
    }

    /// Runs `rbd` with these arguments; what it printed.
    pub fn rbd(&self, words: &[&str]) -> Result<String> {
        self.run("rbd", words)
    }

    /// Makes an image of so many MiB in the pool.
    pub fn create(&self, image: &str, mebibytes: u64) -> Result<()> {
        self.rbd(&["create", "--size", &format!("{mebibytes}M"), image]).map(drop)
    }

    /// All bytes of an image, as rbd's own tool exports them.
    pub fn export(&self, image: &str) -> Result<Vec<u8>> {
        let output = self.output("rbd", &["export", "--no-progress", image, "-"])?;
        ensure!(output.status.success(), "rbd export {image}: {}", errors(&output));
        Ok(output.stdout)
    }

    /// Waits for the right to stop processes of this cluster.
    pub fn outage(&self) -> Outage<'_> {
        Outage { cluster: self, _turn: lock(&self.outage) }
    }

    fn start_monitor(&self) -> Result<()> {
        *lock(&self.monitor) = Some(self.spawn("ceph-mon", "a")?);
        Ok(())
    }

    /// Starts the OSD, on what it had stored before. One that has asked the monitor before it knew the cluster ends; another
    /// one is started then.
    fn start_osd(&self) -> Result<()> {
        let log = self.place.path("osd.log");
        let starts = || {
            let text = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text).matches(OSD_STARTS).count()
        };
        let before = starts();
        let mut osd = self.spawn("ceph-osd", "0")?;
        poll_until("the OSD to start", START_LIMIT, || {
            if starts() > before {
                return Ok(Some(()));
            }
            let said = std::fs::read_to_string(self.place.path("ceph-osd.out"))?;
            if said.contains(WRONG_CLUSTER) {
                drop(osd.0.kill());
            }
            if let Some(status) = osd.0.try_wait()? {
                ensure!(said.contains(WRONG_CLUSTER), "the OSD has ended, {status}: {said}");
                osd = self.spawn("ceph-osd", "0")?;
            }
            Ok(None)
        })?;
        *lock(&self.osd) = Some(osd);
        Ok(())
    }

    /// Waits until the OSD serves again.
    pub fn wait_for_osd(&self) -> Result<()> {
        poll_until("the OSD to serve", START_LIMIT, || {
            let up = self.ceph(&["osd", "stat", "--format=json"])?;
            Ok(up.contains("\"num_up_osds\":1").then_some(()))
        })
    }

    fn spawn(&self, program: &str, id: &str) -> Result<Process> {
        let log = std::fs::File::create(self.place.path(&format!("{program}.out")))?;
        let mut command = Command::new(program);
        command.args(["-f", "-i", id]).env("CEPH_CONF", self.conf()).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        Ok(Process(command.spawn().with_context(|| format!("start {program}"))?))
    }

    fn output(&self, program: &str, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(program);
        command.args(words).env("CEPH_CONF", self.conf()).stdin(Stdio::null());
        command.output().with_context(|| format!("start {program}"))
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let output = self.output(program, words)?;
        let said = errors(&output);
        ensure!(output.status.success(), "{program} {}: {said}", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Outage<'_> {
    /// Kills the monitor (SIGKILL).
    pub fn kill_monitor(&self) {
        *lock(&self.cluster.monitor) = None;
    }

    /// Starts the monitor again.
    pub fn start_monitor(&self) -> Result<()> {
        self.cluster.start_monitor()
    }

    /// Kills the OSD (SIGKILL).
    pub fn kill_osd(&self) {
        *lock(&self.cluster.osd) = None;
    }

    /// Starts the OSD again, on what it had stored before.
    pub fn start_osd(&self) -> Result<()> {
        self.cluster.start_osd()
    }

    /// Stops the threads of the OSD: what is sent to it waits until [`Outage::thaw_osd`].
    pub fn freeze_osd(&self) -> Result<()> {
        lock(&self.cluster.osd).as_ref().context("the OSD runs")?.signal(Signal::STOP)
    }

    /// Lets the OSD go on.
    pub fn thaw_osd(&self) -> Result<()> {
        lock(&self.cluster.osd).as_ref().context("the OSD runs")?.signal(Signal::CONT)
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        // One that was killed needs nothing, and its test has failed.
        drop(self.thaw_osd());
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that failed meanwhile has changed nothing by halves.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn uuid() -> Result<String> {
    let path = "/proc/sys/kernel/random/uuid";
    Ok(std::fs::read_to_string(path).context(path)?.trim().to_owned())
}

/// What all processes of the cluster and its clients read. Monitors agree on a change within milliseconds instead of a
/// second, and the OSD says within a second that it is full, because tests wait for each.
fn configuration(place: &Path, id: &str, port: u16, store: Store) -> String {
    let store = match store {
        Store::File => "bluestore",
        Store::Memory => "memstore",
    };
    let (place, watch) = (place.display(), WATCH_LIMIT.as_secs());
    format!(
        "[global]\n\
         fsid = {id}\n\
         mon initial members = a\n\
         mon host = [v1:127.0.0.1:{port}]\n\
         public addr = 127.0.0.1\n\
         ms bind msgr2 = false\n\
         auth cluster required = none\n\
         auth service required = none\n\
         auth client required = none\n\
         keyring = {place}keyring\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         osd crush chooseleaf type = 0\n\
         mon allow pool size one = true\n\
         mon allow pool delete = true\n\
         mon data avail crit = 1\n\
         paxos propose interval = 0.02\n\
         paxos min wait = 0.01\n\
         mon data = {place}mon\n\
         osd data = {place}osd\n\
         run dir = {place}\n\
         osd objectstore = {store}\n\
         bluestore block size = {STORE_BYTES}\n\
         bluestore rocksdb cf = false\n\
         osd memory target = 939524096\n\
         osd client watch timeout = {watch}\n\
         osd heartbeat interval = 1\n\
         [mon]\n\
         log file = {place}mon.log\n\
         [osd]\n\
         log file = {place}osd.log\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{note, skipped};

    #[test]
    fn a_cluster_takes_an_image_and_has_it_after_its_osd_was_killed() -> Result<()> {
        if let Some(reason) = Cluster::missing() {
            skipped(&reason);
            return Ok(());
        }
        let began = crate::deadline::now();
        let cluster = Cluster::shared()?;
        note(&format!("the cluster has started in {:?}", began.elapsed()));
        cluster.create("kept", 8)?;
        let path = cluster.conf().with_file_name("bytes");
        let bytes = crate::image::create_filled(&path, 4 << 20, 7)?;
        let path = path.to_str().context("a path of a test is text")?;
        cluster.rbd(&["import", "--no-progress", path, "imported"])?;
        let outage = cluster.outage();
        outage.kill_osd();
        outage.start_osd()?;
        drop(outage);
        ensure!(cluster.export("imported")? == bytes, "the image has other bytes");
        ensure!(cluster.export("kept")? == vec![0; 8 << 20], "an empty image has bytes");
        Ok(())
    }
}
