//! `up` and `down`: from nothing to a cluster that answers, and back.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use container_images::{NEEDED, check_programs};

use crate::clock::{Attempt, now, wait_for};
use crate::kubectl::Kubectl;
use crate::place::Place;
use crate::run::{make_dir, output_of, read, remove};
use crate::{host, images, packages, programs};

/// More than all that `serve` waits for, on a machine that others use.
const START_LIMIT: Duration = Duration::from_secs(1200);
const END_LIMIT: Duration = Duration::from_secs(30);

/// Builds what is missing, starts the cluster unless it runs, prints how to reach it.
pub(crate) fn up(place: &Place) -> Result<()> {
    if is_running(place)? && place.run("ready").exists() {
        println!("the cluster runs already");
        return tell(place);
    }
    check_programs(NEEDED)?;
    programs::build(place)?;
    packages::fetch(place)?;
    down(place)?;
    println!("== images");
    images::make(place)?;
    println!("== start");
    let start = now();
    if let Err(error) = start_cluster(place) {
        let log = read(&place.run("serve.log")).unwrap_or_default();
        let logs = place.run("logs");
        // Its logs stay until the next `up` or `down`; nothing else does.
        stop(place).context("end what was started")?;
        return Err(error.context(format!("{log}the programs' logs are in {}", logs.display())));
    }
    println!("   ready after {:.1} s", now().duration_since(start).as_secs_f64());
    tell(place)
}

/// Ends the cluster if there is one; an error names what is not as it was before.
pub(crate) fn down(place: &Place) -> Result<()> {
    stop(place)?;
    let is_noted = place.run("sysctls").exists();
    let result = if is_noted { host::is_as_it_was(place) } else { Ok(()) };
    remove(&place.run(""))?;
    result
}

fn tell(place: &Place) -> Result<()> {
    let path = place.kubeconfig();
    let kubectl = Kubectl::new(place, &path)?;
    println!("export KUBECONFIG={}", path.display());
    println!("{} get nodes", kubectl.program().display());
    println!("images in every node: {}", images::NAMES.join(" "));
    Ok(())
}

fn start_cluster(place: &Place) -> Result<()> {
    make_dir(&place.run(""))?;
    host::note(place)?;
    host::make_devices(place)?;
    let path = place.run("serve.log");
    let log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let program = std::env::current_exe().context("find this program")?;
    // A group of its own: what ends this program from the terminal does not end the cluster.
    let mut command = Command::new(program);
    command.arg("serve").process_group(0).stdin(Stdio::null());
    command.stdout(log.try_clone().context("share a file")?).stderr(log);
    let mut child = command.spawn().context("start the process that keeps the cluster")?;
    wait_for("the cluster", START_LIMIT, || {
        if let Some(status) = child.try_wait()? {
            bail!("the process that keeps the cluster ended: {status}");
        }
        Ok(match place.run("ready").exists() {
            true => Attempt::Done(()),
            false => Attempt::later("it is not ready"),
        })
    })
}

/// Whether the process that keeps the cluster is there.
fn is_running(place: &Place) -> Result<bool> {
    let path = place.run("pid");
    if !path.exists() {
        return Ok(false);
    }
    let pid = read(&path)?;
    // It may have ended, and its number may be another's now.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0);
    let program = words.next().is_some_and(|it| it.ends_with(b"test_cluster"));
    Ok(program && words.next() == Some(b"serve"))
}

/// Ends all processes, and takes back what was made outside the namespaces.
fn stop(place: &Place) -> Result<()> {
    if is_running(place)? {
        output_of(Command::new("kill").args(["-KILL", read(&place.run("pid"))?.trim()]))?;
        wait_for("the process that keeps the cluster", END_LIMIT, || {
            Ok(match is_running(place)? {
                true => Attempt::later("it has not ended"),
                false => Attempt::Done(()),
            })
        })?;
    }
    host::clean(place)
}
