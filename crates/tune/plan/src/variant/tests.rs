//! Which variants there are and whom they fit.

use super::*;
use crate::contender::Iothreads;
use crate::testing::{cell, client};

const DEFAULT: &str = r#"{"device":"virtio-blk","image":"raw","aio":"auto","fs":"here","stripe":"none","delay":"0","vms":1,"disks":1}"#;

fn ringloom_layers() -> Layers {
    Layers::Ringloom { reason: "this kernel has no device-mapper".to_owned() }
}

/// The variant of options written as the fields of a stored one.
fn variant(changes: &[(&str, &str)]) -> Variant {
    let mut stored: serde_json::Value = serde_json::from_str(DEFAULT).unwrap();
    for (field, text) in changes {
        stored[*field] = match text.parse::<u16>() {
            Ok(number) if matches!(*field, "vms" | "disks") => number.into(),
            Ok(_) | Err(_) => (*text).into(),
        };
    }
    serde_json::from_value(stored).unwrap()
}

#[test]
fn the_stored_form_is_flat_and_complete() {
    assert_eq!(serde_json::to_string(&Variant::default()).unwrap(), DEFAULT);
    assert_eq!(serde_json::from_str::<Variant>(DEFAULT).unwrap(), Variant::default());
    for wrong in [
        DEFAULT.replace(r#""disks":1"#, r#""disks":17"#),
        DEFAULT.replace(r#""vms":1"#, r#""vms":0"#),
        DEFAULT.replace(r#""vms":1"#, r#""vms":129"#),
        DEFAULT.replace(r#","disks":1"#, ""),
        DEFAULT.replace("none", "1x64k"),
    ] {
        assert!(serde_json::from_str::<Variant>(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn only_what_differs_is_printed() {
    for (changes, printed) in [
        (&[][..], ""),
        (
            &[("device", "nvme"), ("image", "qcow2:cluster=2M"), ("vms", "2")],
            "nvme, qcow2 cluster=2M, 2 VMs",
        ),
        (&[("aio", "threads"), ("fs", "xfs")], "aio=threads, xfs"),
        (
            &[("stripe", "8x64k"), ("delay", "500us"), ("disks", "3")],
            "stripe 8x64k, delay 500us, 3 disks",
        ),
    ] {
        assert_eq!(variant(changes).to_string(), printed);
    }
}

#[track_caller]
fn check_fits(changes: &[(&str, &str)], layers: &Layers, expected: [Result<(), &str>; 4]) {
    use Subject::{Client, Host, VmQemu, VmRingloom};
    let variant = variant(changes);
    for (subject, expected) in [Host, Client, VmQemu, VmRingloom].into_iter().zip(expected) {
        let found = variant.fits(subject, 1, layers);
        match (&found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(reason), Err(part)) if reason.contains(part) => {}
            _ => panic!("{variant}, {subject:?}: {found:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn each_subject_has_its_variants() {
    let (kernel, own) = (Layers::Kernel, ringloom_layers());
    let check = |changes: &[_], expected| {
        check_fits(changes, &kernel, expected);
        check_fits(changes, &own, expected);
    };
    check(&[], [Ok(()); 4]);
    check(
        &[("device", "virtio-scsi")],
        [Err("row with virtio-blk"), Err("virtio-blk only"), Ok(()), Err("virtio-blk only")],
    );
    for device in ["nvme", "ide"] {
        check(
            &[("device", device)],
            [
                Err("virtio-blk"),
                Err("virtio-blk"),
                Err("knows no iothreads"),
                Err("virtio-blk only"),
            ],
        );
    }
    check(&[("image", "qcow2")], [Err("reads no qcow2"), Ok(()), Ok(()), Ok(())]);
    check(&[("vms", "2")], [Ok(()), Err("drives one disk"), Ok(()), Ok(())]);
    check(&[("disks", "2")], [Ok(()), Err("drives one disk"), Ok(()), Ok(())]);
    check(&[("fs", "xfs"), ("aio", "native")], [Ok(()); 4]);
}

#[test]
fn layers_of_ringloom_reach_only_those_it_serves() {
    for layered in [("stripe", "2x64k"), ("delay", "2ms")] {
        check_fits(&[layered], &Layers::Kernel, [Ok(()); 4]);
        let refused = Err("has no device-mapper");
        check_fits(&[layered], &ringloom_layers(), [refused, Ok(()), refused, Ok(())]);
    }
}

#[test]
fn ide_and_nvme_are_measured_without_iothreads() {
    let fits = |changes: &[_]| variant(changes).fits(Subject::VmQemu, 0, &Layers::Kernel);
    assert_eq!(fits(&[("device", "nvme"), ("disks", "4")]), Ok(()));
    assert_eq!(fits(&[("device", "ide"), ("vms", "2")]), Ok(()));
    assert!(fits(&[("device", "ide"), ("disks", "2")]).unwrap_err().contains("hot-plugged"));
}

#[test]
fn blocking_calls_of_the_host_have_one_request_in_flight() {
    let threads = variant(&[("aio", "threads")]);
    assert!(threads.fits_iodepth(Subject::Host, 2).unwrap_err().contains("iodepth 1"));
    assert_eq!(threads.fits_iodepth(Subject::Host, 1), Ok(()));
    assert_eq!(threads.fits_iodepth(Subject::VmQemu, 16), Ok(()));
    assert_eq!(Variant::default().fits_iodepth(Subject::Host, 16), Ok(()));
}

#[test]
fn busy_threads_are_jobs_and_servers() {
    let cell = cell("randread", 4096, 2, 1);
    let (one, several) = (Variant::default(), Variant { vms: 2, disks: 3, ..Variant::default() });
    let vm = Contender::new(Subject::VmQemu, Iothreads::new(2));
    for (variant, contender, busy) in [
        (one, Contender::HOST, 2),
        (one, client(0), 3),
        (one, client(1), 3),
        (one, client(4), 6),
        (one, vm, 4),
        (several, vm, 12),
        (several, Contender::HOST, 12),
        (one, Contender::VM_GIVEN, 0),
    ] {
        assert_eq!(variant.busy_threads(contender, &cell, 4), busy, "{contender}");
    }
}

#[test]
fn a_claim_and_a_placement_are_named_and_absent_elsewhere() {
    let claim = Some("ceph".parse().unwrap());
    let packed = Variant { claim, placement: Placement::Packed, vms: 2, ..Variant::default() };
    assert_eq!(packed.to_string(), "ceph, 2 at once, packed");
    let json = serde_json::to_string(&packed).unwrap();
    assert!(json.ends_with(r#","claim":"ceph","placement":"packed"}"#), "{json}");
    assert_eq!(serde_json::from_str::<Variant>(&json).unwrap(), packed);
    let usual = serde_json::to_string(&Variant::default()).unwrap();
    assert!(!usual.contains("claim") && !usual.contains("placement"), "{usual}");
    assert_eq!(serde_json::from_str::<Variant>(&usual).unwrap(), Variant::default());
}
