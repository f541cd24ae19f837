//! What was written, as JSON: the form in which options are kept and shown, whichever notation they came in.
//!
//! Invariants: what JSON says stays as it is; in the keyval form numbers and booleans, which are text there, become what
//! their keys take. Nodes are left out: whoever keeps a node says what is below it.

use serde_json::{Map, Value};

use super::fields::{OptionFields, parse_flag, parse_number, parse_size};
use super::keys::{Key, Keys, ValueType};
use super::keyval::Notation;

impl OptionFields {
    /// All that is left and has a key of the table, but nodes. A key that stands for no node (`null`) is kept. Call it
    /// when the keys were checked.
    pub fn written(&self) -> Map<String, Value> {
        match self.keys() {
            Some(keys) => written(self.map(), self.notation(), keys),
            None => Map::new(),
        }
    }
}

fn written(map: &Map<String, Value>, notation: Notation, keys: &Keys) -> Map<String, Value> {
    let key = |Key { name, takes, .. }: &Key| {
        let value = map.get(*name)?;
        Some(((*name).to_owned(), converted(value, notation, takes)?))
    };
    keys.supported().filter_map(key).collect()
}

/// A value in JSON; `None` for a node. What cannot be read stays as it is, and is refused by whoever takes it.
fn converted(value: &Value, notation: Notation, takes: &ValueType) -> Option<Value> {
    let inside = |keys: &Keys| {
        let map = value.as_object()?;
        Some(Value::Object(written(map, notation, keys)))
    };
    let read = |parse: fn(&str) -> Option<Value>| match (notation, value) {
        (Notation::Keyval, Value::String(text)) => parse(text),
        (Notation::Keyval | Notation::Json, _) => None,
    };
    let found = match takes {
        ValueType::Node | ValueType::Nodes { .. } | ValueType::Blockdev => return None,
        // As QEMU still bears it, an empty text is nothing, too.
        ValueType::NodeOrNull => {
            let is_nothing = value.is_null() || value.as_str() == Some("");
            return is_nothing.then_some(Value::Null);
        }
        ValueType::Text
        | ValueType::TextOrNull
        | ValueType::Word(_)
        | ValueType::Texts
        | ValueType::Any => None,
        ValueType::List(_) => None,
        ValueType::Flag => read(|text| parse_flag(text).map(Value::from)),
        ValueType::Number | ValueType::Int => read(|text| parse_number(text).map(Value::from)),
        ValueType::Size => read(|text| parse_size(text).map(Value::from)),
        ValueType::Object(keys)
        | ValueType::WordOrObject(_, keys)
        | ValueType::TextOrObject(keys) => inside(keys),
        ValueType::Union(union) => {
            let tag = value.get(union.tag).and_then(Value::as_str).or(union.default);
            let branch = union.branches.iter().find(|(name, _)| Some(*name) == tag);
            branch.and_then(|(_, keys)| inside(keys))
        }
    };
    Some(found.unwrap_or_else(|| value.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Keys, OptionFields, ValueType, optional};

    static KEYS: Keys = Keys {
        of: "x",
        supported: &[&[
            optional("name", ValueType::Text),
            optional("on", ValueType::Flag),
            optional("many", ValueType::Number),
            optional("bytes", ValueType::Size),
            optional("cache", ValueType::Object(&CACHE)),
            optional("file", ValueType::Node),
            optional("backing", ValueType::NodeOrNull),
            optional("list", ValueType::Texts),
        ]],
        later: &[],
    };

    static CACHE: Keys =
        Keys { of: "x cache", supported: &[&[optional("direct", ValueType::Flag)]], later: &[] };

    #[test]
    fn both_notations_are_written_the_same() {
        let keyval = "name=5,on=off,many=0x10,bytes=1k,cache.direct=on,file=f,list.0=a,list.1=b";
        let json = r#"{"name":"5","on":false,"many":16,"bytes":1024,"cache":{"direct":true},
                       "file":"f","list":["a","b"]}"#;
        let expected = json!({"name": "5", "on": false, "many": 16, "bytes": 1024,
                              "cache": {"direct": true}, "list": ["a", "b"]});
        for text in [keyval, json] {
            let mut fields = OptionFields::parse(text, "name").unwrap();
            fields.check_keys(&KEYS).unwrap();
            assert_eq!(Value::Object(fields.written()), expected, "{text}");
        }
        let mut fields = OptionFields::parse(r#"{"backing":null}"#, "name").unwrap();
        fields.check_keys(&KEYS).unwrap();
        assert_eq!(Value::Object(fields.written()), json!({"backing": null}));
    }
}
