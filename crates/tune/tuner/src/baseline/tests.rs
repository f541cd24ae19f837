//! Domains as `virsh dumpxml` writes them, and what is no domain.

use plan::contender::Iothreads;
use plan::testing::parse as options;
use plan::variant::{Aio, Device};
use records::domain::{Copy, Outcome, view};

use super::*;

/// As `virsh dumpxml` writes them, with a disk and what is said of it before.
fn domain(before: &str, driver: &str, bus: &str) -> String {
    format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>web-1</name>
  <!-- kept -->
  <memory unit='KiB'>524288</memory>
  <vcpu placement='static'>4</vcpu>
{before}  <os>
    <type arch='x86_64' machine='pc-q35-8.2'>hvm</type>
  </os>
  <devices>
    <disk type='file' device='cdrom'>
      <target dev='hda' bus='ide'/>
    </disk>
    <disk type='file' device='disk'>
      {driver}
      <source file='/images/web.img'/>
      <target dev='vda' bus='{bus}'/>
    </disk>
    <controller type='scsi' index='0' model='virtio-scsi'/>
  </devices>
</domain>
"
    )
}

const PLAIN: &str = "<driver name='qemu' type='raw' cache='none' io='native' discard='unmap'/>";
const LISTED: &str = "<driver name='qemu' type='raw' cache='none' io='native' discard='unmap'>
        <iothreads>
          <iothread id='1'/>
          <iothread id='2'/>
        </iothreads>
      </driver>";

