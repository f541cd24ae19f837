//! What the kernel says of a block device's queue where no ioctl tells it.
//!
//! Where it stands: asked once, when a device is opened. Blocks as far as reading sysfs does.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, major, minor};

/// What discarded ranges should be a multiple of, in bytes; `None` if the device discards nothing, or the
/// host does not say.
pub(crate) fn discard_granularity(fd: BorrowedFd<'_>) -> Option<u32> {
    let device = fstat(fd).ok()?.st_rdev;
    let entry = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    read(&[Path::new(&entry).join("queue"), Path::new(&entry).join("../queue")])
}

/// From the first of these directories that is there: a partition has the queue of its disk.
fn read(queues: &[PathBuf]) -> Option<u32> {
    let text = queues.iter().find_map(|queue| {
        let file = queue.join("discard_granularity");
        std::fs::read_to_string(file).ok()
    })?;
    text.trim().parse().ok().filter(|bytes: &u32| bytes.is_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(place: &str, text: &str, expected: Option<u32>) {
        let disk = tempfile::tempdir().unwrap();
        let partition = disk.path().join("vda1");
        std::fs::create_dir_all(disk.path().join(place)).unwrap();
        std::fs::create_dir_all(&partition).unwrap();
        std::fs::write(disk.path().join(place).join("discard_granularity"), text).unwrap();
        assert_eq!(read(&[partition.join("queue"), partition.join("../queue")]), expected);
    }

    #[test]
    fn a_partition_has_the_granularity_of_its_disk_and_nonsense_is_none() {
        check("queue", "4096\n", Some(4096));
        check("vda1/queue", "512\n", Some(512));
        check("queue", "0\n", None);
        check("queue", "3000\n", None);
        check("elsewhere", "4096\n", None);
    }
}
