//! Reads `--blockdev`: a node of any driver, and the nodes written inside it.
//!
//! Limits: nodes nest at most [`NESTING_MAX`] deep.
//! Not here: what only one driver has (its file).

use std::collections::HashSet;

use syntax::{ArgumentError, OptionFields, TextOrObject, ValueType, is_identifier};

use super::base::{self, BaseOptions};
use super::driver::Driver;
use super::node::{Blockdev, BlockdevRef, KeyedChild};
use super::table;

/// How deep nodes written inside nodes may go; it bounds the recursion that reads them.
const NESTING_MAX: usize = 8;

/// The longest node-name; QEMU keeps 32 bytes with the terminating zero.
const NODE_NAME_BYTES_MAX: usize = 31;

/// What is wrong with the description of a node.
#[derive(Debug, thiserror::Error)]
enum BlockdevError {
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

impl Blockdev {
    /// Reads the argument of `--blockdev`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        Self::read(OptionFields::parse(text, "driver")?)
    }

    /// Takes a node with a name out of these fields.
    pub fn read(fields: OptionFields) -> Result<Self, ArgumentError> {
        let node = read(fields, BaseOptions::DEFAULT, 0)?;
        if node.node_name.is_none() {
            return Err(ArgumentError::own(BlockdevError::NoName));
        }
        Ok(node)
    }
}

fn read(
    mut fields: OptionFields,
    inherited: BaseOptions,
    depth: usize,
) -> Result<Blockdev, ArgumentError> {
    let name = fields.required_text("driver")?;
    let driver = table::find(&fields, name)?;
    fields.check_keys(&driver.keys)?;
    let mut written = fields.written();
    written.insert("driver".to_owned(), driver.name.into());
    let node_name = fields.text("node-name")?;
    let node_name = node_name.map(|name| check_node_name("node-name", name)).transpose()?;
    let base = BaseOptions::read(&mut fields, inherited)?;
    let activity = base::read_activity(&mut fields)?;
    let options = (driver.read)(&mut fields, &base)?;
    let mut children = ChildrenReader { fields, driver, base, depth, read: Vec::new() };
    for key in driver.keys.supported() {
        children.take(key.name, &key.takes, key.is_required)?;
    }
    Ok(Blockdev { node_name, driver, options, children: children.read, base, activity, written })
}

/// Whether a node can be called so, as that key says.
pub fn check_node_name(key: &'static str, name: String) -> Result<String, ArgumentError> {
    if !is_identifier(&name) {
        return Err(ArgumentError::NotAnIdentifier { key, value: name });
    }
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(ArgumentError::own(BlockdevError::NameTooLong { name }));
    }
    Ok(name)
}

/// Reads the children of a node's description.
struct ChildrenReader {
    fields: OptionFields,
    driver: &'static Driver,
    base: BaseOptions,
    depth: usize,
    read: Vec<KeyedChild>,
}

impl ChildrenReader {
    /// Takes the children under this key, if it is one of children.
    fn take(
        &mut self,
        key: &str,
        takes: &ValueType,
        is_required: bool,
    ) -> Result<(), ArgumentError> {
        if let ValueType::Nodes { least, most } = *takes {
            return self.take_list(key, least, most);
        }
        if !matches!(takes, ValueType::Node | ValueType::NodeOrNull)
            || matches!(takes, ValueType::NodeOrNull) && self.fields.is_nothing(key)
            || !is_required && !self.fields.has(key)
        {
            return Ok(());
        }
        let given = self.fields.text_or_object(key)?;
        self.add(key.to_owned(), given).map(drop)
    }

    fn take_list(&mut self, key: &str, least: usize, most: usize) -> Result<(), ArgumentError> {
        let list = self.fields.texts_or_objects(key)?;
        let given = list.len();
        if !(least..=most).contains(&given) {
            let key = self.fields.path(key);
            return Err(ArgumentError::own(BlockdevError::ChildCount { key, given, least, most }));
        }
        let mut names = HashSet::new();
        for (index, given) in list.into_iter().enumerate() {
            let name = match self.add(format!("{key}.{index}"), given)? {
                BlockdevRef::Reference(name) => Some(name.clone()),
                BlockdevRef::Inline(inner) => inner.node_name.clone(),
            };
            if let Some(name) = name
                && !names.insert(name.clone())
            {
                let key = self.fields.path(key);
                return Err(ArgumentError::own(BlockdevError::ChildTwice { key, name }));
            }
        }
        Ok(())
    }

    fn add(&mut self, key: String, given: TextOrObject) -> Result<&BlockdevRef, ArgumentError> {
        let node = match given {
            TextOrObject::Text(node_name) => BlockdevRef::Reference(node_name),
            TextOrObject::Object(_) if self.depth + 1 >= NESTING_MAX => {
                let (key, levels_max) = (self.fields.path(&key), NESTING_MAX);
                return Err(ArgumentError::TooDeep { key, levels_max });
            }
            TextOrObject::Object(inner) => {
                let inherited = self.base.below(self.driver.role(&key));
                BlockdevRef::Inline(Box::new(read(inner, inherited, self.depth + 1)?))
            }
        };
        self.read.push(KeyedChild { key, node });
        Ok(&self.read.last().expect("it was just added").node)
    }
}
