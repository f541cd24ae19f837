//! Clusters that were compressed, damaged or cut off.

use super::*;

use flate2::{Decompress, FlushDecompress};
use testkit::rng::Rng;

/// A cluster that compresses well, but not to nothing.
fn cluster(bytes: usize) -> Vec<u8> {
    let mut random = Rng::new(7);
    let mut cluster = vec![0; bytes];
    let random_bytes = bytes / 4;
    random.fill(&mut cluster[..random_bytes]);
    cluster[bytes / 2..].fill(3);
    cluster
}

/// As others compress, who need not care how large it gets.
fn compress(method: CompressionMethod, cluster: &[u8]) -> Vec<u8> {
    let mut compressed = vec![0; cluster.len() * 2 + 1024];
    let count = match method {
        CompressionMethod::Deflate => {
            let mut stream = Compress::new(Compression::default(), false);
            stream.compress(cluster, &mut compressed, FlushCompress::Finish).unwrap();
            usize::try_from(stream.total_out()).unwrap()
        }
        CompressionMethod::Zstd => zstd_safe::compress(&mut compressed[..], cluster, 3).unwrap(),
    };
    compressed.truncate(count);
    compressed
}

/// Decodes a cluster to its end.
fn decode(
    method: CompressionMethod,
    bytes: &[u8],
    cluster_bytes: usize,
) -> Result<HostMemory, CompressedError> {
    let mut decoding = Decompression::new(method, cluster_bytes);
    while decoding.go_on(bytes)? == DecodeProgress::More {}
    Ok(decoding.finish())
}

const METHODS: [CompressionMethod; 2] = [CompressionMethod::Deflate, CompressionMethod::Zstd];

#[test]
fn a_place_ends_with_its_last_sector() {
    // Clusters of 64 KiB: 8 bits count sectors, 54 are the offset.
    assert_eq!(place(0x5_0000, 16), Ok(0x5_0000..0x5_0200));
    assert_eq!(place(0x5_01ff, 16), Ok(0x5_01ff..0x5_0200));
    assert_eq!(place(3 << 54 | 0x5_0003, 16), Ok(0x5_0003..0x5_0800));
    assert_eq!(place((1 << 62) - 1, 16), Ok((1 << 54) - 1..(1 << 54) + 255 * 512));
    // Of 512 bytes: one bit, and of the other 61 those above 55 are reserved.
    assert_eq!(place(1 << 61 | 1024, 9), Ok(1024..2048));
    let reserved = 1 << 56;
    assert_eq!(place(reserved, 9), Err(CompressedError::Place { descriptor: reserved }));
    assert_eq!(place(1 << 49 | 512, 21), Ok(512..1536));
}

#[test]
fn a_descriptor_names_the_sectors_that_bytes_are_in() {
    let check = |offset, bytes, bits, expected: Option<Range<u64>>| {
        let found = descriptor(offset, bytes, bits).map(|it| place(it, bits).unwrap());
        assert_eq!(found, expected, "{bytes} bytes at {offset:#x}");
    };
    check(0x5_0000, 1, 16, Some(0x5_0000..0x5_0200));
    check(0x5_0000, 513, 16, Some(0x5_0000..0x5_0400));
    check(0x5_01ff, 1, 16, Some(0x5_01ff..0x5_0200));
    check(0x5_01ff, 2, 16, Some(0x5_01ff..0x5_0400));
    check(0x5_01ff, 65535, 16, Some(0x5_01ff..0x6_0200));
    check(700, 511, 9, Some(700..1536));
    check((1 << 49) - 512, (2 << 20) - 1, 21, Some((1 << 49) - 512..(1 << 49) + (2 << 20) - 512));
    check(1 << 49, 1, 21, None);
    check(1 << 56, 1, 9, None);
}

#[test]
fn clusters_shrink_and_come_back_or_do_not_shrink() {
    let mut random = vec![0; 65536];
    Rng::new(9).fill(&mut random);
    for method in METHODS {
        for bytes in [512, 65536, 2 << 20] {
            let cluster = cluster(bytes);
            let compressed = super::compress(method, &cluster).unwrap();
            assert!(compressed.len() * 2 < bytes, "{method:?}: {} of {bytes}", compressed.len());
            assert_eq!(*decode(method, &compressed, bytes).unwrap(), *cluster, "{method:?}");
        }
        assert!(super::compress(method, &random).is_none(), "{method:?}");
        let zeroes = super::compress(method, &[0; 65536]).unwrap();
        assert!(zeroes.len() < 100, "{method:?}: {}", zeroes.len());
    }
}

