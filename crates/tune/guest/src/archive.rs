//! Initramfs archives in cpio's "newc" form, written here so that no cpio has to be installed.
//!
//! Invariants: every file's directories stand before it. The kernel unpacks archives that stand one after the other,
//! so a big one can be cached and a small one appended.
//! Limits: newc's fields have 32 bits; a file of 4 GiB is refused.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::Kernel;
use crate::programs::{find_program, libraries};

/// Raised when `base` writes something else from the same sources.
const FORM: u32 = 3;

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

/// What an initramfs is made of, besides busybox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Contents<'a> {
    /// Programs of this machine, which come with their libraries, at the same paths.
    pub programs: &'a [&'a str],
    /// Modules that the kernel must have, to be inserted in the order of `/modules/order`.
    pub modules: &'a [&'a str],
    /// Modules to be inserted after them, if the kernel has them.
    pub modules_if_any: &'a [&'a str],
    /// Modules that only lie in `/modules`, with those that they need.
    pub modules_at_hand: &'a [&'a str],
    /// Executable files: path without the leading `/`, content.
    pub files: &'a [(&'a str, &'a str)],
}

/// The path of such an archive: from the cache, or made now and kept there. The error names what is not installed.
///
/// `/modules/order` in it lists the modules to insert, one name per line; `/modules/NAME.ko` is the module.
pub fn base(kernel: &Kernel, contents: &Contents<'_>, cache: &Path) -> Result<PathBuf> {
    let mut sources = BTreeSet::new();
    for name in contents.programs {
        let program = program(name, "guests need it")?;
        sources.extend(libraries(&program)?);
        sources.insert(program);
    }
    let busybox = program("busybox", "it is the user space of guests")?;
    sources.extend(libraries_if_dynamic(&busybox));
    let key = key(kernel, contents, sources.iter().chain([&busybox]))?;
    std::fs::create_dir_all(cache).with_context(|| format!("create {}", cache.display()))?;
    let path = cache.join(format!("initramfs-{key:016x}.cpio"));
    if path.is_file() {
        return Ok(path);
    }
    let archive = assemble(kernel, contents, &sources, &busybox)?;
    // Written beside and renamed, because several may do this at once.
    let partial = tempfile::NamedTempFile::new_in(cache).context("make the initramfs")?;
    std::fs::write(partial.path(), archive).context("write the initramfs")?;
    partial.persist(&path).with_context(|| format!("keep {}", path.display()))?;
    Ok(path)
}

fn program(name: &str, why: &str) -> Result<PathBuf> {
    find_program(name).with_context(|| format!("{name} is not installed: {why}"))
}

/// The libraries of a program that usually has none; `ldd` refuses one that is linked statically.
fn libraries_if_dynamic(program: &Path) -> Vec<PathBuf> {
    libraries(program).unwrap_or_default()
}

fn assemble(
    kernel: &Kernel,
    contents: &Contents<'_>,
    sources: &BTreeSet<PathBuf>,
    busybox: &Path,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &read(busybox)?);
    for source in sources {
        let place = source.to_str().context("a program's path is text")?.trim_start_matches('/');
        archive.file(place, 0o755, &read(source)?);
    }
    let optional = contents.modules_if_any.iter().filter(|name| kernel.has(name));
    let names: Vec<&str> = contents.modules.iter().chain(optional).copied().collect();
    let inserted = kernel.load(&names)?;
    let order: String = inserted.iter().map(|module| format!("{}\n", module.name)).collect();
    archive.file("modules/order", 0o644, order.as_bytes());
    let at_hand = kernel.load(contents.modules_at_hand)?;
    for module in inserted.iter().chain(&at_hand) {
        archive.file(&format!("modules/{}.ko", module.name), 0o644, &module.bytes);
    }
    for (path, content) in contents.files {
        archive.file(path, 0o755, content.as_bytes());
    }
    Ok(archive.finish())
}

/// Stands for the content of all sources: their paths, sizes and times of change.
fn key<'a>(
    kernel: &'a Kernel,
    contents: &Contents<'_>,
    sources: impl Iterator<Item = &'a PathBuf>,
) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    FORM.hash(&mut hasher);
    contents.hash(&mut hasher);
    kernel.image().hash(&mut hasher);
    let mut modules: Vec<&PathBuf> = kernel.module_files().collect();
    modules.sort();
    for path in sources.chain(modules) {
        let facts = path.metadata().with_context(|| format!("look at {}", path.display()))?;
        (path, facts.len(), facts.mtime(), facts.mtime_nsec()).hash(&mut hasher);
    }
    Ok(hasher.finish())
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
