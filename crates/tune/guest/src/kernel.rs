//! The kernel that guests boot, and its modules in the order in which they can be inserted.
//!
//! Invariants: a module comes after everything it depends on; what is built into the kernel is left out.
//! A package that was only unpacked has no `modules.dep` (depmod writes it at installation), so each module's
//! own `depends=` is read.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::modules::{Module, children, collect, depends, file_name, module_name, unpack};
use crate::uncompressed;

/// What a directory of modules is known by.
const BUILTIN: &str = "modules.builtin";
const IMAGE_PREFIX: &str = "vmlinuz-";
/// Closes the sentences about a kernel that was not found.
const HINT: &str = "--guest-kernel names another";

/// Where the kernel comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelSource {
    /// The kernel of this machine: `/boot/vmlinuz-VERSION` or the `vmlinuz` beside its modules in
    /// `/lib/modules/VERSION`.
    Host,
    /// A kernel's image whose modules are in `lib/modules` beside its directory, in `/lib/modules`, or
    /// around it; or a directory as a Debian package unpacks: `boot/vmlinuz-VERSION` with
    /// `lib/modules/VERSION` or `usr/lib/modules/VERSION`.
    Path(PathBuf),
}

/// A kernel and its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    image: PathBuf,
    version: String,
    /// Module name (with `_`) to file.
    modules: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

impl Kernel {
    /// Finds the kernel and lists its modules. The error says what was looked for.
    pub fn open(source: &KernelSource) -> Result<Self> {
        if let KernelSource::Path(path) = source {
            path.metadata()
                .with_context(|| format!("the guest's kernel {}: {HINT}", path.display()))?;
        }
        let (image, tree) = match source {
            KernelSource::Host => of_host()?,
            KernelSource::Path(path) if path.is_dir() => of_directory(path)?,
            KernelSource::Path(path) => of_image(path)?,
        };
        File::open(&image)
            .with_context(|| format!("the guest's kernel {}: {HINT}", image.display()))?;
        Self::with_modules(image, &tree)
    }

    fn with_modules(image: PathBuf, tree: &Path) -> Result<Self> {
        let path = tree.join(BUILTIN);
        let list =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let builtin = list.lines().map(|line| module_name(Path::new(line))).collect();
        let mut modules = HashMap::new();
        collect(&tree.join("kernel"), &mut modules)?;
        Ok(Self { image, version: file_name(tree).to_owned(), modules, builtin })
    }

    /// The kernel's image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The image without its compression, which an emulated processor would take seconds to undo; from the directory `cache`, or
    /// made now and kept there. The image itself if it is not compressed, or in a way that is not known here.
    pub fn uncompressed(&self, cache: &Path) -> Result<PathBuf> {
        uncompressed::kernel(&self.image, cache)
    }

    /// Its version as `uname -r` prints it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it has this driver, built in or as a module; the name is the kernel's, with `_` for `-`.
    pub fn has(&self, name: &str) -> bool {
        self.builtin.contains(name) || self.modules.contains_key(name)
    }

