//! The header of a qcow2 image.

use qcow2::Header;

/// The input is the beginning of the file.
pub fn qcow2_header(data: &[u8]) {
    let start = &data[..data.len().min(512)];
    let Ok(needed) = Header::bytes_needed(start).map_err(|error| error.to_string()) else {
        return;
    };
    let needed = usize::try_from(needed).expect("a cluster fits into memory");
    assert!((512..=2 << 20).contains(&needed), "a cluster of {needed} bytes");
    match Header::parse(&data[..data.len().min(needed)]) {
        Ok(header) => check(&header),
        Err(error) => assert!(!error.to_string().is_empty(), "{error:?} says nothing"),
    }
}

/// What whoever has a header need not check again.
fn check(header: &Header) {
    let cluster = 1_u64 << header.cluster_bits;
    for offset in [header.l1_offset, header.refcount_table_offset, header.snapshots_offset] {
        assert!(offset.is_multiple_of(cluster) && offset < 1 << 56, "{header:?}");
    }
    assert!(header.l1_entries <= 4 << 20 && header.snapshots <= 65536, "{header:?}");
    let refcount_table = u64::from(header.refcount_table_clusters) * cluster;
    assert!((1..=8 << 20).contains(&refcount_table) && header.refcount_order <= 6, "{header:?}");
    let entry = if header.features.extended_l2 { 16 } else { 8 };
    let mapped = u128::from(header.l1_entries) * u128::from(cluster / entry * cluster);
    assert!(mapped >= u128::from(header.size), "{header:?}");
    assert!(header.backing.as_ref().is_none_or(|name| name.len() <= 1023), "{header:?}");
}
