//! The files as they are written, what a hostile path does to them, and which warnings there are.

use std::path::{Path, PathBuf};

use load::probe::CacheMode;
use plan::variant::Aio;
use records::results::DiskAccess;
use records::testing::header;
use storage::target::{Kind, Origin};

use super::*;

/// A path with everything that some syntax takes for its own.
const HOSTILE: &str = "/d/it's a,b \"<&>\" $(x)--\\.img";

fn wanted(by: Backend, iothreads: u16) -> Wanted {
    Wanted::new(by, Iothreads::new(iothreads), PathBuf::from("/d/a.img"))
}

fn qemu(iothreads: u16) -> Wanted {
    wanted(Backend::QemuIothreads, iothreads)
}

fn ringloom(iothreads: u16) -> Wanted {
    wanted(Backend::Ringloom, iothreads)
}

fn of(device: &str, iothreads: u16) -> Wanted {
    Wanted { device: device.parse().unwrap(), ..qemu(iothreads) }
}

/// The file whose name ends so; what is in it without its comment.
#[track_caller]
fn content(wanted: &Wanted, name: &str) -> String {
    let files = wanted.files();
    let file = files.iter().find(|file| file.name.ends_with(name));
    let text = &file.unwrap_or_else(|| panic!("no {name}")).content;
    assert!(text.contains("Written by ringloom tune "), "{text}");
    assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
    let text = text.split_once(" -->\n").map_or(text.as_str(), |(_, after)| after);
    text.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn check(wanted: &Wanted, name: &str, expected: &str) {
    assert_eq!(content(wanted, name), expected);
}

#[track_caller]
fn check_has(wanted: &Wanted, name: &str, part: &str) {
    let text = content(wanted, name);
    assert!(text.contains(part), "{part} is not in:\n{text}");
}

#[track_caller]
fn check_lacks(wanted: &Wanted, name: &str, part: &str) {
    let text = content(wanted, name);
    assert!(!text.contains(part), "{part} is in:\n{text}");
}

#[test]
fn the_names_are_those_that_are_written() {
    let written: Vec<_> =
        [qemu(1), ringloom(1)].iter().flat_map(Wanted::files).map(|file| file.name).collect();
    assert_eq!(written, NAMES);
}

#[test]
fn qemu_maps_the_queues_to_its_iothreads() {
    let wanted = Wanted { kind: Kind::BlockDevice, aio: Aio::Native, queues: 16, ..qemu(2) };
    check(
        &wanted,
        "qemu.args",
        r#"-object '{"qom-type":"iothread","id":"iothread0"}' \
-object '{"qom-type":"iothread","id":"iothread1"}' \
-blockdev '{"driver":"host_device","node-name":"disk0","aio":"native","cache":{"direct":true},"filename":"/d/a.img"}' \
-device '{"driver":"virtio-blk-pci","id":"vda","drive":"disk0","iothread-vq-mapping":[{"iothread":"iothread0"},{"iothread":"iothread1"}],"num-queues":16,"queue-size":256}'
"#,
    );
}

/// As every QEMU and libvirt that has iothreads takes it.
#[test]
fn a_single_iothread_is_named_and_not_mapped() {
    check_has(&qemu(1), "qemu.args", r#""drive":"disk0","iothread":"iothread0","num-queues":4"#);
    check_has(&of("virtio-scsi", 1), "qemu.args", r#""iothread":"iothread0","num_queues":4"#);
    check_has(&qemu(1), "libvirt.xml", "queues='4' queue_size='256' iothread='1'/>");
    for wanted in [qemu(1), of("virtio-scsi", 1)] {
        check_lacks(&wanted, "qemu.args", "iothread-vq-mapping");
        check_lacks(&wanted, "libvirt.xml", "<iothread ");
        check_has(&wanted, "libvirt.xml", "<iothreads>1</iothreads>");
        let warnings = wanted.warnings().join("\n");
        assert!(!warnings.contains("or newer, libvirt.xml libvirt"), "{warnings}");
    }
}

#[test]
fn an_old_qemu_gets_what_it_takes() {
    let old = |wanted| Wanted { qemu: Some(QemuVersion::new(8, 2)), ..wanted };
    let new = |wanted| Wanted { qemu: Some(QemuVersion::new(10, 0)), ..wanted };
    check_has(&old(ringloom(1)), "qemu.args", "disk.sock,reconnect=1 \\");
    for wanted in [ringloom(1), new(ringloom(1))] {
        check_has(&wanted, "qemu.args", "disk.sock,reconnect-ms=1000 \\");
        check_warned(&wanted, "needs QEMU 9.2 or newer for reconnect-ms");
    }
    check_warned(&old(ringloom(1)), "says reconnect=1 for QEMU 8.2, which was measured");
    let older = "is older than";
    check_warned(&old(qemu(2)), "measured, 8.2, is older than 9.0");
    let nine = Wanted { qemu: Some(QemuVersion::new(9, 1)), ..of("virtio-scsi", 2) };
    check_warned(&nine, "measured, 9.1, is older than 10.0");
    for wanted in [old(qemu(1)), old(qemu(0)), new(qemu(2)), old(ringloom(2)), qemu(2)] {
        let warnings = wanted.warnings().join("\n");
        assert!(!warnings.contains(older), "{warnings}");
    }
    let mut header = header("--subject vm:ringloom");
    header.programs.qemu = Some("8.2.2".to_owned());
    let plain = Variant::default();
    let wanted = Wanted::of(&header, Subject::VmRingloom, &plain, Iothreads::new(2)).unwrap();
    assert_eq!(wanted.qemu, Some(QemuVersion::new(8, 2)));
}

#[test]
fn the_client_is_pinned_nowhere_whatever_guests_beside_it_are() {
    let header =
        header("--subject client,vm:ringloom --pin-iothreads 1 --pin-vcpus 2 --numa-node 0");
    let pins = |subject| {
        let plain = Variant::default();
        let wanted = Wanted::of(&header, subject, &plain, Iothreads::new(2)).unwrap();
        (wanted.pin_iothreads, wanted.pin_vcpus, wanted.numa_node)
    };
    assert_eq!(pins(Subject::Client), (None, None, None));
    assert_eq!(pins(Subject::VmRingloom), ("1".parse().ok(), "2".parse().ok(), Some(0)));
}

#[test]
fn all_names_that_a_guest_may_have_are_told() {
    let numa = Wanted { numa_node: Some(0), ..qemu(2) };
    for (wanted, ids, names) in [
        (qemu(0), "disk0, vda", "target vda"),
        (qemu(1), "iothread0, disk0, vda", "iothread 1, target vda"),
        (numa, "iothread0 to iothread1, disk0, vda, mem0", "iothreads 1 to 2, target vda"),
        (of("virtio-scsi", 0), "disk0, scsi0, sda", "controller scsi 0, target sda"),
        (of("ide", 0), "disk0, sda", "target sda"),
        (ringloom(2), "vda, char-vda, mem0", "target vda"),
        (Wanted { by: Backend::Ringloom, ..of("nvme", 2) }, "vda, char-vda, mem0", "target vda"),
    ] {
        check_warned(&wanted, &format!("(qemu.args: {ids}; libvirt.xml: {names})"));
        let args = content(&wanted, "qemu.args");
        for id in ids.split([',', ' ']).filter(|id| !["", "to"].contains(id)) {
            assert!(args.contains(id), "{id} is not in {args}");
        }
    }
    check_warned(&of("nvme", 0), "(qemu.args: disk0, nvme0)");
}

#[test]
fn libvirt_maps_them_too_and_binds_each_thread_in_turn() {
    let wanted = Wanted {
        kind: Kind::BlockDevice,
        aio: Aio::Native,
        vcpus: 2,
        queues: 16,
        pin_vcpus: "4,6".parse().ok(),
        pin_iothreads: "1".parse().ok(),
        numa_node: Some(1),
        ..qemu(2)
    };
    check(
        &wanted,
        "libvirt.xml",
        "<domain type='kvm'>
  <name>ringloom-tune</name>
  <memory unit='MiB'>4096</memory>
  <vcpu placement='static'>2</vcpu>
  <iothreads>2</iothreads>
  <cputune>
    <vcpupin vcpu='0' cpuset='4'/>
    <vcpupin vcpu='1' cpuset='6'/>
    <iothreadpin iothread='1' cpuset='1'/>
    <iothreadpin iothread='2' cpuset='1'/>
  </cputune>
  <numatune>
    <memory mode='strict' nodeset='1'/>
  </numatune>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <devices>
    <disk type='block' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='native' queues='16' queue_size='256'>
        <iothreads>
          <iothread id='1'/>
          <iothread id='2'/>
        </iothreads>
      </driver>
      <source dev='/d/a.img'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
",
    );
}

#[test]
fn kubevirt_has_a_pool() {
    check(
        &qemu(3),
        "kubevirt.yaml",
        "apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: ringloom-tune
spec:
  runStrategy: Halted
  template:
    spec:
      domain:
        cpu:
          sockets: 4
          cores: 1
          threads: 1
        memory:
          guest: 4096Mi
        ioThreadsPolicy: supplementalPool
        ioThreads:
          supplementalPoolThreadCount: 3
        devices:
          blockMultiQueue: true
          disks:
          - name: data
            disk:
              bus: virtio
            cache: none
            io: native
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: data
",
    );
    let pinned = Wanted { pin_iothreads: "1".parse().ok(), ..qemu(3) };
    check_has(&pinned, "kubevirt.yaml", "\n          dedicatedCpuPlacement: true\n");
    let pinned = Wanted { pin_vcpus: "1".parse().ok(), ..qemu(0) };
    check_has(&pinned, "kubevirt.yaml", "dedicatedCpuPlacement: true");
    let no_thread = Wanted { pin_iothreads: "1".parse().ok(), ..qemu(0) };
    check_lacks(&no_thread, "kubevirt.yaml", "dedicatedCpuPlacement");
    let cached = Wanted { cache: CacheMode::Buffered, aio: Aio::IoUring, ..qemu(3) };
    check_has(&cached, "kubevirt.yaml", "cache: writeback\n            io: threads\n");
    check_has(&of("ide", 0), "kubevirt.yaml", "bus: sata");
    check_lacks(&of("ide", 0), "kubevirt.yaml", "blockMultiQueue");
    check_has(&of("virtio-scsi", 0), "kubevirt.yaml", "bus: scsi");
}

#[test]
fn none_names_no_iothread_anywhere() {
    for file in qemu(0).files() {
        let text = content(&qemu(0), file.name).to_lowercase();
        assert!(!text.contains("iothread"), "{}: {text}", file.name);
    }
    check_lacks(&ringloom(0), "serve.sh", "iothread");
}

#[test]
fn ringloom_serves_what_qemu_and_libvirt_attach() {
    let wanted = ringloom(2);
    check(
        &wanted,
        "serve.sh",
        "#!/bin/sh
exec ringloom serve \\
  --object iothread,id=iothread0 \\
  --object iothread,id=iothread1 \\
  --blockdev driver=file,cache.direct=on,filename=/d/a.img,node-name=disk0 \\
  --export vhost-user-blk,id=vda,node-name=disk0,writable=on,addr.type=unix,\
addr.path=/run/ringloom-disk.sock,num-queues=4,iothread.0=iothread0,iothread.1=iothread1 \\
  \"$@\"
",
    );
    check(
        &wanted,
        "qemu.args",
        r#"-m 4096M \
-object '{"qom-type":"memory-backend-memfd","id":"mem0","share":true,"size":4294967296}' \
-machine q35,memory-backend=mem0 \
-chardev socket,id=char-vda,path=/run/ringloom-disk.sock,reconnect-ms=1000 \
-device '{"driver":"vhost-user-blk-pci","id":"vda","chardev":"char-vda","num-queues":4,"queue-size":256}'
"#,
    );
    check_has(&wanted, "libvirt.xml", "<access mode='shared'/>");
    check_has(
        &wanted,
        "libvirt.xml",
        "    <disk type='vhostuser' device='disk'>
      <driver name='qemu' type='raw' queues='4' queue_size='256'/>
      <source type='unix' path='/run/ringloom-disk.sock'>
        <reconnect enabled='yes' timeout='1'/>
      </source>
      <target dev='vda' bus='virtio'/>
",
    );
    check_has(&ringloom(1), "serve.sh", "num-queues=4,iothread=iothread0 \\");
    let pinned = Wanted { pin_iothreads: "8-9".parse().ok(), ..wanted };
    check_has(&pinned, "serve.sh", "exec taskset -c 8-9 ringloom serve");
    assert!(pinned.files().iter().all(|file| !file.name.ends_with("yaml")));
}

#[test]
fn each_device_is_written_as_it_was_measured() {
    for (device, iothreads, part) in [
        ("virtio-scsi", 2, r#"[{"iothread":"iothread0"},{"iothread":"iothread1"}],"num_queues":4"#),
        ("virtio-scsi", 0, r#"'{"driver":"scsi-hd","id":"sda","bus":"scsi0.0","drive":"disk0"}'"#),
        ("nvme", 0, r#""drive":"disk0","max_ioqpairs":4,"msix_qsize":5"#),
        ("ide", 0, r#"'{"driver":"ide-hd","id":"sda","drive":"disk0"}'"#),
    ] {
        check_has(&of(device, iothreads), "qemu.args", part);
    }
    check_lacks(&of("nvme", 4), "qemu.args", "iothread");
    check_has(
        &of("virtio-scsi", 2),
        "libvirt.xml",
        "    <controller type='scsi' index='0' model='virtio-scsi'>
      <driver queues='4'>
        <iothreads>
          <iothread id='1'/>
          <iothread id='2'/>
        </iothreads>
      </driver>
    </controller>
",
    );
    check_has(&of("virtio-scsi", 1), "libvirt.xml", "<driver queues='4' iothread='1'/>");
    check_has(&of("ide", 0), "libvirt.xml", "<target dev='sda' bus='sata'/>");
}

#[test]
fn images_engines_and_caches_are_written() {
    let image = "qcow2:cache=8M".parse().unwrap();
    let wanted = Wanted { image, cache: CacheMode::Buffered, aio: Aio::IoUring, ..qemu(1) };
    let node = r#""file":{"driver":"file","aio":"io_uring","filename":"/d/a.img"},"l2-cache-size":8388608}"#;
    check_has(&wanted, "qemu.args", node);
    check_lacks(&wanted, "qemu.args", "direct");
    check_has(&wanted, "libvirt.xml", "type='qcow2' cache='writeback' io='io_uring'");
    check_has(&wanted, "libvirt.xml", "<max_size unit='bytes'>8388608</max_size>");
    let wanted = Wanted { by: Backend::Ringloom, ..wanted };
    check_has(&wanted, "serve.sh", "driver=qcow2,file.aio=io_uring,file.driver=file");
}

#[test]
fn hostile_paths_stay_one_word() {
    let disk = PathBuf::from(HOSTILE);
    let socket = PathBuf::from("/s o,'<.sock");
    let own = Wanted { disk: disk.clone(), ..qemu(1) };
    check_has(&own, "qemu.args", r#""filename":"/d/it'\''s a,b \"<&>\" $(x)--\\.img"}' \"#);
    check_has(
        &own,
        "libvirt.xml",
        r"<source file='/d/it&apos;s a,b &quot;&lt;&amp;&gt;&quot; $(x)--\.img'/>",
    );
    let served = Wanted { disk, socket, ..ringloom(1) };
    check_has(&served, "serve.sh", r#"filename=/d/it'\''s a,,b "<&>" $(x)--\.img,node-name"#);
    check_has(&served, "serve.sh", r"addr.path=/s o,,'\''<.sock,num-queues");
    check_has(&served, "qemu.args", r"-chardev 'socket,id=char-vda,path=/s o,,'\''<.sock,recon");
    check_has(&served, "libvirt.xml", "path='/s o,&apos;&lt;.sock'>");
    assert_eq!(own.warnings(), qemu(1).warnings());
}

#[test]
fn comments_hold_whatever_the_disk_is_called() {
    let mut wanted = Wanted { disk: PathBuf::from("/d/a\n-x\n--- -->"), ..qemu(1) };
    wanted.measured.disk = wanted.disk.display().to_string();
    for file in wanted.files() {
        let text = &file.content;
        let outside: Vec<_> = text.lines().filter(|line| line.starts_with("-x")).collect();
        assert!(outside.is_empty(), "{text}");
        if let Some((comment, _)) = text.trim_start_matches("<!--").split_once("-->") {
            assert!(!file.name.ends_with("xml") || !comment.contains("--"), "{text}");
        }
    }
    check_has(&wanted, "qemu.args", r#""filename":"/d/a\n-x\n--- -->""#);
    check_has(&wanted, "libvirt.xml", "<source file='/d/a\u{fffd}-x\u{fffd}--- --&gt;'/>");
    let told = wanted.warnings().iter().any(|warning| warning.contains("rename it"));
    assert!(told, "{:?}", wanted.warnings());
}

#[track_caller]
fn check_warned(wanted: &Wanted, part: &str) {
    let warnings = wanted.warnings();
    let found = warnings.iter().filter(|warning| warning.contains(part)).count();
    assert_eq!(found, 1, "{part} in {warnings:#?}");
}

#[test]
fn what_a_target_needs_forbids_or_ignores_is_told() {
    let direct = |aio| Wanted { aio, ..qemu(2) };
    let qcow2 = |by| Wanted { image: "qcow2:cache=1M".parse().unwrap(), by, ..qemu(2) };
    let list = || "3".parse().ok();
    for (wanted, part) in [
        (qemu(2), "QEMU 9.0 or newer, libvirt.xml libvirt 10.0.0"),
        (of("virtio-scsi", 2), "QEMU 10.0 or newer, libvirt.xml libvirt 11.2.0"),
        (of("virtio-scsi", 1), "no kubevirt.yaml"),
        (of("nvme", 0), "no libvirt.xml"),
        (of("nvme", 0), "no kubevirt.yaml"),
        (of("nvme", 1), "QEMU's nvme knows no iothreads"),
        (of("ide", 1), "QEMU's ide knows no iothreads"),
        (qemu(5), "5 iothreads for 4 queues: 1 of them will idle"),
        (Wanted { queues: 8, ..qemu(0) }, "8 queues for 4 CPUs"),
        (Wanted { queues: 2, ..qemu(0) }, "as the guest has CPUs: 4, not the 2"),
        (qemu(1), "keeps the iothreads that it started with"),
        (qemu(1), "take away an iothread-vq-mapping="),
        (qemu(2), "take away an iothread="),
        (qemu(1), "or let disks share iothreads knowingly"),
        (Wanted { pin_iothreads: list(), ..qemu(1) }, "qemu.args cannot bind iothreads"),
        (Wanted { pin_iothreads: list(), ..qemu(1) }, "KubeVirt chooses the CPUs itself"),
        (Wanted { pin_vcpus: list(), ..qemu(0) }, "KubeVirt chooses the CPUs itself"),
        (Wanted { pin_vcpus: list(), ..qemu(0) }, "cannot bind the guest's CPUs"),
        (Wanted { numa_node: Some(0), ..qemu(0) }, "KubeVirt takes no NUMA node"),
        (qemu(1), "KubeVirt 1.5.0 or newer"),
        (qemu(3), "share the 3 threads; dedicatedIOThread is ignored"),
        (qemu(3), "the pod requests 3 CPUs more"),
        (qemu(3), "before 1.9.0"),
        (qemu(3), "no knob for polling"),
        (direct(Aio::IoUring), "has no io_uring: kubevirt.yaml says io: native"),
        (qcow2(Backend::QemuIothreads), "disks on claims are raw"),
        (qcow2(Backend::QemuIothreads), "bounds both tables"),
        (ringloom(1), "memory must be shared"),
        (ringloom(1), "QEMU 9.2 or newer for reconnect-ms"),
        (ringloom(0), "KubeVirt has no vhost-user disk"),
        (ringloom(5), "5 iothreads for 4 queues"),
        (Wanted { pin_iothreads: list(), ..ringloom(1) }, "serve.sh binds all threads"),
        (Wanted { by: Backend::Ringloom, ..of("nvme", 1) }, "ringloom serves virtio-blk only"),
    ] {
        check_warned(&wanted, part);
    }
    for wanted in [qemu(0), Wanted { pin_iothreads: list(), ..qemu(0) }] {
        let warnings = wanted.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(warnings[0].starts_with("a guest that you have may use"), "{warnings:#?}");
    }
    assert!(!direct(Aio::Native).warnings().join("\n").contains("io_uring"));
}

fn variant(change: impl FnOnce(&mut Variant)) -> Variant {
    let mut variant = Variant::default();
    change(&mut variant);
    variant
}

#[test]
fn the_header_says_what_was_measured() {
    let line =
        "--subject vm:qemu --vcpus 8 --queues 2 --memory 1G --pin-iothreads 1-2 --numa-node 0";
    let mut header = header(line);
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from("/dev/vg0/vm1");
    header.disk.opened = Some(DiskAccess { block_device: true, direct: true });
    let native = variant(|it| it.aio = Aio::Native);
    let count = Iothreads::new(2);
    let files = files(&header, Subject::VmQemu, &native, count);
    let names: Vec<_> = files.iter().map(|file| file.name).collect();
    let parts = ["qemu.args", "libvirt.xml", "kubevirt.yaml"];
    assert_eq!(names, parts.map(|name| format!("qemu-iothreads/{name}")));
    for (file, part) in files.iter().zip([
        r#""filename":"/dev/vg0/vm1"}' \"#,
        "<source dev='/dev/vg0/vm1'/>",
        "guest: 1024Mi",
    ]) {
        let head =
            "Written by ringloom tune 0.1.0: 2 iothreads, as measured on 2023-11-14 by vm:qemu";
        assert!(file.content.contains(head) && file.content.contains(part), "{}", file.content);
    }
    assert!(files[0].content.contains(r#""host_device""#) && files[0].content.contains("-m 1024M"));
    let warnings = warnings(&header, Subject::VmQemu, &native, count);
    assert!(!warnings.join("\n").contains("/path/to/disk"), "{warnings:#?}");
}

#[test]
fn a_client_has_its_own_queues_and_no_guest() {
    let header = header("--subject client,vm:ringloom --jobs 2,7,3 --vcpus 8 --queues 5");
    let plain = Variant::default();
    let guest = "The guest has 8 CPUs, its virtio-blk disk 5 queues.";
    let client = "No guest was measured: the client had 7 queues; 8 CPUs and memory are examples.";
    for (subject, head, queues) in [(Subject::Client, client, 7), (Subject::VmRingloom, guest, 5)] {
        let files = files(&header, subject, &plain, Iothreads::new(2));
        let queues = [
            format!("num-queues={queues}"),
            format!("\"num-queues\":{queues}"),
            format!("queues='{queues}'"),
        ];
        for (file, queues) in files.iter().zip(queues) {
            let text = &file.content;
            assert!(text.contains(head) && text.contains(&queues), "{text}");
        }
    }
}

#[test]
fn what_was_made_for_the_measurement_is_told() {
    let mut header = header("--subject vm:qemu,vm:ringloom,client");
    header.disk.opened = Some(DiskAccess { block_device: false, direct: false });
    let plain = Variant::default();
    for (subject, variant, part) in [
        (Subject::VmQemu, plain, "made in /disks and is gone"),
        (Subject::VmQemu, plain, "which engine --aio auto was"),
        (Subject::Client, plain, "measured without a guest"),
        (Subject::VmQemu, variant(|it| it.vms = 3), "3 guests at once"),
        (Subject::VmRingloom, variant(|it| it.disks = 2), "2 disks that share"),
        (Subject::VmRingloom, variant(|it| it.fs = "xfs".parse().unwrap()), "a fresh xfs"),
        (
            Subject::VmQemu,
            variant(|it| it.stripe = "2x64k".parse().unwrap()),
            "stripe 2x64k and delay 0",
        ),
        (
            Subject::VmQemu,
            variant(|it| {
                it.image = "qcow2:cluster=64k:preallocation=falloc:empty".parse().unwrap()
            }),
            "-f qcow2 -o cluster_size=65536,preallocation=falloc, with nothing allocated",
        ),
    ] {
        let warnings = warnings(&header, subject, &variant, Iothreads::new(1));
        let found = warnings.iter().filter(|warning| warning.contains(part)).count();
        assert_eq!(found, 1, "{part} in {warnings:#?}");
    }
    let written = |subject| files(&header, subject, &plain, Iothreads::new(1));
    let served = written(Subject::Client);
    assert_eq!(served[0].name, "ringloom/serve.sh");
    assert!(served[0].content.contains("filename=/path/to/disk,"), "{}", served[0].content);
    assert!(!served[0].content.contains("direct"));
    assert!(written(Subject::Host).is_empty() && written(Subject::VmGiven).is_empty());
    // Where QEMU was not asked, the kernel tells whether io_uring could be what auto was.
    let args = &written(Subject::VmQemu)[0].content;
    assert!(args.contains(r#""aio":"io_uring""#), "{args}");
    header.environment.kernel.io_uring_disabled = Some(2);
    let args = &files(&header, Subject::VmQemu, &plain, Iothreads::new(1))[0].content;
    assert!(args.contains(r#""aio":"threads""#), "{args}");
    header.programs.qemu_io_uring = Some(true);
    let args = &files(&header, Subject::VmQemu, &plain, Iothreads::new(1))[0].content;
    assert!(args.contains(r#""aio":"io_uring""#), "{args}");
    let warnings = warnings(&header, Subject::VmQemu, &plain, Iothreads::new(1));
    assert!(!warnings.join("\n").contains("which engine"), "{warnings:#?}");
}

#[test]
fn an_image_of_the_user_is_not_said_to_be_made() {
    let mut header = header("--subject vm:qemu");
    let qcow2 = variant(|it| it.image = "qcow2:cache=1M".parse().unwrap());
    for (origin, part, other) in [
        (Origin::Scratch, "with every cluster allocated", "as it was"),
        (Origin::User, "measured on the image as it was", "qemu-img create"),
    ] {
        header.disk.origin = origin;
        let warnings = warnings(&header, Subject::VmQemu, &qcow2, Iothreads::new(1)).join("\n");
        assert!(warnings.contains(part) && !warnings.contains(other), "{warnings}");
    }
}

#[test]
fn how_a_disk_was_opened_is_known_of_old_results_too() {
    use storage::target::Target;
    let directory = tempfile::tempdir().unwrap();
    let path: &Path = &directory.path().join("disk");
    std::fs::File::create(path).unwrap().set_len(8 << 20).unwrap();
    let mut target = Target::open(path, Origin::User, plan::matrix::Writes::Skipped).unwrap();
    for cache in [CacheMode::Direct, CacheMode::Buffered] {
        for (kind, file_system) in [(Kind::File, "ext4"), (Kind::BlockDevice, "block device")] {
            target.cache = cache;
            target.file_system = file_system.to_owned();
            let mut header = header("--subject vm:ringloom");
            header.disk.origin = Origin::User;
            for (opened, description) in
                [(None, target.description()), (Some(DiskAccess::new(kind, cache)), String::new())]
            {
                header.disk.opened = opened;
                header.disk.description = description;
                let plain = Variant::default();
                let wanted =
                    Wanted::of(&header, Subject::VmRingloom, &plain, Iothreads::NONE).unwrap();
                assert_eq!((wanted.kind, wanted.cache), (kind, cache), "{header:?}");
            }
        }
    }
}

#[test]
fn auto_is_asked_of_ringloom_without_iothreads() {
    let auto = Wanted::new(Backend::Ringloom, Iothreads::AUTO, "/d/disk.img".into());
    check_has(&auto, "serve.sh", ",iothread=auto");
    check_lacks(&auto, "serve.sh", "--object");
}
