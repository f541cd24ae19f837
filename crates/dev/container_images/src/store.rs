//! Images as buildah keeps them while they are built and looked at, and the base that they stand on.
//!
//! Invariants: with the same packages, recipe and program an archive is the same, byte by byte: all times are the store's, there is
//! no history and no label that tells of the build, and the base knows nothing of this machine. Nothing is ever pulled.
//! Limits: layers are whole copies (`vfs`), which works in any directory; an image takes some 300 MB.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::archive::Archive;
use crate::recipe::Recipe;
use crate::run::{make_dir, output_of, remove_file, text};

/// How the base is called that is made here.
const BASE: &str = "localhost/ringloom-base";
/// What mmdebstrap takes over from this machine, so that apt finds its mirrors.
const OF_THIS_MACHINE: &str = r#"rm -f "$1/etc/hostname" "$1/etc/resolv.conf""#;

/// A directory with images.
#[derive(Debug)]
pub struct Store {
    place: PathBuf,
    epoch: String,
}

/// A container that is removed once it is not needed any more.
#[derive(Debug)]
pub(crate) struct Container<'a> {
    store: &'a Store,
    id: String,
}

impl Store {
    /// In a directory. All files of its images are of that time, in seconds since 1970.
    pub fn new(place: &Path, epoch: u64) -> Result<Self> {
        make_dir(place)?;
        Ok(Self { place: place.to_owned(), epoch: epoch.to_string() })
    }

    /// Makes the base, a Debian 12 with apt and not much more, unless it was made here before.
    pub fn make_base(&self) -> Result<()> {
        let file = self.place.join("base.tar");
        if !file.exists() {
            let new = self.place.join("base.new.tar");
            remove_file(&new)?;
            let mut tool = Command::new("mmdebstrap");
            tool.args(["--quiet", "--variant=apt", "--mode=root"]);
            tool.arg(format!("--customize-hook={OF_THIS_MACHINE}")).arg("bookworm").arg(&new);
            output_of(tool.env("SOURCE_DATE_EPOCH", &self.epoch))?;
            std::fs::rename(&new, &file)?;
        }
        let container = Container::of(self, "scratch")?;
        self.buildah(&["add", "--quiet", &container.id, text(&file)?])?;
        let times = ["--timestamp", &self.epoch, "--omit-history", "--identity-label=false"];
        let words = [&["commit", "--quiet"], &times[..], &[&container.id, BASE]].concat();
        self.buildah(&words).map(drop)
    }

    /// Builds a recipe on the base. Whoever imports the archive calls the image by this name.
    pub fn build(&self, recipe: &Recipe, name: &str) -> Result<Archive> {
        let archive = self.place.join(format!("{}.tar", recipe.name));
        remove_file(&archive)?;
        let base = format!("BASE={BASE}");
        let target = format!("oci-archive:{}:{name}", archive.display());
        let program = match &recipe.program {
            Some(directory) => {
                vec!["--build-context".to_owned(), format!("program={}", text(directory)?)]
            }
            None => Vec::new(),
        };
        let mut words = vec!["build", "--quiet", "--isolation", "chroot", "--pull=never"];
        words.extend(["--timestamp", &self.epoch, "--omit-history", "--identity-label=false"]);
        words.extend(["--build-arg", &base, "--tag", &target, "--file", text(&recipe.file)?]);
        words.extend(program.iter().map(String::as_str));
        words.push(text(&recipe.context)?);
        self.buildah(&words)?;
        Ok(Archive::new(archive))
    }

    /// Removes everything but archives, and the base, with which the next store in this directory begins.
    pub fn finish(self) -> Result<()> {
        let containers = self.place.join("containers");
        std::fs::remove_dir_all(&containers)
            .with_context(|| format!("remove {}", containers.display()))
    }

    /// A container of the image in an archive.
    pub(crate) fn container(&self, archive: &Archive) -> Result<Container<'_>> {
        Container::of(self, &format!("oci-archive:{}", archive.path().display()))
    }

    fn buildah(&self, words: &[&str]) -> Result<String> {
        let store = self.place.join("containers");
        let mut tool = Command::new("buildah");
        tool.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
        output_of(tool.args(["--storage-driver", "vfs"]).args(words))
    }
}

impl<'a> Container<'a> {
    fn of(store: &'a Store, image: &str) -> Result<Self> {
        let id = store.buildah(&["from", "--quiet", "--pull", image])?;
        Ok(Self { store, id: id.trim().to_owned() })
    }

    /// Where its files are while it lasts.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        let root = self.store.buildah(&["mount", &self.id])?;
        Ok(PathBuf::from(root.trim()))
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // It is of no harm where it is, and the error that ended its use says more.
        let _left_behind = self.store.buildah(&["rm", &self.id]);
    }
}