fn with_view<T>(xml: &str, of: impl FnOnce(&View<'_>) -> T) -> T {
    let document = parse(xml).unwrap();
    of(&View::new(&document, None).unwrap())
}

fn judged(xml: &str) -> Vec<String> {
    with_view(xml, |view| judge::judged(view, 8))
}

fn baseline(xml: &str) -> Domain {
    Domain { name: "web-1".to_owned(), disk: "vda".to_owned(), xml: xml.to_owned() }
}

/// The copy with so many iothreads.
#[track_caller]
fn copied(xml: &str, iothreads: u16) -> Copy {
    match baseline(xml).answered(Iothreads::new(iothreads)) {
        Outcome::Copy(copy) => copy,
        other @ (Outcome::Same | Outcome::Fixed(_)) => panic!("{other:?}"),
    }
}

/// What the lines of the list say, without their numbers.
#[track_caller]
fn check_listing(xml: &str, iothreads: u16, expected: &[&str]) {
    let copy = copied(xml, iothreads);
    let lines =
        copy.listing.lines().filter(|it| !it.starts_with("@@") && !it.contains("Written by"));
    let lines: Vec<String> = lines.map(|it| format!("{}{}", &it[..1], it[1..].trim())).collect();
    assert_eq!(lines, expected, "{}", copy.xml);
    // Without the lines that changed both are the same.
    let changed: Vec<&str> = copy.listing.lines().filter_map(|it| it.get(1..)).collect();
    let rest = |text: &str| -> String {
        text.lines().filter(|it| !changed.contains(it)).map(|it| format!("{it}\n")).collect()
    };
    assert_eq!(rest(&copy.xml), rest(xml));
}

#[test]
fn only_the_iothreads_of_the_copy_are_others() {
    let own = "  <iothreads>1</iothreads>\n";
    let alone = PLAIN.replace("/>", " iothread='1'/>");
    check_listing(
        &domain("", PLAIN, "virtio"),
        1,
        &[
            "+<iothreads>1</iothreads>",
            "-<driver name='qemu' type='raw' cache='none' io='native' discard='unmap'/>",
            "+<driver name='qemu' type='raw' cache='none' io='native' discard='unmap' iothread='1'/>",
        ],
    );
    check_listing(
        &domain(own, &alone, "virtio"),
        2,
        &[
            "-<iothreads>1</iothreads>",
            "+<iothreads>2</iothreads>",
            "-<driver name='qemu' type='raw' cache='none' io='native' discard='unmap' iothread='1'/>",
            "+<driver name='qemu' type='raw' cache='none' io='native' discard='unmap'>",
            "+<iothreads>",
            "+<iothread id='1'/>",
            "+<iothread id='2'/>",
            "+</iothreads>",
            "+</driver>",
        ],
    );
    check_listing(
        &domain("  <iothreads>2</iothreads>\n", LISTED, "virtio"),
        0,
        &[
            "-<iothreads>2</iothreads>",
            "-<iothreads>",
            "-<iothread id='1'/>",
            "-<iothread id='2'/>",
            "-</iothreads>",
        ],
    );
    check_listing(
        &domain("  <iothreads>2</iothreads>\n", LISTED, "virtio"),
        3,
        &["-<iothreads>2</iothreads>", "+<iothreads>3</iothreads>", "+<iothread id='3'/>"],
    );
    check_listing(
        &domain(own, "", "scsi"),
        1,
        &[
            "-<controller type='scsi' index='0' model='virtio-scsi'/>",
            "+<controller type='scsi' index='0' model='virtio-scsi'>",
            "+<driver iothread='1'/>",
            "+</controller>",
        ],
    );
}

#[test]
fn a_copy_says_who_wrote_it_and_is_the_domain_in_all_else() {
    let text = domain("", PLAIN, "virtio");
    for xml in [
        text.clone(),
        format!("<?xml version='1.0'?>\n{text}"),
        format!("\u{feff}<?xml version='1.0'?>{text}"),
    ] {
        let copy = copied(&xml, 4);
        assert!(copy.xml.contains("<!-- Written by ringloom tune: 4 iothreads for vda -->"));
        assert!(copy.xml.contains("<!-- kept -->"));
        // The same again, and none again.
        assert_eq!(baseline(&copy.xml).answered(Iothreads::new(4)), Outcome::Same);
        assert!(copied(&copy.xml, 0).xml.contains(PLAIN.trim_end_matches("/>")));
    }
    let flat = domain("", PLAIN, "virtio").replace('\n', "");
    assert!(
        copied(&flat, 2)
            .xml
            .contains("<iothreads><iothread id='1'/><iothread id='2'/></iothreads>")
    );
}

#[test]
fn iothreads_of_other_disks_and_their_pins_stay() {
    let pins = "  <iothreads>3</iothreads>
  <cputune>
    <iothreadpin iothread='3' cpuset='2'/>
  </cputune>\n";
    let alone = PLAIN.replace("/>", " iothread='3'/>");
    let second = "<disk type='file'><driver name='qemu' iothread='1'/><target dev='vdb' bus='virtio'/></disk></devices>";
    let xml = domain(pins, &alone, "virtio").replace("</devices>", second);
    let copy = copied(&xml, 2);
    let driver = copy.xml.split("<iothreads>").nth(2).unwrap();
    assert!(driver.contains("id='3'") && driver.contains("id='2'") && !driver.contains("id='1'"));
    assert!(
        copy.notes.iter().any(|it| it.starts_with("Iothreads without a pin: 2;")),
        "{:?}",
        copy.notes
    );
    let copy = copied(&xml, 0);
    assert!(copy.xml.contains("<iothreads>3</iothreads>"), "the pin names one: {}", copy.xml);
    assert!(copy.notes.iter().any(|it| it.ends_with("any more: 2, 3.")), "{:?}", copy.notes);
    let listed = pins.replace(
        "</iothreads>",
        "</iothreads>\n  <iothreadids>\n    <iothread id='7'/>\n  </iothreadids>",
    );
    with_view(&domain(&listed, &alone, "virtio"), |view| {
        assert_eq!(view.ids().into_iter().collect::<Vec<_>>(), [1, 2, 7]);
    });
}

#[test]
fn what_cannot_have_iothreads_is_said() {
    let vhost_user = domain("", PLAIN, "virtio")
        .replace("<disk type='file' device='disk'>", "<disk type='vhostuser' device='disk'>");
    let emulated = domain("", PLAIN, "scsi").replace("virtio-scsi", "lsilogic");
    for (xml, words) in [
        (domain("", PLAIN, "sata"), "the bus sata knows no iothreads"),
        (vhost_user, "those of the program that serves it"),
        (emulated, "no virtio-scsi controller for vda"),
        ("<domain".to_owned(), "no XML of a domain"),
    ] {
        match baseline(&xml).answered(Iothreads::new(2)) {
            Outcome::Fixed(why) => assert!(why.contains(words) && why.ends_with('.'), "{why}"),
            other @ (Outcome::Same | Outcome::Copy(_)) => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_limits_a_disk_is_named_with_its_element() {
    let good =
        domain("  <iothreads>1</iothreads>\n", &PLAIN.replace("/>", " iothread='1'/>"), "virtio");
    assert_eq!(judged(&good), [""; 0]);
    let pins = |vcpu: &str, emulator: &str, iothread: &str| {
        format!(
            "  <iothreads>1</iothreads>\n  <cputune><vcpupin vcpu='0' cpuset='{vcpu}'/>\
             <emulatorpin cpuset='{emulator}'/>{iothread}</cputune>\n"
        )
    };
    let own = "<iothreadpin iothread='1' cpuset='2-3,^2'/>";
    let alone = PLAIN.replace("/>", " iothread='1'/>");
    let with = |text: &str| PLAIN.replace("cache='none' io='native' discard='unmap'", text);
    for (xml, expected) in [
        (domain("", PLAIN, "virtio"), "vda has no iothread"),
        (
            domain("  <iothreads>2</iothreads>\n", PLAIN, "virtio"),
            "the domain has 2 iothreads, but iothread='1' in the <driver>",
        ),
        (domain("", PLAIN, "scsi"), "in the <driver> of <controller type='scsi' index='0'>"),
        (domain("", PLAIN, "sata"), "on the bus sata"),
        (
            good.replace("pc-q35-8.2", "pc-q35-5.1"),
            "vda has 1 queue for 4 vCPUs, the default of machine types before 5.2",
        ),
        (
            good.replace("iothread='1'/>", "iothread='1' queues='2'/>"),
            "vda has 2 queues for 4 vCPUs: ",
        ),
        (domain("", &with("discard='unmap'"), "virtio"), "says no cache="),
        (domain("", &with("cache='unsafe'"), "virtio"), "loses data"),
        (domain("", &with("cache='writethrough' io='native'"), "virtio"), "refuse it otherwise"),
        (domain("", &with("cache='none'"), "virtio"), "--aio threads,native,io_uring"),
        (domain("", &with("cache='none'"), "virtio"), "discard='unmap'"),
        (
            domain(&pins("0", "1", ""), &alone, "virtio"),
            "iothread 1 is not and may run on their CPUs",
        ),
        (
            domain(&pins("3", "1", own), &alone, "virtio"),
            "iothread 1 and a vCPU are pinned to CPU 3",
        ),
        (domain(&pins("0", "3", own), &alone, "virtio"), "(<emulatorpin>) are pinned to CPU 3"),
        (
            domain(&pins("0", "0", ""), PLAIN, "virtio"),
            "QEMU's main thread, which serves vda, may run on CPU 0",
        ),
        (domain("  <iothreads>20</iothreads>\n", &alone, "virtio"), "20 iothreads on 8 cores"),
        (
            good.replace("</disk>\n    <controller", "<iotune/></disk>\n    <controller"),
            "<iotune> limits vda",
        ),
        (good.replace("</domain>", "<qemu:commandline/></domain>"), "<qemu:commandline>"),
    ] {
        let found = judged(&xml);
        let all = found.join("\n");
        assert!(all.contains(expected), "'{expected}' is missing in: {all}");
        assert!(found.iter().all(|it| !it.ends_with('.')), "{all}");
    }
}

#[test]
fn options_are_those_of_the_domain_unless_the_user_gives_others() {
    let adopted = |xml: &str, line: &str| {
        let mut tune = options(&format!("--domain web {line}")).unwrap();
        let notes = with_view(xml, |view| adopt::adopt(view, tune.measure_mut(), &Machine::read()));
        (tune.measure().clone(), notes.join("\n"))
    };
    let xml = domain("", PLAIN, "virtio");
    let (args, notes) = adopted(&xml, "");
    assert_eq!((args.guest.vcpus, args.guest.queues, notes.as_str()), (Some(4), Some(4), ""));
    assert_eq!(args.guest.memory.map(|it| it.0), Some(512 << 20));
    assert_eq!(
        (&args.stack.device[..], &args.stack.aio[..]),
        (&[Device::VirtioBlk][..], &[Aio::Native][..])
    );
    assert_eq!(args.domain.today, Some(Iothreads::NONE));
    let (args, notes) = adopted(&xml, "--vcpus 2 --aio threads --device nvme,virtio-blk");
    assert_eq!(args.guest.vcpus, Some(2));
    assert_eq!(
        notes,
        "--vcpus 2 is measured, the domain has 4\n--aio threads is measured, the domain has native"
    );
    let cache = "<driver name='qemu' type='qcow2'><metadata_cache><max_size unit='MiB'>8</max_size></metadata_cache></driver>";
    let (args, _) = adopted(&domain("", cache, "sata"), "");
    assert_eq!(args.stack.image[0], "qcow2:cache=8M".parse().unwrap());
    assert_eq!(args.stack.device, [Device::Ide, Device::VirtioBlk]);
    assert_eq!((args.stack.aio[0], args.domain.today), (Aio::Threads, None));
    let large = xml
        .replace("524288", "999999999999")
        .replace(">4<", ">400<")
        .replace("<name>", "<numatune><memory nodeset='0-9'/></numatune><name>");
    let (args, notes) = adopted(&large, "");
    assert_eq!(args.guest.vcpus, Some(64));
    for words in [
        "64 vCPUs are measured",
        "256 queues are measured",
        "of memory, the domain has",
        "<numatune> (nodeset='0-9')",
    ] {
        assert!(notes.contains(words), "'{words}' is missing in: {notes}");
    }
    let pins = "  <cputune><vcpupin vcpu='0' cpuset='0'/><vcpupin vcpu='1' cpuset='0-1'/>\
                <iothreadpin iothread='1' cpuset='1023'/></cputune>\n";
    let (args, notes) = adopted(&domain(pins, PLAIN, "virtio"), "");
    assert_eq!((args.guest.pin_vcpus, args.guest.pin_iothreads), (None, None));
    assert!(notes.contains("<vcpupin> is not") && notes.contains("CPU 1023"), "{notes}");
}

#[track_caller]
fn check_refused(xml: &str, disk: Option<&str>, expected: &str) {
    let refusal = parse(xml).and_then(|document| View::new(&document, disk).map(|_| ()));
    let refusal = format!("{:#}", refusal.unwrap_err());
    assert!(refusal.contains(expected), "{refusal}");
}

#[test]
fn what_is_no_domain_is_refused() {
    let xml = domain("", PLAIN, "virtio");
    let two = xml.replace("</devices>", "<disk><target dev='vdb'/></disk></devices>");
    check_refused("", None, "no XML of a domain");
    check_refused("\u{0}<domain/>", None, "no XML of a domain");
    check_refused("<!DOCTYPE d [<!ENTITY a 'b'>]><domain type='kvm'/>", None, "DTD");
    check_refused("<domstatus/>", None, "its root is <domstatus>");
    check_refused("<domain type='xen'/>", None, "a domain of type 'xen'");
    check_refused("<domain type='kvm'/>", None, "it has no disk");
    check_refused(&two, None, "it has the disks vda, vdb: --disk names one");
    check_refused(&two, Some("vdc"), "--disk vdc: it has vda, vdb");
    check_refused(&"<domain>".repeat(XML_MANY), None, "no XML of a domain");
    check_refused(&"x".repeat(view::XML_BYTES_MAX + 1), None, "larger than 512 KiB");
    let deep = format!("{}{}", "<a>".repeat(XML_MANY), "</a>".repeat(XML_MANY));
    let deep = xml.replace("<!-- kept -->", &deep);
    assert!(matches!(baseline(&deep).answered(Iothreads::new(1)), Outcome::Copy(_)));
    let many = xml.replace("<!-- kept -->", "<iothreads>4000000000</iothreads>");
    with_view(&many, |view| assert_eq!(view.ids().len(), 1024));
}

/// Deeper than a stack.
const XML_MANY: usize = 40_000;

#[test]
fn the_disk_of_a_domain_is_only_read_and_only_while_that_does_not_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let check = |line: &str, runs: bool| {
        let tune = options(&format!("--domain web {line}")).unwrap();
        let names = ("web".to_owned(), "vda".to_owned());
        check_path(tune.measure(), &names, Some(file.path()), runs)
            .map_err(|error| error.to_string())
    };
    assert_eq!(check("", true), Ok(()));
    assert_eq!(check(&path.to_string(), false), Ok(()));
    assert_eq!(check("/dev/null --destructive", true), Ok(()));
    let refusal = check(&path.to_string(), true).unwrap_err();
    assert!(refusal.contains("which runs and is not touched: leave PATH out"), "{refusal}");
    let refusal = check(&format!("{path} --destructive"), false).unwrap_err();
    assert!(refusal.contains("leave --destructive out"), "{refusal}");
}
