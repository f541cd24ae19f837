//! Disks of a running guest: plugged, found, unplugged; and the threads that serve them.
//!
//! Invariants: a disk's device in the guest is found by its serial number, or by its slot where it has none, never by
//! the order of names. A plug that fails leaves nothing behind that a later one would meet, unless the error says so.
//! Limits: `PLUG_LIMIT`, `UNPLUG_LIMIT`.

use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clock::now;
use crate::machine::{AHCI_ADDRESS, port_address};
use crate::monitor::Refusal;
use crate::plug::{Command, Facts, Steps, iothread, steps};
use crate::{Controller, Guest, Plug, Source, Watch};

/// How long QEMU may take to open a disk, and then the guest to see it.
const PLUG_LIMIT: Duration = Duration::from_secs(60);
/// How long a guest may take to let go of a disk, and then QEMU.
const UNPLUG_LIMIT: Duration = Duration::from_secs(60);
/// A guest that was busy when it was asked to let go may have missed it.
const ASK_AGAIN: Duration = Duration::from_secs(6);
/// What QEMU says if it was asked before.
const ASKED_BEFORE: &str = "already in the process of unplug";
/// Seconds for which the guest looks for a disk.
const LOOK_SECONDS: u32 = 30;

/// A disk in a guest.
#[derive(Debug)]
#[must_use = "a disk stays plugged until `Guest::unplug` takes this"]
pub struct Plugged {
    /// Its device in the guest: `/dev/vdb`.
    pub device: String,
    /// Its size as the guest sees it.
    pub bytes: u64,
    /// The queues that the guest uses of it.
    pub queues: u16,
    /// Whether the guest knows that it may not write to it. QEMU's nvme does not say so, and lets writes fail.
    pub is_read_only: bool,
    /// How to be rid of it; a cold disk stays.
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    slot: u16,
    device: String,
    backend: Command,
}

