//! What in a domain limits the I/O of one of its disks or is unwise for it: a sentence each, with the element to change. Pure.
//!
//! Only what the XML shows and an administrator can act on. The documentation of libvirt (formatdomain) and QEMU's source
//! are behind each of them.

use plan::units::counted;

use super::view::{View, child, short};
use crate::pinning::CpuList;

/// Sentences without their full stop. `cores` are those of this host.
pub fn judged(view: &View<'_>, cores: usize) -> Vec<String> {
    let mut found = Vec::new();
    if view.is_vhost_user() {
        found.push(format!(
            "{} is a vhost-user disk: the program behind its socket serves it, so QEMU's iothreads do not matter for it",
            short(view.target())
        ));
    } else if view.holder().is_none() {
        found.push(format!(
            "{} is on the bus {}, as which it can have no iothread: with <target bus='virtio'/> it could, if the guest has \
             drivers for that",
            short(view.target()),
            short(view.bus())
        ));
    }
    found.extend(threads(view));
    found.extend(counts(view, cores));
    found.extend(queues(view));
    found.extend(cache(view));
    found.extend(engine(view));
    found.extend(pins(view));
    found.extend(others(view));
    found
}

/// Which iothreads serve the disk.
fn threads(view: &View<'_>) -> Vec<String> {
    if view.holder().is_none() {
        return Vec::new();
    }
    let (target, place, own) = (short(view.target()), view.place(), view.own());
    if own.is_empty() {
        let there = match view.ids().len() {
            0 => "<iothreads>1</iothreads> in the domain and ".to_owned(),
            count => format!("the domain has {}, but ", counted(count, "iothread")),
        };
        return vec![format!(
            "{target} has no iothread, so QEMU's main thread serves it beside all else: {there}iothread='1' in {place} \
             gives it one"
        )];
    }
    let others = view.others();
    let shared = others.iter().filter(|(id, _)| own.contains(id));
    let mut found: Vec<String> = shared
        .map(|(id, name)| {
            format!("iothread {id} of {target} serves {name} too: each can have its own")
        })
        .collect();
    if child(view.disk, "driver").and_then(|it| it.attribute("ioeventfd")) == Some("off") {
        found.push(format!(
            "{target} has ioeventfd='off', which QEMU refuses together with iothreads"
        ));
    }
    let beside = view.beside();
    if !beside.is_empty() {
        let names: Vec<String> = beside.into_iter().map(short).collect();
        found.push(format!(
            "the controller of {target} serves {} too: one controller per disk lets each have iothreads of its own",
            names.join(", ")
        ));
    }
    found
}

/// More iothreads than can be of use: there is a queue for each vCPU at most, unless more are asked for.
fn counts(view: &View<'_>, cores: usize) -> Vec<String> {
    let (all, own) = (view.ids().len(), view.own().len());
    let mut found = Vec::new();
    let (queues, vcpus) = (counted(view.queues(), "queue"), counted(view.vcpus(), "vCPU"));
    if own > view.queues() {
        found.push(format!("{own} iothreads for {queues}: those without one have nothing to do"));
    } else if own > view.vcpus() {
        found.push(format!("{own} iothreads for {vcpus}, each of which uses one queue"));
    }
    if all > 2 * cores {
        found.push(format!(
            "the domain has {all} iothreads on {}: libvirt advises one or two for each (<iothreads>)",
            counted(cores, "core")
        ));
    }
    found
}

fn queues(view: &View<'_>) -> Option<String> {
    let has_queues = view.holder().is_some() || view.is_vhost_user();
    let few = has_queues && view.queues() < view.vcpus();
    let because = match view.queues_said() {
        None => ", the default of machine types before 5.2",
        Some(_) => "",
    };
    few.then(|| {
        format!(
            "{} has {} for {}{because}: vCPUs have to share them (queues='{}' in {})",
            short(view.target()),
            counted(view.queues(), "queue"),
            counted(view.vcpus(), "vCPU"),
            view.vcpus(),
            view.place()
        )
    })
}