    /// The files that `load` would read, to tell whether they changed.
    pub(crate) fn module_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.modules.values()
    }

    /// These modules with all they need, in order of insertion. An error if the kernel lacks one.
    pub fn load(&self, names: &[&str]) -> Result<Vec<Module>> {
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
        let path = self
            .modules
            .get(name)
            .with_context(|| format!("kernel {} has no module {name}", self.version))?;
        let bytes = unpack(path)?;
        for needed in depends(&bytes) {
            self.load_one(&needed, loaded)?;
        }
        loaded.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

/// The image of this machine's kernel and the directory of its modules.
fn of_host() -> Result<(PathBuf, PathBuf)> {
    let names = rustix::system::uname();
    let version = names.release().to_str().context("the kernel's version is text")?;
    let tree = Path::new("/lib/modules").join(version);
    let images =
        [Path::new("/boot").join(format!("{IMAGE_PREFIX}{version}")), tree.join("vmlinuz")];
    let Some(image) = images.iter().find(|it| it.exists()) else {
        let [first, second] = images.each_ref().map(|it| it.display());
        bail!("no kernel for guests: neither {first} nor {second} exists; {HINT}");
    };
    if !tree.join(BUILTIN).is_file() {
        bail!("no modules for guests: {} does not exist; {HINT}", tree.join(BUILTIN).display());
    }
    Ok((image.clone(), tree))
}

/// The kernel unpacked in this directory: `boot/vmlinuz-VERSION` and its modules. The last of several.
fn of_directory(directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let boot = directory.join("boot");
    let image = children(&boot)
        .with_context(|| format!("no guest kernel in {}", directory.display()))?
        .into_iter()
        .filter(|path| file_name(path).starts_with(IMAGE_PREFIX))
        .max()
        .with_context(|| format!("no {IMAGE_PREFIX}VERSION in {}", boot.display()))?;
    let version = file_name(&image).trim_start_matches(IMAGE_PREFIX).to_owned();
    let trees = [directory.join("usr/lib/modules"), directory.join("lib/modules")];
    let tree = trees
        .iter()
        .map(|modules| modules.join(&version))
        .find(|path| path.join(BUILTIN).is_file())
        .with_context(|| format!("no modules of {version} in {}", directory.display()))?;
    Ok((image, tree))
}

/// The directory of an image's modules: around it, or by the version in its name, or the only one beside.
fn of_image(image: &Path) -> Result<(PathBuf, PathBuf)> {
    let image = std::path::absolute(image)
        .with_context(|| format!("the guest's kernel {}", image.display()))?;
    let directory = image.parent().context("a kernel's image is in a directory")?;
    if directory.join(BUILTIN).is_file() {
        return Ok((image.clone(), directory.to_path_buf()));
    }
    let beside = directory.parent().unwrap_or(directory);
    let roots = [
        beside.join("lib/modules"),
        beside.join("usr/lib/modules"),
        directory.join("lib/modules"),
        PathBuf::from("/lib/modules"),
    ];
    let tree = match file_name(&image).strip_prefix(IMAGE_PREFIX) {
        Some(version) => {
            roots.iter().map(|it| it.join(version)).find(|it| it.join(BUILTIN).is_file())
        }
        None => roots[..3].iter().find_map(|it| only_child(it)),
    };
    let looked = || {
        let places: Vec<String> = roots.iter().map(|it| it.display().to_string()).collect();
        format!("no modules of the guest's kernel {} in {}", image.display(), places.join(", "))
    };
    let tree = tree.with_context(looked)?;
    Ok((image, tree))
}

/// The one directory of modules in there, if it is the only one.
fn only_child(root: &Path) -> Option<PathBuf> {
    // A directory that cannot be listed has no modules for us.
    let mut trees = children(root).ok()?.into_iter().filter(|it| it.join(BUILTIN).is_file());
    let first = trees.next()?;
    trees.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root directory with images and with modules of these versions.
    fn root(images: &[&str], trees: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for image in images {
            let path = root.path().join(image);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, "").expect("an image");
        }
        for tree in trees {
            let tree = root.path().join(tree);
            std::fs::create_dir_all(tree.join("kernel/a")).expect("a directory");
            std::fs::write(tree.join(BUILTIN), "kernel/x/in-side.ko\n").expect("a list");
            std::fs::write(tree.join("kernel/a/low.ko"), "\0depends=\0").expect("a module");
            std::fs::write(tree.join("kernel/a/up-per.ko"), "\0depends=low,in-side\0")
                .expect("a module");
        }
        root
    }

    #[track_caller]
    fn check(images: &[&str], trees: &[&str], path: &str, expected: Result<&str, &str>) {
        let root = root(images, trees);
        let opened = Kernel::open(&KernelSource::Path(root.path().join(path)));
        match expected {
            Ok(version) => assert_eq!(opened.expect("a kernel").version(), version),
            Err(words) => {
                let error = format!("{:#}", opened.expect_err("no kernel"));
                assert!(error.contains(words), "{error}");
            }
        }
    }

    #[test]
    fn a_kernel_is_found_with_its_modules() {
        check(&["boot/vmlinuz-1"], &["lib/modules/1"], "", Ok("1"));
        check(&["boot/vmlinuz-1"], &["usr/lib/modules/1"], "", Ok("1"));
        check(&["boot/vmlinuz-1", "boot/vmlinuz-2"], &["lib/modules/2"], "", Ok("2"));
        check(&["boot/vmlinuz-1"], &["lib/modules/1"], "boot/vmlinuz-1", Ok("1"));
        check(&["vmlinuz"], &["lib/modules/7"], "vmlinuz", Ok("7"));
        check(&["boot/vmlinuz"], &["lib/modules/7"], "boot/vmlinuz", Ok("7"));
        check(&["lib/modules/3/vmlinuz"], &["lib/modules/3"], "lib/modules/3/vmlinuz", Ok("3"));
    }

    #[test]
    fn what_is_missing_is_told() {
        check(&[], &["lib/modules/1"], "", Err("no guest kernel in"));
        check(&["boot/x"], &["lib/modules/1"], "", Err("no vmlinuz-VERSION in"));
        check(&["boot/vmlinuz-1"], &["lib/modules/2"], "", Err("no modules of 1 in"));
        check(&["boot/vmlinuz-1"], &["lib/modules/2"], "boot/vmlinuz-1", Err("no modules of the"));
        check(&["vmlinuz"], &["lib/modules/1", "lib/modules/2"], "vmlinuz", Err("no modules of"));
        check(&[], &["lib/modules/9"], "boot/vmlinuz-9", Err("--guest-kernel names another"));
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let root = root(&["boot/vmlinuz-1"], &["lib/modules/1"]);
        let kernel = Kernel::open(&KernelSource::Path(root.path().to_path_buf())).expect("it");
        let names = |modules: Vec<Module>| -> Vec<String> {
            modules.into_iter().map(|module| module.name).collect()
        };
        assert_eq!(names(kernel.load(&["up_per", "low"]).expect("modules")), ["low", "up_per"]);
        assert!(kernel.has("in_side") && kernel.has("low") && !kernel.has("none"));
        let error = kernel.load(&["none"]).expect_err("there is none");
        assert_eq!(error.to_string(), "kernel 1 has no module none");
    }
}
