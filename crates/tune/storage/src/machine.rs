//! What the results say about the machine, so that numbers from another one are never mixed in.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use load::procfs::field;
use serde::{Deserialize, Serialize};

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub cpu: String,
    /// The cores this process may use.
    pub cores: usize,
    /// All of it, used or not.
    pub memory_kib: u64,
    /// System, release and architecture.
    pub kernel: String,
}

impl Machine {
    /// Of this machine.
    pub fn read() -> Self {
        let uname = rustix::system::uname();
        let kernel = format!(
            "{} {} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy()
        );
        let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
        let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        let memory_kib = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { cpu, cores, memory_kib, kernel }
    }
}

/// The names of the file systems on which images usually lie; the number in hexadecimal for others.
pub fn file_system(path: &Path) -> String {
    let Ok(statistics) = rustix::fs::statfs(path) else {
        return "unknown".to_owned();
    };
    let name = match statistics.f_type {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        TMPFS_MAGIC => "tmpfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0x2fc1_2fc1 => "zfs",
        0x6573_5546 => "fuse",
        other => return format!("{other:#x}"),
    };
    name.to_owned()
}

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Whether both are there and one file, whatever its names.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|it| (it.dev(), it.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        let machine = Machine::read();
        assert!(machine.cores >= 1);
        assert!(machine.memory_kib > 0);
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
    }

    #[test]
    fn a_missing_path_has_no_file_system() {
        assert_eq!(file_system(Path::new("/nonexistent")), "unknown");
    }
}
