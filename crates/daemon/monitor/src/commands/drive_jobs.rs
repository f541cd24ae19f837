//! `drive-mirror`, `drive-backup`: the jobs of `blockdev-mirror` and `blockdev-backup` with a file as target, which is made, or
//! opened as it is.
//!
//! Where it stands: the file becomes a node as `blockdev-add` would make it; the rest is up to the other commands.
//!
//! Invariants: when the job is over, the node is gone, unless somebody uses it: what a mirror has switched to it. What was made
//! for a command that fails is gone, too, but not what was in a file before.

use std::path::{Path, PathBuf};

use control::StatePolicy;
use graph::{Blockdev, file_kind};
use jobs::JobKind;
use kernel_io::FileKind;
use serde_json::{Map, Value, json};
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::backup::{BACKUP_KEYS, read};
use super::images::{Preparation, VOLATILE, change, make_file};
use super::mirror::{BLOCK_JOB_KEYS, MIRROR_KEYS, MirrorEnds, begin_mirror};
use super::nodes::{free_node_name, stem_of};
use super::{CommandContext, mirror};
use crate::qmp_error::QmpError;

/// What is told of a file that is a target.
const TARGET_KEYS: &[Key] = &[
    required("device", ValueType::Text),
    required("target", ValueType::Text),
    optional("format", ValueType::Text),
    optional("mode", ValueType::Word(&["existing", "absolute-paths"])),
];

pub(super) static DRIVE_MIRROR: Keys = Keys {
    of: "drive-mirror",
    supported: &[
        BLOCK_JOB_KEYS,
        TARGET_KEYS,
        MIRROR_KEYS,
        &[optional("node-name", ValueType::Text), optional("unmap", ValueType::Flag), VOLATILE],
    ],
    later: &[],
};

pub(super) static DRIVE_BACKUP: Keys =
    Keys { of: "drive-backup", supported: &[BLOCK_JOB_KEYS, TARGET_KEYS, BACKUP_KEYS], later: &[] };

/// A file that is to be a target, as it was asked for.
struct FileTarget {
    /// The node that is copied.
    source: String,
    path: PathBuf,
    format: String,
    /// Whether it is made.
    is_new: bool,
    /// The node that shows where the target has nothing, if any does; of a file that is there, unless its image says it.
    backing: Option<Option<String>>,
    /// What the node is to be called.
    name: String,
}

pub(super) fn drive_mirror(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| {
        let sync = fields.word("sync")?;
        if fields.flag("unmap")? == Some(false) {
            return Err(QmpError::generic("unmap=false is not supported yet"));
        }
        let name = fields.text("node-name")?;
        if name.is_none() && fields.has("replaces") {
            let desc = "a node-name must be provided when replacing a named node of the graph";
            return Err(QmpError::generic(desc));
        }
        let target = FileTarget::read(context, &mut fields, (JobKind::Mirror, sync), name)?;
        let (source, target) = target.open(context, preparation)?;
        let owned = Some(target.clone());
        let ends = MirrorEnds { source, target, sync, filter: None, owned };
        begin_mirror(context, fields, ends).map(drop)
    })
}

pub(super) fn drive_backup(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    change(context, |context, preparation| preparation.add_drive_backup(context, &mut fields))
}

impl Preparation {
    /// Has a backup to a file begin.
    pub(super) fn add_drive_backup(
        &mut self,
        context: &mut CommandContext<'_>,
        fields: &mut OptionFields,
    ) -> Result<(), QmpError> {
        let sync = fields.word("sync")?;
        let target = FileTarget::read(context, fields, (JobKind::Backup, sync), None)?;
        let (source, target) = target.open(context, self)?;
        let mut backup = read(context, fields, (source, target.clone()), sync)?;
        backup.owned = Some(target);
        self.backups.push(backup);
        Ok(())
    }
}

