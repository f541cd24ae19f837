//! `query-qmp-schema`: what each command takes and gives, made of the tables by which arguments are read and of the types
//! that answers are made of.
//!
//! Specification: QEMU, docs/devel/qapi-code-gen.rst, "Client JSON Protocol introspection". Names of types are numbers, as
//! QEMU masks them: programs look at what stands behind them.
//!
//! Invariants: each type is described once, also where it is a part of itself (a node in a node).

use std::collections::HashMap;

use exports::{EXPORT_KEYS, EXPORT_TYPES};
use graph::{BASE_KEYS, DRIVERS, OBJECT_KEYS, OBJECT_TYPES};
use serde_json::{Value, json};
use syntax::{Key, Keys, Union, ValueType};

use crate::commands::{Arguments, COMMANDS};
use crate::events::EVENTS;

/// The types of JSON that have no description of their own.
const BUILTINS: &[(&str, &str)] = &[
    ("str", "string"),
    ("int", "int"),
    ("number", "number"),
    ("bool", "boolean"),
    ("null", "null"),
    ("any", "value"),
];

/// What is known of types so far.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    entries: Vec<Value>,
    /// The names of types by what they were made of.
    names: HashMap<String, String>,
}

/// A member of a structure: its name, its type, and whether it may be left out.
pub(crate) type Member = (String, String, bool);

impl Schema {
    /// All commands and events, and the types that they use.
    pub(crate) fn of_all() -> Vec<Value> {
        let mut schema = Self::default();
        for command in COMMANDS {
            let arguments = schema.arguments(&command.arguments);
            let returns = (command.returns)(&mut schema);
            let mut entry = json!({
                "name": command.name, "meta-type": "command",
                "arg-type": arguments, "ret-type": returns,
            });
            if !command.features.is_empty() {
                entry["features"] = json!(command.features);
            }
            schema.entries.push(entry);
        }
        for event in EVENTS {
            let members = (event.members)(&mut schema);
            let arguments = schema.structure(&format!("event {}", event.name), |_| members);
            let entry = json!({"name": event.name, "meta-type": "event", "arg-type": arguments});
            schema.entries.push(entry);
        }
        for (name, json_type) in BUILTINS {
            let entry = json!({"name": name, "meta-type": "builtin", "json-type": json_type});
            schema.entries.push(entry);
        }
        schema.entries
    }

    /// The name of the type that was made of that, made now if it is not there.
    fn named(&mut self, of: &str, make: impl FnOnce(&mut Self) -> Value) -> String {
        if let Some(name) = self.names.get(of) {
            return name.clone();
        }
        let name = self.names.len().to_string();
        self.names.insert(of.to_owned(), name.clone());
        let mut entry = make(self);
        entry["name"] = name.as_str().into();
        self.entries.push(entry);
        name
    }

    /// A structure of these members.
    pub(crate) fn structure(
        &mut self,
        of: &str,
        members: impl FnOnce(&mut Self) -> Vec<Member>,
    ) -> String {
        self.named(of, |schema| {
            let members: Vec<_> = members(schema).into_iter().map(member).collect();
            json!({"meta-type": "object", "members": members})
        })
    }

    /// A structure without members.
    pub(crate) fn nothing(&mut self) -> String {
        self.structure("nothing", |_| Vec::new())
    }

    /// A list.
    pub(crate) fn array(&mut self, of: &str) -> String {
        let name = format!("[{of}]");
        if !self.names.contains_key(&name) {
            self.names.insert(name.clone(), name.clone());
            let entry = json!({"name": name, "meta-type": "array", "element-type": of});
            self.entries.push(entry);
        }
        name
    }

    /// An enumeration.
    pub(crate) fn words(&mut self, words: &[&str]) -> String {
        self.named(&format!("words {words:?}"), |_| {
            let members: Vec<_> = words.iter().map(|word| json!({"name": word})).collect();
            json!({"meta-type": "enum", "members": members, "values": words})
        })
    }

    /// One of several types.
    fn alternate(&mut self, of: &str, types: impl FnOnce(&mut Self) -> Vec<String>) -> String {
        self.named(of, |schema| {
            let members: Vec<_> =
                types(schema).into_iter().map(|name| json!({"type": name})).collect();
            json!({"meta-type": "alternate", "members": members})
        })
    }

