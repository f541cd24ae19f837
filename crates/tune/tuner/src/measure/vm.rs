//! Runs in guests: disks are plugged, fio runs in all guests at once, disks are unplugged.
//!
//! A run that fails leaves its guests in an unknown state: they are ended, and the next run boots new ones. The phases of a
//! probe share one attached disk.

use anyhow::{Result, ensure};
use guest::{Controller, Guest, Plug, Plugged, Source};
use load::fio::Engine;
use plan::contender::{Iothreads, Subject};
use plan::settings::{GuestEngine, Settings};
use plan::variant::Device;
use records::meter::{Group, GroupName, Role};
use records::results::Run;
use storage::storages::DiskFiles;

use super::fio::{self, GuestPlace, Means, Serving, Station, Work};
use super::{Bench, KeptDisk, Planned};
use crate::daemon::{Crash, Running, Service};
use crate::fleet::Fleet;

/// The disks of one guest while they are plugged.
#[derive(Debug)]
pub(crate) struct Attached {
    plugged: Vec<Plugged>,
    /// The devices in the guest.
    devices: Vec<String>,
    queues: u16,
    /// QEMU's that serve them.
    iothreads: usize,
    /// Of this guest's own, if QEMU does not serve the disks itself.
    daemon: Option<Running>,
}

/// Guests with what stays attached to them between the phases of a probe.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(crate) fleet: Fleet,
    held: Option<KeptDisk<Vec<Attached>>>,
}

impl Guests {
    pub(crate) fn new(fleet: Fleet) -> Self {
        Self { fleet, held: None }
    }

    /// Ends all guests; the next run boots new ones.
    pub(super) fn end(&mut self) {
        self.held = None;
        self.fleet.end_all();
    }

