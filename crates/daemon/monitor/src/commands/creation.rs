//! `blockdev-create`: makes a file, or a format in a node, as a job.

use control::StatePolicy;
use graph::ImageMaker;
use host::chain_of;
use jobs::{JobKind, JobSettings};
use qcow2::{CompressionMethod, CreateOptions, ImagePreallocation, ImageVersion};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

use block::{ByteCount, DiskSize, Node};
use syntax::{Keys, OptionFields, Union, ValueType, optional, required};

use super::queries::GraphReader;
use super::{CommandContext, done, explain_fences};
use crate::inbox::Message;
use crate::qmp_error::QmpError;

static OPTIONS: Union = Union {
    tag: "driver",
    default: None,
    branches: &[
        (
            "file",
            Keys {
                of: "blockdev-create file",
                supported: &[&[
                    required("driver", ValueType::Text),
                    required("filename", ValueType::Text),
                    required("size", ValueType::Number),
                    optional("preallocation", ValueType::Word(&["off"])),
                ]],
                later: &[&["extent-size-hint", "nocow"]],
            },
        ),
        (
            "qcow2",
            Keys {
                of: "blockdev-create qcow2",
                supported: &[&[
                    required("driver", ValueType::Text),
                    required("file", ValueType::Node),
                    optional("data-file", ValueType::Node),
                    optional("data-file-raw", ValueType::Flag),
                    optional("extended-l2", ValueType::Flag),
                    required("size", ValueType::Number),
                    optional("version", ValueType::Word(&["v2", "v3"])),
                    optional("backing-file", ValueType::Text),
                    optional("backing-fmt", ValueType::Word(&["raw", "qcow2"])),
                    optional("cluster-size", ValueType::Number),
                    optional("preallocation", ValueType::Word(&["off", "metadata"])),
                    optional("lazy-refcounts", ValueType::Flag),
                    optional("refcount-bits", ValueType::Number),
                    optional("compression-type", ValueType::Word(&["zlib", "zstd"])),
                ]],
                later: &[&["encrypt"]],
            },
        ),
    ],
    later: &[
        "gluster",
        "luks",
        "nfs",
        "parallels",
        "qcow",
        "qed",
        "rbd",
        "ssh",
        "vdi",
        "vhdx",
        "vmdk",
        "vpc",
    ],
};

pub(super) static CREATE: Keys = Keys {
    of: "blockdev-create",
    supported: &[&[
        required("job-id", ValueType::Text),
        required("options", ValueType::Union(&OPTIONS)),
    ]],
    later: &[],
};

/// What is to be made.
enum Creation {
    File {
        path: PathBuf,
        bytes: u64,
    },
    Qcow2 {
        node: Arc<dyn Node>,
        data: Option<Arc<dyn Node>>,
        options: CreateOptions,
    },
    /// It names a node that is not there, with which a job begins and ends, as in QEMU.
    NoNode(String),
    /// Nothing: somebody uses the node, as this sentence says.
    InUse(String),
}

pub(super) fn create(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = fields.required_text("job-id")?;
    let (serial, _nobody) = context.jobs.prepare(&id, &context.inbox)?;
    let missing = |key: &str| QmpError::generic(format!("parameter '{key}' is missing"));
    let (driver, mut options) = fields.union("options")?.ok_or_else(|| missing("options"))?;
    let creation = match driver {
        "file" => {
            options.word("preallocation")?;
            let path = options.required_text("filename")?.into();
            Creation::File { path, bytes: size(&mut options)? }
        }
        _ => qcow2(context, options)?,
    };
    let nodes = match &creation {
        Creation::Qcow2 { node, data, .. } => {
            let nodes = [Some(node), data.as_ref()].into_iter().flatten();
            nodes.map(|node| node.name().to_owned()).collect()
        }
        Creation::File { .. } | Creation::NoNode(_) | Creation::InUse(_) => Vec::new(),
    };
    // As in QEMU it stays until it is dismissed.
    let settings = JobSettings { auto_finalize: true, auto_dismiss: false, speed: 0 };
    let begun = (id.as_str(), JobKind::Create, settings);
    let events = context.jobs.begin(serial, begun, nodes, StatePolicy::Kept);
    context.events.extend(events);
    let (maker, inbox, job) =
        (context.state.graph().image_maker(), context.inbox.clone(), id.clone());
    let is_fenced = context.is_fenced;
    let work = move || {
        let mut error = carry_out(&maker, creation).err();
        error.iter_mut().for_each(|sentence| explain_fences(is_fenced, sentence));
        inbox.send(Message::JobEnded { id: job, error });
    };
    if let Err(error) = std::thread::Builder::new().name(format!("job {id}")).spawn(work) {
        let events = context.jobs.ended(&id, Some(format!("cannot start its thread: {error}")));
        context.events.extend(events);
    }
    done()
}

