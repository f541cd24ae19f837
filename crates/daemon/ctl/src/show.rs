//! Lists of what there is, and one thing in detail.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::arguments::Kind;
use crate::client::QmpClient;
use crate::inventory::{Inventory, objects, objects_of, prefixed, properties, property, text};
use crate::table::{Answer, details, table};
use crate::units::no;

const EXPORTS: &str =
    "EXPORT=id NODE=node-name SIZE=size STATE=state QUEUES=queues IOTHREADS=iothreads IMAGE=file";
const NODES: &str = "NODE=node DRIVER=driver STATE=state SIZE=size USED=used IMAGE=file";
const QUEUES: &str = "EXPORT=export QUEUE=queue IOTHREAD=iothread READS=reads WRITES=writes \
                      ERRORS=errors OPEN=in-flight P50=p50-ns P99=p99-ns";
const IOTHREADS: &str = "IOTHREAD=name QUEUES=queues POLL-NS=poll-max-ns WORKED=work-ns POLLED=poll-ns SLEPT=sleep-ns CPU=cpu-ns";
const GROUPS: &str = "GROUP=id LIMITS=limits";

/// What is said of an export and a node beside the tables below it.
const EXPORT: &str =
    "type=type node=node-name state=state size=size queues=queues iothreads=iothreads";
const NODE: &str = "driver=driver state=state size=size used=used cluster-size=cluster-size direct=direct used-by=users";

pub(crate) fn list(client: &mut QmpClient, what: Kind) -> Result<Answer> {
    match what {
        Kind::Iothreads => iothreads(client),
        Kind::ThrottleGroups => throttle_groups(client),
        Kind::Jobs => crate::jobs::list(client),
        Kind::Exports => Ok(exports(&Inventory::read(client)?)),
        Kind::Nodes => Ok(nodes(&Inventory::read(client)?)),
        Kind::Queues => {
            let queues = Inventory::read(client)?.queues.unwrap_or_default();
            Ok(Answer::table(QUEUES, queues, "queues that are served"))
        }
    }
}

fn exports(inventory: &Inventory) -> Answer {
    Answer::table(EXPORTS, inventory.exports.clone(), "exports")
}

fn nodes(inventory: &Inventory) -> Answer {
    let mut nodes = inventory.nodes.clone();
    nodes.sort_by(|one, other| text(one, "node").cmp(text(other, "node")));
    Answer::table(NODES, nodes, "nodes")
}

/// Those that are objects, and what the daemon knows of all.
fn iothreads(client: &mut QmpClient) -> Result<Answer> {
    let ids = objects_of(client, "iothread")?;
    let known = client.list("query-ringloom-iothreads", &json!({}))?;
    let mut all = known.unwrap_or_else(|| ids.iter().map(|id| json!({"name": id})).collect());
    for iothread in &mut all {
        if let Some(id) = ids.iter().find(|id| *id == text(iothread, "name")) {
            iothread["poll-max-ns"] = property(client, id, "poll-max-ns")?;
        }
    }
    Ok(Answer::table(IOTHREADS, all, "iothreads"))
}

fn throttle_groups(client: &mut QmpClient) -> Result<Answer> {
    let mut all = Vec::new();
    for id in objects_of(client, "throttle-group")? {
        let limits = property(client, &id, "limits")?;
        all.push(json!({"id": id, "limits": limits}));
    }
    Ok(Answer::table(GROUPS, all, "throttle groups"))
}