/// How requests reach the storage.
fn cache(view: &View<'_>) -> Option<String> {
    if view.is_vhost_user() {
        return None;
    }
    let target = short(view.target());
    let through = "takes requests through the page cache of the host, which is not measured (all is past it, as with cache='none')";
    match view.driver("cache") {
        None | Some("default") => {
            Some(format!("{target} says no cache=, so QEMU's default (writeback) {through}"))
        }
        Some("none") => None,
        Some("directsync") => Some(format!(
            "cache='directsync' of {target} makes every write wait until it is stable; cache='none' leaves that to the \
             flushes of the guest, and is what is measured"
        )),
        Some("unsafe") => Some(format!(
            "cache='unsafe' of {target} ignores the flushes of the guest: a crash of the host loses data; it {through}"
        )),
        Some("writethrough") => {
            Some(format!("cache='writethrough' of {target} flushes after each write; it {through}"))
        }
        Some(other) => Some(format!("cache='{}' of {target} {through}", short(other))),
    }
}

/// How QEMU hands requests to the kernel.
fn engine(view: &View<'_>) -> Option<String> {
    if view.is_vhost_user() {
        return None;
    }
    let target = short(view.target());
    let direct = matches!(view.driver("cache"), Some("none" | "directsync"));
    match view.driver("io") {
        Some("native") if !direct => Some(format!(
            "io='native' of {target} needs cache='none' or cache='directsync': libvirt and QEMU refuse it otherwise"
        )),
        Some("native" | "io_uring") => None,
        said => {
            let why = if said.is_some() { "io='threads'" } else { "without io=" };
            Some(format!(
                "{target}: {why} a pool of threads in QEMU does the I/O; whether io='native' (with cache='none') or \
                 io='io_uring' is better, --aio threads,native,io_uring measures"
            ))
        }
    }
}

/// Threads that get into each other's way.
fn pins(view: &View<'_>) -> Vec<String> {
    let together = |pins: &[(u32, CpuList)]| -> Vec<u16> {
        pins.iter().flat_map(|(_, cpus)| cpus.iter()).collect()
    };
    let vcpus = together(&view.pins("vcpupin", "vcpu"));
    let emulator = view.pins("emulatorpin", "emulator");
    let iothreads = view.pins("iothreadpin", "iothread");
    let clash = |cpus: &CpuList, others: &[u16]| cpus.iter().find(|cpu| others.contains(cpu));
    let own = view.own();
    let mut found = Vec::new();
    if own.is_empty() {
        let shared = emulator.first().and_then(|(_, cpus)| clash(cpus, &vcpus));
        let serves = view.holder().is_some();
        found.extend(shared.filter(|_| serves).map(|cpu| {
            format!(
                "QEMU's main thread, which serves {}, may run on CPU {cpu}, to which a vCPU is pinned (<emulatorpin>)",
                short(view.target())
            )
        }));
    }
    for id in own {
        let Some((_, cpus)) = iothreads.iter().find(|(of, _)| *of == id) else {
            if !vcpus.is_empty() {
                found.push(format!(
                    "vCPUs are pinned, iothread {id} is not and may run on their CPUs: \
                     <iothreadpin iothread='{id}' cpuset='…'/> in <cputune> keeps it apart"
                ));
            }
            continue;
        };
        let rivals =
            [("a vCPU", &vcpus), ("QEMU's main thread (<emulatorpin>)", &together(&emulator))];
        found.extend(rivals.into_iter().filter_map(|(rival, theirs)| {
            let cpu = clash(cpus, theirs)?;
            Some(format!(
                "iothread {id} and {rival} are pinned to CPU {cpu}: <iothreadpin iothread='{id}'> with another one keeps \
                 them apart"
            ))
        }));
    }
    found
}

/// What bounds the disk besides, or is not read here.
fn others(view: &View<'_>) -> Vec<String> {
    let target = short(view.target());
    let mut found = Vec::new();
    if child(view.disk, "iotune").is_some() {
        found.push(format!(
            "<iotune> limits {target}, whatever serves it; the guests that are measured have no such limit"
        ));
    }
    if child(view.disk, "encryption").is_some()
        || child(view.disk, "source").is_some_and(|it| child(it, "encryption").is_some())
    {
        found.push(format!("{target} is encrypted by QEMU, which takes CPU that is not measured"));
    }
    if view.has_command_line() {
        found.push(
            "<qemu:commandline> gives QEMU options that are neither read nor changed here"
                .to_owned(),
        );
    }
    let is_of_qemu = !view.is_vhost_user() && child(view.disk, "readonly").is_none();
    if is_of_qemu && !matches!(view.driver("discard"), Some("unmap")) {
        found.push(format!(
            "{target} has no discard='unmap' in its <driver>: what the guest trims stays allocated"
        ));
    }
    found
}
