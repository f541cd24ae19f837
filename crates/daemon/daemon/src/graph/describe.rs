//! What is below an export, said so that two processes can compare it: a guest must find the disk that it has.
//!
//! Invariants: every option of every node is in the description, so whoever adds one adds it here (the compiler
//! sees to that); how nodes are called and where they stand on the command line is not. A place is the roles on
//! the way down, such as `file.backing`; the node below the export itself stands at the empty place.
//! Not here: what an export itself says (`takeover`).

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel_io::OpenFile;
use layers::{DelaySettings, Limit, LimitKind, ThrottleGroup};
use qcow2::Qcow2Node;

use super::{Below, Graph, Vertex};
use crate::options::{Activity, Blockdev, Discard, Driver, Flushes, Locking, Qcow2Caches};

/// The options of nodes by place and key, in words that stay the same from version to version.
pub(crate) type Description = BTreeMap<String, String>;

/// Where something stands: the export's id, and the place below it.
pub(crate) type Place = (String, String);

/// What nodes have below an export: files, and images in use.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// By the place of the node that has opened it.
    pub(crate) files: BTreeMap<String, Arc<OpenFile>>,
    pub(crate) images: BTreeMap<String, Arc<Qcow2Node>>,
}

impl Graph {
    /// All that there is to say of the nodes below an export.
    pub(crate) fn describe(&self, export: &str) -> Description {
        let mut description = Description::new();
        self.walk(export, &mut |place, vertex| {
            let own = vertex.options.iter();
            let files = vertex.files.iter().map(|file| {
                let [device, inode] = file.identity().numbers();
                ("image".to_owned(), format!("{device}:{inode}"))
            });
            description.extend(
                own.map(|(key, value)| (key.clone(), value.clone()))
                    .chain(files)
                    .map(|(key, value)| (join(place, &key), value)),
            );
        });
        description
    }

    /// The files and images below an export.
    pub(crate) fn storage_below(&self, export: &str) -> Storage {
        let mut storage = Storage::default();
        self.walk(export, &mut |place, vertex| {
            for file in &vertex.files {
                storage.files.insert(place.to_owned(), Arc::clone(file));
            }
            if let Some(image) = &vertex.image {
                storage.images.insert(place.to_owned(), Arc::clone(image));
            }
        });
        storage
    }

    /// All images.
    pub(crate) fn images(&self) -> impl Iterator<Item = &Arc<Qcow2Node>> {
        self.vertices.values().filter_map(|vertex| vertex.image.as_ref())
    }

    /// Visits each place below an export, the upper ones first.
    fn walk<'a>(&'a self, export: &str, visit: &mut dyn FnMut(&str, &'a Vertex)) {
        let Some(root) = self.roots.get(export) else { return };
        let mut next: Vec<(String, &Below)> = vec![(String::new(), root)];
        while let Some((place, below)) = next.pop() {
            if let Some(vertex) = self.vertices.get(&below.edge.node) {
                visit(&place, vertex);
                next.extend(
                    vertex.below.iter().map(|below| (join(&place, &below.edge.role), below)),
                );
            }
        }
    }

    /// The options of a node that is being made.
    pub(super) fn options_of(&self, blockdev: &Blockdev) -> Vec<(String, String)> {
        let Blockdev {
            // How it is called, and what is seen by walking down.
            node_name: _,
            children: _,
            driver,
            read_only,
            // What came of it is in `read_only`.
            auto_read_only: _,
            discard,
            cache_direct,
            flushes,
            force_share,
            activity,
        } = blockdev;
        let discard = match discard {
            Discard::Ignore => "ignore",
            Discard::Unmap => "unmap",
        };
        let mut options = vec![
            pair("read-only", on_off(*read_only)),
            pair("discard", discard),
            pair("cache.direct", on_off(*cache_direct)),
            pair("cache.no-flush", on_off(*flushes == Flushes::Ignored)),
            pair("force-share", on_off(*force_share)),
            pair("active", on_off(*activity == Activity::Active)),
        ];
        options.extend(self.options_of_driver(driver));
        options
    }

