//! A node as it was asked for: `--blockdev`, or a node written inside another one.

use std::path::{Path, PathBuf};

use kernel_io::FileKind;
use nbd_client::ServerAddress;
use serde_json::{Map, Value};

use super::base::{ACTIVE, BaseOptions, on_off, pair};
use super::driver::{Driver, NodeRequirements, Options, ThrottleGroups};
use super::file;
use crate::model::{Activity, Edge, NewNode, NodeOwner};

/// A node as `--blockdev` describes it, with the nodes written inside it.
#[derive(Debug, Clone)]
pub struct Blockdev {
    /// Its name. `None` only for a node written inside another one.
    pub node_name: Option<String>,
    /// What it is.
    pub driver: &'static Driver,
    /// What only this driver is told.
    pub(crate) options: Options,
    /// The nodes below it, in the order in which its driver takes them.
    pub children: Vec<KeyedChild>,
    /// What all nodes are told.
    pub base: BaseOptions,
    /// Whether its exports hold it from the start. Not inherited.
    pub activity: Activity,
    /// All but the nodes below it, as JSON.
    pub(crate) written: Map<String, Value>,
}

/// Two are equal if all that they were told is, however it was written.
impl PartialEq for Blockdev {
    fn eq(&self, other: &Self) -> bool {
        let Self { node_name, driver, options, children, base, activity, written: _ } = self;
        node_name == &other.node_name
            && driver.name == other.driver.name
            && format!("{options:?}") == format!("{:?}", other.options)
            && children == &other.children
            && base == &other.base
            && activity == &other.activity
    }
}

impl Eq for Blockdev {}

impl Blockdev {
    /// A file of the host as a node without a name, with what that driver does when nothing else is said.
    pub fn of_file(path: PathBuf, kind: FileKind, base: BaseOptions) -> Self {
        let mut written = base.written();
        // What is no text is shown as far as it is one.
        written.insert("filename".to_owned(), path.to_string_lossy().into());
        let (driver, options) = file::host_file(path, kind);
        written.insert("driver".to_owned(), driver.name.into());
        let (children, activity) = (Vec::new(), Activity::Active);
        Self { node_name: None, driver, options, children, base, activity, written }
    }

    /// The disk that is inside an image in a file of the host.
    ///
    /// # Panics
    /// If the driver is no format.
    pub fn of_image(
        format: &'static Driver,
        path: PathBuf,
        kind: FileKind,
        base: BaseOptions,
    ) -> Self {
        let options = format.as_format.expect("only formats are asked for")();
        let (key, role) = format.roles[0];
        let node = BlockdevRef::Inline(Box::new(Self::of_file(path, kind, base.below(role))));
        let children = vec![KeyedChild { key: key.to_owned(), node }];
        let activity = Activity::Active;
        let mut written = base.written();
        written.insert("driver".to_owned(), format.name.into());
        Self { node_name: None, driver: format, options, children, base, activity, written }
    }

    /// Its name in messages: a node written inside another one may have none of its own.
    /// `parent` is the name of the other one, `key` what it stands under there.
    pub fn name_below(&self, parent: &str, key: &str) -> String {
        self.node_name.clone().unwrap_or_else(|| format!("{parent}/{key}"))
    }

    /// What stands below it. `name` is its own name.
    pub fn edges(&self, name: &str) -> Vec<Edge> {
        let edge = |KeyedChild { key, node }: &KeyedChild| {
            let node = match node {
                BlockdevRef::Reference(node) => node.clone(),
                BlockdevRef::Inline(inner) => inner.name_below(name, key),
            };
            Edge { key: key.clone(), role: self.driver.role(key), node }
        };
        self.children.iter().map(edge).collect()
    }

    /// The node for the model, under this name and above this.
    pub fn entry<'a>(&'a self, name: &'a str, edges: Vec<Edge>, owner: NodeOwner) -> NewNode<'a> {
        let (access, activity) = (self.base.access(), self.activity);
        let NodeRequirements { objects, bottom, .. } = self.options.needs();
        let passes_on = edges.iter().any(|edge| edge.role.is_same_disk());
        // A format that shows another node's bytes as they are is none.
        let is_filter = passes_on && self.driver.as_format.is_none();
        NewNode { name, access, activity, edges, objects, owner, bottom, is_filter }
    }

