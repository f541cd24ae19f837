//! Loop devices, and a fresh file system in a file.
//!
//! Invariants: whatever was made is on the `Undo` before the next step begins.
//! Limits: xfs is at least `XFS_BYTES_MIN`; mkfs.xfs makes none that is smaller.

use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use load::probe::{CacheMode, cache_mode};
use plan::units::Bytes;
use plan::variant::FileSystem;
use rustix::mount::{MountFlags, mount};

use super::tools::{LOSETUP, MKFS_EXT4, MKFS_XFS, Tool, Tools, check_root, word};
use super::undo::{Step, Undo};
use crate::interrupt::Interrupt;
use crate::scratch::reserve;

/// mkfs.xfs refuses less than 300 MiB.
const XFS_BYTES_MIN: u64 = 320 << 20;
/// The journal, and what a scratch file leaves free.
const OVERHEAD_BYTES: u64 = 192 << 20;
/// Inodes and bitmaps, as a share of the content.
const OVERHEAD_SHARE: u64 = 16;

/// How large the file of a file system with so much content is.
pub(super) fn container_bytes(content: u64) -> u64 {
    let bytes = content + content / OVERHEAD_SHARE + OVERHEAD_BYTES;
    bytes.next_multiple_of(1 << 20).max(XFS_BYTES_MIN)
}

/// The program that makes this file system and the options that leave nothing to be done later, in
/// the background of the runs. `None`: there is nothing to make.
fn maker(fs: FileSystem) -> Option<(Tool, &'static [&'static str])> {
    match fs {
        FileSystem::Here => None,
        FileSystem::Ext4 => Some((
            MKFS_EXT4,
            &["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
        )),
        FileSystem::Xfs => Some((MKFS_XFS, &["-q", "-f", "-K"])),
    }
}

/// Fails early, before anything is filled, if the file system cannot be made here.
///
/// # Errors
/// Without root or without the programs.
pub(super) fn check(fs: FileSystem, tools: &Tools) -> Result<()> {
    match maker(fs) {
        None => Ok(()),
        Some((tool, _)) => {
            check_root(&format!("the file system {fs}"))?;
            tools.find(LOSETUP)?;
            tools.find(tool).map(drop)
        }
    }
}

/// Makes the file system with room for `content` bytes and mounts it; `base` names its file and its
/// directory. `None`: files lie in the directory itself.
///
/// # Errors
/// If a step fails, or a signal comes.
pub fn mount_fresh(
    fs: FileSystem,
    base: &Path,
    content: u64,
    tools: &Tools,
    undo: &mut Undo,
    interrupt: &Interrupt,
) -> Result<Option<PathBuf>> {
    let Some((tool, options)) = maker(fs) else {
        return Ok(None);
    };
    check(fs, tools)?;
    let file = base.with_extension(fs.to_string());
    reserved_file(&file, container_bytes(content), undo)?;
    let device = attach(&file, tools, undo, interrupt)?;
    let mut words: Vec<&OsStr> = options.iter().map(AsRef::as_ref).collect();
    words.push(word(&device));
    tools.run(tool, &words, interrupt)?;
    let directory = base.with_extension("mnt");
    DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("create {}", directory.display()))?;
    undo.push(Step::Directory(directory.clone()));
    mount(&device, &directory, fs.to_string().as_str(), MountFlags::NOATIME, None).with_context(
        || format!("mount {fs} from {} on {}", device.display(), directory.display()),
    )?;
    undo.push(Step::Mount(directory.clone()));
    remove_lost_and_found(&directory);
    Ok(Some(directory))
}

/// ext4 brings a directory that nobody needs here.
fn remove_lost_and_found(directory: &Path) {
    // It stays if it is not there or cannot be removed, and harms nobody.
    drop(std::fs::remove_dir(directory.join("lost+found")));
}

/// A new file whose space is there but holds nothing.
///
/// # Errors
/// If it exists already or there is no room.
pub(super) fn reserved_file(path: &Path, bytes: u64, undo: &mut Undo) -> Result<()> {
    let name = path.display();
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("create {name}"))?;
    undo.push(Step::File(path.to_path_buf()));
    if bytes == 0 {
        return Ok(());
    }
    file.set_len(bytes).with_context(|| format!("create {name} of {bytes} bytes"))?;
    reserve(&file, path, Bytes(bytes))
}

/// A loop device on a file, past the page cache where the file system can do that.
///
/// # Errors
/// What losetup says, or if it names no device.
pub fn attach(
    file: &Path,
    tools: &Tools,
    undo: &mut Undo,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let direct = match cache_mode(file).with_context(|| format!("read {}", file.display()))? {
        CacheMode::Direct => "--direct-io=on",
        CacheMode::Buffered => "--direct-io=off",
    };
    let words = ["--find".as_ref(), "--show".as_ref(), direct.as_ref(), word(file)];
    let output = tools.run(LOSETUP, &words, interrupt);
    let output = output.inspect_err(|_| detach_all(file, tools))?;
    let device = PathBuf::from(output.trim());
    ensure!(device.starts_with("/dev"), "losetup names no loop device: '{}'", output.trim());
    undo.push(Step::Loop(device.clone()));
    Ok(device)
}

/// A losetup that a signal ended may have made a device before. It is one of a file that only we know.
fn detach_all(file: &Path, tools: &Tools) {
    let words = ["--noheadings", "--output", "NAME", "--associated"].map(OsStr::new);
    let devices = tools.run_anyway(LOSETUP, &[&words[..], &[word(file)]].concat());
    // The error to tell is that of the losetup before.
    for device in devices.unwrap_or_default().split_whitespace() {
        drop(tools.run_anyway(LOSETUP, &["--detach".as_ref(), device.as_ref()]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_room_for_more_than_their_content() {
        assert_eq!(container_bytes(0), XFS_BYTES_MIN);
        assert_eq!(container_bytes(1 << 30), (1024 + 64 + 192) << 20);
        assert!(container_bytes(16 << 20).is_multiple_of(1 << 20));
    }

    #[test]
    fn what_cannot_be_made_is_said_before() {
        let nothing = Tools::only(Path::new("/nonexistent"));
        assert!(check(FileSystem::Here, &nothing).is_ok());
        let error = check(FileSystem::Xfs, &nothing).unwrap_err().to_string();
        assert!(
            error.contains("losetup is not installed") || error.contains("needs root"),
            "{error}"
        );
    }
}
