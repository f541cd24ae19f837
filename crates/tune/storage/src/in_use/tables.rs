//! The kernel's tables of mounts, swap and locks, read as text.
//!
//! Invariants: lines of a form that is not known are left out.

use std::path::PathBuf;

use plan::lists::unique;

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor; some file systems have one that is no device's.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub at: PathBuf,
    /// What was mounted, as it was named.
    pub source: PathBuf,
    /// `ext4`.
    pub kind: String,
    /// Of the mount and of the file system, each once: `rw,relatime,discard`.
    pub options: String,
}

/// A lock on bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    start: u64,
    /// Included.
    end: u64,
}

impl Lock {
    pub(super) fn covers(&self, byte: u64) -> bool {
        (self.start..=self.end).contains(&byte)
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
pub fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (first, second) = line.split_once(" - ")?;
        let (mut first, mut second) = (first.split(' '), second.split(' '));
        let device = device_number(first.nth(2)?, 10)?;
        let (at, options) = (unescaped(first.nth(1)?), first.next()?.split(','));
        let (kind, source) = (second.next()?.to_owned(), unescaped(second.next()?));
        let options = options.chain(second.next().unwrap_or_default().split(','));
        let options = unique(options.filter(|option| !option.is_empty())).join(",");
        Some(Mount { device, at, source, kind, options })
    };
    text.lines().filter_map(mount).collect()
}

/// The first column of `/proc/swaps`, without its head.
pub fn swaps(text: &str) -> Vec<PathBuf> {
    let names = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.map(unescaped).collect()
}

/// `3: OFDLCK ADVISORY  READ -1 fe:00:901142 203 203`, also with `->` before waiting ones, which
/// are left out.
pub(super) fn locks(text: &str) -> Vec<Lock> {
    text.lines().filter_map(lock).collect()
}

/// The lines of `/proc/PID/fdinfo/FD` that begin with `lock:`.
pub(super) fn locks_of_descriptor(text: &str) -> Vec<Lock> {
    text.lines().filter_map(|line| line.strip_prefix("lock:")).filter_map(lock).collect()
}

/// Only locks of bytes, which QEMU takes: not those of flock, which are of whole files.
fn lock(line: &str) -> Option<Lock> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, "OFDLCK" | "POSIX", _, _, _, place, start, end] = words.as_slice() else {
        return None;
    };
    let (device, inode) = place.rsplit_once(':')?;
    Some(Lock {
        device: device_number(device, 16)?,
        inode: inode.parse().ok()?,
        start: start.parse().ok()?,
        end: if *end == "EOF" { u64::MAX } else { end.parse().ok()? },
    })
}

/// `8:16`.
pub fn device_number(text: &str, radix: u32) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    let number = |text| u32::from_str_radix(text, radix).ok();
    Some((number(major)?, number(minor)?))
}

/// Blanks and the like are `\040` in these tables.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let text = "22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
                    garbage\n\
                    40 22 0:31 / /a\\040b rw shared:5 master:1 - btrfs /dev/my\\134disk rw\n";
        let expected = [((254, 0), "/", "/dev/root"), ((0, 31), "/a b", "/dev/my\\disk")];
        let found = mounts(text);
        assert_eq!(found.len(), 2);
        for (mount, (device, at, source)) in found.into_iter().zip(expected) {
            assert_eq!((mount.device, mount.at, mount.source), (device, at.into(), source.into()));
        }
    }

    #[test]
    fn swaps_are_read() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n/swap\\040file file 1 0 -3\n";
        assert_eq!(swaps(text), ["/dev/sda2", "/swap file"].map(PathBuf::from));
        assert!(swaps("").is_empty());
    }

    #[test]
    fn locks_of_bytes_are_read() {
        let text = "1: FLOCK  ADVISORY  WRITE 12133 fe:00:10094562 0 EOF\n\
                    3: OFDLCK ADVISORY  READ -1 fe:00:901142 100 101\n\
                    3: -> OFDLCK ADVISORY  READ -1 fe:00:901142 201 201\n\
                    4: POSIX  ADVISORY  WRITE 77 00:1f:12 0 EOF\n";
        let found = locks(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].device, found[0].inode), ((254, 0), 901_142));
        let covered: Vec<_> = (99..=102).map(|byte| found[0].covers(byte)).collect();
        assert_eq!(covered, [false, true, true, false]);
        assert!(found[1].covers(u64::MAX) && found[1].device == (0, 31));
    }

    #[test]
    fn a_descriptor_tells_its_locks() {
        let text = "pos:\t0\nflags:\t02100002\nmnt_id:\t22\nino:\t901142\n\
                    lock:\t1: OFDLCK  ADVISORY  READ -1 fe:00:901142 203 203\n";
        let found = locks_of_descriptor(text);
        assert!(found.len() == 1 && found[0].covers(203));
    }
}