    /// A structure of which a member, the tag, says which others there are.
    pub(crate) fn union(
        &mut self,
        of: &str,
        tag: &str,
        parts: impl FnOnce(&mut Self) -> (Vec<Member>, Vec<(&'static str, String)>),
    ) -> String {
        self.named(of, |schema| {
            let (members, variants) = parts(schema);
            let members: Vec<_> = members.into_iter().map(member).collect();
            let variant = |(case, of): (&str, String)| json!({"case": case, "type": of});
            let variants: Vec<_> = variants.into_iter().map(variant).collect();
            json!({"meta-type": "object", "members": members, "tag": tag, "variants": variants})
        })
    }

    fn arguments(&mut self, arguments: &Arguments) -> String {
        match arguments {
            Arguments::None => self.nothing(),
            Arguments::Keys(keys) => self.keys(keys),
            Arguments::Object => self.object(),
            Arguments::Blockdev => self.blockdev(),
            Arguments::Export => self.export(),
        }
    }

    /// What has the keys of that table.
    fn keys(&mut self, keys: &'static Keys) -> String {
        self.structure(&format!("keys {}", keys.of), |schema| schema.members(keys.supported()))
    }

    fn members<'a>(&mut self, keys: impl Iterator<Item = &'a Key>) -> Vec<Member> {
        keys.map(|key| (key.name.to_owned(), self.value(&key.takes), !key.is_required)).collect()
    }

    /// The type of a value.
    fn value(&mut self, takes: &ValueType) -> String {
        match takes {
            ValueType::Text => "str".to_owned(),
            ValueType::Flag => "bool".to_owned(),
            ValueType::Number | ValueType::Int | ValueType::Size => "int".to_owned(),
            ValueType::Any => "any".to_owned(),
            ValueType::Word(words) => self.words(words),
            ValueType::TextOrNull => {
                self.alternate("text or null", |_| vec!["str".to_owned(), "null".to_owned()])
            }
            ValueType::Texts => {
                self.alternate("texts", |schema| vec!["str".to_owned(), schema.array("str")])
            }
            ValueType::Object(keys) => self.keys(keys),
            ValueType::WordOrObject(words, keys) => self
                .alternate(&format!("word or {}", keys.of), |schema| {
                    vec![schema.keys(keys), schema.words(words)]
                }),
            ValueType::TextOrObject(keys) => self
                .alternate(&format!("text or {}", keys.of), |schema| {
                    vec!["str".to_owned(), schema.keys(keys)]
                }),
            ValueType::Union(union) => self.key_union(union),
            ValueType::Node => self.node(),
            ValueType::Blockdev => self.blockdev(),
            ValueType::NodeOrNull => self.alternate("node or null", |schema| {
                vec![schema.blockdev(), "str".to_owned(), "null".to_owned()]
            }),
            ValueType::Nodes { .. } => {
                let node = self.node();
                self.array(&node)
            }
            ValueType::List(of) => {
                let of = self.value(of);
                self.array(&of)
            }
        }
    }

    fn node(&mut self) -> String {
        self.alternate("node", |schema| vec![schema.blockdev(), "str".to_owned()])
    }

    fn key_union(&mut self, union: &'static Union) -> String {
        let cases: Vec<&str> = union.branches.iter().map(|(case, _)| *case).collect();
        let of: Vec<&str> = union.branches.iter().map(|(_, keys)| keys.of).collect();
        self.union(&format!("union {} {of:?}", union.tag), union.tag, |schema| {
            let words = schema.words(&cases);
            let tag = (union.tag.to_owned(), words, union.default.is_some());
            let branch = |(case, keys): &(&'static str, Keys)| {
                let of = format!("branch {}", keys.of);
                let own = keys.supported().filter(|key| key.name != union.tag);
                (*case, schema.structure(&of, |schema| schema.members(own)))
            };
            (vec![tag], union.branches.iter().map(branch).collect())
        })
    }

    /// What the `base` of several tables has in common, and what each has besides.
    fn tables(
        &mut self,
        of: &'static str,
        tag: &'static str,
        base: &[Key],
        tables: &[(&'static str, Keys)],
    ) -> String {
        self.union(of, tag, |schema| {
            let cases: Vec<&str> = tables.iter().map(|(case, _)| *case).collect();
            let mut members = schema.members(base.iter().filter(|key| key.name != tag));
            members.push((tag.to_owned(), schema.words(&cases), false));
            let variants = tables.iter().map(|(case, keys)| {
                let is_own = |key: &&Key| base.iter().all(|common| common.name != key.name);
                let own = keys.supported().filter(is_own);
                let of = format!("{of} {case}");
                (*case, schema.structure(&of, |schema| schema.members(own)))
            });
            let variants = variants.collect();
            (members, variants)
        })
    }

    fn blockdev(&mut self) -> String {
        let tables: Vec<_> = DRIVERS.iter().map(|driver| (driver.name, driver.keys)).collect();
        self.tables("blockdev", "driver", BASE_KEYS, &tables)
    }

    fn object(&mut self) -> String {
        let tables: Vec<_> = OBJECT_TYPES.iter().map(|of| (of.name, of.keys)).collect();
        self.tables("object", "qom-type", OBJECT_KEYS, &tables)
    }

    fn export(&mut self) -> String {
        self.tables("export", "type", EXPORT_KEYS, EXPORT_TYPES)
    }
}

fn member((name, of, is_optional): Member) -> Value {
    let mut member = json!({"name": name, "type": of});
    if is_optional {
        member["default"] = Value::Null;
    }
    // Such names say so (QEMU, docs/devel/qapi-code-gen.rst).
    if name.starts_with("x-") {
        member["features"] = json!(["unstable"]);
    }
    member
}
