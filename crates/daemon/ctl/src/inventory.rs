//! What a daemon has: exports, nodes, what stands on what, queues, objects. Everything is asked for anew for each word.
//!
//! Invariants: a member that a daemon does not say is null, and shown as `-`.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};

use crate::client::QmpClient;
use crate::units::no;

/// What a daemon has.
#[derive(Debug)]
pub(crate) struct Inventory {
    /// As `query-block-exports` says, with what else is known of them.
    pub(crate) exports: Vec<Value>,
    pub(crate) nodes: Vec<Value>,
    /// Those that are served; none if the daemon does not say it.
    pub(crate) queues: Option<Vec<Value>>,
    edges: Vec<Edge>,
}

/// What stands on what. Exports are above their roots.
#[derive(Debug)]
struct Edge {
    parent: String,
    child: String,
    key: String,
    writes: bool,
}

/// How deep images are followed: a chain of QEMU's has no more.
const DEPTH_MAX: usize = 200;

/// Nodes that have no image of their own.
const FILTERS: [&str; 5] = ["throttle", "delay", "copy-on-read", "preallocate", "compress"];

/// A member that is a text.
pub(crate) fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

impl Inventory {
    pub(crate) fn read(client: &mut QmpClient) -> Result<Self> {
        let mut asked = |question: &str, arguments: &Value| {
            client.list(question, arguments)?.ok_or_else(|| anyhow!("the daemon has no {question}"))
        };
        let exports = asked("query-block-exports", &json!({}))?;
        let nodes = asked("query-named-block-nodes", &json!({"flat": true}))?;
        let graph = client.ask("x-debug-query-block-graph", &json!({}))?;
        let queues = client.list("query-ringloom-queues", &json!({}))?;
        let queues = queues.map(|all| all.into_iter().map(with_percentiles).collect());
        let nodes = nodes.iter().map(node).collect();
        let mut all = Self { exports: Vec::new(), nodes, queues, edges: edges(&graph) };
        for place in 0..all.nodes.len() {
            let name = text(&all.nodes[place], "node").to_owned();
            all.nodes[place]["file"] = all.file(&name).into();
            let users = all.edges.iter().filter(|edge| edge.child == name && edge.key != "root");
            let users = users.map(|edge| edge.parent.as_str());
            let above = exports.iter().filter(|export| text(export, "node-name") == name);
            all.nodes[place]["users"] = users.chain(above.map(|it| text(it, "id"))).collect();
        }
        all.exports = exports.into_iter().map(|export| all.export_row(export)).collect();
        Ok(all)
    }

    fn export_row(&self, mut export: Value) -> Value {
        let id = text(&export, "id").to_owned();
        let node = self.node(text(&export, "node-name")).cloned().unwrap_or_default();
        let roots = self.edges.iter().filter(|it| it.key == "root" && it.child == node["node"]);
        let roots: Vec<&Edge> = roots.collect();
        // The peer's have no names, which matters where several exports share a node.
        let root = roots.iter().find(|edge| edge.parent == id);
        let root = root.or(if roots.len() == 1 { roots.first() } else { None });
        export["state"] = match root.map(|root| root.writes) {
            _ if export["shutting-down"] == true => "ends".into(),
            _ if node["state"] == "inactive" => "inactive".into(),
            writes => writes.map(|writes| if writes { "rw" } else { "ro" }).into(),
        };
        export["size"] = node["size"].clone();
        export["file"] = node["file"].clone();
        if self.queues.is_some() {
            let queues = self.queues_of("export", &id);
            let iothreads: BTreeSet<&str> = queues.iter().map(|it| text(it, "iothread")).collect();
            export["iothreads"] = iothreads.into_iter().collect();
            export["queues"] = queues.len().into();
        }
        export
    }

    /// The queues of an export or an iothread.
    pub(crate) fn queues_of(&self, key: &str, name: &str) -> Vec<Value> {
        let all = self.queues.iter().flatten();
        all.filter(|queue| text(queue, key) == name).cloned().collect()
    }

