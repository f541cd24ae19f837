//! The image of pods that measure: a static program that answers and runs fio, without a right to change its image.

use std::process::{Child, Stdio};
use std::time::Duration;

use agent::{Client, JOB, Start};
use anyhow::{Context as _, Result, bail, ensure};

use super::container::Unpacked;
use crate::archive::Archive;
use crate::clock::Deadline;
use crate::store::Store;

/// Nobody has this number in the image; the recipe names it.
const USER: &str = "65532:65532";
const REFUSED: &str = "linked statically and cannot open librbd";
/// A few seconds of work, on a machine that others use.
const FIO_LIMIT: Duration = Duration::from_secs(300);
const END_LIMIT: Duration = Duration::from_secs(60);

/// What the image of the agent does. Says what was seen.
pub fn try_agent(store: &Store, archive: &Archive) -> Result<Vec<String>> {
    let image = Unpacked::new(store, archive)?;
    ensure!(image.user() == USER, "the image's user is {}", image.user());
    ensure!(image.has("usr/bin/ringloom"), "the image has no ringloom");
    let (output, said) = image.said(&["sh", "-c", "id -u; touch /usr/bin/new"])?;
    let is_fenced = said.starts_with("65532") && said.contains("Read-only file system");
    ensure!(!output.status.success() && is_fenced, "{said}");
    let (_, linked) = image.said(&["ldd", "/usr/bin/ringloom"])?;
    let is_static = ["statically linked", "not a dynamic executable"];
    ensure!(is_static.iter().any(|it| linked.contains(it)), "the program needs {linked}");
    let words = ["ringloom", "convert", "driver=rbd,pool=p,image=i", "/tmp/copy"];
    let (output, said) = image.said(&words)?;
    ensure!(!output.status.success() && said.contains(REFUSED), "driver=rbd: {said}");
    let mut command = image.command(&["ringloom", "agent"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process(command.spawn().context("start the agent")?);
    let input = process.0.stdin.take().expect("it was asked for above");
    let output = process.0.stdout.take().expect("it was asked for above");
    let client = Client::greet(Box::new(output), Box::new(input), None, &mut || Ok(()));
    let mut client = client.context("the agent of the image")?;
    let facts = facts(&client)?;
    run_fio(&mut client, "filename=/tmp/disk\nsize=4M\nioengine=psync\n")?;
    drop(client);
    process.ends()?;
    Ok(vec![
        format!("user {USER}, files that cannot be changed, no library but fio's"),
        "driver=rbd is refused by name".to_owned(),
        format!("the agent answers ({facts}), fio runs"),
    ])
}

/// Which programs an agent has. One without fio is of no use.
pub(super) fn facts(client: &Client) -> Result<String> {
    let facts = client.facts();
    let fio = facts.fio.as_ref().context("the agent finds no fio")?;
    Ok(format!("ringloom {}, {fio}, {}", facts.ringloom, facts.kernel))
}

/// Has fio write a disk, described by lines of its job, and read it back.
pub(super) fn run_fio(client: &mut Client, disk: &str) -> Result<()> {
    client.put(&format!("[trial]\nrw=randwrite\nbs=4k\nverify=crc32c\n{disk}"));
    client.start(&[JOB.to_owned()], Start::Now).context("start fio")?;
    let deadline = Deadline::after(FIO_LIMIT);
    while deadline.rest() {
        if let Some(ended) = client.poll().context("fio")? {
            let is_well = ended.failed.is_none() && ended.output.contains("err= 0");
            ensure!(is_well, "fio: {:?}\n{}", ended.failed, ended.output);
            return Ok(());
        }
    }
    bail!("fio has not ended within {FIO_LIMIT:?}")
}

/// A process that does not outlive its trial.
struct Process(Child);

impl Process {
    /// It ends by itself, and well.
    fn ends(&mut self) -> Result<()> {
        let deadline = Deadline::after(END_LIMIT);
        while deadline.rest() {
            if let Some(status) = self.0.try_wait().context("look at the agent")? {
                ensure!(status.success(), "the agent ended with {status}");
                return Ok(());
            }
        }
        bail!("the agent has not ended {END_LIMIT:?} after its client")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It is gone already where a trial has gone well.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