/// Everything of that name, or all there is.
pub(crate) fn show(client: &mut QmpClient, name: Option<&str>) -> Result<Answer> {
    let inventory = Inventory::read(client)?;
    let Some(name) = name else { return everything(client, &inventory) };
    let (of, name) = prefixed(name);
    let is_meant = |kind| of.is_none_or(|of| of == kind);
    let mut found = Vec::new();
    if let Some(export) = inventory.export(name).filter(|_| is_meant("export")) {
        let text_of = details(&format!("export {name}"), EXPORT, export);
        let mut answer = Answer::of(text_of, export.clone());
        add_chain(&mut answer, &inventory, text(export, "node-name"));
        add_queues(&mut answer, inventory.queues_of("export", name));
        found.push(("export", answer));
    }
    if let Some(node) = inventory.node(name).filter(|_| is_meant("node")) {
        let text = details(&format!("node {name}"), NODE, node);
        let mut answer = Answer::of(text, node.clone());
        add_chain(&mut answer, &inventory, name);
        found.push(("node", answer));
    }
    let objects = objects(client)?;
    if let Some((id, kind)) = objects.iter().find(|(id, _)| id == name && is_meant("object")) {
        let (keys, json) = properties(client, id)?;
        let columns: Vec<String> = keys.iter().map(|key| format!("{key}={key}")).collect();
        let text = details(&format!("{kind} {id}"), &columns.join(" "), &json);
        let mut answer = Answer::of(text, json);
        add_queues(&mut answer, inventory.queues_of("iothread", id));
        found.push(("object", answer));
    }
    if found.is_empty() {
        let names = inventory.names().chain(objects.iter().map(|(id, _)| id.as_str()));
        bail!("there is {}", no("export, node or object", name, names));
    }
    Ok(joined(found))
}

/// Answers one below the other, each under its key.
fn joined(all: Vec<(&'static str, Answer)>) -> Answer {
    let texts: Vec<&str> = all.iter().map(|(_, answer)| answer.text.as_str()).collect();
    let text = texts.join("\n");
    Answer::of(text, all.into_iter().map(|(key, answer)| (key, answer.json)).collect())
}

fn everything(client: &mut QmpClient, inventory: &Inventory) -> Result<Answer> {
    let version = client.version.clone();
    let (package, qemu) = (text(&version, "package"), &version["qemu"]);
    let title =
        format!("{package} (QMP of QEMU {}.{}.{})", qemu["major"], qemu["minor"], qemu["micro"]);
    Ok(joined(vec![
        ("version", Answer::said(&title, version)),
        ("exports", exports(inventory)),
        ("nodes", nodes(inventory)),
        ("iothreads", iothreads(client)?),
        ("throttle-groups", throttle_groups(client)?),
    ]))
}

/// A table below the rest.
fn add(answer: &mut Answer, columns: &str, rows: &[Value]) {
    let lines: Vec<String> =
        table(columns, rows).lines().map(|line| format!("  {line}\n")).collect();
    answer.text += &format!("\n{}", lines.concat());
}

/// The node and all below it.
fn add_chain(answer: &mut Answer, inventory: &Inventory, top: &str) {
    let chain = inventory.chain(top);
    answer.json["chain"] = chain.iter().map(|(_, node)| (*node).clone()).collect();
    let row = |(depth, node): (usize, &Value)| {
        let mut row = node.clone();
        row["node"] = format!("{:width$}{}", "", text(node, "node"), width = 2 * depth).into();
        row
    };
    add(answer, NODES, &chain.into_iter().map(row).collect::<Vec<_>>());
}

/// The queues, if there are any.
fn add_queues(answer: &mut Answer, queues: Vec<Value>) {
    if !queues.is_empty() {
        add(answer, QUEUES, &queues);
        answer.json["served"] = queues.into();
    }
}

/// What is logged, and which parts of the program have a level of their own.
pub(crate) fn log_levels(client: &mut QmpClient) -> Result<Answer> {
    let json = client.ask("query-ringloom-log", &json!({}))?;
    let parts = json["parts"].as_array().into_iter().flatten();
    let mut rows = vec![json!({"part": "all", "level": json["level"]})];
    rows.extend(parts.filter(|part| part["own"] == true).cloned());
    Ok(Answer::of(table("PART=part LEVEL=level", &rows), json))
}
