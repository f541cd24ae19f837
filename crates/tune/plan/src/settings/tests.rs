//! Defaults, what is refused, and what forbids to go on with older results.

use super::*;
use crate::args::defaults::{DOUBLED, SEARCHED};
use crate::testing::{help, parse, settings};

#[test]
fn defaults_are_bounded_by_the_cores() {
    for (cores, jobs, iothreads) in [
        (1, 2, "none,1"),
        (2, 2, "none,1,2,auto"),
        (3, 3, "none,1,2,3,auto"),
        (4, 4, "none,1,2,3,4,auto"),
        (64, 4, "none,1,2,3,4,auto"),
    ] {
        let settings = settings("", cores);
        let counts: Vec<_> = settings.iothreads.iter().map(ToString::to_string).collect();
        assert_eq!((settings.jobs, counts.join(",").as_str()), (vec![jobs], iothreads));
    }
}

#[test]
fn a_plain_number_of_repeats_compares_doubled_numbers() {
    let settings = settings("--repeats 2 --jobs 16", 16);
    let counts: Vec<_> = settings.iothreads.iter().map(ToString::to_string).collect();
    assert_eq!(
        (counts.join(",").as_str(), settings.search),
        ("none,1,2,4,8,16,auto", Thoroughness::Listed)
    );
}

#[test]
fn full_is_the_published_matrix() {
    let settings = settings("--full --subject host,vm:qemu --queues 16", 2);
    let cells =
        settings.op.len() * settings.bs.len() * settings.jobs.len() * settings.iodepth.len();
    assert_eq!((cells, settings.iothreads.len(), settings.search), (144, 9, Thoroughness::Full));
    assert_eq!(settings.bs, [2048, 4096, 32_768, 1 << 20]);
}

#[test]
fn repeats_and_the_time_fit_what_is_asked() {
    let check = |line: &str| settings(line, 2).check().map_err(|error| error.to_string());
    assert!(check("--budget 10m").is_ok() && check("curve --subject host").is_ok());
    assert!(check("--budget 10m --repeats 3").unwrap_err().contains("--repeats 3-12"));
    assert!(check("--weights randread=1,randwrite:64k=2").is_ok());
    for line in ["curve --subject host", "probe --subject host"] {
        for asked in ["--weights randread=1", "--want latency", "--budget 10m", "--full"] {
            assert!(parse(&format!("{line} {asked}")).is_err(), "{line} {asked}");
        }
    }
    let error = check("curve --subject host --repeats 3-5").unwrap_err();
    assert!(error.contains("plain number"), "{error}");
}

