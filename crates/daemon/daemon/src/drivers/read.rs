//! Reads `--blockdev`: a node of any driver, and the nodes written inside it.
//!
//! Limits: nodes nest at most [`NESTING_MAX`] deep.
//! Not here: what only one driver has (its file).

use std::collections::HashSet;

use super::base::{self, BaseOptions};
use super::driver::Driver;
use super::node::{Blockdev, ChildNode, NamedChild};
use super::table;
use crate::syntax::{Fault, Fields, Takes, TextOrObject, is_identifier};

/// How deep nodes written inside nodes may go; it bounds the recursion that reads them.
const NESTING_MAX: usize = 8;

/// The longest node-name; QEMU keeps 32 bytes with the terminating zero.
const NODE_NAME_BYTES_MAX: usize = 31;

/// What is wrong with a node.
#[derive(Debug, thiserror::Error)]
enum NodeFault {
    /// A node-name longer than QEMU's.
    #[error("node-name '{name}' has {} bytes; the limit is {NODE_NAME_BYTES_MAX}", name.len())]
    NameTooLong {
        /// The node-name.
        name: String,
    },
    /// A top-level node without a name.
    #[error("'node-name' must be specified for the root node")]
    NoName,
    /// Too few or too many nodes below one.
    #[error("parameter '{key}' takes {least} to {most} nodes, not {given}")]
    ChildCount {
        /// The key of the list.
        key: String,
        /// How many there are.
        given: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// One node in two places below another one.
    #[error("parameter '{key}' names node '{name}' twice")]
    ChildTwice {
        /// The key of the list.
        key: String,
        /// The node.
        name: String,
    },
}

/// Reads the argument of `--blockdev`.
pub(crate) fn parse(text: &str) -> Result<Blockdev, Fault> {
    let node = read(Fields::parse(text, "driver")?, BaseOptions::DEFAULT, 0)?;
    if node.node_name.is_none() {
        return Err(Fault::own(NodeFault::NoName));
    }
    Ok(node)
}

fn read(mut fields: Fields, inherited: BaseOptions, depth: usize) -> Result<Blockdev, Fault> {
    let name = fields.required_text("driver")?;
    let driver = table::find(&fields, name)?;
    fields.check_keys(&driver.keys)?;
    let node_name = fields.text("node-name")?.map(check_node_name).transpose()?;
    let base = BaseOptions::read(&mut fields, inherited)?;
    let activity = base::read_activity(&mut fields)?;
    let options = (driver.read)(&mut fields, &base)?;
    let mut children = Children { fields, driver, base, depth, read: Vec::new() };
    for key in driver.keys.supported() {
        children.take(key.name, &key.takes, key.is_required)?;
    }
    Ok(Blockdev { node_name, driver, options, children: children.read, base, activity })
}

fn check_node_name(name: String) -> Result<String, Fault> {
    if !is_identifier(&name) {
        return Err(Fault::NotAnIdentifier { key: "node-name", value: name });
    }
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(Fault::own(NodeFault::NameTooLong { name }));
    }
    Ok(name)
}

/// The children of a node that is being read.
struct Children {
    fields: Fields,
    driver: &'static Driver,
    base: BaseOptions,
    depth: usize,
    read: Vec<NamedChild>,
}

impl Children {
    /// Takes the children under this key, if it is one of children.
    fn take(&mut self, key: &str, takes: &Takes, is_required: bool) -> Result<(), Fault> {
        if let Takes::Nodes { least, most } = *takes {
            return self.take_list(key, least, most);
        }
        if !matches!(takes, Takes::Node | Takes::NodeOrNull)
            || matches!(takes, Takes::NodeOrNull) && self.fields.is_nothing(key)
            || !is_required && !self.fields.has(key)
        {
            return Ok(());
        }
        let given = self.fields.text_or_object(key)?;
        self.add(key.to_owned(), given).map(drop)
    }

    fn take_list(&mut self, key: &str, least: usize, most: usize) -> Result<(), Fault> {
        let list = self.fields.texts_or_objects(key)?;
        let given = list.len();
        if !(least..=most).contains(&given) {
            let key = self.fields.path(key);
            return Err(Fault::own(NodeFault::ChildCount { key, given, least, most }));
        }
        let mut names = HashSet::new();
        for (index, given) in list.into_iter().enumerate() {
            let name = match self.add(format!("{key}.{index}"), given)? {
                ChildNode::Reference(name) => Some(name.clone()),
                ChildNode::Inline(inner) => inner.node_name.clone(),
            };
            if let Some(name) = name
                && !names.insert(name.clone())
            {
                let key = self.fields.path(key);
                return Err(Fault::own(NodeFault::ChildTwice { key, name }));
            }
        }
        Ok(())
    }

    fn add(&mut self, key: String, given: TextOrObject) -> Result<&ChildNode, Fault> {
        let node = match given {
            TextOrObject::Text(node_name) => ChildNode::Reference(node_name),
            TextOrObject::Object(_) if self.depth + 1 >= NESTING_MAX => {
                let (key, levels_max) = (self.fields.path(&key), NESTING_MAX);
                return Err(Fault::TooDeep { key, levels_max });
            }
            TextOrObject::Object(inner) => {
                let inherited = self.base.below(self.driver.role(&key));
                ChildNode::Inline(Box::new(read(inner, inherited, self.depth + 1)?))
            }
        };
        self.read.push(NamedChild { key, node });
        Ok(&self.read.last().expect("it was just added").node)
    }
}
