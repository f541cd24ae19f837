//! How many descriptors each session may hold, so that no client uses up those of the process.
//!
//! Where it stands: worked out when iothreads run and images are open; sessions keep to it (`vhost_user`), and one that
//! does not is ended.
//!
//! Limits: if the limit of the process allows it, as many as a front end can ever need; otherwise what is left is
//! divided by the exports' queues, and nobody has less than a small guest needs.

use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::process::{Resource, getrlimit};
use vhost_user::{
    DESCRIPTORS_PER_QUEUE, DESCRIPTORS_PER_REGION, DESCRIPTORS_PER_SESSION, descriptors_wanted,
};

use crate::device::VhostUserBlkDisk;
use crate::vhost_user_blk_options::QUEUES_MAX;

/// What a guest with two queues and two regions needs: nobody gets less.
const LEAST: usize =
    DESCRIPTORS_PER_SESSION + 2 * DESCRIPTORS_PER_REGION + 2 * DESCRIPTORS_PER_QUEUE;

/// What the daemon itself still opens: the pidfile, a log, the kernel's news, a takeover.
const OWN: usize = 16;

/// The limit of open files from which on the daemon makes spare rings: below it clients need the descriptors more.
const SPARE_RINGS_FROM_FILES: u64 = 1024;

/// What it still opens for each export: a socket and its lock, a bell, and the next client.
const OWN_OF_EXPORT: usize = 4;

/// Shares what the process may have open among the sessions of all exports, by their queues. Call it before they start.
pub fn share_descriptors(disks: &[&VhostUserBlkDisk]) {
    let queues: Vec<u16> = disks.iter().map(|disk| disk.config.queues).collect();
    let own = OWN + OWN_OF_EXPORT * queues.len() + open_now();
    let free = usize::try_from(open_files_limit()).unwrap_or(usize::MAX).saturating_sub(own);
    for (disk, share) in disks.iter().zip(divide(&queues, free)) {
        disk.descriptors_max.store(share, Ordering::Relaxed);
    }
}

/// How many descriptors the session of an export may need that offers so many queues.
pub fn descriptors_wanted_by(queues: Option<u16>) -> usize {
    descriptors_wanted(queues.unwrap_or(QUEUES_MAX))
}

/// Whether the limit of open files leaves room for spare rings beside what clients need.
pub fn has_room_for_spare_rings() -> bool {
    open_files_limit() >= SPARE_RINGS_FROM_FILES
}

fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many descriptors are open. Where there is no /proc, as many as a daemon of some iothreads has.
fn open_now() -> usize {
    const GUESS: usize = 256;
    std::fs::read_dir(Path::new("/proc/self/fd")).map_or(GUESS, Iterator::count)
}

fn divide(queues: &[u16], free: usize) -> Vec<usize> {
    let wanted: Vec<usize> = queues.iter().map(|count| descriptors_wanted(*count)).collect();
    let all: usize = wanted.iter().sum();
    if all <= free {
        return wanted;
    }
    let part = |wanted: usize| (free as u128 * wanted as u128 / all as u128) as usize;
    wanted.into_iter().map(|wanted| part(wanted).max(LEAST)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_needs_more_queues_has_more_and_nobody_nothing() {
        let enough = [descriptors_wanted(256), descriptors_wanted(1)];
        assert_eq!(divide(&[256, 1], 1 << 20), enough);
        assert_eq!(divide(&[256, 1], enough.iter().sum()), enough);
        let shares = divide(&[256, 256, 1], 1000);
        assert!(shares[0] == shares[1] && shares[1] > shares[2], "{shares:?}");
        assert!(shares.iter().sum::<usize>() <= 1000, "{shares:?}");
        assert_eq!(divide(&[4, 4], 0), [LEAST, LEAST]);
        assert!(divide(&[], 0).is_empty());
    }

    #[test]
    fn what_is_open_is_counted() {
        let before = open_now();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(open_now() > 0 && before > 0);
        drop(file);
    }
}