#[test]
fn what_is_of_guests_needs_one() {
    let check = |line: &str| settings(line, 2).check().map_err(|error| error.to_string());
    for (option, expected) in [
        ("--pin-iothreads 0", "--pin-iothreads pins those of guests: add --subject vm:qemu"),
        ("--pin-vcpus 0", "--pin-vcpus pins those of guests: add --subject vm:qemu"),
        ("--numa-node 0", "--numa-node is for the memory of guests: add --subject vm:qemu"),
    ] {
        for subject in ["client,host", "host", "vm:given --guest ssh://a/dev/vdb"] {
            let error = check(&format!("{option} --subject {subject}")).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        check(&format!("{option} --subject client,vm:ringloom")).unwrap();
    }
}

#[test]
fn a_guest_has_memory_enough_to_boot() {
    let check = |line: &str| settings(line, 2).check().map_err(|error| error.to_string());
    let error = check("--subject vm:qemu --memory 383M").unwrap_err();
    assert_eq!(error, "--memory: a guest with 383M does not boot: 384M or more");
    check("--subject vm:qemu --memory 384M").unwrap();
    check("--memory 1M").unwrap();
}

#[test]
fn blocking_calls_have_an_iodepth_of_1() {
    for subject in ["host --load fio", "client", "vm:qemu"] {
        let check = |iodepth: &str| {
            let line = format!("--engine psync --subject {subject} --iodepth {iodepth}");
            settings(&line, 2).check()
        };
        check("1").unwrap();
        let error = check("1,2").unwrap_err().to_string();
        assert!(error.starts_with("--engine psync: ") && error.contains("--iodepth 1"), "{error}");
    }
}

#[test]
fn guests_have_a_queue_per_cpu_and_iothreads_up_to_the_queues() {
    let settings = settings("--subject host,vm:qemu --jobs 1", 64);
    assert_eq!((settings.guest.vcpus, settings.guest.queues), (16, 16));
    let counts: Vec<_> = settings.iothreads.iter().map(|n| n.count()).collect();
    assert_eq!(counts, [0, 1, 2, 3, 4, 6, 8, 12, 16]);
}

#[test]
fn the_host_has_the_load_of_what_it_is_compared_with() {
    for (line, load, runtime) in [
        ("", LoadKind::Own, 1.0),
        ("--subject host", LoadKind::Fio, 5.0),
        ("--subject host,vm:qemu", LoadKind::Fio, 5.0),
        ("--subject host,client,vm:ringloom", LoadKind::Fio, 5.0),
        ("--subject host --load own --runtime 2", LoadKind::Own, 2.0),
    ] {
        let settings = settings(line, 2);
        assert_eq!((settings.load, settings.runtime), (load, Seconds::new(runtime)), "{line}");
    }
}

#[test]
fn the_default_numbers_of_iothreads_are_those_that_the_help_tells() {
    let names = |counts: &[u16]| {
        let names = counts.iter().map(|count| Iothreads::new(*count).to_string());
        names.collect::<Vec<_>>().join(",")
    };
    for (line, counts, when) in [
        ("", &SEARCHED[..], "up to cores, jobs and queues"),
        ("--repeats 3", &DOUBLED, "with a plain --repeats N"),
        ("probe", &[0], "with probe and curve"),
        ("curve", &[0], "with probe and curve"),
    ] {
        let told = format!(" {} {when}", names(counts));
        assert!(help("iothreads").contains(&told), "{told}");
        let taken = settings(&format!("{line} --jobs 16"), 16).iothreads;
        let mut counts: Vec<_> = counts.iter().copied().map(Iothreads::new).collect();
        counts.extend((counts.len() > 1).then_some(Iothreads::AUTO));
        assert_eq!(taken, counts, "{line}");
    }
    for line in ["--subject vm:qemu,host", "--daemon qemu-storage-daemon", "--jobs 1"] {
        assert!(!settings(line, 16).iothreads.contains(&Iothreads::AUTO), "{line}");
    }
}

#[test]
fn the_help_names_the_defaults_that_are_taken() {
    let [own, fio] = ["", "--load fio"].map(|line| settings(line, 2));
    for (option, own, fio) in [("runtime", own.runtime, fio.runtime), ("ramp", own.ramp, fio.ramp)]
    {
        let [own, fio] = [own, fio].map(|it| it.duration().as_secs_f64());
        let (help, told) = (help(option), format!("[default: {own}; {fio} with fio"));
        assert!(help.contains(&told), "{help}: {told}");
    }
    let repeats = settings("", 2).repeats;
    let [probe, curve, sizes] = ["probe", "curve", "sizes"].map(|it| settings(it, 2).repeats);
    assert_eq!(curve, sizes);
    let told = format!("[default: {repeats}; probe: {probe}; curve and sizes: {curve}]");
    assert!(help("repeats").contains(&told), "{told}");
}

#[test]
fn all_combinations_are_variants() {
    let settings = settings("--device virtio-blk,nvme,nvme --vms 1,2 --image raw", 2);
    let names: Vec<_> = settings
        .variants
        .iter()
        .map(|variant| format!("{} {}", variant.device, variant.vms))
        .collect();
    assert_eq!(names, ["virtio-blk 1", "virtio-blk 2", "nvme 1", "nvme 2"]);
}

#[test]
fn a_probe_has_its_own_defaults() {
    let settings = settings("probe --subject host", 2);
    assert_eq!((settings.jobs, settings.iodepth), (vec![48, 480], vec![1]));
    assert_eq!(settings.mode, Mode::Hysteresis);
}

#[test]
fn a_probe_needs_pairs_of_jobs_that_share_no_number() {
    let check = |jobs: &str| {
        let settings = settings(&format!("probe --subject host --jobs {jobs}"), 2);
        settings.check().map(|()| settings.jobs).map_err(|error| error.to_string())
    };
    assert_eq!(check("2,8,4,16"), Ok(vec![2, 8, 4, 16]));
    for jobs in ["4", "8,4", "4,4", "1,2,3", "2,8,2", "2,8,16,4"] {
        let error = check(jobs).unwrap_err();
        assert!(error.contains("the low one first"), "{jobs}: {error}");
        assert!(error.ends_with("--jobs 48,480 runs 48, 480 and 48"), "{jobs}: {error}");
    }
    for (jobs, shared, pair) in [
        ("2,8,4,8", "8 jobs are in two pairs, 2,8 and 4,8", "4,8"),
        ("2,8,2,16", "2 jobs are in two pairs, 2,8 and 2,16", "2,16"),
        ("2,4,4,8", "4 jobs are in two pairs, 2,4 and 4,8", "4,8"),
        ("1,3,2,8,2,16", "2 jobs are in two pairs, 2,8 and 2,16", "2,16"),
    ] {
        let error = check(jobs).unwrap_err();
        assert!(error.contains(shared), "{jobs}: {error}");
        let instead = format!("with --jobs {pair} in a command of its own");
        assert!(error.ends_with(&instead), "{jobs}: {error}");
        assert!(check(pair).is_ok(), "{jobs}");
    }
    let error = check("2,8,2,8").unwrap_err();
    assert!(error.ends_with("the pair 2,8 is there twice: --repeats repeats it"), "{error}");
}

#[test]
fn lists_are_split_sorted_and_freed_of_repetitions() {
    let settings = settings("--iothreads 4,none,2,4 --op read,80/20 --bs 1M,4k,4096 --jobs 8", 2);
    let counts: Vec<_> = settings.iothreads.iter().map(|n| n.count()).collect();
    assert_eq!(counts, [0, 2, 4]);
    assert_eq!(settings.op, ["read", "80/20"]);
    assert_eq!(settings.bs, [1 << 20, 4096]);
    assert_eq!(settings.jobs, [8]);
}

#[test]
fn more_jobs_allow_more_default_iothreads() {
    let taken = settings("--jobs 1,16", 8).iothreads;
    let numbers: Vec<_> = taken.iter().filter(|n| !n.is_auto()).map(|n| n.count()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 6, 8]);
}