impl FileTarget {
    fn read(
        context: &CommandContext<'_>,
        fields: &mut OptionFields,
        (job, sync): (JobKind, Option<&str>),
        name: Option<String>,
    ) -> Result<Self, QmpError> {
        let source = mirror::node(context, fields, "device")?;
        let graph = context.state.graph();
        let is_new = fields.word("mode")? != Some("existing");
        let path = PathBuf::from(fields.required_text("target")?);
        let info = graph.node_info(&source)?;
        let format = match (fields.text("format")?, is_new) {
            (Some(format), _) if matches!(format.as_str(), "raw" | "qcow2") => format,
            (Some(format), _) => {
                let desc = format!("Unknown driver '{format}' of a target (supported: raw, qcow2)");
                return Err(QmpError::generic(desc));
            }
            (None, true) if info.image.is_some() => info.driver.to_owned(),
            (None, true) => "raw".to_owned(),
            (None, false) => {
                let desc = "a target that is there without a 'format' is not supported yet";
                return Err(QmpError::generic(desc));
            }
        };
        let backing = match sync {
            // It shows what was not copied, as the source has it.
            Some("none") => Some(source.clone()),
            Some("top") => graph.model().backing_chain(&source).get(1).cloned(),
            _ => None,
        };
        let name = match name {
            Some(name) => graph::check_node_name("node-name", name)?,
            None => {
                let stem = stem_of(&source);
                free_node_name(context, |number| format!("target{number}-{stem}"))
            }
        };
        // As in QEMU: what a mirror is put on has that below already.
        let is_overlay = job == JobKind::Backup && sync == Some("none");
        if is_overlay && !is_new && format == "raw" {
            let desc = format!("Driver 'raw' of node '{name}' does not support backing files");
            return Err(QmpError::generic(desc));
        }
        let backing = (is_new || is_overlay).then_some(backing);
        if graph.node(&name).is_ok() {
            return Err(QmpError::generic(format!("Duplicate nodes with node-name='{name}'")));
        }
        Ok(Self { source, path, format, is_new, backing, name })
    }

    /// Makes the file, unless it is there, and its node; gives the names of source and target.
    fn open(
        self,
        context: &mut CommandContext<'_>,
        preparation: &mut Preparation,
    ) -> Result<(String, String), QmpError> {
        let Self { source, path, format, is_new, backing, name } = self;
        if is_new {
            let bytes = context.state.graph().node(&source)?.size();
            let below = backing.as_ref().and_then(Option::as_deref);
            let made = make_file(context, (&path, &format), bytes, below)?;
            preparation.files.extend(made);
        }
        let node = node_of(context, &source, (&name, &path, &format), backing);
        let blockdev = Blockdev::read(OptionFields::of_json(node))?;
        blockdev.check_files()?;
        // A job that is killed leaves a target that nobody is to need: a restart knows it only if something stands on it.
        context.state.add_node_at_run_time(&blockdev, StatePolicy::Volatile)?;
        preparation.nodes.push(name.clone());
        Ok((source, name))
    }
}

/// The node of a file, which is told what its source was told. What stands below an image that is there, the image says.
fn node_of(
    context: &CommandContext<'_>,
    source: &str,
    (name, path, format): (&str, &Path, &str),
    backing: Option<Option<String>>,
) -> Map<String, Value> {
    let mut all = Map::new();
    let written = context.state.graph().written_node(source);
    let cache = written.and_then(|written| written.get("cache"));
    all.extend(cache.map(|cache| ("cache".to_owned(), cache.clone())));
    let driver = match file_kind(path) {
        Ok(Some(FileKind::BlockDevice)) => "host_device",
        // What is wrong with it is said when it is opened.
        Ok(_) | Err(_) => "file",
    };
    let file = json!({"driver": driver, "filename": path.to_string_lossy()});
    all.insert("driver".to_owned(), format.into());
    all.insert("node-name".to_owned(), name.into());
    all.insert("discard".to_owned(), "unmap".into());
    all.insert("file".to_owned(), file);
    if format == "qcow2"
        && let Some(backing) = backing
    {
        all.insert("backing".to_owned(), backing.map_or(Value::Null, Value::from));
    }
    all
}