/// What repeats after more than a window is not found again; a reader who has no more can decode the rest.
#[test]
fn who_has_a_window_of_4_kib_can_decode_it() {
    let mut random = vec![0; 5000];
    Rng::new(3).fill(&mut random);
    let mut cluster = random.repeat(14);
    cluster.truncate(65536);
    assert!(super::compress(CompressionMethod::Deflate, &cluster).is_none());
    cluster[20_000..].fill(7);
    let compressed = super::compress(CompressionMethod::Deflate, &cluster).unwrap();
    let mut stream = Decompress::new_with_window_bits(false, 12);
    let mut decoded = Vec::new();
    while decoded.len() < cluster.len() {
        // So little at once that all else has to come from the window.
        let (mut part, read) = ([0; 100], usize::try_from(stream.total_in()).unwrap());
        let before = stream.total_out();
        stream.decompress(&compressed[read..], &mut part, FlushDecompress::None).unwrap();
        let count = usize::try_from(stream.total_out() - before).unwrap();
        assert!(count > 0, "it goes no further than {}", decoded.len());
        decoded.extend_from_slice(&part[..count]);
    }
    assert!(decoded == cluster, "it is something else");
}

#[test]
fn what_was_compressed_comes_back_whatever_follows_it() {
    for method in METHODS {
        for bytes in [512, 65536, 2 << 20] {
            let cluster = cluster(bytes);
            let mut compressed = compress(method, &cluster);
            assert_eq!(*decode(method, &compressed, bytes).unwrap(), *cluster, "{method:?}");
            compressed.extend_from_slice(&[0xa5; 700]);
            assert_eq!(*decode(method, &compressed, bytes).unwrap(), *cluster, "{method:?}");
        }
    }
}

#[test]
fn a_cluster_that_is_cut_off_or_of_another_size_is_refused() {
    for method in METHODS {
        let cluster = cluster(65536);
        let compressed = compress(method, &cluster);
        let refused = Err(CompressedError::Data { method, cluster_bytes: 65536 });
        let decode = |bytes: &[u8]| decode(method, bytes, 65536).map(|cluster| cluster.len());
        assert_eq!(decode(&[]), refused);
        assert_eq!(decode(&compressed[..compressed.len() / 2]), refused);
        let shorter = compress(method, &cluster[..65535]);
        assert_eq!(decode(&shorter), refused, "{method:?}");
    }
    // Deflate may go on behind the cluster, as for QEMU; a frame of zstd may not.
    let longer = cluster(65536 * 2);
    let decode = |method| decode(method, &compress(method, &longer), 65536);
    assert_eq!(*decode(CompressionMethod::Deflate).unwrap(), longer[..65536]);
    assert!(decode(CompressionMethod::Zstd).is_err());
}

#[test]
fn a_window_that_would_take_much_memory_is_refused() {
    // A frame header without a size, and with a window of 2^31 and of 2^23 bytes; an empty last block.
    let frame = |bits: u8| [0x28, 0xb5, 0x2f, 0xfd, 0x00, (bits - 10) << 3, 0x01, 0x00, 0x00];
    for bits in [31, 24, 23] {
        let mut output = [0; 16];
        let mut context = DCtx::create();
        context.set_parameter(DParameter::WindowLogMax(WINDOW_BITS_MAX)).unwrap();
        let result = context.decompress_stream(
            &mut OutBuffer::around(&mut output[..]),
            &mut InBuffer::around(&frame(bits)),
        );
        assert_eq!(result.is_ok(), bits == 23, "{bits}");
        assert!(decode(CompressionMethod::Zstd, &frame(bits), 512).is_err());
    }
}

#[test]
fn damaged_data_gives_an_error_or_a_whole_cluster() {
    let mut random = Rng::new(20_261_122);
    for method in METHODS {
        let good = compress(method, &cluster(4096));
        let mut refused = 0;
        for _ in 0..2000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                let at = random.index(bytes.len());
                bytes[at] = u8::try_from(random.below(256)).unwrap();
            }
            match decode(method, &bytes, 4096) {
                Ok(cluster) => assert_eq!(cluster.len(), 4096),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 50, "{method:?}: {refused}");
    }
}

#[test]
fn the_clusters_that_were_used_last_are_kept() {
    let mut decoded = ClusterCache::new(3 * 512, 8);
    let memory = || Rc::new(HostMemory::zeroed(512));
    (0..3).for_each(|descriptor| decoded.keep(descriptor, memory()));
    assert!(decoded.get(0).is_some());
    decoded.keep(3, memory());
    let mut is_kept = |descriptor| decoded.get(descriptor).is_some();
    assert_eq!([0, 1, 2, 3].map(&mut is_kept), [true, false, true, true]);
    // One that is too large is kept alone.
    decoded.keep(4, Rc::new(HostMemory::zeroed(4096)));
    assert!(decoded.get(4).is_some() && decoded.get(3).is_none());
}

#[test]
fn what_was_decoded_is_forgotten_when_places_are_used_again() {
    let mut decoded = ClusterCache::new(4096, 8);
    decoded.keep(1, Rc::new(HostMemory::zeroed(512)));
    decoded.set_generation(0);
    assert!(decoded.get(1).is_some());
    decoded.set_generation(1);
    assert!(decoded.get(1).is_none());
}