/// How a disk is known in the guest.
#[derive(Debug, Clone, Copy)]
enum Mark<'a> {
    Serial(&'a str),
    /// The PCI address of a device on the way to it.
    Address(&'a str),
}

impl Guest {
    /// Plugs a disk and waits until the guest has its device.
    pub fn plug(&mut self, disk: &Plug, watch: Watch<'_>) -> Result<Plugged> {
        let place = format!("guest {}, slot {}", self.spec.name, disk.slot);
        self.check_plug(disk).with_context(|| format!("{place}: plug a disk"))?;
        self.plug_count += 1;
        let serial = format!("ringloom{:08}", self.plug_count);
        let facts = Facts::of(&self.qemu, disk.controller)?;
        let steps = steps(disk, &serial, &facts).with_context(|| place.clone())?;
        self.have_iothreads(disk.iothreads)?;
        self.attach(&steps, watch).with_context(|| place.clone())?;
        self.used_slots.insert(disk.slot);
        let end = End { slot: disk.slot, device: steps.device, backend: steps.end_backend };
        let address = port_address(disk.slot);
        let mark = match disk.controller {
            Controller::VirtioBlk | Controller::VirtioScsi | Controller::Nvme => {
                Mark::Serial(&serial)
            }
            Controller::VhostUserBlk => Mark::Address(&address),
        };
        let found = self.find_disk(mark, watch).and_then(|found| {
            // What QEMU serves it protects itself, though its nvme does not tell the guest.
            let is_safe = matches!(disk.source, Source::Blockdev(_)) || found.is_read_only;
            ensure!(is_safe || !disk.read_only, "{place}: the server lets the guest write");
            Ok(found)
        });
        match found {
            Ok(found) => Ok(Plugged { end: Some(end), ..found }),
            Err(error) => Err(self.undo(&end, error, watch)),
        }
    }

    /// Unplugs a disk: the guest lets go of it, QEMU closes it. An error for a disk that was there from the
    /// beginning.
    pub fn unplug(&mut self, plugged: Plugged, watch: Watch<'_>) -> Result<()> {
        let Plugged { device, end, .. } = plugged;
        let end = end.with_context(|| format!("{device} cannot be unplugged"))?;
        self.detach(&end, watch)
            .with_context(|| format!("guest {}: unplug {device}", self.spec.name))
    }

    /// QEMU's iothreads: name and thread id.
    pub fn iothreads(&mut self) -> Result<Vec<(String, u32)>> {
        let answer = self.monitor.command("query-iothreads", Value::Null)?;
        let entries = answer.as_array().context("query-iothreads answers with a list")?;
        let name = |it: &Value| it["id"].as_str().map(str::to_owned);
        entries.iter().map(|it| Ok((name(it).context("an id")?, thread_id(it)?))).collect()
    }

    /// The thread ids of the guest's processors, in their order; emulated ones share a thread.
    pub fn vcpus(&mut self) -> Result<Vec<u32>> {
        let answer = self.monitor.command("query-cpus-fast", Value::Null)?;
        let entries = answer.as_array().context("query-cpus-fast answers with a list")?;
        entries.iter().map(thread_id).collect()
    }

    pub(crate) fn find_cold_disk(&mut self, watch: Watch<'_>) -> Result<Plugged> {
        self.find_disk(Mark::Address(AHCI_ADDRESS), watch)
    }

    fn check_plug(&self, disk: &Plug) -> Result<()> {
        let slots = self.spec.slots;
        ensure!(disk.slot < slots, "the guest has {slots} slots, counted from 0");
        ensure!(!self.used_slots.contains(&disk.slot), "a disk is there");
        for driver in disk.controller.drivers() {
            let is_there = !self.missing.contains(driver);
            ensure!(is_there, "its kernel has no {driver} for a {}", disk.controller.device());
        }
        if let Source::Socket(path) = &disk.source {
            // QEMU would wait for ever for one to appear, and do nothing else.
            let facts = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?;
            ensure!(facts.file_type().is_socket(), "{} is no socket", path.display());
        }
        Ok(())
    }

    fn have_iothreads(&mut self, count: u16) -> Result<()> {
        while self.iothread_count < count {
            let id = iothread(self.iothread_count);
            self.monitor.command("object-add", json!({"qom-type": "iothread", "id": id}))?;
            self.iothread_count += 1;
        }
        Ok(())
    }

    fn attach(&mut self, steps: &Steps, watch: Watch<'_>) -> Result<()> {
        let (command, arguments) = steps.backend.clone();
        self.monitor.command_within(command, arguments, PLUG_LIMIT, watch)?;
        for (index, device) in steps.devices.iter().enumerate() {
            let added =
                self.monitor.command_within("device_add", device.clone(), PLUG_LIMIT, watch);
            let Err(error) = added else { continue };
            self.check_alive()?;
            if index > 0 {
                self.detach_device(&steps.device, watch)?;
            }
            self.close(&steps.end_backend, watch)?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes away a disk that cannot be used. The error is why it cannot.
    fn undo(&mut self, end: &End, error: anyhow::Error, watch: Watch<'_>) -> anyhow::Error {
        match self.detach(end, watch) {
            Ok(()) => error,
            Err(second) => error.context(format!("its disk stays plugged: {second:#}")),
        }
    }

    fn detach(&mut self, end: &End, watch: Watch<'_>) -> Result<()> {
        self.detach_device(&end.device, watch)?;
        self.close(&end.backend, watch)?;
        self.used_slots.remove(&end.slot);
        Ok(())
    }

    /// Has the guest let go of a device.
    fn detach_device(&mut self, id: &str, watch: Watch<'_>) -> Result<()> {
        let limit = now() + UNPLUG_LIMIT;
        loop {
            let asked =
                self.monitor.command_within("device_del", json!({"id": id}), UNPLUG_LIMIT, watch);
            if let Err(error) = asked {
                let refusal = error.downcast_ref::<Refusal>();
                if !refusal.is_some_and(|it| it.description.contains(ASKED_BEFORE)) {
                    return Err(error);
                }
            }
            let is_it = |data: &Value| data["device"] == id;
            let gone = self.monitor.wait_event("DEVICE_DELETED", is_it, ASK_AGAIN, watch);
            let Err(error) = gone else { return Ok(()) };
            watch()?;
            self.check_alive()?;
            if now() >= limit {
                return Err(self.trouble(format!("it does not let go of {id}: {error:#}")));
            }
        }
    }

    /// Has QEMU close what a disk was made of, as soon as nothing uses it.
    fn close(&mut self, (command, arguments): &Command, watch: Watch<'_>) -> Result<()> {
        let mut refusal = None;
        let limit = now() + UNPLUG_LIMIT;
        while now() < limit {
            let closed =
                self.monitor.command_within(command, arguments.clone(), UNPLUG_LIMIT, watch);
            match closed {
                Ok(_) => return Ok(()),
                Err(error) if error.is::<Refusal>() => refusal = Some(error),
                Err(error) => return Err(error),
            }
            self.monitor.rest()?;
        }
        let refusal = refusal.context("there was no time to ask")?;
        Err(refusal.context(format!("waited {UNPLUG_LIMIT:?}")))
    }

    /// Waits until the guest has the disk with this mark.
    fn find_disk(&mut self, mark: Mark<'_>, watch: Watch<'_>) -> Result<Plugged> {
        let finished = self.run(&search(mark), PLUG_LIMIT, watch)?;
        if finished.status != 0 {
            let text = finished.text();
            return Err(self.trouble(format!("it does not see the disk; it sees:\n{text}")));
        }
        let text = finished.text();
        found(&text).with_context(|| format!("the guest describes a disk as {text:?}"))
    }
}

fn thread_id(entry: &Value) -> Result<u32> {
    let id = entry["thread-id"].as_u64().context("a thread has an id")?;
    u32::try_from(id).context("a thread's id")
}

/// What the guest says of a disk: name, sectors of 512 bytes, whether it is read-only, queues.
fn found(text: &str) -> Result<Plugged> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, sectors, read_only, queues] = words[..] else { bail!("not four words") };
    let sectors: u64 = sectors.parse().context("sectors")?;
    Ok(Plugged {
        device: format!("/dev/{name}"),
        bytes: sectors.checked_mul(512).context("bytes")?,
        queues: queues.parse().context("queues")?,
        is_read_only: read_only != "0",
        end: None,
    })
}

/// The script that waits for a disk. Linux makes the link `bdi` when all else is there. Some kernels
/// have a hidden disk per path to an NVMe namespace, with the queues: `nvme0c0n1` for `nvme0n1`.
fn search(mark: Mark<'_>) -> String {
    let is_it = match mark {
        Mark::Serial(serial) => {
            format!("case $(serial \"$d\") in *{serial}*) ;; *) continue;; esac")
        }
        Mark::Address(address) => {
            format!("case $(readlink -f \"$d\") in */{address}/*) ;; *) continue;; esac")
        }
    };
    format!(
        r#"serial() {{
            cat "$1/serial" 2>/dev/null || cat "$1/device/serial" 2>/dev/null ||
                tr -cd 'a-z0-9' 2>/dev/null < "$1/device/vpd_pg80"
        }}
        look() {{
            for d in /sys/block/*; do
                [ -e "$d/bdi" ] || continue
                {is_it}
                name=${{d##*/}}
                queues=$d/mq
                for path in /sys/block/${{name%n*}}c*n${{name##*n}}; do
                    [ -d "$path/mq" ] && queues=$path/mq
                done
                [ -b "/dev/$name" ] && [ -d "$queues/0" ] || continue
                read -r size < "$d/size" && read -r ro < "$d/ro" && [ "$size" != 0 ] || continue
                set -- "$queues"/*/
                echo "$name $size $ro $#"
                return 0
            done
            return 1
        }}
        now() {{ read -r up rest < /proc/uptime; up=${{up%.*}}; }}
        now; end=$((up + {LOOK_SECONDS}))
        while now; [ "$up" -lt "$end" ]; do
            look 2>/dev/null && exit 0
            usleep 20000
        done
        for d in /sys/block/*; do readlink -f "$d"; ls "$d" "$d/mq"; done
        exit 1
        "#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_of_a_disk_is_read() {
        let disk = found("vda 2048 0 2\n").expect("a disk");
        assert_eq!((disk.device.as_str(), disk.bytes, disk.queues), ("/dev/vda", 1 << 20, 2));
        assert!(!disk.is_read_only);
        assert!(found("nvme0n1 8 1 1").expect("a disk").is_read_only);
        for text in ["", "vda 2048 0", "vda x 0 2", "vda 99999999999999999999 0 1"] {
            found(text).expect_err(text);
        }
    }
}
