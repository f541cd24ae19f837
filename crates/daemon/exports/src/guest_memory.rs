//! What front ends may share with this process, as the line and the host say it.
//!
//! Where it stands: worked out before the fences are up; each export has rules of its own (`virtio::MemoryRules`), which
//! its sessions keep to.
//!
//! Limits: the sessions of all exports together stay within what the process can map, unless the operator
//! has named another bound.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{fstat, fstatfs};
use virtio::{GuestMemoryFilePolicy, SESSION_BYTES_MAX, mappable_bytes};

/// File systems of which a page is had from a disk of this host, by what `statfs` calls them (linux/magic.h).
/// A page of all others may have to be had from a server, on which nobody can rely.
const LOCAL: [(u64, &str); 7] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x2fc1_2fc1, "zfs"),
    (0x0102_1994, "tmpfs"),
];

/// What front ends may share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestMemoryOptions {
    /// Files of the file systems of these directories, besides what is nothing but memory.
    pub directories: Vec<PathBuf>,
    /// How many bytes a session may map, if it was said.
    pub bytes_max: Option<u64>,
}

/// A directory that cannot hold guest memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryDirectoryError {
    /// It cannot be looked at.
    #[error("--memory-files {}", path.display())]
    Look {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is on a file system whose pages may never come.
    #[error(
        "--memory-files {}: its file system (type {kind:#x}) may keep a page back for ever, which stops every guest; possible \
         are {}",
        path.display(),
        LOCAL.map(|(_, name)| name).join(", ")
    )]
    Kind {
        /// The directory.
        path: PathBuf,
        /// What it is.
        kind: u64,
    },
}

impl GuestMemoryOptions {
    /// How many bytes a session of an export may map, if there are so many exports.
    pub fn session_bytes_max(&self, exports: usize) -> u64 {
        let share = mappable_bytes() / exports.max(1) as u64;
        self.bytes_max.unwrap_or(share.min(SESSION_BYTES_MAX))
    }

    /// From which files memory is taken.
    pub fn memory_files(&self) -> Result<Arc<GuestMemoryFilePolicy>, MemoryDirectoryError> {
        // A host without /proc has no memory of that kind for us.
        let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
        let file_systems = self.directories.iter().map(|path| file_system(path));
        Ok(Arc::new(GuestMemoryFilePolicy {
            dax: dax(&devices),
            file_systems: file_systems.collect::<Result<_, _>>()?,
        }))
    }
}

/// The major number of the kernel's dax devices, by its list of drivers (proc(5), /proc/devices).
fn dax(devices: &str) -> Option<u32> {
    let characters = devices.split("Block devices:").next()?;
    characters.lines().find_map(|line| line.trim().strip_suffix(" dax")?.trim().parse().ok())
}

/// The device number of the directory's file system.
fn file_system(path: &Path) -> Result<u64, MemoryDirectoryError> {
    let failed = |source| MemoryDirectoryError::Look { path: path.to_owned(), source };
    let directory = std::fs::File::open(path).map_err(failed)?;
    let kind = fstatfs(&directory).map_err(|errno| failed(errno.into()))?.f_type;
    let kind = kind.cast_unsigned();
    if !LOCAL.iter().any(|(known, _)| *known == kind) {
        return Err(MemoryDirectoryError::Kind { path: path.to_owned(), kind });
    }
    Ok(fstat(&directory).map_err(|errno| failed(errno.into()))?.st_dev)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_driver_of_dax_is_found_among_character_devices() {
        let list = "Character devices:\n  1 mem\n 10 misc\n252 dax\n253 dimmctl\n\nBlock devices:\n  7 loop\n  9 dax\n";
        assert_eq!(dax(list), Some(252));
        assert_eq!(dax(&list.replace("252 dax", "252 device_dax")), None);
        assert_eq!(dax(""), None);
    }

    #[test]
    fn a_directory_of_memory_is_on_a_disk_of_this_host() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(file_system(own).unwrap(), std::fs::metadata(own).unwrap().dev());
        let error = file_system(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(
            error.starts_with("--memory-files /proc/self: its file system (type 0x9fa0)"),
            "{error}"
        );
        assert!(file_system(Path::new("/no/such/directory")).is_err());
    }

    #[test]
    fn the_exports_share_what_can_be_mapped() {
        let all = mappable_bytes();
        let mut options = GuestMemoryOptions::default();
        assert_eq!(options.session_bytes_max(1), all.min(SESSION_BYTES_MAX));
        assert_eq!(options.session_bytes_max(1 << 10), all >> 10);
        options.bytes_max = Some(7);
        assert_eq!(options.session_bytes_max(100), 7);
    }
}