    /// The nodes written directly inside it, with their names. `name` is its own name.
    pub fn inner<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (String, &'a Self)> {
        self.children.iter().filter_map(move |child| match &child.node {
            BlockdevRef::Inline(inner) => Some((inner.name_below(name, &child.key), &**inner)),
            BlockdevRef::Reference(_) => None,
        })
    }

    /// Does something to the node and to every node written inside it, each with its name. `name` is its own.
    pub fn for_each_mut(&mut self, name: &str, work: &mut dyn FnMut(&mut Self, &str)) {
        work(self, name);
        for child in &mut self.children {
            if let BlockdevRef::Inline(inner) = &mut child.node {
                let name = inner.name_below(name, &child.key);
                inner.for_each_mut(&name, work);
            }
        }
    }

    /// The nodes of which it, or a node written inside it, takes a dirty bitmap.
    pub fn bitmap_nodes(&self) -> Vec<&str> {
        let mut all: Vec<_> = self.options.needs().bitmaps_of.into_iter().collect();
        all.extend(self.inner("").flat_map(|(_, inner)| inner.bitmap_nodes()));
        all
    }

    /// Has nothing below it under this key.
    pub fn clear_child(&mut self, key: &str) {
        self.children.retain(|child| child.key != key);
        // Whoever reads it again has to know that this was said.
        self.written.insert(key.to_owned(), Value::Null);
    }

    /// The node with all written inside it, as it was written.
    pub fn to_json(&self) -> Value {
        let mut all = self.written.clone();
        for KeyedChild { key, node } in &self.children {
            let below = match node {
                BlockdevRef::Reference(name) => Value::from(name.as_str()),
                BlockdevRef::Inline(inner) => inner.to_json(),
            };
            match key.split_once('.') {
                None => drop(all.insert(key.clone(), below)),
                Some((list, _)) => {
                    let list = all.entry(list).or_insert_with(|| Value::Array(Vec::new()));
                    list.as_array_mut().expect("it was made one").push(below);
                }
            }
        }
        if let Some(name) = &self.node_name {
            all.insert("node-name".to_owned(), name.as_str().into());
        }
        all.into()
    }

    /// The node and every node written inside it, the lower ones first.
    pub fn nodes(&self) -> Vec<&Self> {
        let below = self.children.iter().filter_map(|child| match &child.node {
            BlockdevRef::Inline(inner) => Some(inner.nodes()),
            BlockdevRef::Reference(_) => None,
        });
        below.flatten().chain([self]).collect()
    }

    /// The files of the host that its driver opens for it.
    pub fn files(&self) -> Vec<&Path> {
        self.options.needs().files.into_iter().map(|file| file.path).collect()
    }

    /// The server that its driver connects to for it.
    pub fn server(&self) -> Option<&ServerAddress> {
        self.options.needs().server
    }

    /// Whether its driver becomes a client of a cluster.
    pub fn joins_cluster(&self) -> bool {
        self.options.needs().joins_cluster
    }

    /// All that it and its driver were told, but the children and files, in words that stay the same from version to
    /// version: what is served by two processes in turn is compared so. How it is called is left out.
    pub fn describe(&self, groups: &ThrottleGroups) -> Vec<(String, String)> {
        let Self { node_name: _, children: _, driver, options, base, activity, written: _ } = self;
        let active = on_off(*activity == Activity::Active);
        let own = [pair(ACTIVE, active), pair("driver", driver.name)];
        [base.describe(), options.describe(groups), own.into()].concat()
    }

    /// Whether it may write to a block device: one that it opens, or one that its image names if that is allowed.
    pub fn may_write_device(&self, may_name_any: bool) -> bool {
        let needs = self.options.needs();
        let opens = needs.files.iter().any(|file| file.kind == FileKind::BlockDevice);
        !self.base.read_only && (opens || may_name_any && needs.names_files.is_some())
    }
}

/// A child of a node, with the key that it stands under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedChild {
    /// The key, as `file` or `children.0`.
    pub key: String,
    /// The node.
    pub node: BlockdevRef,
}

/// A child of a node: a reference to a node made before, or one written in place (QAPI's BlockdevRef).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockdevRef {
    /// A node made before, by its node-name.
    Reference(String),
    /// A node written in place.
    Inline(Box<Blockdev>),
}
