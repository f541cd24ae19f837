//! `query-qmp-schema` of both programs, compared from each command and event down.
//!
//! Types are compared by what they are made of, not by their names, which are numbers. Of an answer, members that may be
//! left out and words that are never said may be missing. What an argument lacks has to be refused as not supported yet, or
//! stands in [`MISSING`].

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::skipped;

use super::super::{monitor, monitor_socket, start};
use crate::support::{ringloom, stop};

/// What ringloom lacks, though it does not say that it is for later.
const MISSING: &[&str] = &[
    // As a command line has it too, sockets of exports are paths.
    "block-export-add(vhost-user-blk).addr.type=inet",
    "block-export-add(vhost-user-blk).addr.type=vsock",
    "blockdev-create.options(file).preallocation=falloc",
    "blockdev-create.options(file).preallocation=full",
    "blockdev-create.options(file).preallocation=metadata",
    "blockdev-create.options(qcow2).preallocation=falloc",
    "blockdev-create.options(qcow2).preallocation=full",
];

/// Words of which ringloom takes those that it has itself.
const WORDS: &[&str] = &["blockdev-create.options(qcow2).backing-fmt="];

/// What the peer says of words that are in its schema, and that it does not have itself.
const NOT_THERE: [&str; 2] =
    ["Driver does not support blockdev-create", "not found or not supported"];

/// What ringloom has besides: commands, members and cases of its own.
const MORE: &[&str] = &[
    "block-export-add(vhost-user-blk).pin",
    "blockdev-backup.cbw-timeout",
    "blockdev-backup.on-cbw-error",
    "blockdev-mirror.ringloom-verify",
    "drive-backup.cbw-timeout",
    "drive-backup.on-cbw-error",
    "drive-mirror.ringloom-verify",
    "query-block-jobs->[].ringloom-compared",
    "query-block-jobs->[].ringloom-differing",
    "blockdev-add.driver=delay",
    "blockdev-add.driver=stripe",
    // The peer's schema has authz-listfile, of which it can make none: its type has this name.
    "object-add.qom-type=authz-list-file",
    "object-add.qom-type=iothread-pool",
    "transaction.actions[].type=ringloom-insert-filter",
    "transaction.actions[].type=ringloom-remove-filter",
    // A member of mirrors, which the peer has in a branch of its own.
    "query-block-jobs->[].actively-synced",
    // The same of what mirrors are told.
    "block-job-change.copy-mode",
];

/// What is described in another way, with the reasons.
const OTHERWISE: &[&str] = &[
    // An alternate that takes a name as before, or a list of names.
    "block-export-add.iothread: builtin, ringloom: alternate",
    // The same of ways to prove who one is.
    "blockdev-add(rbd).auth-client-required: array, ringloom: alternate",
    // What a file may do is decided when it is opened.
    "blockdev-add(file): features [\"dynamic-auto-read-only\"], ringloom: null",
    "blockdev-add(host_device): features [\"dynamic-auto-read-only\"], ringloom: null",
    // They are as good as the names of nodes here.
    "block-commit.base: features [\"deprecated\"], ringloom: null",
    "block-commit.top: features [\"deprecated\"], ringloom: null",
    // What only mirrors are told may be left out.
    "block-job-change: tag \"type\", ringloom: null",
    // What only mirrors have may be left out.
    "query-block-jobs->[]: tag \"type\", ringloom: null",
    // The list of words is there as well; that it is deprecated is the peer's.
    "query-qmp-schema->[](enum).values: features [\"deprecated\"], ringloom: null",
];

/// A step from a type to one inside it.
#[derive(Debug, Clone)]
enum Step {
    /// A member, beside others that have to be there.
    Member(String, Map<String, Value>),
    /// What a union has if its tag has that value.
    Case(String, String, Map<String, Value>),
    /// What a list has.
    Element,
}

/// How the type of an argument or an answer is reached.
#[derive(Debug, Clone)]
struct Path {
    command: String,
    is_answer: bool,
    steps: Vec<Step>,
}

impl Path {
    fn to(&self, step: Step) -> Self {
        let mut path = self.clone();
        path.steps.push(step);
        path
    }

    fn text(&self) -> String {
        let mut text = self.command.clone();
        text.push_str(if self.is_answer { "->" } else { "" });
        for step in &self.steps {
            text.push_str(&match step {
                Step::Member(name, _) => format!(".{name}"),
                Step::Case(_, case, _) => format!("({case})"),
                Step::Element => "[]".to_owned(),
            });
        }
        text
    }

    /// Arguments that have this value at the end of the path.
    fn arguments(&self, value: Value) -> Value {
        self.steps.iter().rev().fold(value, |value, step| match step {
            Step::Member(name, others) => {
                let mut all = others.clone();
                all.insert(name.clone(), value);
                Value::Object(all)
            }
            Step::Case(tag, case, others) => {
                let mut all = others.clone();
                all.extend(value.as_object().cloned().unwrap_or_default());
                all.insert(tag.clone(), case.as_str().into());
                Value::Object(all)
            }
            Step::Element => json!([value]),
        })
    }
}

