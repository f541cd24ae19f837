//! Kernel modules as files: their names, what they need, what is packed in them.
//!
//! Invariants: names are the kernel's, with `_` for `-`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::programs::find_program;

/// Endings of compressed modules, and the programs that unpack them.
const PACKERS: [(&str, &str); 3] = [("xz", "xz"), ("zst", "zstd"), ("gz", "gzip")];

/// A module ready to be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The name the kernel uses.
    pub name: String,
    /// The module, unpacked.
    pub bytes: Vec<u8>,
}

/// Adds the modules below a directory: name to file.
pub(crate) fn collect(directory: &Path, found: &mut HashMap<String, PathBuf>) -> Result<()> {
    for path in children(directory)? {
        // A link (`build`, `source`) leads out of the tree.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(&path, found)?;
        } else if file_name(&path).contains(".ko") {
            found.insert(module_name(&path), path);
        }
    }
    Ok(())
}

/// What stands in a directory.
pub(crate) fn children(directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("list {}", directory.display()))
}

/// The last part of a path; empty if it is no text.
pub(crate) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The name the kernel uses: without directory and ending, with `_` for `-`.
pub(crate) fn module_name(path: &Path) -> String {
    let name = file_name(path);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

/// The content of a module's file, unpacked if its name says that it is packed.
pub(crate) fn unpack(path: &Path) -> Result<Vec<u8>> {
    let ending = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
    let Some((_, packer)) = PACKERS.iter().find(|(it, _)| *it == ending) else {
        return std::fs::read(path).with_context(|| format!("read {}", path.display()));
    };
    let program = find_program(packer)
        .with_context(|| format!("{packer} is not installed: it unpacks {}", path.display()))?;
    let output =
        Command::new(program).arg("-dc").arg(path).output().context("start the unpacker")?;
    ensure!(output.status.success(), "{packer} -dc {}: {}", path.display(), output.status);
    Ok(output.stdout)
}

/// The names in the `depends=` entry of a module's information section, whose entries end with a zero byte.
pub(crate) fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[start + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependencies_of_a_module_are_read_from_its_information() {
        assert_eq!(depends(b"x\0license=GPL\0depends=a-b,c\0name=d\0"), ["a_b", "c"]);
        assert_eq!(depends(b"x\0depends=\0name=d\0"), Vec::<String>::new());
        assert_eq!(depends(b"nothing"), Vec::<String>::new());
    }

    #[test]
    fn a_module_has_the_name_the_kernel_uses() {
        assert_eq!(module_name(Path::new("kernel/arch/crc32c-intel.ko.xz")), "crc32c_intel");
    }
}