    pub(crate) fn export(&self, id: &str) -> Option<&Value> {
        self.exports.iter().find(|export| text(export, "id") == id)
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Value> {
        self.nodes.iter().find(|node| text(node, "node") == name)
    }

    /// A node and all below it, from top to bottom, each with its depth. What a format stores its bytes in is left out: its
    /// own line says the file.
    pub(crate) fn chain(&self, top: &str) -> Vec<(usize, &Value)> {
        let below = |name: &str| {
            let edges: Vec<&Edge> =
                self.edges.iter().filter(|it| it.parent == name && it.key != "root").collect();
            edges
        };
        let (mut found, mut open) = (Vec::new(), vec![(0, top)]);
        while let Some((depth, name)) = open.pop() {
            let Some(node) = self.node(name).filter(|_| depth < DEPTH_MAX) else { continue };
            found.push((depth, node));
            let is_format = matches!(text(node, "driver"), "qcow2" | "raw");
            let is_shown = |edge: &&Edge| {
                !(is_format && edge.key.ends_with("file") && below(&edge.child).is_empty())
            };
            let children = below(name).into_iter().rev().filter(is_shown);
            open.extend(children.map(|edge| (depth + 1, edge.child.as_str())));
        }
        found
    }

    /// The file of a node, or of the first one below it that has one.
    fn file(&self, name: &str) -> Option<String> {
        let chain = self.chain(name).into_iter();
        let mut files = chain.map(|(_, node)| text(node, "file"));
        files.find_map(|file| match file.strip_prefix("json:") {
            Some(options) => cluster_image(options),
            None => Some(file.to_owned()),
        })
    }

    /// The node that the name of an export or node means, which `export:` or `node:` may stand before. Of an export it is
    /// the image that its guest writes: limits and other filters stay above what is done with it.
    pub(crate) fn target(&self, given: &str) -> Result<String> {
        let (of, name) = prefixed(given);
        let export = self.export(name).filter(|_| of.is_none_or(|of| of == "export"));
        let node = self.node(name).filter(|_| of.is_none_or(|of| of == "node"));
        let is_image = |(_, node): &&(usize, &Value)| !FILTERS.contains(&text(node, "driver"));
        let image = export.and_then(|export| {
            let chain = self.chain(text(export, "node-name"));
            chain.iter().find(is_image).map(|(_, node)| text(node, "node").to_owned())
        });
        match (image, node) {
            (Some(image), Some(_)) if image != name => bail!(
                "'{name}' is a node, and an export whose image is node '{image}': say node:{name} or export:{name}"
            ),
            (Some(image), _) => Ok(image),
            (None, Some(_)) => Ok(name.to_owned()),
            (None, None) => bail!("there is {}", no("export or node", name, self.names())),
        }
    }

    /// The names of all exports and nodes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let exports = self.exports.iter().map(|export| text(export, "id"));
        exports.chain(self.nodes.iter().map(|node| text(node, "node")))
    }
}

/// What is said of a node everywhere.
fn node(of: &Value) -> Value {
    let state = match (of["active"] == false, of["ro"] == true) {
        (true, _) => "inactive",
        (false, true) => "ro",
        (false, false) => "rw",
    };
    let image = &of["image"];
    json!({
        "node": of["node-name"], "driver": of["drv"], "state": state, "direct": of["cache"]["direct"],
        "size": image["virtual-size"], "used": image["actual-size"], "file": of["file"],
        "cluster-size": image["cluster-size"],
    })
}

/// A queue with percentiles of how long its requests took: the ends of the buckets in which they are.
fn with_percentiles(mut queue: Value) -> Value {
    let number = |bucket: &Value, key: &str| bucket[key].as_u64().unwrap_or(0);
    let buckets = queue["latency"].as_array().cloned().unwrap_or_default();
    let total: u64 = buckets.iter().map(|bucket| number(bucket, "count")).sum();
    for (key, percent) in [("p50-ns", 50), ("p99-ns", 99)] {
        let mut below = 0;
        let bucket = buckets.iter().find(|bucket| {
            below += number(bucket, "count");
            below > 0 && below * 100 >= total * percent
        });
        queue[key] = bucket.map(|bucket| number(bucket, "to-ns")).into();
    }
    queue
}

