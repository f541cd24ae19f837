//! The guest's kernel as a Debian package unpacked it, and its modules in the order in which they can be inserted.
//!
//! Invariants: a module comes after everything it depends on; what is built into the kernel is left out.
//! The package has no `modules.dep` (depmod writes it at installation), so each module's own `depends=` is read.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A kernel and its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    /// Module name (with `_`) to file.
    modules: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

/// A module ready to be inserted.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl Kernel {
    /// The kernel unpacked in this directory: `boot/vmlinuz-*` and `lib/modules/<version>`, also below `usr`.
    pub fn find(directory: &Path) -> Result<Self> {
        let boot = directory.join("boot");
        let image = children(&boot)
            .with_context(|| format!("no guest kernel in {}", directory.display()))?
            .into_iter()
            .filter(|path| file_name(path).starts_with("vmlinuz-"))
            .max()
            .with_context(|| format!("no vmlinuz in {}", boot.display()))?;
        let version = file_name(&image).trim_start_matches("vmlinuz-").to_owned();
        let tree = [directory.join("usr/lib/modules"), directory.join("lib/modules")]
            .into_iter()
            .map(|modules| modules.join(&version))
            .find(|path| path.join("modules.builtin").is_file())
            .with_context(|| format!("no modules of {version} in {}", directory.display()))?;
        let list = std::fs::read_to_string(tree.join("modules.builtin"))
            .context("read modules.builtin")?;
        let builtin = list.lines().map(|line| module_name(Path::new(line))).collect();
        let mut modules = HashMap::new();
        collect_modules(&tree.join("kernel"), &mut modules)?;
        Ok(Self { image, modules, builtin })
    }

    /// The kernel's image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The files that `load` would read, to tell whether they changed.
    pub(super) fn module_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.modules.values()
    }

    /// These modules with all they need, in order of insertion.
    pub(super) fn load(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut loaded = Vec::new();
        for name in names {
            self.load_one(name, &mut loaded)?;
        }
        Ok(loaded)
    }

    /// The recursion ends because modules cannot depend on each other in a circle.
    fn load_one(&self, name: &str, loaded: &mut Vec<Module>) -> Result<()> {
        if self.builtin.contains(name) || loaded.iter().any(|module| module.name == name) {
            return Ok(());
        }
        let path = self.modules.get(name).with_context(|| format!("no kernel module {name}"))?;
        let bytes = decompress(path)?;
        for needed in depends(&bytes) {
            self.load_one(&needed, loaded)?;
        }
        loaded.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

fn collect_modules(directory: &Path, found: &mut HashMap<String, PathBuf>) -> Result<()> {
    for path in children(directory)? {
        if path.is_dir() {
            collect_modules(&path, found)?;
        } else if file_name(&path).contains(".ko") {
            found.insert(module_name(&path), path);
        }
    }
    Ok(())
}

fn children(directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("list {}", directory.display()))
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The name the kernel uses: without directory and ending, with `_` for `-`.
fn module_name(path: &Path) -> String {
    let name = file_name(path);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    if !file_name(path).ends_with(".xz") {
        return std::fs::read(path).with_context(|| format!("read {}", path.display()));
    }
    let output = Command::new("xz").arg("-dc").arg(path).output().context("run xz")?;
    ensure!(output.status.success(), "xz -dc {}: {}", path.display(), output.status);
    Ok(output.stdout)
}

/// The names in the `depends=` entry of a module's information section, whose entries end with a zero byte.
fn depends(module: &[u8]) -> Vec<String> {
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
