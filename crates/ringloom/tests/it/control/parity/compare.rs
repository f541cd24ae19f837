//! What differs between two answers to the same command.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// Members whose values need not agree, with the reasons.
const MEMBERS: &[(&str, &str)] = &[
    ("package", "it says which program it is"),
    ("actual-size", "how an image lies on the disk is up to who wrote it"),
    ("date-sec", "each program makes its own snapshots"),
    ("date-nsec", "the same"),
    ("vm-clock-sec", "the peer has the time of day where no machine runs"),
    ("vm-clock-nsec", "the same"),
    ("shared-perm", "who may do what beside it is decided by rules of ringloom's own"),
];

/// Members of one answer whose values need not agree, with the reasons.
const PLACES: &[(&str, &str)] = &[
    (
        "[f4].image.virtual-size",
        "how long a file becomes with an image in it is up to who wrote it",
    ),
    ("[made].image.virtual-size", "the same"),
    ("[bqf].image.virtual-size", "the same"),
    ("[l1f].image.virtual-size", "the same"),
    ("[l2f].image.virtual-size", "the same"),
    ("[l3f].image.virtual-size", "the same"),
    ("[isf].image.virtual-size", "the same"),
    ("[c0].backing_file_depth", "the peer counts a filter as a backing file"),
    ("[th0].backing_file_depth", "the same"),
    ("[base].ro", "the peer opens a base anew to read it only; here claims say who writes"),
    ("[top].ro", "the same"),
    (".edges[top-file-made].perm", "the same"),
];

/// Elements of lists that ringloom does not have, with the reasons.
const MISSING: &[(&str, &str)] = &[
    ("aio-max-batch", "a property that is refused by name"),
    ("thread-pool-max", "the same"),
    ("thread-pool-min", "the same"),
    ("keyid", "the same"),
    ("iv", "the same"),
];

/// Elements of lists that only ringloom has, with the reasons.
const MORE: &[(&str, &str)] = &[("iothread-pool", "a type of objects of its own")];

/// Lists of what a program can do, of which ringloom may have fewer elements.
const SHORTER: &[&str] = &["query-commands", "query-chardev-backends", "qom-list-types"];

/// A difference between the answers of the two programs.
#[derive(Debug)]
pub(super) enum Difference {
    /// Only ringloom does it.
    Ours(Value),
    /// Only the peer does it.
    Peer(Value),
    /// The classes of the errors.
    Class(Value, Value),
    /// The peer's sentence names something that ringloom's does not name.
    Named(String, Value, Value),
    /// The results.
    Results(Vec<String>),
    /// The number of answers.
    Count(Vec<Value>, Vec<Value>),
}

impl Difference {
    /// As it is written in the tables.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Ours(_) => "ours",
            Self::Peer(_) => "peer",
            Self::Class(..) => "class",
            Self::Named(..) => "named",
            Self::Results(_) => "results",
            Self::Count(..) => "count",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(peer) => write!(formatter, "ours: the peer says {peer}"),
            Self::Peer(ours) => write!(formatter, "peer: ringloom says {ours}"),
            Self::Class(peer, ours) => write!(formatter, "class: {peer}, ringloom: {ours}"),
            Self::Named(name, peer, ours) => {
                write!(formatter, "named: '{name}': {peer}, ringloom: {ours}")
            }
            Self::Results(all) => write!(formatter, "results: {}", all.join("; ")),
            Self::Count(peer, ours) => {
                write!(
                    formatter,
                    "count: {}, ringloom: {}",
                    Value::from(&peer[..]),
                    Value::from(&ours[..])
                )
            }
        }
    }
}

/// The first difference between all answers to a line.
pub(super) fn compare(line: &str, peer: &[Value], ours: &[Value]) -> Option<Difference> {
    if peer.len() != ours.len() {
        return Some(Difference::Count(peer.to_vec(), ours.to_vec()));
    }
    peer.iter().zip(ours).find_map(|(peer, ours)| answers(line, peer, ours))
}

fn answers(line: &str, peer: &Value, ours: &Value) -> Option<Difference> {
    if peer.get("id") != ours.get("id") {
        return Some(Difference::Results(vec![format!("id of {peer}, ringloom: {ours}")]));
    }
    // What ringloom does not have says so, by the tables of such names.
    if ours["error"]["desc"].as_str().is_some_and(|desc| desc.contains("is not supported yet")) {
        return None;
    }
    match (peer.get("error"), ours.get("error")) {
        (None, Some(error)) => Some(Difference::Peer(error.clone())),
        (Some(error), None) => Some(Difference::Ours(error.clone())),
        (Some(peer), Some(ours)) => errors(line, peer, ours),
        (None, None) => {
            let command = line.split(' ').next().unwrap_or_default();
            let mut found = Vec::new();
            let (peer, ours) = (graph_by_names(peer), graph_by_names(ours));
            Results { command, found: &mut found }.values("", &peer, &ours);
            (!found.is_empty()).then_some(Difference::Results(found))
        }
    }
}

