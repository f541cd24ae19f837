//! The two disks of a command: nodes that are named by path or written as `--blockdev` has it; targets that are made.
//!
//! Invariants: a node is claimed before anything of it is read or written, so images are locked as a daemon locks them. A
//! file that was made for a command that failed is removed again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use block::{Access, Claim, Clock, DiskSize, Node, Permissions, Rights, SystemClock};
use graph::{BaseOptions, Blockdev, Graph, NamedFilesPolicy, StorageWatchdog};
use kernel_io::FileTable;
use layers::CompressNode;
use options::image_node;
use qcow2::CreateOptions;
use serde_json::json;

use crate::nbd_uri::node_of_uri;

/// The nodes of a command, and what it needs to serve them.
pub(crate) struct Disks {
    graph: Graph,
    pub(crate) files: Arc<FileTable>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A node that is used.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) claim: Claim,
}

/// A file that is removed if the command does not come to its end.
#[derive(Debug, Default)]
pub(crate) struct MadeFile(Option<PathBuf>);

impl MadeFile {
    /// The command has come to its end.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!("{}: cannot remove it: {error}", path.display());
        }
    }
}

impl Disks {
    pub(crate) fn new(named_files: bool) -> Self {
        let (files, clock): (_, Arc<dyn Clock>) = (Arc::default(), Arc::new(SystemClock));
        let named_files =
            if named_files { NamedFilesPolicy::Anywhere } else { NamedFilesPolicy::Refused };
        let graph = Graph::new(
            Arc::clone(&files),
            Arc::clone(&clock),
            named_files,
            Arc::new(StorageWatchdog::default()),
        );
        Self { graph, files, clock }
    }

    /// The source, or a target that is there.
    pub(crate) fn open(
        &mut self,
        name: &str,
        text: &str,
        format: Option<&str>,
        base: BaseOptions,
    ) -> Result<Disk> {
        let access = base.access();
        let mut blockdev = if let Some(server) = node_of_uri(text)? {
            let node = match format {
                None | Some("raw") => server,
                Some(format) => json!({"driver": format, "file": server}),
            };
            written(text, &node.to_string(), name, base)?
        } else if is_blockdev(text) {
            ensure!(
                format.is_none() || access == Access::ReadWrite,
                "{text}: its driver says what is in it"
            );
            written(text, text, name, base)?
        } else {
            image_node(Path::new(text), format, base).with_context(|| text.to_owned())?
        };
        let name = blockdev.node_name.get_or_insert_with(|| name.to_owned()).clone();
        blockdev.check_files().with_context(|| text.to_owned())?;
        self.graph.add(&blockdev).with_context(|| text.to_owned())?;
        // What is copied is to be one state of the disk.
        let rights = match base.force_share {
            true => Rights::of_user(access),
            false => Rights::unchanged_by_others(access),
        };
        let disk = self.claim(&name, rights).with_context(|| text.to_owned())?;
        self.check_end(&name, &disk).with_context(|| text.to_owned())?;
        Ok(disk)
    }

    /// The disk of images that stand on each other, the lowest first. What they name themselves is not looked at.
    pub(crate) fn open_chain(&mut self, images: &[PathBuf], base: BaseOptions) -> Result<Disk> {
        let mut below: Option<String> = None;
        for (number, path) in images.iter().enumerate() {
            let text = path.display().to_string();
            let name = format!("image{number}");
            let node = json!({
                "driver": "qcow2", "file": {"driver": "file", "filename": path}, "backing": below,
            });
            let blockdev = written(&text, &node.to_string(), &name, base)?;
            blockdev.check_files().with_context(|| text.clone())?;
            self.graph.add(&blockdev).with_context(|| text)?;
            below = Some(name);
        }
        let top = below.context("no image is named")?;
        self.claim(&top, Rights::unchanged_by_others(base.access()))
    }

