//! The image of virtual machines: its kernel and initramfs boot on an emulated processor, and the agent inside answers.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agent::{Client, PORT, Token};
use anyhow::{Context as _, Result, bail, ensure};

use super::agent::{facts, run_fio};
use crate::archive::Archive;
use crate::clock::Deadline;
use crate::run::text;

/// From the start of QEMU to the first answer, emulated, on a machine that others use.
const ANSWER_LIMIT: Duration = Duration::from_secs(900);
/// What docs/cluster.md promises to be enough.
const MEMORY: &str = "1G";
const DISK_BYTES: u64 = 64 << 20;

/// Boots the image's files below a directory that is empty or not there. Says what was seen.
pub fn try_guest(archive: &Archive, place: &Path) -> Result<Vec<String>> {
    archive.extract("boot", place)?;
    let disk = place.join("disk");
    let file = File::create(&disk).with_context(|| format!("create {}", disk.display()))?;
    file.set_len(DISK_BYTES).context("make a disk")?;
    let token = Token::random().context("a token")?;
    let mut guest = Guest::start(place, &token)?;
    let mut client = guest.greet(&token).with_context(|| guest.console(place))?;
    let facts = facts(&client)?;
    run_fio(&mut client, "filename=/dev/vda\nsize=1M\nioengine=libaio\ndirect=1\n")?;
    Ok(vec![format!(
        "the kernel boots with {MEMORY}, the agent answers ({facts}), fio runs on a disk"
    )])
}

/// A QEMU that ends with its trial.
struct Guest {
    qemu: Child,
    port: u16,
}

impl Guest {
    fn start(place: &Path, token: &Token) -> Result<Self> {
        // A port that is free now.
        let port = TcpListener::bind("127.0.0.1:0").context("find a port")?;
        let port = port.local_addr().context("find a port")?.port();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
        qemu.args(["-m", MEMORY, "-kernel", text(&place.join("boot/vmlinuz"))?]);
        qemu.args(["-initrd", text(&place.join("boot/initrd"))?, "-append"]);
        qemu.arg(format!("console=ttyS0 ringloom.token={}", token.reveal()));
        qemu.args(["-serial", &format!("file:{}", place.join("console").display()), "-netdev"]);
        qemu.arg(format!("user,id=net,hostfwd=tcp:127.0.0.1:{port}-:{PORT}"));
        qemu.args(["-device", "virtio-net-pci,netdev=net,romfile=", "-drive"]);
        qemu.arg(format!("file={},format=raw,if=virtio", place.join("disk").display()));
        let qemu = qemu.stdin(Stdio::null()).spawn().context("start qemu-system-x86_64")?;
        Ok(Self { qemu, port })
    }

    /// A client of the agent inside, once that listens.
    fn greet(&mut self, token: &Token) -> Result<Client> {
        let deadline = Deadline::after(ANSWER_LIMIT);
        while deadline.rest() {
            let ended = self.qemu.try_wait().context("look at QEMU")?;
            ensure!(ended.is_none(), "QEMU has ended: {ended:?}");
            // Until the guest listens, QEMU takes a connection and ends it.
            let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)) else { continue };
            let other = stream.try_clone().context("share a connection")?;
            let greeted =
                Client::greet(Box::new(stream), Box::new(other), Some(token), &mut || Ok(()));
            if let Ok(client) = greeted {
                return Ok(client);
            }
        }
        bail!("no agent has answered within {ANSWER_LIMIT:?}")
    }

    /// What the guest has printed, for whoever wants to know why it does not answer.
    fn console(&self, place: &Path) -> String {
        let printed = std::fs::read(place.join("console")).unwrap_or_default();
        format!("the guest's console:\n{}", String::from_utf8_lossy(&printed))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It is a child of this process, so its number is nobody else's.
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}