    fn options_of_driver(&self, driver: &Driver) -> Vec<(String, String)> {
        match driver {
            // Which file it is, its description says.
            Driver::File { filename: _, aio, locking } => file("file", *aio, *locking),
            Driver::HostDevice { filename: _, aio, locking } => file("host_device", *aio, *locking),
            Driver::Raw { offset, size } => {
                vec![pair("driver", "raw"), pair("offset", offset), pair("size", &whole(*size))]
            }
            Driver::NullCo { size, read_zeroes, latency } => vec![
                pair("driver", "null-co"),
                pair("size", size),
                pair("read-zeroes", on_off(*read_zeroes)),
                pair("latency-ns", &latency.as_nanos()),
            ],
            Driver::Delay { settings, seed } => delay(settings, *seed),
            Driver::Stripe { chunk } => {
                vec![pair("driver", "stripe"), pair("chunk", &chunk.bytes())]
            }
            // Files that the image names stand below it like all others.
            Driver::Qcow2 { caches, backing: _, named_files: _ } => qcow2(*caches),
            Driver::Throttle { group } => throttle(group, self.throttle_groups.get(group)),
        }
    }
}

fn join(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

fn pair(key: &str, value: &(impl ToString + ?Sized)) -> (String, String) {
    (key.to_owned(), value.to_string())
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn whole(size: Option<u64>) -> String {
    size.map_or_else(|| "all".to_owned(), |size| size.to_string())
}

fn file(
    driver: &str,
    aio: Option<crate::options::AioEngine>,
    locking: Locking,
) -> Vec<(String, String)> {
    use crate::options::AioEngine::{IoUring, Native, Threads};
    let aio = match aio {
        None => "any",
        Some(IoUring) => "io_uring",
        Some(Native) => "native",
        Some(Threads) => "threads",
    };
    let locking = match locking {
        Locking::Automatic => "auto",
        Locking::On => "on",
        Locking::Off => "off",
    };
    vec![pair("driver", driver), pair("aio", aio), pair("locking", locking)]
}

fn qcow2(caches: Qcow2Caches) -> Vec<(String, String)> {
    let Qcow2Caches { l2, refcount, both, clean_seconds, overlap_check } = caches;
    let size = |given: Option<u64>| given.map_or_else(|| "auto".to_owned(), |it| it.to_string());
    let overlap_check = match overlap_check {
        qcow2::OverlapCheck::None => "none",
        qcow2::OverlapCheck::Cached => "cached",
        qcow2::OverlapCheck::All => "all",
    };
    vec![
        pair("driver", "qcow2"),
        pair("l2-cache-size", &size(l2)),
        pair("refcount-cache-size", &size(refcount)),
        pair("cache-size", &size(both)),
        pair("cache-clean-interval", &size(clean_seconds)),
        pair("overlap-check", overlap_check),
    ]
}

fn throttle(name: &str, group: Option<&Arc<ThrottleGroup>>) -> Vec<(String, String)> {
    let mut options = vec![pair("driver", "throttle"), pair("throttle-group", name)];
    let Some(group) = group else { return options };
    let limits = group.limits();
    let settings = limits.settings();
    for kind in LimitKind::ALL {
        let Limit { rate, burst, burst_seconds } = *settings.limit(kind);
        let key = |suffix: &str| format!("limits.{}{suffix}", kind.name());
        options.push((key(""), rate.to_string()));
        options.push((key("-max"), burst.to_string()));
        options.push((key("-max-length"), burst_seconds.to_string()));
    }
    options.push(pair("limits.iops-size", &settings.iops_size));
    options
}

fn delay(settings: &DelaySettings, seed: u64) -> Vec<(String, String)> {
    let DelaySettings { read, write, flush, order } = settings;
    let ordered = on_off(*order == block::Order::AsBegun);
    // A histogram can be long.
    let brief = |distribution| {
        let text = format!("{distribution:?}");
        if text.len() <= 100 { text } else { format!("{:016x}", fnv1a(text.as_bytes())) }
    };
    vec![
        pair("driver", "delay"),
        pair("read", &brief(read)),
        pair("write", &brief(write)),
        pair("flush", &brief(flush)),
        pair("ordered", ordered),
        pair("seed", &seed),
    ]
}

/// The hash FNV-1a, which is the same in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
