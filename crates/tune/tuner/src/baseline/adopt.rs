//! What is measured of a domain: its settings in the place of the defaults of the options. Options of the user win, and a
//! sentence says so.

use std::fmt::Display;

use plan::args::{MeasureArgs, QUEUES_MAX, VCPUS_MAX};
use plan::contender::{IOTHREADS_MAX, Iothreads};
use plan::units::Bytes;
use plan::variant::{Aio, Device, Image};
use records::domain::view::{View, bytes, child, short};
use records::pinning::CpuList;
use storage::machine::Machine;

/// A guest has at most one part of so many of the memory of this host.
const HOST_SHARE: u64 = 4;
/// The least memory of a guest here.
const MEMORY_MIN: u64 = (guest::MEMORY_MIB_MIN as u64) << 20;

/// Fills in what the user left open. Returns what is not as in the domain, sentences without their full stop.
pub(super) fn adopt(view: &View<'_>, args: &mut MeasureArgs, machine: &Machine) -> Vec<String> {
    let mut notes = Vec::new();
    let vcpus = at_most("vCPUs", view.vcpus(), VCPUS_MAX, &mut notes);
    single("--vcpus", &mut args.guest.vcpus, vcpus, &mut notes);
    if view.holder().is_some() || view.is_vhost_user() {
        let queues = at_most("queues", view.queues(), QUEUES_MAX, &mut notes);
        single("--queues", &mut args.guest.queues, queues, &mut notes);
    }
    if let Some(memory) = view.memory() {
        let bytes = memory_here(memory, machine.memory_kib, &mut notes);
        single("--memory", &mut args.guest.memory, bytes, &mut notes);
    }
    devices(view, args, &mut notes);
    image(view, args, &mut notes);
    if !view.is_vhost_user() {
        let aio = match view.driver("io") {
            Some("native") => Aio::Native,
            Some("io_uring") => Aio::IoUring,
            // What QEMU does unless it is told.
            _ => Aio::Threads,
        };
        several("--aio", &mut args.stack.aio, &[aio], &mut notes);
    }
    pins(view, args, &mut notes);
    if let Some(memory) = child(view.root, "memoryBacking")
        && memory.children().any(|it| it.is_element())
    {
        notes.push(
            "<memoryBacking> is not as in the domain: the guests here have plain memory".to_owned(),
        );
    }
    let today = u16::try_from(view.own().len()).unwrap_or(u16::MAX).min(IOTHREADS_MAX);
    args.domain.today = view.holder().is_some().then(|| Iothreads::new(today));
    notes
}

fn single<T: PartialEq + Display>(
    option: &str,
    given: &mut Option<T>,
    own: T,
    notes: &mut Vec<String>,
) {
    match given {
        None => *given = Some(own),
        Some(given) if *given == own => {}
        Some(given) => notes.push(format!("{option} {given} is measured, the domain has {own}")),
    }
}

fn several<T: Clone + PartialEq + Display>(
    option: &str,
    given: &mut Vec<T>,
    own: &[T],
    notes: &mut Vec<String>,
) {
    let list = |all: &[T]| all.iter().map(T::to_string).collect::<Vec<_>>().join(",");
    if given.is_empty() {
        *given = own.to_vec();
    } else if !own.iter().all(|it| given.contains(it)) {
        let (given, own) = (list(given), list(own));
        notes.push(format!("{option} {given} is measured, the domain has {own}"));
    }
}

fn at_most(what: &str, count: usize, most: u16, notes: &mut Vec<String>) -> u16 {
    let measured = u16::try_from(count).unwrap_or(u16::MAX).min(most);
    if count > usize::from(most) {
        notes.push(format!("{most} {what} are measured, the domain has {count}"));
    }
    measured
}

/// Memory that a guest gets here: it bears little on a disk, but must fit beside what runs.
fn memory_here(own: u64, host_kib: u64, notes: &mut Vec<String>) -> Bytes {
    let most = host_kib.saturating_mul(1024) / HOST_SHARE;
    let here = own.clamp(MEMORY_MIN, most.max(MEMORY_MIN)) >> 20 << 20;
    if here != own {
        let (here, own) = (Bytes(here), Bytes(own));
        notes.push(format!("guests are measured with {here} of memory, the domain has {own}"));
    }
    Bytes(here)
}

fn devices(view: &View<'_>, args: &mut MeasureArgs, notes: &mut Vec<String>) {
    match view.device() {
        // Beside it what could have iothreads.
        Some(device @ (Device::Ide | Device::Nvme)) => {
            several("--device", &mut args.stack.device, &[device, Device::VirtioBlk], notes);
        }
        Some(device) => several("--device", &mut args.stack.device, &[device], notes),
        None => notes.push(format!(
            "the bus {} of {} is none that is measured here: virtio-blk is, unless --device says another",
            short(view.bus()),
            short(view.target())
        )),
    }
}

fn image(view: &View<'_>, args: &mut MeasureArgs, notes: &mut Vec<String>) {
    let cache = || {
        let cache = child(child(view.disk, "driver")?, "metadata_cache")?;
        bytes(child(cache, "max_size")?).map(|bytes| format!(":cache={bytes}"))
    };
    let text = match view.driver("type") {
        None | Some("raw") => "raw".to_owned(),
        Some("qcow2") => format!("qcow2{}", cache().unwrap_or_default()),
        Some(other) => {
            let (target, format) = (short(view.target()), short(other));
            notes.push(format!("{target} is a {format} image: raw is measured in its place"));
            return;
        }
    };
    if let Ok(image) = text.parse::<Image>() {
        several("--image", &mut args.stack.image, &[image], notes);
    }
}

/// One CPU for each thread is what the options can say.
fn pins(view: &View<'_>, args: &mut MeasureArgs, notes: &mut Vec<String>) {
    let places = [
        ("vcpupin", "vcpu", "--pin-vcpus", &mut args.guest.pin_vcpus),
        ("iothreadpin", "iothread", "--pin-iothreads", &mut args.guest.pin_iothreads),
    ];
    let here = CpuList::online().and_then(|online| Ok((online, CpuList::allowed(None)?)));
    for (element, attribute, option, given) in places {
        let pins = view.pins(element, attribute);
        if pins.is_empty() {
            continue;
        }
        let cpus = CpuList::new(pins.iter().flat_map(|(_, cpus)| cpus.iter()));
        let is_each = pins.iter().all(|(_, cpus)| cpus.count() == 1)
            && (element != "vcpupin" || pins.len() == view.vcpus());
        let Some(cpus) = cpus.filter(|cpus| is_each && cpus.count() == pins.len()) else {
            notes.push(format!(
                "<{element}> is not as in the domain: {option} gives each thread one CPU of its own"
            ));
            continue;
        };
        let check = here.as_ref().map(|(online, allowed)| cpus.check(online, allowed));
        match check {
            Ok(Ok(())) => single(option, given, cpus.to_string(), notes),
            Ok(Err(error)) => notes.push(format!("<{element}> is not as in the domain: {error}")),
            Err(error) => notes.push(format!("<{element}> is not as in the domain: {error}")),
        }
    }
    let Some(nodes) = view.numa_nodes() else { return };
    match nodes.parse::<u32>() {
        Ok(node) if CpuList::of_node(node).is_ok() => {
            single("--numa-node", &mut args.guest.numa_node, node, notes);
        }
        _ => notes.push(format!(
            "<numatune> (nodeset='{}') is not as in the domain: --numa-node is one node of this host",
            short(nodes)
        )),
    }
}