#[test]
fn block_sizes_have_defaults_that_take_minutes() {
    let sizes = settings("sizes --subject host,vm:qemu,vm:ringloom", 2);
    assert_eq!((sizes.bs.len(), sizes.bs[0], sizes.bs[13]), (14, 512, 4 << 20));
    assert_eq!((&sizes.op[..], &sizes.jobs[..]), (&["randread".to_owned()][..], &[1][..]));
    assert_eq!((sizes.repeats, &sizes.iodepth[..]), (Repeats::Fixed(3), &[16][..]));
    assert_eq!((sizes.runtime, sizes.ramp), (Seconds::new(2.0), Seconds::new(1.0)));
    assert_eq!(sizes.iothreads, [Iothreads::AUTO]);
    sizes.check().unwrap();
    let other = settings("sizes --daemon qemu-storage-daemon", 2);
    assert_eq!(other.iothreads, [Iothreads::new(1)], "another daemon knows no auto");
    for (line, part) in [
        ("sizes --profile oltp", "tune sizes varies the block size"),
        ("sizes --repeats 3-6", "tune sizes have a plain number"),
    ] {
        let error = settings(line, 2).check().unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn guests_have_memory_for_the_buffers_of_their_load() {
    let memory = |line: &str| settings(line, 2).guest.memory_mib;
    assert_eq!(memory("sizes --vms 10 --disks 9 --subject vm:qemu"), 1024);
    assert_eq!(memory("sizes --disks 16 --subject vm:qemu"), 1024 + 256);
    let check = |line: &str| settings(line, 2).check().map_err(|error| error.to_string());
    check("sizes --disks 9 --subject vm:qemu --memory 1G").unwrap();
    let error = check("sizes --disks 16 --subject vm:qemu --memory 1G").unwrap_err();
    assert!(error.contains("take 1024M: give it 1280M or more"), "{error}");
    let of = |line: &str, memory_kib| settings(line, 2).check_memory(memory_kib);
    let line = "sizes --vms 10 --disks 9 --subject host,vm:qemu";
    of(line, 64 << 20).unwrap();
    of(line, 0).unwrap();
    let error = of(line, 6 << 20).unwrap_err().to_string();
    assert!(error.contains("M of memory, and this host has 6144M"), "{error}");
}

#[test]
fn differences_name_the_options() {
    let old = settings("--jobs 2 --seed 1", 2);
    let new = settings("--jobs 3 --runtime 9 --vcpus 7 --queues 2", 2);
    let expected = [
        "--jobs is [3], was [2]",
        "--runtime is 9.0, was 1.0",
        "--seed is 42, was 1",
        "--vcpus is 7, was 2",
    ];
    let mut differences = new.differences(&old);
    differences.sort_unstable();
    assert_eq!(differences, expected);
    assert!(old.differences(&old).is_empty());
}

#[test]
fn another_question_takes_the_place_of_the_recorded_one() {
    let asked = |recorded: &str, line: &str| {
        let mut settings = settings(recorded, 2);
        let result = settings.ask(&parse(line).unwrap().question);
        result.map(|()| settings.question()).map_err(|error| error.to_string())
    };
    let of = |line: &str| Ok(settings(line, 2).question());
    let cpu = "--want cpu --iops-min 50k --tolerance 3 --weights randread=1";
    assert_eq!(asked(cpu, ""), of(cpu));
    let latency = "--want latency --tolerance 3 --weights randread=1";
    assert_eq!(asked(cpu, "--want latency"), of(latency), "bounds are of what was wanted");
    assert_eq!(asked("", "--p99-max 2ms --tolerance 7"), of("--p99-max 2ms --tolerance 7"));
    assert!(asked("", "--iops-min 1k").unwrap_err().contains("--iops-min is for --want cpu"));
    assert!(asked("curve --subject host", "--want cpu").unwrap_err().contains("of a sweep"));
}

#[test]
fn a_profile_or_a_job_file_takes_the_place_of_lists() {
    let oltp = settings("--profile oltp", 64);
    assert_eq!((&oltp.bs[..], &oltp.jobs[..]), (&[8192, 16_384][..], &[4, 1][..]));
    let weights: Vec<String> = oltp.weights.iter().map(ToString::to_string).collect();
    assert_eq!(weights, ["70/30:8k=4", "write:16k=1"]);
    let own = settings("--profile oltp --weights write=1", 64);
    assert_eq!((own.weights.len(), own.cells == oltp.cells), (1, true));
    // A curve has no answer, and so no weights.
    settings("curve --profile oltp --subject host", 2).check().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[a]\nrw=randread\nbs=16k\nnumjobs=3\nioengine=libaio\n").unwrap();
    let name = file.path().display().to_string();
    let job = settings(&format!("--job {name}"), 2);
    assert_eq!(
        (&job.op[..], &job.bs[..], &job.jobs[..]),
        (&["randread".to_owned()][..], &[16_384][..], &[3][..])
    );
    assert_eq!(job.engine, GuestEngine::Libaio);
    parse(&format!("--job {name} --engine libaio")).unwrap().measure().check().unwrap();
    let other = parse(&format!("--job {name} --engine psync")).unwrap();
    let other = other.measure().check().unwrap_err();
    assert_eq!(other.to_string(), "--engine psync: the file of --job says ioengine=libaio");
    for line in ["--profile oltp --op read", "--profile vdi --full", "--profile none"] {
        assert!(parse(line).unwrap_err().contains("--profile"), "{line}");
    }
    std::fs::write(&file, "[a]\nfilename=/dev/sda\n").unwrap();
    let error = parse(&format!("--job {name}")).unwrap_err();
    assert!(
        error.contains("--job <FILE>") && error.contains("[a] filename=/dev/sda: the disk"),
        "{error}"
    );
    assert!(parse(&format!("--job {name} --profile vdi")).is_err());
}
