//! A domain of libvirt as the baseline: from a file, and from libvirt itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::report::skipped;

use super::{BRIEF, Ran, Rig, with_rig};
use crate::emitted::libvirt;

/// Two vCPUs, one queue, and a disk without an iothread.
const DOMAIN: &str = "<domain type='kvm'>
  <name>web</name>
  <memory unit='MiB'>512</memory>
  <vcpu>2</vcpu>
  <iothreads>1</iothreads>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='io_uring' queues='1' discard='unmap'/>
      <source file='/nonexistent/web.img'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
";

/// What is told of it, in any line.
fn check_told(ran: &Ran, words: &[&str]) -> Result<()> {
    for words in words {
        ensure!(ran.stderr.contains(words), "{words:?} is missing in: {}", ran.stderr);
    }
    Ok(())
}

const TOLD: [&str; 4] = [
    "Note: vda has no iothread, so QEMU's main thread serves it",
    "the domain has 1 iothread, but iothread='1' in the <driver> of disk vda",
    "vda has 1 queue for 2 vCPUs",
    "the figures are of a scratch file in the current directory, not of the storage of vda",
];

#[test]
fn a_domain_in_a_file_is_judged_measured_and_kept() {
    with_rig(|rig| {
        std::fs::write(rig.path("web.xml"), DOMAIN)?;
        let line = format!("{BRIEF} --subject client,host --iothreads none --domain web.xml");
        let ran = rig.run(&format!("{line} --vcpus 3"))?;
        ensure!(ran.status.success(), "{ran:?}");
        check_told(&ran, &TOLD)?;
        check_told(&ran, &["Note: --vcpus 3 is measured, the domain has 2."])?;
        ensure!(rig.report()?.contains("has 1 queue for 2 vCPUs"), "{}", rig.report()?);
        let header = rig.header()?;
        ensure!(header["domain"]["xml"] == DOMAIN && header["domain"]["disk"] == "vda", "{header}");
        let settings = &header["settings"];
        ensure!(settings["variants"][0]["aio"] == "io_uring", "{settings}");
        ensure!(settings["guest"]["queues"] == 1 && settings["guest"]["vcpus"] == 3, "{settings}");
        // What only guests have is nothing to a client.
        let scsi = "bus='scsi'/></disk><controller type='scsi' model='virtio-scsi'/>";
        let pins = "<cputune><iothreadpin iothread='1' cpuset='0'/></cputune><os>";
        let scsi = DOMAIN.replace("bus='virtio'/>\n    </disk>", scsi).replace("<os>", pins);
        std::fs::write(rig.path("scsi.xml"), scsi)?;
        let dry = line.replace("web.xml", "scsi.xml --dry-run --out dry");
        let ran = rig.run(&dry)?;
        ensure!(ran.status.success(), "{ran:?}");
        check_told(&ran, &["<driver> of <controller type='scsi' index='0'>"])?;
        let other = DOMAIN.replace("512", "768");
        std::fs::write(rig.path("web.xml"), other)?;
        let ran = rig.run(&format!("{line} --vcpus 3 --resume"))?;
        ensure!(!ran.status.success() && ran.stderr.contains("memory"), "{ran:?}");
        std::fs::write(rig.path("web.xml"), DOMAIN.replace("<os>", "<os >"))?;
        rig.refuse(
            &format!("{line} --vcpus 3 --resume"),
            &["the XML of the domain web (vda) is another"],
        )
    });
}

#[test]
fn what_is_no_domain_is_refused() {
    with_rig(|rig| {
        let refuse = |name: &str, text: &str, options: &str, words: &str| {
            std::fs::write(rig.path(name), text)?;
            let line = format!("{BRIEF} --dry-run --domain ./{name} {options}");
            rig.refuse(&line, &[&format!("--domain ./{name}"), words])
        };
        rig.refuse(&format!("{BRIEF} --domain no.xml"), &["--domain no.xml", "No such file"])?;
        rig.refuse(&format!("{BRIEF} --domain ./tmp"), &["--domain ./tmp: it is no file"])?;
        refuse("text", "not XML", "", "it is no XML of a domain")?;
        refuse("network", "<network/>", "", "its root is <network>")?;
        refuse("large", &" ".repeat(2 << 20), "", "larger than 512 KiB")?;
        refuse("bytes", "<domain type='kvm'/>", "", "it has no disk")?;
        let two = DOMAIN.replace("</devices>", "<disk><target dev='vdb'/></disk></devices>");
        refuse("two", &two, "", "it has the disks vda, vdb: --disk names one")?;
        refuse("two", &two, "--disk vdc", "--disk vdc: it has vda, vdb")
    });
}

/// Without a service: the driver runs inside virsh, with a directory of its own.
#[test]
fn a_domain_of_libvirt_is_read_by_its_name() {
    if let Some(reason) = libvirt::missing() {
        return skipped(&reason);
    }
    with_rig(|_| {
        let mut rig = Rig::new()?;
        let root = rig.path("root");
        std::fs::create_dir_all(root.join("etc"))?;
        std::fs::write(root.join("etc/qemu.conf"), "user = \"root\"\ngroup = \"root\"\n")?;
        let uri = format!("qemu:///embed?root={}", root.display());
        let file = rig.path("web.xml");
        std::fs::write(&file, DOMAIN)?;
        let output =
            Command::new("virsh").arg("--connect").arg(&uri).arg("define").arg(file).output();
        let output = output.context("run virsh")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        rig.variables.push(("LIBVIRT_DEFAULT_URI", uri));
        let line = format!("{BRIEF} --subject client,host --dry-run --domain");
        let ran = rig.run(&format!("{line} web"))?;
        ensure!(ran.status.success(), "{ran:?}");
        check_told(&ran, &TOLD)?;
        rig.refuse(
            &format!("{line} other"),
            &["--domain other: virsh domstate: failed to get domain 'other'"],
        )
    });
}