    /// A file that nobody else uses, and nobody begins to use while it is held.
    pub(crate) fn hold(&mut self, path: &Path) -> Result<Disk> {
        let mut blockdev = image_node(path, Some("raw"), BaseOptions::DEFAULT)?;
        let name = blockdev.node_name.get_or_insert_with(|| "held".to_owned()).clone();
        self.graph.add(&blockdev)?;
        self.claim(&name, Rights { uses: Permissions::WRITES, shares: Permissions::NONE })
    }

    /// A disk as one that compresses what is written to it.
    pub(crate) fn compressing(&self, disk: &Disk) -> Result<CompressNode> {
        let image = self.graph.compressing_image(disk.node.name());
        let image = image.context("a target of that format cannot be compressed (qcow2 can)")?;
        let cluster = image.limits().discard_granularity;
        Ok(CompressNode::new(Arc::clone(&disk.node), cluster)?)
    }

    /// A disk of which direct I/O does not reach the last bytes would be copied without them.
    fn check_end(&self, name: &str, disk: &Disk) -> Result<()> {
        for file in self.graph.files_below(name) {
            let out_of_reach = file.bytes_out_of_reach()?;
            ensure!(
                out_of_reach == 0 || disk.node.size().0.0 != file.bytes(),
                "direct I/O does not reach its last {out_of_reach} bytes, the page cache does"
            );
        }
        Ok(())
    }

    fn claim(&self, name: &str, rights: Rights) -> Result<Disk> {
        let node = Arc::clone(self.graph.node(name)?);
        let claim = node.claim(rights)?;
        claim.refresh()?;
        Ok(Disk { node, claim })
    }

    /// Makes a target of that size at a path where nothing is.
    pub(crate) fn make(
        &mut self,
        text: &str,
        format: &str,
        size: DiskSize,
        base: BaseOptions,
    ) -> Result<(Disk, MadeFile)> {
        if is_blockdev(text) || node_of_uri(text)?.is_some() {
            bail!(
                "{text}: a target that is no path has to be there, and is written over with --into-existing"
            );
        }
        let path = Path::new(text);
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_file() && found.len() > 0 => {
                bail!("{text} is there already; --into-existing writes over what it has")
            }
            Ok(found) if !found.is_file() => {
                bail!("{text} is there already; --into-existing writes into it")
            }
            Ok(_) | Err(_) => {}
        }
        let maker = self.graph.image_maker();
        let raw_bytes = if format == "raw" { size.0.0 } else { 0 };
        maker.file(path, raw_bytes).with_context(|| text.to_owned())?;
        let made = MadeFile(Some(path.to_owned()));
        match format {
            "raw" => {}
            "qcow2" => {
                let file = self.open("target-file", text, Some("raw"), base)?;
                let options = CreateOptions { size, ..CreateOptions::default() };
                maker.qcow2(&file.node, &options).with_context(|| text.to_owned())?;
                file.claim.flush()?;
                drop(file);
                self.graph.remove("target-file")?;
            }
            other => {
                bail!("--target-format {other}: images of that format cannot be made (raw, qcow2)")
            }
        }
        let disk = self.open("target", text, Some(format), base)?;
        Ok((disk, made))
    }
}

/// The node that is written so, for `text`.
fn written(text: &str, node: &str, name: &str, base: BaseOptions) -> Result<Blockdev> {
    let parsed = Blockdev::parse(&with_name(node, name));
    let mut blockdev = parsed.with_context(|| text.to_owned())?;
    blockdev.for_each_mut(name, &mut |node, _| {
        node.base.read_only |= base.read_only;
        node.base.force_share |= base.force_share;
    });
    Ok(blockdev)
}

/// The same node with a name, if it has none.
fn with_name(text: &str, name: &str) -> String {
    if let Ok(serde_json::Value::Object(mut node)) = serde_json::from_str(text) {
        node.entry("node-name").or_insert_with(|| name.into());
        return serde_json::Value::Object(node).to_string();
    }
    if text.starts_with('{') || text.contains(",node-name=") {
        return text.to_owned();
    }
    format!("{text},node-name={name}")
}

/// Whether a text is a node as `--blockdev` has it, and no path.
fn is_blockdev(text: &str) -> bool {
    text.starts_with('{') || text.starts_with("driver=")
}
