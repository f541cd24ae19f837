//! Initramfs archives in cpio's "newc" form, written here so that no cpio has to be installed.
//!
//! Invariants: every file's directories stand before it. The kernel unpacks archives that stand one after the other,
//! so a big one can be cached and a small one appended.
//! Limits: newc's fields have 32 bits; a file of 4 GiB is refused.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Kernel, find_program};

/// The modules of every guest; what is built in is left out.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "crc16"];
/// Modules that lie in `/modules` for scripts that insert them, those that they need before them.
const MODULES_AT_HAND: [&str; 1] = ["raid0"];
/// Raised when `base` writes something else from the same sources.
const FORM: u32 = 2;

/// An archive being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    serial: usize,
}

impl Archive {
    /// Adds a file; `path` is relative to the root.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, 0o100_000 | mode, (0, 0), content);
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, 0o020_600, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.entry(&path[..end], 0o040_755, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let (major, minor) = device;
        let serial = self.serial;
        let size = u32::try_from(content.len()).expect("a guest's file is below 4 GiB");
        let name_size = path.len() + 1;
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let header = format!(
            "070701{serial:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{major:08x}{minor:08x}\
             {name_size:08x}{:08x}",
            0, 0, 1, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        self.serial += 1;
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The archive of busybox, the programs with their libraries and the kernel modules, from the cache if nothing changed
/// since; with it the names of the modules in order of insertion.
pub(super) fn base(
    kernel: &Kernel,
    programs: &[&str],
    cache: &Path,
) -> Result<(PathBuf, Vec<String>)> {
    let mut sources = BTreeSet::new();
    for name in programs {
        let program = find_program(name).with_context(|| format!("{name} is not installed"))?;
        sources.extend(libraries(&program)?);
        sources.insert(program);
    }
    let busybox = find_program("busybox").context("busybox is not installed")?;
    let key = key(kernel, sources.iter().chain([&busybox]))?;
    let path = cache.join(format!("initramfs-{key:016x}.cpio"));
    let modules = kernel.load(&MODULES)?;
    let names = modules.iter().map(|module| module.name.clone()).collect();
    if path.is_file() {
        return Ok((path, names));
    }
    let mut modules = modules;
    modules.extend(kernel.load(&MODULES_AT_HAND)?);
    let mut archive = Archive::default();
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &read(&busybox)?);
    for source in &sources {
        let place = source.to_str().context("a program's path is text")?.trim_start_matches('/');
        archive.file(place, 0o755, &read(source)?);
    }
    for module in &modules {
        archive.file(&format!("modules/{}.ko", module.name), 0o644, &module.bytes);
    }
    // Written beside and renamed, because several tests may do this at once.
    let partial = tempfile::NamedTempFile::new_in(cache).context("make the initramfs")?;
    std::fs::write(partial.path(), archive.finish()).context("write the initramfs")?;
    partial.persist(&path).with_context(|| format!("keep {}", path.display()))?;
    Ok((path, names))
}

/// Stands for the content of all sources: their paths, sizes and times of change.
fn key<'a>(kernel: &'a Kernel, sources: impl Iterator<Item = &'a PathBuf>) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    kernel.image().hash(&mut hasher);
    let mut modules: Vec<&PathBuf> = kernel.module_files().collect();
    modules.sort();
    for path in sources.chain(modules) {
        let facts = path.metadata().with_context(|| format!("look at {}", path.display()))?;
        (path, facts.len(), facts.mtime(), facts.mtime_nsec()).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// All shared libraries of a program with its interpreter, at the paths where it looks for them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    ensure!(output.status.success(), "ldd {}: {}", program.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_directories_before_files_and_ends_with_a_trailer() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o644, b"hello");
        archive.file("a/d", 0o644, b"");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<&str> = text
            .split("070701")
            .skip(1)
            .filter_map(|entry| entry.get(104..).and_then(|rest| rest.split('\0').next()))
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/d", "TRAILER!!!"]);
        assert!(bytes.len().is_multiple_of(4));
    }
}