/// Both schemas, and what was found.
struct Comparison {
    peer: BTreeMap<String, Value>,
    ours: BTreeMap<String, Value>,
    seen: BTreeSet<(String, String)>,
    /// What is missing in an argument, with a value that would need it.
    missing: Vec<(String, String, Value)>,
    more: Vec<String>,
    otherwise: Vec<String>,
}

fn by_name(schema: &Value) -> BTreeMap<String, Value> {
    let all = schema.as_array().into_iter().flatten();
    all.map(|entry| (entry["name"].as_str().unwrap_or_default().to_owned(), entry.clone()))
        .collect()
}

/// Elements of a list by the text under a key.
fn elements<'a>(entry: &'a Value, list: &str, key: &str) -> BTreeMap<&'a str, &'a Value> {
    let all = entry[list].as_array().into_iter().flatten();
    all.filter_map(|element| Some((element[key].as_str()?, element))).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

impl Comparison {
    fn equal(&mut self, at: &str, what: &str, peer: &Value, ours: &Value) {
        if peer[what] != ours[what] {
            let (peer, ours) = (&peer[what], &ours[what]);
            self.otherwise.push(format!("{at}: {what} {peer}, ringloom: {ours}"));
        }
    }

    fn lacks(&mut self, path: &Path, name: String, value: Value) {
        self.missing.push((name, path.command.clone(), path.arguments(value)));
    }

    fn types(&mut self, path: &Path, peer: &str, ours: &str) {
        if !self.seen.insert((peer.to_owned(), ours.to_owned())) {
            return;
        }
        let (peer, ours) = (self.peer[peer].clone(), self.ours[ours].clone());
        let at = path.text();
        self.equal(&at, "features", &peer, &ours);
        let kinds = (text(&peer, "meta-type"), text(&ours, "meta-type"));
        match kinds {
            ("builtin", "builtin") => self.equal(&at, "json-type", &peer, &ours),
            ("array", "array") => {
                let path = path.to(Step::Element);
                self.types(&path, text(&peer, "element-type"), text(&ours, "element-type"));
            }
            ("enum", "enum") => {
                let (peer, ours) =
                    (elements(&peer, "members", "name"), elements(&ours, "members", "name"));
                for word in peer.keys().filter(|word| !ours.contains_key(*word)) {
                    self.lacks(path, format!("{at}={word}"), (*word).into());
                }
                let more = ours.keys().filter(|word| !peer.contains_key(*word));
                self.more.extend(more.map(|word| format!("{at}={word}")));
            }
            ("object", "object") => self.objects(path, &peer, &ours),
            ("alternate", "alternate") => self.alternates(path, &peer, &ours),
            (peer, ours) => self.otherwise.push(format!("{at}: {peer}, ringloom: {ours}")),
        }
    }

    fn objects(&mut self, path: &Path, peer: &Value, ours: &Value) {
        self.equal(&path.text(), "tag", peer, ours);
        let (members, own) = (elements(peer, "members", "name"), elements(ours, "members", "name"));
        let is_optional = |member: &Value| member.get("default").is_some();
        let takes_text = |of: &str| {
            of == "str" || elements(&self.ours[of], "members", "type").contains_key("str")
        };
        let mut needed: Map<String, Value> = own
            .iter()
            .filter(|(_, member)| !is_optional(member) && takes_text(text(member, "type")))
            .map(|(name, _)| ((*name).to_owned(), "x".into()))
            .collect();
        let (tag, own_cases) = (text(peer, "tag"), elements(ours, "variants", "case"));
        if let Some(case) = own_cases.keys().next() {
            needed.insert(tag.to_owned(), (*case).into());
        }
        for (name, member) in &members {
            let path = path.to(Step::Member((*name).to_owned(), needed.clone()));
            let at = path.text();
            let Some(found) = own.get(name) else {
                if path.is_answer && !is_optional(member) {
                    self.otherwise.push(format!("{at} is always there, ringloom: never"));
                }
                self.lacks(&path, at, Value::Null);
                continue;
            };
            if is_optional(member) != is_optional(found) {
                let [peer, ours] = [is_optional(member), is_optional(found)];
                self.otherwise.push(format!("{at}: optional {peer}, ringloom: {ours}"));
            }
            self.equal(&at, "features", member, found);
            self.types(&path, text(member, "type"), text(found, "type"));
        }
        for (case, of) in &elements(peer, "variants", "case") {
            if let Some(found) = own_cases.get(case) {
                let step = Step::Case(tag.to_owned(), (*case).to_owned(), needed.clone());
                let path = path.to(step);
                self.types(&path, text(of, "type"), text(found, "type"));
            }
        }
        for (name, member) in own.iter().filter(|(name, _)| !members.contains_key(*name)) {
            let at = format!("{}.{name}", path.text());
            if !is_optional(member) && !path.is_answer {
                self.otherwise.push(format!("{at} is not there, ringloom: needed"));
            } else if *name != "ringloom-volatile" {
                self.more.push(at);
            }
        }
    }

    fn alternates(&mut self, path: &Path, peer: &Value, ours: &Value) {
        let kinds = |schema: &BTreeMap<String, Value>, entry: &Value| -> BTreeMap<String, String> {
            let all = elements(entry, "members", "type").into_keys();
            let kind = |name: &str| {
                let of = &schema[name];
                let key = if of["meta-type"] == "builtin" { "json-type" } else { "meta-type" };
                (text(of, key).to_owned(), name.to_owned())
            };
            all.map(kind).collect()
        };
        let (peer, ours) = (kinds(&self.peer, peer), kinds(&self.ours, ours));
        let at = path.text();
        for (kind, of) in &peer {
            match ours.get(kind) {
                Some(found) => self.types(path, of, found),
                None => self.otherwise.push(format!("{at} takes {kind}, ringloom: never")),
            }
        }
        let more = ours.keys().filter(|kind| !peer.contains_key(*kind));
        self.more.extend(more.map(|kind| format!("{at} takes {kind}")));
    }

    fn commands(&mut self) {
        let of_kind = |entry: &&Value| matches!(text(entry, "meta-type"), "command" | "event");
        let ours: Vec<Value> = self.ours.values().filter(of_kind).cloned().collect();
        for ours in ours {
            let name = text(&ours, "name").to_owned();
            let Some(peer) = self.peer.get(&name).cloned() else {
                if !name.starts_with("ringloom-") && !name.starts_with("query-ringloom-") {
                    self.more.push(name);
                }
                continue;
            };
            for what in ["meta-type", "features", "allow-oob"] {
                self.equal(&name, what, &peer, &ours);
            }
            let is_event = ours["meta-type"] == "event";
            let path = |is_answer| Path { command: name.clone(), is_answer, steps: Vec::new() };
            self.types(&path(is_event), text(&peer, "arg-type"), text(&ours, "arg-type"));
            if !is_event {
                self.types(&path(true), text(&peer, "ret-type"), text(&ours, "ret-type"));
            }
        }
    }
}

#[test]
fn the_schema_is_that_of_the_peer() {
    let program = Program::qemu_storage_daemon();
    if let Some(reason) = program.missing() {
        skipped(&reason);
        return;
    }
    compare(&program).unwrap_or_else(|error| panic!("{error:#}"));
}

fn compare(program: &Program) -> Result<()> {
    let (bench, our_bench) = (Bench::new()?, Bench::new()?);
    let mut arguments = monitor(&bench);
    arguments.truncate(4);
    let peer = program.start(&arguments, &[monitor_socket(&bench)])?;
    let mut client = QmpClient::connect(&monitor_socket(&bench))?;
    let (server, mut our_client) = start(&ringloom(), &our_bench, &[], &[])?;
    let nothing = json!({});
    let mut comparison = Comparison {
        peer: by_name(&client.execute("query-qmp-schema", &nothing)?),
        ours: by_name(&our_client.execute("query-qmp-schema", &nothing)?),
        seen: BTreeSet::new(),
        missing: Vec::new(),
        more: Vec::new(),
        otherwise: Vec::new(),
    };
    comparison.commands();
    let Comparison { missing, mut more, mut otherwise, .. } = comparison;
    let (mut lacked, mut count) = (Vec::new(), 0);
    let types = client.execute("qom-list-types", &nothing)?;
    let is_type = |name: &str| {
        let mut all = types.as_array().into_iter().flatten();
        all.any(|of| text(of, "name") == name)
    };
    for (name, command, arguments) in missing {
        let object = name.strip_prefix("object-add.qom-type=");
        if name.contains("->")
            || WORDS.iter().any(|words| name.starts_with(words))
            || object.is_some_and(|of| !is_type(of))
        {
            continue;
        }
        let desc = |answer: Value| text(&answer["error"], "desc").to_owned();
        if desc(our_client.ask(&command, &arguments)?).contains("is not supported yet") {
            count += 1;
            continue;
        }
        let said = desc(client.ask(&command, &arguments)?);
        if !NOT_THERE.iter().any(|words| said.contains(words)) {
            lacked.push(name);
        }
    }
    stop(server, &[&monitor_socket(&our_bench)])?;
    stop(peer, &[])?;
    ensure!(count > 100, "only {count} names are for later");
    for (found, expected) in
        [(&mut lacked, MISSING), (&mut more, MORE), (&mut otherwise, OTHERWISE)]
    {
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        let new: Vec<_> = found.difference(&expected).collect();
        let gone: Vec<_> = expected.difference(&found).collect();
        ensure!(new.is_empty() && gone.is_empty(), "new: {new:#?}, gone: {gone:#?}");
    }
    Ok(())
}
