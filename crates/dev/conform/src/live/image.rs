//! A qcow2 image in a file of the host, or behind channels, as the disk under test: served by the crate `qcow2`, judged by the rig's own
//! checker and reader, and by qemu-img if there is one.
//!
//! Invariants: the disk holds first what a file of number 0 would, so that the workload knows each sector.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use block::{Access, Child, Claim, Clock, DiscardPolicy, Node, Rights, SystemClock};
use disk::FileNode;
use kernel_io::{Aio, Caching, FileTable, OpenOptions};
use qcow2::{Children, Qcow2Node, Qcow2Settings};
use request_path::ControlEngineFactory;
use testkit::channel::{self, Remote, RemoteNode};
use testkit::conformance::layout::Layout;
use testkit::conformance::stamp::SECTOR_BYTES;
use testkit::conformance::workload::Workload;
use testkit::qcow2rig::disk::Snapshot;
use testkit::qcow2rig::make::{Made, Recipe};
use testkit::qcow2rig::{check, image, peer};
use testkit::rng::Rng;

use crate::images::any_settings;
use crate::subjects::Medium;

/// The file of the image; the others follow it.
const IMAGE: usize = 0;
const BACKING: usize = 1;
const DATA: usize = 2;

/// An image that is open.
pub(super) struct Image {
    recipe: Recipe,
    made: Made,
    paths: [PathBuf; 3],
    /// Its files are behind channels, which behave so.
    remote: Option<(channel::Habits, u64)>,
    /// Given back to close it.
    claim: Option<Claim>,
}

/// How the files of an image are opened.
#[derive(Clone, Copy)]
struct Habits {
    caching: Caching,
    aio: Aio,
    discard: DiscardPolicy,
    settings: Qcow2Settings,
}

impl Image {
    /// Makes an image of any shape and opens it.
    pub(super) fn open(rng: &mut Rng, medium: &Medium) -> Result<(Self, Arc<dyn Node>)> {
        let recipe = Recipe::any(rng, 12..19);
        let made = recipe.make_as_file(IMAGE, rng)?;
        let paths = [medium.path(IMAGE), medium.path(BACKING), medium.path(DATA)];
        let contents = [Some(&made.image), made.backing.as_ref(), made.data.as_ref()];
        for (path, content) in paths.iter().zip(contents) {
            if let Some(content) = content {
                // Direct I/O reaches no part of a block at the end of a file.
                let mut content = content.clone();
                content.resize(content.len().next_multiple_of(4096), 0);
                std::fs::write(path, content)
                    .with_context(|| format!("write {}", path.display()))?;
            }
        }
        let caching = if rng.one_in(2) { Caching::Direct } else { Caching::Buffered };
        let aio = match (rng.below(4), caching) {
            (0, Caching::Direct) => Aio::Native,
            (1, _) => Aio::Threads,
            _ => Aio::Automatic,
        };
        let discard = if rng.one_in(2) { DiscardPolicy::Unmap } else { DiscardPolicy::Ignore };
        let remote = rng.one_in(3).then(|| {
            (channel::Habits { grows: true, ..channel::Habits::choose(rng) }, rng.next_u64())
        });
        let mut image = Self { recipe, made, paths, remote, claim: None };
        let habits = Habits { caching, aio, discard, settings: any_settings(rng) };
        let node = image.build(habits, medium).with_context(|| image.describe())?;
        let claim = node.claim(Rights::of_user(Access::ReadWrite)).context("claim the image")?;
        image.claim = Some(claim);
        Ok((image, node))
    }

    /// How to make the same again.
    pub(super) fn describe(&self) -> String {
        format!("an image as {:?}, behind {:?}", self.recipe, self.remote)
    }

    /// Where its sectors are, as a workload knows them.
    pub(super) fn layout(&self) -> Layout {
        Layout::of_file(IMAGE, self.made.content.len() / SECTOR_BYTES)
    }

    /// Gives it back.
    pub(super) fn close(&mut self) {
        self.claim = None;
    }

    /// Judges the image in the file, which nobody changes, and compares all that is in it.
    pub(super) fn check(&self, workload: &mut Workload) -> Result<()> {
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("read {}", path.display()))
        };
        let file = Snapshot::of(&read(&self.paths[IMAGE])?);
        let data = match self.made.data {
            Some(_) => Some(Snapshot::of(&read(&self.paths[DATA])?)),
            None => None,
        };
        let wrong = |error: String| anyhow::anyhow!(error);
        let verdict = check::check(&file).map_err(wrong)?;
        if let Some(error) = verdict.errors.first() {
            bail!("{} errors in the image, the first: {}", verdict.errors.len(), error.text);
        }
        let backing = self.made.backing.as_deref();
        let content = image::read_all(&file, data.as_ref(), backing).map_err(wrong)?;
        workload.check_file(IMAGE, &content).context("in the image")?;
        if peer::missing().is_none() {
            peer::judge(&file, data.as_ref(), backing, &content)?;
        }
        Ok(())
    }

    fn build(&self, habits: Habits, medium: &Medium) -> Result<Arc<dyn Node>> {
        let table = &medium.table;
        let file = |place: usize, name: &str, access| -> Result<Arc<Child>> {
            let path = self.paths[place].clone();
            Ok(Child::new(match self.remote {
                Some(remote) => open_remote(name, &path, remote)?,
                None => open_file(name, path, access, habits, table)?,
            }))
        };
        let backing = match self.made.backing {
            Some(_) => Some(file(BACKING, "backing", Access::ReadOnly)?),
            None => None,
        };
        let data_file = match self.made.data {
            Some(_) => Some(file(DATA, "data-file", Access::ReadWrite)?),
            None => None,
        };
        let children =
            Children { file: file(IMAGE, "file", Access::ReadWrite)?, backing, data_file };
        let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
        let engines = Arc::new(ControlEngineFactory::new(table, &clock));
        Ok(Arc::new(Qcow2Node::open("image", children, habits.settings, engines)?))
    }
}

fn open_file(
    name: &str,
    path: PathBuf,
    access: Access,
    habits: Habits,
    table: &Arc<FileTable>,
) -> Result<Arc<dyn Node>> {
    let options = OpenOptions {
        caching: habits.caching,
        aio: habits.aio,
        ..OpenOptions::regular(path, access)
    };
    Ok(Arc::new(FileNode::open(name, &options, habits.discard, table)?))
}

fn open_remote(
    name: &str,
    path: &Path,
    (habits, seed): (channel::Habits, u64),
) -> Result<Arc<dyn Node>> {
    let file = File::options().read(true).write(true).open(path)?;
    let bytes = file.metadata()?.len();
    let remote = Remote::new(&path.display().to_string(), file, bytes, habits, seed);
    Ok(Arc::new(RemoteNode::new(name, &remote)))
}
