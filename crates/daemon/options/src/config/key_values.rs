//! Walks through the values of an option by the tables of its keys.

use serde_json::{Map, Value};
use syntax::{Keys, ValueType};

use super::forms::driver_keys;

/// Calls `work` for each value that has a key of the table, the inner ones first. What no table knows is left as it is:
/// whoever reads the option refuses it.
pub(super) fn visit(
    map: &mut Map<String, Value>,
    keys: &Keys,
    work: &mut dyn FnMut(&ValueType, &mut Value),
) {
    for key in keys.supported() {
        if let Some(value) = map.get_mut(key.name) {
            visit_value(value, &key.takes, work);
        }
    }
}

fn visit_value(value: &mut Value, takes: &ValueType, work: &mut dyn FnMut(&ValueType, &mut Value)) {
    if let Value::Object(map) = value
        && let Some(keys) = keys_of(takes, map)
    {
        visit(map, keys, work);
    }
    if let Value::Array(list) = value
        && let Some(of) = element_of(takes)
    {
        list.iter_mut().for_each(|element| visit_value(element, of, work));
    }
    work(takes, value);
}

/// The keys of an object.
fn keys_of(takes: &ValueType, map: &Map<String, Value>) -> Option<&'static Keys> {
    if let ValueType::Object(keys)
    | ValueType::WordOrObject(_, keys)
    | ValueType::TextOrObject(keys) = takes
    {
        return Some(*keys);
    }
    if let ValueType::Union(union) = takes {
        let tag = map.get(union.tag).and_then(Value::as_str).or(union.default);
        let branch = union.branches.iter().find(|(name, _)| Some(*name) == tag);
        return branch.map(|(_, keys)| keys);
    }
    let is_node = matches!(takes, ValueType::Node | ValueType::NodeOrNull | ValueType::Blockdev);
    if is_node { driver_keys(map) } else { None }
}

/// What the elements of a list are.
fn element_of(takes: &ValueType) -> Option<&ValueType> {
    if let ValueType::Nodes { .. } = takes {
        return Some(&ValueType::Node);
    }
    if let ValueType::List(of) = takes { Some(*of) } else { None }
}
