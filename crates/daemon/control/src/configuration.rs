//! What a daemon serves with, as JSON from which the same is made again: objects, nodes and exports.
//!
//! Where it stands: written into a state file, given to a process that takes over, and read back by the options as if
//! it stood on a command line.

use graph::ModelError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DaemonState;

/// The arguments of `--object`, `--blockdev` and `--export` that make what a daemon serves with, each in the order in which
/// they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The objects.
    pub objects: Vec<Value>,
    /// The nodes; each names only those before it.
    pub nodes: Vec<Value>,
    /// The exports.
    pub exports: Vec<Value>,
    /// The NBD server (`--nbd-server`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd_server: Option<Value>,
    /// The block jobs that run: what a daemon that is killed leaves half done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<KeptJob>,
}

/// A block job that runs, as it is told of when the daemon was killed meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptJob {
    /// Its id.
    pub id: String,
    /// What it does, as `mirrors node 'a' to node 'b'`.
    pub what: String,
}

impl DaemonState {
    /// What is there now.
    pub fn configuration(&self) -> Result<Configuration, ModelError> {
        let nodes = self.graph.written()?;
        Ok(self.configuration_of(nodes, |id| self.graph.root(id)))
    }

    /// The same with other nodes, and with those roots below the exports.
    pub(crate) fn configuration_of<'a>(
        &self,
        nodes: Vec<Value>,
        root: impl Fn(&str) -> Option<&'a str>,
    ) -> Configuration {
        let objects =
            self.objects.values().filter_map(|object| Some(object.kept()?.into())).collect();
        let export = |options: &exports::ExportOptions| {
            let mut written = options.written();
            if let Some(root) = root(&options.id) {
                written.insert("node-name".to_owned(), root.into());
            }
            Value::Object(written)
        };
        let exports = self.export_options.values().map(export).collect();
        let nbd_server = self.nbd_server().map(|options| options.written().into());
        Configuration { objects, nodes, exports, nbd_server, jobs: self.kept_jobs() }
    }
}

impl Configuration {
    /// An export of this configuration that is also in the other one, but for another socket, size of blocks or direction:
    /// no front end could go on with it.
    pub fn contradiction(&self, other: &Self) -> Option<String> {
        const FIXED: [&str; 5] = ["type", "addr", "writable", "logical-block-size", "num-queues"];
        self.exports.iter().find_map(|ours| {
            let theirs = other.exports.iter().find(|it| it["id"] == ours["id"])?;
            let key = FIXED.into_iter().find(|key| ours[*key] != theirs[*key])?;
            let id = ours["id"].as_str().unwrap_or_default();
            Some(format!(
                "export '{id}' has {key} {} on the command line and {} there",
                ours[key], theirs[key]
            ))
        })
    }

    /// What is here and is otherwise there, a sentence for each; `there` is called so.
    pub fn differences(&self, other: &Self, here: &str, there: &str) -> Vec<String> {
        let mut all = Vec::new();
        for (what, key, ours, theirs) in [
            ("object", "id", &self.objects, &other.objects),
            ("node", "node-name", &self.nodes, &other.nodes),
            ("export", "id", &self.exports, &other.exports),
        ] {
            let name = |value: &Value| value[key].as_str().unwrap_or("without a name").to_owned();
            let find = |all: &[Value], wanted: &Value| {
                all.iter().find(|it| it[key] == wanted[key]).cloned()
            };
            for one in ours {
                match find(theirs, one) {
                    Some(found) if what == "node" && is_same_node(one, &found) => {}
                    None => all.push(format!("{what} '{}' is in {here} only", name(one))),
                    Some(found) if found != *one => all.push(format!(
                        "{what} '{}' is {one} in {here} and {found} in {there}",
                        name(one)
                    )),
                    Some(_) => {}
                }
            }
            for one in theirs.iter().filter(|one| find(ours, one).is_none()) {
                all.push(format!("{what} '{}' is in {there} only", name(one)));
            }
        }
        match (&self.nbd_server, &other.nbd_server) {
            (None, None) => {}
            (Some(_), None) => all.push(format!("the NBD server is in {here} only")),
            (None, Some(_)) => all.push(format!("the NBD server is in {there} only")),
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => {
                all.push(format!("the NBD server is {one} in {here} and {other} in {there}"));
            }
        }
        all
    }
}

/// Whether two nodes are the same but for a backing file that one of them says to be none.
fn is_same_node(one: &Value, other: &Value) -> bool {
    let without = |node: &Value| {
        let mut node = node.clone();
        if let Some(map) = node.as_object_mut()
            && map.get("backing").is_some_and(Value::is_null)
        {
            map.remove("backing");
        }
        node
    };
    without(one) == without(other)
}