fn size(options: &mut OptionFields) -> Result<u64, QmpError> {
    let size = options.number("size")?;
    size.ok_or_else(|| QmpError::generic("parameter 'options.size' is missing"))
}

fn qcow2(context: &CommandContext<'_>, mut fields: OptionFields) -> Result<Creation, QmpError> {
    let graph = context.state.graph();
    let file_name = fields.text_of_node("file")?;
    let file_name =
        file_name.ok_or_else(|| QmpError::generic("parameter 'options.file' is missing"))?;
    let file = graph.share_node(&file_name);
    let data_name = fields.text_of_node("data-file")?;
    let data = data_name.as_deref().map(|name| graph.share_node(name)).transpose();
    let reader = GraphReader { graph, is_flat: true };
    let data_path = data_name.as_deref().and_then(|name| reader.path(name));
    let default = CreateOptions::default();
    let options = CreateOptions {
        size: DiskSize(ByteCount(size(&mut fields)?)),
        version: match fields.word("version")? {
            Some("v2") => ImageVersion::V2,
            _ => ImageVersion::V3,
        },
        cluster_size: fields.number("cluster-size")?.map_or(default.cluster_size, ByteCount),
        backing_file: fields.text("backing-file")?,
        backing_format: fields.word("backing-fmt")?.map(str::to_owned),
        refcount_bits: fields.number("refcount-bits")?.unwrap_or(default.refcount_bits),
        extended_l2: fields.flag("extended-l2")?.unwrap_or(false),
        data_file: data_path.map(|path| path.display().to_string()),
        data_file_raw: fields.flag("data-file-raw")?.unwrap_or(false),
        lazy_refcounts: fields.flag("lazy-refcounts")?.unwrap_or(false),
        preallocation: match fields.word("preallocation")? {
            Some("metadata") => ImagePreallocation::Metadata,
            _ => ImagePreallocation::Off,
        },
        compression: match fields.word("compression-type")? {
            Some("zstd") => CompressionMethod::Zstd,
            _ => CompressionMethod::Deflate,
        },
    };
    // Whoever stands on a node, or writes it, would lose what is there.
    let names = [Some(&file_name), data_name.as_ref()];
    for name in names.into_iter().flatten() {
        if let Some((user, key)) = graph.model().users_of(name).first() {
            return Ok(Creation::InUse(format!(
                "Node '{name}' is used by {user} (as '{key}' child): no image can be made in it"
            )));
        }
    }
    Ok(match (file, data) {
        (Ok(node), Ok(data)) => Creation::Qcow2 { node, data, options },
        (Err(_missing), _) => Creation::NoNode(file_name),
        (Ok(_), Err(_missing)) => Creation::NoNode(data_name.unwrap_or_default()),
    })
}

fn carry_out(maker: &ImageMaker, creation: Creation) -> Result<(), String> {
    let made = match creation {
        Creation::NoNode(name) => return Err(QmpError::no_node(&name).desc),
        Creation::InUse(sentence) => return Err(sentence),
        Creation::File { path, bytes } => maker.file(&path, bytes),
        Creation::Qcow2 { node, data, options } => {
            let sized = data.map(|data| maker.resize(&data, options.size)).transpose();
            sized.and_then(|_| maker.qcow2(&node, &options))
        }
    };
    made.map_err(|error| chain_of(&error).to_string())
}