fn errors(line: &str, peer: &Value, ours: &Value) -> Option<Difference> {
    if peer["class"] != ours["class"] {
        return Some(Difference::Class(peer.clone(), ours.clone()));
    }
    let said = ours["desc"].as_str().unwrap_or_default();
    let names = peer["desc"].as_str().unwrap_or_default().split('\'').skip(1).step_by(2);
    let is_missing =
        |name: &&str| !name.is_empty() && line.contains(*name) && !said.contains(*name);
    let missing = { names }.find(is_missing)?;
    Some(Difference::Named(missing.to_owned(), peer.clone(), ours.clone()))
}

/// The graph with names in the place of numbers; anything else as it is.
fn graph_by_names(answer: &Value) -> Value {
    let mut answer = answer.get("return").unwrap_or(answer).clone();
    let Some(nodes) = answer.get("nodes").and_then(Value::as_array).cloned() else {
        return answer;
    };
    let names: BTreeMap<u64, Value> = nodes
        .iter()
        .filter_map(|node| Some((node["id"].as_u64()?, node["name"].clone())))
        .collect();
    let edges = answer["edges"].as_array().cloned().unwrap_or_default();
    let is_block_driver = |id: &Value| {
        let node = nodes.iter().find(|node| &node["id"] == id);
        node.is_some_and(|node| node["type"] == "block-driver")
    };
    let mut shown = Vec::new();
    for mut edge in edges {
        if !is_block_driver(&edge["parent"]) {
            continue;
        }
        for end in ["parent", "child"] {
            let name = edge[end].as_u64().and_then(|id| names.get(&id)).cloned();
            edge[end] = name.unwrap_or_default();
        }
        let text = |key: &str| edge[key].as_str().unwrap_or_default().to_owned();
        edge["id"] = format!("{}-{}-{}", text("parent"), text("name"), text("child")).into();
        shown.push(edge);
    }
    answer["edges"] = shown.into();
    let is_node = |node: &&Value| node["type"] == "block-driver";
    let mut nodes: Vec<Value> = nodes.iter().filter(is_node).cloned().collect();
    for node in &mut nodes {
        node["id"] = node["name"].clone();
    }
    answer["nodes"] = nodes.into();
    answer
}

/// Compares what was returned.
struct Results<'a> {
    command: &'a str,
    found: &'a mut Vec<String>,
}

impl Results<'_> {
    fn values(&mut self, path: &str, peer: &Value, ours: &Value) {
        match (peer, ours) {
            (Value::Object(peer), Value::Object(ours)) => {
                if peer.contains_key("error") != ours.contains_key("error") {
                    self.found.push(format!("{path}: only one has failed"));
                }
                for (name, value) in peer {
                    let path = format!("{path}.{name}");
                    let is_meant = MEMBERS.iter().any(|(member, _)| member == name)
                        || PLACES.iter().any(|(place, _)| *place == path);
                    if let Some(found) = ours.get(name).filter(|_| !is_meant) {
                        self.values(&path, value, found);
                    }
                }
            }
            (Value::Array(peer), Value::Array(ours)) => self.lists(path, peer, ours),
            (peer, ours) if peer == ours => {}
            // What has no plain name is described, and the sentence of a failed job is each program's own.
            (Value::String(peer), Value::String(_)) if peer.starts_with("json:") => {}
            (Value::String(_), Value::String(_)) if path.ends_with(".error") => {}
            (peer, ours) => self.found.push(format!("{path}: {peer}, ringloom: {ours}")),
        }
    }

    /// Elements with names are compared by their names; those that neither side was given are left out.
    fn lists(&mut self, path: &str, peer: &[Value], ours: &[Value]) {
        let (Some(peer), Some(ours)) = (named(peer), named(ours)) else {
            let (mut peer, mut ours) = (peer.to_vec(), ours.to_vec());
            for list in [&mut peer, &mut ours] {
                if list.iter().all(Value::is_string) {
                    list.sort_by_key(ToString::to_string);
                }
            }
            if peer.len() == ours.len() {
                for (place, (peer, ours)) in peer.iter().zip(&ours).enumerate() {
                    self.values(&format!("{path}[{place}]"), peer, ours);
                }
            } else {
                let (peer, ours) = (Value::from(peer), Value::from(ours));
                self.found.push(format!("{path}: {peer}, ringloom: {ours}"));
            }
            return;
        };
        for (name, value) in &peer {
            match ours.get(name) {
                Some(found) => self.values(&format!("{path}[{name}]"), value, found),
                None if SHORTER.contains(&self.command) => {}
                None if MISSING.iter().any(|(meant, _)| meant == name) => {}
                None => self.found.push(format!("{path}[{name}] is missing")),
            }
        }
        let is_more = |name: &&&str| {
            !peer.contains_key(**name)
                && MORE.iter().all(|(meant, _)| *meant != **name)
                && !name.starts_with("ringloom-")
                && !name.starts_with("query-ringloom-")
        };
        for name in ours.keys().filter(is_more) {
            self.found.push(format!("{path}[{name}] is only ringloom's"));
        }
    }
}

/// The elements by their names, if all have one. Those that neither side was given are left out.
fn named(list: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    let name = |value: &'_ Value| {
        let key =
            ["node-name", "id", "name", "label"].into_iter().find(|key| !value[*key].is_null());
        key.filter(|key| value[*key].is_string())
    };
    let mut all = BTreeMap::new();
    for value in list {
        let name = value[name(value)?].as_str()?;
        if !name.contains(['#', '/']) {
            all.insert(name, value);
        }
    }
    Some(all)
}
