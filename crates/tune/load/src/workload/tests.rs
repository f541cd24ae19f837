//! What operations, bounds and offsets of a workload must be.

use super::*;

fn shape(operation: &str, jobs: u16) -> Shape {
    let block = BlockBytes::try_from(4096).unwrap();
    Shape::new(operation.parse().unwrap(), block, jobs, 4).unwrap()
}

fn accesses(operation: &str, jobs: u16, job: u16, blocks: u64) -> Accesses {
    Workload::new(shape(operation, jobs), blocks * 4096, 1).unwrap().accesses(job)
}

#[test]
fn operations_print_as_they_are_written() {
    for name in ["randread", "randwrite", "read", "write", "80/20", "1/99"] {
        assert_eq!(name.parse::<Operation>().unwrap().to_string(), name);
    }
}

#[test]
fn other_names_are_refused_with_the_valid_ones() {
    for name in ["", "randrw", "80", "80/21", "100/0", "0/100", "-1/101", "a/b"] {
        let message = name.parse::<Operation>().unwrap_err().to_string();
        assert!(message.contains(&format!("'{name}'")), "{message}");
        assert!(message.contains("randread, randwrite, read, write"), "{message}");
    }
}

#[test]
fn only_reads_leave_the_disk_alone() {
    for (name, writes) in
        [("randread", false), ("read", false), ("write", true), ("randwrite", true), ("99/1", true)]
    {
        assert_eq!(name.parse::<Operation>().unwrap().writes(), writes, "{name}");
    }
}

#[test]
fn block_sizes_are_multiples_of_a_sector() {
    for bytes in [512, 4096, 1 << 20, 16 << 20] {
        assert_eq!(u64::from(BlockBytes::try_from(bytes).unwrap().get()), bytes);
    }
    for bytes in [0, 1, 511, 513, 4095, (16 << 20) + 512, u64::MAX] {
        assert_eq!(BlockBytes::try_from(bytes), Err(ShapeError::Block(bytes)));
    }
}

#[test]
fn shapes_out_of_bounds_are_refused() {
    let randread = "randread".parse::<Operation>().unwrap();
    let small = BlockBytes::try_from(512).unwrap();
    let large = BlockBytes::try_from(16 << 20).unwrap();
    assert!(Shape::new(randread, small, 1024, 1).is_ok());
    assert_eq!(Shape::new(randread, small, 0, 1), Err(ShapeError::Jobs(0)));
    assert_eq!(Shape::new(randread, small, 1025, 1), Err(ShapeError::Jobs(1025)));
    assert_eq!(Shape::new(randread, small, 1, 0), Err(ShapeError::Iodepth(0)));
    assert_eq!(Shape::new(randread, small, 1, 257), Err(ShapeError::Iodepth(257)));
    assert!(matches!(Shape::new(randread, large, 256, 256), Err(ShapeError::Memory { .. })));
}

#[test]
fn a_disk_needs_one_block_per_job() {
    assert!(Workload::new(shape("read", 3), 3 * 4096, 1).is_ok());
    let error = Workload::new(shape("read", 3), 3 * 4096 - 1, 1).unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
}

#[test]
fn sequential_jobs_walk_their_own_slice_round_and_round() {
    let mut second = accesses("read", 2, 1, 7);
    let offsets: Vec<u64> = (0..5).map(|_| second.next().offset / 4096).collect();
    assert_eq!(offsets, [3, 4, 5, 3, 4]);
}

#[test]
fn random_offsets_cover_the_disk_and_nothing_else() {
    let mut job = accesses("randread", 1, 0, 5);
    let mut seen = [false; 5];
    for _ in 0..200 {
        let access = job.next();
        assert_eq!(access.offset % 4096, 0);
        seen[usize::try_from(access.offset / 4096).unwrap()] = true;
    }
    assert_eq!(seen, [true; 5]);
}

#[test]
fn a_seed_fixes_the_requests_and_jobs_differ() {
    let draw = |job| {
        let mut accesses = accesses("80/20", 2, job, 1000);
        (0..50).map(|_| accesses.next()).collect::<Vec<_>>()
    };
    assert_eq!(draw(0), draw(0));
    assert_ne!(draw(0), draw(1));
}

#[test]
fn a_mix_holds_its_share() {
    let mut job = accesses("80/20", 1, 0, 1000);
    let reads = (0..10_000).filter(|_| job.next().direction == Direction::Read).count();
    assert!((7_800..8_200).contains(&reads), "{reads} reads of 10000");
}
