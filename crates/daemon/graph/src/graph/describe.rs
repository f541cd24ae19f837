//! What is below an export, said so that two processes can compare it: a guest must find the disk that it has.
//!
//! Invariants: every option of every node is in the description, as its driver gives it; how nodes are called and where
//! they stand on the command line is not. A place is the keys on the way down, such as `file.backing`; the node below
//! the export itself stands at the empty place. Not here: what an export itself says (`takeover`).

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel_io::OpenFile;
use qcow2::Qcow2Node;

use super::{Graph, NodeInfo, Vertex};
use crate::drivers::MadeNode;
use crate::model::ModelError;

/// All options of the nodes below an export, in words that stay the same from version to version, to be compared in a
/// takeover.
pub type NodeDescription = BTreeMap<String, String>;

/// A path in the graph: an export's id, and the keys on the way down.
pub type GraphPath = (String, String);

/// The open files and images below an export, by path in the graph.
#[derive(Debug, Default)]
pub struct ExportStorage {
    /// By the place of the node that has opened it.
    pub files: BTreeMap<String, Arc<OpenFile>>,
    /// By the place of the node that is it.
    pub images: BTreeMap<String, Arc<Qcow2Node>>,
}

impl Graph {
    /// What is known of that node.
    pub fn node_info(&self, name: &str) -> Result<NodeInfo<'_>, ModelError> {
        let access = self.model.access(name)?;
        let activity = self.model.activity(name)?;
        let Vertex { made, driver, base, options, .. } = &self.vertices[name];
        let driver = driver.map_or("", |driver| driver.name);
        let MadeNode { node: _, file, image, write_threshold, .. } = made;
        let node = self.vertices[name].shown();
        let (file, image) = (file.as_ref(), image.as_ref());
        let write_threshold = write_threshold.as_ref();
        Ok(NodeInfo { driver, access, activity, base, options, node, file, image, write_threshold })
    }

    /// All that there is to say of the nodes below an export.
    pub fn describe(&self, export: &str) -> NodeDescription {
        let mut description = NodeDescription::new();
        self.walk(export, &mut |place, vertex| {
            let own = vertex.options.iter();
            let files = vertex.made.file.iter().map(|file| {
                let [device, inode] = file.identity().numbers();
                ("image".to_owned(), format!("{device}:{inode}"))
            });
            description.extend(
                own.map(|(key, value)| (key.clone(), value.clone()))
                    .chain(files)
                    .map(|(key, value)| (join(place, &key), value)),
            );
        });
        description
    }

    /// The files and images below an export.
    pub fn storage_below(&self, export: &str) -> ExportStorage {
        let mut storage = ExportStorage::default();
        self.walk(export, &mut |place, vertex| {
            if let Some(file) = &vertex.made.file {
                storage.files.insert(place.to_owned(), Arc::clone(file));
            }
            if let Some(image) = &vertex.made.image {
                storage.images.insert(place.to_owned(), Arc::clone(image));
            }
        });
        storage
    }

    /// All images.
    pub fn images(&self) -> impl Iterator<Item = &Arc<Qcow2Node>> {
        self.vertices.values().filter_map(|vertex| vertex.made.image.as_ref())
    }

    /// Visits each place below an export, the upper ones first.
    fn walk<'a>(&'a self, export: &str, visit: &mut dyn FnMut(&str, &'a Vertex)) {
        let Some(root) = self.model.root(export) else { return };
        let mut next = vec![(String::new(), root)];
        while let Some((place, node)) = next.pop() {
            visit(&place, &self.vertices[node]);
            let below = self.below(node).iter();
            next.extend(below.map(|edge| (join(&place, &edge.key), edge.node.as_str())));
        }
    }
}

fn join(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}