fn edges(graph: &Value) -> Vec<Edge> {
    let all = |key: &str| graph[key].as_array().into_iter().flatten();
    let name = |id: &Value| {
        all("nodes").find(|it| it["id"] == *id).map_or("", |it| text(it, "name")).to_owned()
    };
    let edge = |it: &Value| Edge {
        parent: name(&it["parent"]),
        child: name(&it["child"]),
        key: text(it, "name").to_owned(),
        writes: it["perm"].as_array().is_some_and(|all| all.contains(&"write".into())),
    };
    all("edges").map(edge).collect()
}

/// What kind a name is said to be of, and the name.
pub(crate) fn prefixed(given: &str) -> (Option<&str>, &str) {
    match given.split_once(':') {
        Some((of @ ("export" | "node" | "object"), name)) => (Some(of), name),
        _ => (None, given),
    }
}

/// All objects: their ids and types.
pub(crate) fn objects(client: &mut QmpClient) -> Result<Vec<(String, String)>> {
    let all = client.list("qom-list", &json!({"path": "/objects"}))?.unwrap_or_default();
    let object = |it: &Value| {
        let kind = text(it, "type").strip_prefix("child<")?.strip_suffix('>')?;
        Some((text(it, "name").to_owned(), kind.to_owned()))
    };
    let mut all: Vec<_> = all.iter().filter_map(object).collect();
    all.sort();
    Ok(all)
}

/// The ids of the objects of a type.
pub(crate) fn objects_of(client: &mut QmpClient, kind: &str) -> Result<Vec<String>> {
    Ok(objects(client)?.into_iter().filter(|(_, of)| of == kind).map(|(id, _)| id).collect())
}

/// A property of an object.
pub(crate) fn property(client: &mut QmpClient, id: &str, name: &str) -> Result<Value> {
    client.ask("qom-get", &json!({"path": format!("/objects/{id}"), "property": name}))
}

/// All properties of an object but those that say the same once more.
pub(crate) fn properties(client: &mut QmpClient, id: &str) -> Result<(Vec<String>, Value)> {
    let path = format!("/objects/{id}");
    let all = client.list("qom-list", &json!({"path": path}))?.unwrap_or_default();
    let names = all.iter().map(|it| text(it, "name").to_owned());
    // A secret is not told, also by daemons that would.
    let is_shown = |name: &String| !matches!(&**name, "type" | "data") && !name.starts_with("x-");
    let mut names: Vec<String> = names.filter(is_shown).collect();
    names.sort();
    let mut values = json!({"id": id});
    for name in &names {
        values[name] = property(client, id, name)?;
    }
    Ok((names, values))
}

/// What messages call the image of a cluster that a node shows, by the options that it is named by.
fn cluster_image(options: &str) -> Option<String> {
    let options: Value = serde_json::from_str(options).ok()?;
    let mut of = &options;
    while let Some(below) = of.get("file").filter(|below| below.is_object()) {
        of = below;
    }
    let part = |key: &str| of.get(key).and_then(Value::as_str);
    part("driver").filter(|driver| *driver == "rbd")?;
    let namespace = part("namespace").map_or(String::new(), |it| format!("{it}/"));
    let snapshot = part("snapshot").map_or(String::new(), |it| format!("@{it}"));
    Some(format!("rbd:{}/{namespace}{}{snapshot}", part("pool")?, part("image")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_a_cluster_is_called_as_in_messages() {
        let image = json!({"driver": "rbd", "pool": "p", "image": "i", "conf": "/c"});
        let then =
            json!({"driver": "rbd", "pool": "p", "namespace": "n", "image": "i", "snapshot": "s"});
        let above = json!({"driver": "qcow2", "file": {"driver": "raw", "file": image}});
        let other = json!({"driver": "raw", "file": {"driver": "null-co"}});
        for (options, expected) in [
            (image, Some("rbd:p/i")),
            (then, Some("rbd:p/n/i@s")),
            (above, Some("rbd:p/i")),
            (other, None),
        ] {
            assert_eq!(cluster_image(&options.to_string()).as_deref(), expected, "{options}");
        }
        assert_eq!(cluster_image("{"), None);
    }
}
