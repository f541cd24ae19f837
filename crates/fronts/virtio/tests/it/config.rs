//! The configuration space, byte for byte.

use block::{Access, ByteCount, DiskSize, Durability};
use virtio::{BlkConfig, CacheMode, Features};

const CONFIG: BlkConfig = BlkConfig {
    size: DiskSize(ByteCount(10 << 20)),
    logical_block: 512,
    physical_block: 512,
    queues: 4,
    access: Access::ReadWrite,
    discard: true,
    discard_granularity: 512,
    unmap: true,
    write_zeroes: true,
    cache: CacheMode::WriteBack,
};

#[track_caller]
fn check(config: BlkConfig, expected: &str) {
    let found: String = config.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, expected.replace(' ', ""));
}

/// Read from qemu-storage-daemon 10.0.2 with GET_CONFIG, all but the byte that says that
/// write-zeroes may unmap, which is 0 there although it does, and `writeback` at 32, which is 0
/// there although it writes back.
#[test]
fn the_space_is_that_of_qemu_storage_daemon() {
    check(
        CONFIG,
        "0050000000000000 00000000 7e000000 00000000 00020000 00 00 0100 01000000 01 00 0400 \
         00800000 01000000 01000000 00800000 01000000 01000000",
    );
    let (logical_block, physical_block, discard_granularity) = (4096, 4096, 4096);
    let blocks =
        BlkConfig { logical_block, physical_block, discard_granularity, queues: 1, ..CONFIG };
    check(
        blocks,
        "0050000000000000 00000000 7e000000 00000000 00100000 00 00 0100 01000000 01 00 0100 \
         00800000 01000000 08000000 00800000 01000000 01000000",
    );
}

#[test]
fn a_disk_says_what_its_discards_should_be_a_multiple_of_and_whether_zeroes_unmap() {
    check(
        BlkConfig { discard_granularity: 1 << 20, unmap: false, ..CONFIG },
        "0050000000000000 00000000 7e000000 00000000 00020000 00 00 0100 01000000 01 00 0400 \
         00800000 01000000 00080000 00800000 01000000 00000000",
    );
}

#[test]
fn a_disk_without_discards_names_no_limits_for_them() {
    let cache = CacheMode::WriteThrough;
    let plain =
        BlkConfig { physical_block: 4096, discard: false, write_zeroes: false, cache, ..CONFIG };
    check(
        plain,
        "0050000000000000 00000000 7e000000 00000000 00020000 03 00 0100 01000000 00 00 0400 \
         00000000 00000000 00000000 00000000 00000000 00000000",
    );
}

#[test]
fn the_features_follow_the_configuration() {
    let all = CONFIG.features();
    assert_eq!(all, Features(0x5_3000_7e44));
    assert!(all.contains(Features::BLK_DISCARD | Features::VERSION_1));
    assert!(!all.contains(Features::BLK_RO));
    let plain =
        BlkConfig { access: Access::ReadOnly, discard: false, write_zeroes: false, ..CONFIG };
    let changed = Features::BLK_DISCARD | Features::BLK_WRITE_ZEROES;
    assert_eq!(plain.features(), all.without(changed) | Features::BLK_RO);
}

#[test]
fn only_a_driver_that_flushes_is_served_in_write_back() {
    use CacheMode::{WriteBack, WriteThrough};
    let all = CONFIG.features();
    let flushless = all.without(Features::BLK_FLUSH);
    let unaware = flushless.without(Features::BLK_CONFIG_WCE);
    let durability =
        |mode: CacheMode| [all, flushless, unaware].map(|chosen| mode.durability(chosen));
    let (cached, stable) = (Durability::Cached, Durability::Stable);
    assert_eq!(durability(WriteBack), [cached, stable, stable]);
    assert_eq!(durability(WriteThrough), [stable; 3]);
    let shown = |mode: CacheMode| [all, flushless, unaware].map(|chosen| mode.shown_to(chosen));
    assert_eq!(shown(WriteBack), [WriteBack, WriteThrough, WriteBack]);
    assert_eq!(shown(WriteThrough), [WriteThrough; 3]);
    assert_eq!([0, 1, 7].map(CacheMode::from_byte), [WriteThrough, WriteBack, WriteBack]);
}
