//! From results to configurations: what `ringloom report` leaves in `config` is what QEMU, libvirt and KubeVirt take.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::kubevirt;
use testkit::process::Bench;
use testkit::report::skipped;
use testkit::results::{Figures, Format, Outcome, Plan, Point, Results};

use super::{libvirt, objects, run, said, split};

/// Two iothreads are worth twice none, more are not.
fn two_are_best(point: &Point) -> Outcome {
    let iops = match point.iothreads {
        Some(0) => 1e4,
        Some(1) => 1.5e4,
        Some(2) | None => 2e4,
        Some(_) => 1.2e4,
    };
    let noise = 1.0 + f64::from(point.repeat) * 1e-3;
    Outcome::Measured(Figures { iops: iops * noise, median_us: 100.0, cpu_us: 5.0 })
}

/// The directory `config` that the report leaves of results in this format.
fn reported(bench: &Bench, format: Format) -> Result<PathBuf> {
    let subjects = vec!["host", "vm:qemu", "vm:ringloom"];
    let plan = Plan { format, subjects, repeats: 6, ..Plan::usual() };
    let out = bench.path("out");
    Results::of(plan, two_are_best).write(&out)?;
    let output = run(Command::new(env!("CARGO_BIN_EXE_ringloom")).arg("report").arg(&out))?;
    ensure!(output.status.success(), "ringloom report: {}", said(&output));
    Ok(out.join("config"))
}

/// What the user had, with a disk as it is in a domain of libvirt and what comes after that.
const DOMAIN: &str = "<domain type='kvm'>
  <name>web</name>
  <memory unit='MiB'>512</memory>
  <vcpu>4</vcpu> <!-- kept -->
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='native' queues='4'/>
      <source file='/tmp/web.img'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
";

#[test]
fn the_answer_is_a_copy_of_the_domain_that_was_the_baseline() {
    let check = || -> Result<()> {
        let bench = Bench::new()?;
        let plan =
            Plan { format: Format::Four, subjects: vec!["vm:qemu"], repeats: 6, ..Plan::usual() };
        let mut results = Results::of(plan, two_are_best);
        results.header["domain"] = json!({"name": "web", "disk": "vda", "xml": DOMAIN});
        results.header["settings"]["today"] = json!("1");
        let out = bench.path("out");
        results.write(&out)?;
        let output = run(Command::new(env!("CARGO_BIN_EXE_ringloom")).arg("report").arg(&out))?;
        ensure!(output.status.success(), "ringloom report: {}", said(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        for words in [
            "Today: 1 iothread: 75 % of the best",
            "virsh define config/domain.xml",
            "    +  <iothreads>2</iothreads>",
        ] {
            ensure!(text.contains(words), "{words:?} is missing in: {text}");
        }
        let copy = out.join("config/domain.xml");
        let xml = std::fs::read_to_string(&copy)?;
        ensure!(xml.contains("</vcpu>\n  <iothreads>2</iothreads> <!-- kept -->"), "{xml}");
        let Some(reason) = libvirt::missing() else {
            let (taken, said) = libvirt::validated(&copy)?;
            ensure!(taken, "{said}");
            let (taken, said) = libvirt::converted(&bench, &copy)?;
            ensure!(taken && said.contains("iothread-vq-mapping"), "{said}");
            let uri = format!("qemu:///embed?root={}", bench.path("root").display());
            let defined =
                run(Command::new("virsh").args(["--connect", &uri, "define"]).arg(&copy))?;
            ensure!(defined.status.success(), "{}", self::said(&defined));
            return Ok(());
        };
        skipped(&reason);
        Ok(())
    };
    if let Err(error) = check() {
        panic!("{error:#}");
    }
}

/// Newer results say in a field how it was opened, older ones in words.
#[test]
fn a_block_device_is_written_as_one() {
    let check = |format| -> Result<()> {
        let bench = Bench::new()?;
        let config = reported(&bench, format)?;
        for (file, part) in [
            ("qemu-iothreads/qemu.args", r#""driver":"host_device""#),
            ("qemu-iothreads/libvirt.xml", "<disk type='block' device='disk'>"),
            ("ringloom/serve.sh", "driver=host_device,cache.direct=on,"),
        ] {
            let text = std::fs::read_to_string(config.join(file))?;
            ensure!(text.contains(part), "{part} is not in {file}: {text}");
            ensure!(text.contains("/dev/nvme1n1"), "{text}");
        }
        Ok(())
    };
    for format in [Format::Two, Format::Three, Format::Four] {
        if let Err(error) = check(format) {
            panic!("{format:?}: {error:#}");
        }
    }
}

#[test]
fn the_answer_of_a_report_is_written_for_all_targets() {
    let check = || -> Result<()> {
        let bench = Bench::new()?;
        let config = reported(&bench, Format::Four)?;
        for (place, file) in
            [("qemu-iothreads", "qemu.args"), ("ringloom", "qemu.args"), ("ringloom", "serve.sh")]
        {
            let path = config.join(place).join(file);
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            ensure!(text.contains("2 iothreads, as measured on "), "{text}");
        }
        let args = config.join("qemu-iothreads/qemu.args").display().to_string();
        let words = split("grep -v '^#' \"$1\"", &args)?;
        let device = objects(&words, "-device").pop().context("a device")?;
        let threads = device["iothread-vq-mapping"].as_array().map(Vec::len);
        ensure!(threads == Some(2), "{device}");
        let warnings = std::fs::read_to_string(config.join("warnings.txt"))?;
        ensure!(warnings.contains("QEMU 9.0 or newer"), "{warnings}");
        match libvirt::missing() {
            Some(reason) => skipped(&reason),
            None => {
                for place in ["qemu-iothreads", "ringloom"] {
                    let domain = config.join(place).join("libvirt.xml");
                    let (taken, said) = libvirt::validated(&domain)?;
                    ensure!(taken, "{place}: {said}");
                    let (taken, said) = libvirt::converted(&bench, &domain)?;
                    ensure!(taken, "{place}: {said}");
                }
            }
        }
        match kubevirt::missing() {
            Some(reason) => skipped(&reason),
            None => {
                let said = kubevirt::complaints(&[config.join("qemu-iothreads/kubevirt.yaml")])?;
                ensure!(said[0].is_empty(), "{said:?}");
            }
        }
        Ok(())
    };
    if let Err(error) = check() {
        panic!("{error:#}");
    }
}