    /// Measures one run in as many guests as the variant says.
    pub(super) fn run(&mut self, bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Run> {
        let result = match planned.run.key.variant.device {
            Device::Ide => self.in_cold_guests(bench, planned),
            Device::VirtioBlk | Device::VirtioScsi | Device::Nvme => {
                self.in_kept_guests(bench, planned)
            }
        };
        if result.is_err() {
            self.end();
        }
        result
    }

    fn in_kept_guests(&mut self, bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Run> {
        let Self { fleet, held } = self;
        let key = &planned.run.key;
        let (emulated, io_uring) = (fleet.is_emulated(), fleet.qemu_has_io_uring());
        let pins = fleet.pins().clone();
        let guests = fleet.take(key.variant.vms, bench.interrupt)?;
        let mut attached = match KeptDisk::take(held, key, &bench.settings.jobs) {
            Some(attached) => attached,
            None => attach_all(bench, planned, guests, io_uring)?,
        };
        let groups = groups(guests, &attached, &pins)?;
        let measured = load(bench, planned, guests, &mut attached, &groups)?;
        let queues = attached.first().map_or(0, |it| it.queues);
        let mut crashes = Vec::new();
        if let Some(attached) = KeptDisk::keep(held, key, attached) {
            for (guest, attached) in guests.iter_mut().zip(attached) {
                crashes.extend(detach(bench, guest, attached)?.map(|crash| crash.to_string()));
            }
        }
        Ok(Run { queues, emulated, crashes, ..measured })
    }

    /// Disks that cannot be plugged come with guests of their own.
    fn in_cold_guests(&mut self, bench: &Bench<'_>, planned: &Planned<'_>) -> Result<Run> {
        let fleet = &mut self.fleet;
        fleet.rest(bench.interrupt)?;
        let mut guests = Vec::new();
        for disk in planned.disks {
            let graph = graph(disk, planned, fleet.qemu_has_io_uring());
            guests.push(fleet.boot_cold(graph, bench.interrupt)?);
        }
        let io_uring = fleet.qemu_has_io_uring();
        let mut attached = attach_all(bench, planned, &mut guests, io_uring)?;
        let groups = groups(&mut guests, &attached, fleet.pins())?;
        let measured = load(bench, planned, &mut guests, &mut attached, &groups)?;
        let queues = attached.first().map_or(0, |it| it.queues);
        for guest in guests {
            guest.stop()?;
        }
        Ok(Run { queues, emulated: fleet.is_emulated(), ..measured })
    }
}

fn attach_all(
    bench: &Bench<'_>,
    planned: &Planned<'_>,
    guests: &mut [Guest],
    io_uring: bool,
) -> Result<Vec<Attached>> {
    let disks = planned.disks.chunks(usize::from(planned.run.key.variant.disks));
    let each = guests.iter_mut().zip(disks);
    each.map(|(guest, disks)| attach(bench, planned, guest, disks, io_uring)).collect()
}

/// Gives a guest its disks.
fn attach(
    bench: &Bench<'_>,
    planned: &Planned<'_>,
    guest: &mut Guest,
    disks: &[DiskFiles],
    io_uring: bool,
) -> Result<Attached> {
    let key = &planned.run.key;
    if let Some(disk) = guest.cold_disk() {
        let (devices, queues) = (vec![disk.device.clone()], disk.queues);
        return Ok(Attached { plugged: Vec::new(), devices, queues, iothreads: 0, daemon: None });
    }
    let iothreads = key.contender.iothreads().unwrap_or(Iothreads::NONE);
    let queues = bench.settings.guest.queues;
    let read_only = !key.cell.writes();
    let is_served = key.contender.subject() == Subject::VmRingloom;
    let daemon = is_served.then(|| serve(bench, planned, disks)).transpose()?;
    let mut plugged = Vec::new();
    for (slot, disk) in (0_u16..).zip(disks) {
        let (controller, source, iothreads) = match &daemon {
            Some(daemon) => {
                let socket = daemon.socket(usize::from(slot)).to_path_buf();
                (Controller::VhostUserBlk, Source::Socket(socket), 0)
            }
            None => {
                let graph = graph(disk, planned, io_uring);
                (controller(key.variant.device), Source::Blockdev(graph), iothreads.count())
            }
        };
        let plug = Plug { controller, source, queues, iothreads, read_only, slot };
        let watch = &mut || Ok(bench.interrupt.check()?);
        plugged.push(guest.plug(&plug, watch)?);
    }
    for (plugged, disk) in plugged.iter().zip(disks) {
        ensure!(
            plugged.bytes == disk.bytes,
            "{} in the guest has {} bytes, the disk {}",
            plugged.device,
            plugged.bytes,
            disk.bytes
        );
    }
    let devices = plugged.iter().map(|it| it.device.clone()).collect();
    // Not more than it has CPUs.
    let queues = plugged.first().map_or(0, |it| it.queues);
    let iothreads = if daemon.is_some() { 0 } else { usize::from(iothreads.count()) };
    Ok(Attached { plugged, devices, queues, iothreads, daemon })
}

fn controller(device: Device) -> Controller {
    match device {
        // An IDE disk is there from the boot.
        Device::VirtioBlk | Device::Ide => Controller::VirtioBlk,
        Device::VirtioScsi => Controller::VirtioScsi,
        Device::Nvme => Controller::Nvme,
    }
}

fn graph(disk: &DiskFiles, planned: &Planned<'_>, io_uring: bool) -> serde_json::Value {
    let key = &planned.run.key;
    let aio = disk.qemu_aio(key.variant.aio, io_uring);
    // QEMU gives no IDE disk a node that is read-only; the matrix has none where nothing may be written.
    let read_only = !key.cell.writes() && key.variant.device != Device::Ide;
    disk.qemu_blockdev(aio, read_only)
}

/// A daemon for the disks of one guest. It has its sockets before QEMU looks for them.
fn serve(bench: &Bench<'_>, planned: &Planned<'_>, disks: &[DiskFiles]) -> Result<Running> {
    let key = &planned.run.key;
    let service = Service {
        disks,
        aio: key.variant.aio,
        iothreads: key.contender.iothreads().unwrap_or(Iothreads::NONE),
        queues: bench.settings.guest.queues,
        writable: key.cell.writes(),
    };
    let mut daemon = Running::start(&bench.daemon, &service, &bench.daemon_log())?;
    daemon.wait_for_sockets(&mut || Ok(bench.interrupt.check()?))?;
    Ok(daemon)
}

/// The processes to measure; their threads are put on their CPUs.
fn groups(
    guests: &mut [Guest],
    attached: &[Attached],
    pins: &crate::fleet::Pins,
) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let (mut all_vcpus, mut all_iothreads) = (Vec::new(), Vec::new());
    for (guest, attached) in guests.iter_mut().zip(attached) {
        let mut vcpus = guest.vcpus()?;
        // Emulated ones share a thread.
        vcpus.dedup();
        let iothreads: Vec<u32> = guest.iothreads()?.into_iter().map(|(_, tid)| tid).collect();
        // QEMU keeps those of earlier runs.
        let used = attached.iothreads.min(iothreads.len());
        let roles = vcpus.iter().map(|&tid| (tid, Role::Vcpu));
        let roles = roles.chain(iothreads.iter().map(|&tid| (tid, Role::Iothread)));
        groups.push(Group::new(GroupName::Qemu, guest.pid()).with_roles(roles));
        all_vcpus.extend(vcpus);
        all_iothreads.extend(&iothreads[..used]);
        if let Some(daemon) = &attached.daemon {
            groups.push(Group::new(GroupName::Daemon, daemon.pid()));
            all_iothreads.extend(iothreads_of(daemon.pid()));
        }
    }
    pins.apply(&all_vcpus, &all_iothreads)?;
    Ok(groups)
}

/// The engine of the user's choice.
pub(crate) fn engine(settings: &Settings) -> Engine {
    match settings.engine {
        GuestEngine::IoUring => Engine::IoUring,
        GuestEngine::Libaio => Engine::Libaio,
        GuestEngine::Psync => Engine::Psync,
    }
}

fn load(
    bench: &Bench<'_>,
    planned: &Planned<'_>,
    guests: &mut [Guest],
    attached: &mut [Attached],
    groups: &[Group],
) -> Result<Run> {
    let means = Means::new(bench, planned, engine(bench.settings))?;
    let work = Work::new(bench.settings, planned, means, attached.len())?;
    let place = |guest| GuestPlace::new(guest, bench.interrupt);
    let mut places: Vec<GuestPlace<'_>> = guests.iter_mut().map(place).collect();
    let each = (1..).zip(places.iter_mut().zip(&*attached));
    let mut stations: Vec<Station<'_>> = each
        .map(|(vm, (place, attached))| Station {
            place,
            files: attached.devices.clone(),
            job_name: format!("{}-vm{vm}", planned.slug()),
        })
        .collect();
    let mut check = || {
        let mut daemons = attached.iter_mut().filter_map(|it| it.daemon.as_mut());
        daemons.try_for_each(Running::check_alive)
    };
    let serving = Serving { groups, check: &mut check };
    fio::run(bench.surroundings(), planned, &work, &mut stations, serving)
}

/// By the names that the daemon gives its threads.
fn iothreads_of(pid: u32) -> Vec<u32> {
    let threads = records::meter::threads_by_role(pid);
    threads.into_iter().filter(|(_, role)| *role == Role::Iothread).map(|(tid, _)| tid).collect()
}

fn detach(bench: &Bench<'_>, guest: &mut Guest, attached: Attached) -> Result<Option<Crash>> {
    for plugged in attached.plugged {
        guest.unplug(plugged, &mut || Ok(bench.interrupt.check()?))?;
    }
    match attached.daemon {
        Some(daemon) => daemon.stop(),
        None => Ok(None),
    }
}
