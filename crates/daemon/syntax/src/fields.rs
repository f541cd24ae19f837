//! Takes typed values out of one option's tree, by the rules of the notation it was written in.
//!
//! In the keyval form a number or a boolean is text; in JSON it has its own type and text is
//! refused, as in QEMU.
//!
//! Invariants: a key is taken as its table says; one that is not in the table, or is something else there, is our own
//! mistake and panics.

use serde_json::{Map, Value};

use super::fault::ArgumentError;
use super::keys::{Key, Keys, Union, ValueType};
use super::keyval::{self, Notation};
use super::nearest::nearest;

/// The keys and values of one option (or object in it) that were not taken yet.
#[derive(Debug)]
pub struct OptionFields {
    map: Map<String, Value>,
    notation: Notation,
    /// Where the object stands in the option: empty, or ends in a dot.
    prefix: String,
    /// The keys that there are, once they were checked.
    keys: Option<&'static Keys>,
}

impl OptionFields {
    /// Reads an option's argument; a first parameter without `=` belongs to `implied`, if that is not
    /// empty.
    pub fn parse(text: &str, implied: &str) -> Result<Self, ArgumentError> {
        let (map, notation) = keyval::parse(text, implied)?;
        Ok(Self { map, notation, prefix: String::new(), keys: None })
    }

    /// The keys and values of an object of JSON, such as the arguments of a command.
    pub fn of_json(map: Map<String, Value>) -> Self {
        Self { map, notation: Notation::Json, prefix: String::new(), keys: None }
    }

    /// All that was not taken yet, as it was read.
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// What was not taken yet.
    pub(crate) fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    pub(crate) fn notation(&self) -> Notation {
        self.notation
    }

    /// The table by which values are taken.
    pub(crate) fn keys(&self) -> Option<&'static Keys> {
        self.keys
    }

    /// Refuses the first key that is left and not in the table, by which all others are taken from now on. Call it
    /// before taking what is required: a misspelt key is a better message than the missing one.
    pub fn check_keys(&mut self, keys: &'static Keys) -> Result<(), ArgumentError> {
        self.keys = Some(keys);
        for key in self.map.keys() {
            if keys.names().any(|name| name == key) {
                continue;
            }
            let of = keys.of;
            if keys.later.iter().any(|group| group.contains(&key.as_str())) {
                return Err(ArgumentError::KeyNotYet { key: self.path(key), of });
            }
            let supported: Vec<_> = keys.names().collect();
            let nearest = self
                .nested_key(keys, key)
                .or_else(|| nearest(key, supported.iter().copied()).map(str::to_owned));
            return Err(ArgumentError::UnknownKey { key: self.path(key), of, nearest, supported });
        }
        Ok(())
    }

    /// How a key is written that belongs into an object of this one: with the object before it, and in JSON not with a dot.
    fn nested_key(&self, keys: &Keys, key: &str) -> Option<String> {
        keys.supported().find_map(|Key { name: object, takes, .. }| {
            let name = key.strip_prefix(object).and_then(|rest| rest.strip_prefix('.'));
            let name = name.unwrap_or(key);
            let is_inside =
                takes.inner().iter().any(|inner| inner.names().any(|known| known == name));
            is_inside.then(|| match self.notation {
                Notation::Keyval => format!("{}{object}.{name}", self.prefix),
                Notation::Json => format!("\"{object}\": {{\"{name}\": …}}"),
            })
        })
    }

    /// The key with all that stands before it.
    pub fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A text.
    pub fn text(&mut self, key: &str) -> Result<Option<String>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Text));
        self.any_text(key)
    }

    fn any_text(&mut self, key: &str) -> Result<Option<String>, ArgumentError> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.expects(key, "a string")),
        }
    }

    /// A text that must be there, or nothing (`null`).
    pub fn text_or_null(&mut self, key: &str) -> Result<Option<String>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::TextOrNull));
        match self.map.remove(key) {
            None => Err(ArgumentError::Missing(self.path(key))),
            Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.expects(key, "a string or null")),
        }
    }

    /// The name of a node that must have been made before: one written in place is refused.
    pub fn text_of_node(&mut self, key: &str) -> Result<Option<String>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Node));
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.expects(key, "the node-name of a node that is there")),
        }
    }

    /// A text that must be there.
    pub fn required_text(&mut self, key: &str) -> Result<String, ArgumentError> {
        let missing = ArgumentError::Missing(self.path(key));
        self.text(key)?.ok_or(missing)
    }

    /// A boolean.
    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Flag));
        let Some(value) = self.map.remove(key) else { return Ok(None) };
        let (flag, expected) = match self.notation {
            Notation::Keyval => (value.as_str().and_then(parse_flag), "'on' or 'off'"),
            Notation::Json => (value.as_bool(), "true or false"),
        };
        flag.map(Some).ok_or_else(|| self.expects(key, expected))
    }

    /// What a boolean stands for.
    pub fn either<T>(&mut self, key: &str, on: T, off: T) -> Result<Option<T>, ArgumentError> {
        Ok(self.flag(key)?.map(|is_on| if is_on { on } else { off }))
    }

    /// A whole number without unit.
    pub fn number(&mut self, key: &str) -> Result<Option<u64>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Number));
        self.unsigned(key, parse_number, "a whole number without unit")
    }

    /// A whole number without unit that fits 32 bits.
    pub fn number_u32(&mut self, key: &str) -> Result<Option<u32>, ArgumentError> {
        let Some(given) = self.number(key)? else { return Ok(None) };
        let fits = u32::try_from(given).ok();
        fits.ok_or_else(|| self.expects(key, "a 32-bit number")).map(Some)
    }

    /// A whole number that fits a signed one of 64 bits, as the place in a file must; QEMU's bound.
    pub fn int(&mut self, key: &str) -> Result<Option<u64>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Int));
        match self.unsigned(key, parse_number, "a whole number without unit")? {
            Some(number) if i64::try_from(number).is_err() => {
                Err(self.expects(key, "at most 2^63 - 1"))
            }
            number => Ok(number),
        }
    }

    /// A size in bytes; in the keyval form it may have a unit.
    pub fn size(&mut self, key: &str) -> Result<Option<u64>, ArgumentError> {
        self.expect(key, |takes| matches!(takes, ValueType::Size));
        self.unsigned(key, parse_size, "a size: a whole number, optionally with k, M, G or T")
    }

    /// One of the words that the key takes.
    pub fn word(&mut self, key: &str) -> Result<Option<&'static str>, ArgumentError> {
        let (ValueType::Word(accepted) | ValueType::WordOrObject(accepted, _)) = self.takes(key)
        else {
            panic!("'{key}' takes no word")
        };
        let Some(value) = self.any_text(key)? else { return Ok(None) };
        match accepted.iter().find(|name| **name == value) {
            Some(name) => Ok(Some(*name)),
            None => Err(self.unknown_value(key, value, accepted)),
        }
    }

    /// What says that a value is none of those accepted.
    pub fn unknown_value(
        &self,
        key: &str,
        value: String,
        accepted: &[&'static str],
    ) -> ArgumentError {
        ArgumentError::UnknownValue {
            key: self.path(key),
            nearest: nearest(&value, accepted.iter().copied()),
            value,
            accepted: accepted.to_vec(),
        }
    }

    /// An object, whose keys were checked.
    pub fn object(&mut self, key: &str) -> Result<Option<Self>, ArgumentError> {
        let (ValueType::Object(keys) | ValueType::WordOrObject(_, keys)) = self.takes(key) else {
            panic!("'{key}' takes no object")
        };
        let Some(mut object) = self.any_object(key)? else { return Ok(None) };
        object.check_keys(keys)?;
        Ok(Some(object))
    }

    /// An object of which one key says what the others are: the value of that one, and the rest.
    pub fn union(&mut self, key: &str) -> Result<Option<(&'static str, Self)>, ArgumentError> {
        let ValueType::Union(union) = self.takes(key) else { panic!("'{key}' takes no union") };
        let Some(object) = self.any_object(key)? else { return Ok(None) };
        object.branch(union).map(Some)
    }

    /// The value of the tag of a union, and the rest.
    fn branch(mut self, union: &Union) -> Result<(&'static str, Self), ArgumentError> {
        let given = match union.default {
            Some(default) => self.text(union.tag)?.unwrap_or_else(|| default.to_owned()),
            None => self.required_text(union.tag)?,
        };
        let Some((name, keys)) = union.branches.iter().find(|(name, _)| *name == given) else {
            let accepted: Vec<_> = union.branches.iter().map(|(name, _)| *name).collect();
            if union.later.contains(&given.as_str()) {
                let key = self.path(union.tag);
                return Err(ArgumentError::ValueNotYet { key, value: given, accepted });
            }
            return Err(self.unknown_value(union.tag, given, &accepted));
        };
        self.check_keys(keys)?;
        Ok((name, self))
    }

    fn any_object(&mut self, key: &str) -> Result<Option<Self>, ArgumentError> {
        match self.map.remove(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(self.nested(key, map))),
            Some(_) => Err(match self.notation {
                Notation::Keyval => ArgumentError::ExpectsKeys { key: self.path(key) },
                Notation::Json => self.expects(key, "an object"),
            }),
        }
    }

    /// A value of whatever type.
    pub fn any(&mut self, key: &str) -> Option<Value> {
        self.expect(key, |takes| matches!(takes, ValueType::Any));
        self.map.remove(key)
    }

    /// The objects of a list of objects or unions, each with its keys checked; of a union the value of the tag too.
    pub fn list(&mut self, key: &str) -> Result<Option<Vec<ListElement>>, ArgumentError> {
        let ValueType::List(of) = self.takes(key) else { panic!("'{key}' takes no list") };
        let list = match self.map.remove(key) {
            None => return Ok(None),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.expects(key, "a list")),
        };
        let element = |(index, value)| {
            let key = format!("{key}.{index}");
            let Value::Object(map) = value else { return Err(self.expects(&key, "an object")) };
            let mut fields = self.nested(&key, map);
            if let ValueType::Union(union) = of {
                let (name, fields) = fields.branch(union)?;
                return Ok((Some(name), fields));
            }
            if let ValueType::Object(keys) = of {
                fields.check_keys(keys)?;
            }
            Ok((None, fields))
        };
        list.into_iter().enumerate().map(element).collect::<Result<_, _>>().map(Some)
    }

    /// Whether the key is given.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Whether there is an object.
    pub fn is_object(&self, key: &str) -> bool {
        matches!(self.map.get(key), Some(Value::Object(_)))
    }

    /// A text or an object.
    pub fn text_or_object(&mut self, key: &str) -> Result<TextOrObject, ArgumentError> {
        match self.map.remove(key) {
            None => Err(ArgumentError::Missing(self.path(key))),
            Some(value) => self.text_or_object_in(key, value),
        }
    }

    fn text_or_object_in(&self, key: &str, value: Value) -> Result<TextOrObject, ArgumentError> {
        match value {
            Value::String(text) => Ok(TextOrObject::Text(text)),
            Value::Object(map) => Ok(TextOrObject::Object(self.nested(key, map))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                Err(self.expects(key, "a string or an object"))
            }
        }
    }

    /// Whether it is said that there is nothing: null, or as QEMU still bears it, an empty text.
    pub fn is_nothing(&mut self, key: &str) -> bool {
        let nothing = match self.map.get(key) {
            Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            _ => false,
        };
        if nothing {
            self.map.remove(key);
        }
        nothing
    }

    /// A text or a list of texts.
    pub fn texts(&mut self, key: &str) -> Result<Vec<String>, ArgumentError> {
        let wrong = self.expects(key, "a string or a list of strings");
        self.expect(key, |takes| matches!(takes, ValueType::Texts));
        match self.map.remove(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(list)) if list.is_empty() => {
                Err(ArgumentError::EmptyList(self.path(key)))
            }
            Some(Value::Array(list)) => {
                let text = |value: Value| value.as_str().map(str::to_owned);
                list.into_iter().map(text).collect::<Option<_>>().ok_or(wrong)
            }
            Some(_) => Err(wrong),
        }
    }

    /// A list of texts and objects of a table's [`ValueType::TextOrObject`], each object with its keys checked.
    pub fn names_or_objects(
        &mut self,
        key: &str,
    ) -> Result<Option<Vec<TextOrObject>>, ArgumentError> {
        let ValueType::List(ValueType::TextOrObject(keys)) = self.takes(key) else {
            panic!("'{key}' takes no list of names")
        };
        if !self.has(key) {
            return Ok(None);
        }
        let mut list = self.texts_or_objects(key)?;
        for element in &mut list {
            if let TextOrObject::Object(fields) = element {
                fields.check_keys(keys)?;
            }
        }
        Ok(Some(list))
    }

    /// A list of texts and objects, which must be there.
    pub fn texts_or_objects(&mut self, key: &str) -> Result<Vec<TextOrObject>, ArgumentError> {
        let list = match self.map.remove(key) {
            None => return Err(ArgumentError::Missing(self.path(key))),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.expects(key, "a list")),
        };
        let element = |(index, value)| self.text_or_object_in(&format!("{key}.{index}"), value);
        list.into_iter().enumerate().map(element).collect()
    }

    fn unsigned(
        &mut self,
        key: &str,
        parse: fn(&str) -> Option<u64>,
        expected: &'static str,
    ) -> Result<Option<u64>, ArgumentError> {
        let Some(value) = self.map.remove(key) else { return Ok(None) };
        if let Some(value) = value.as_i64().filter(|number| *number < 0) {
            return Err(ArgumentError::OutOfRange { key: format!("{}{key}", self.prefix), value });
        }
        let number = match self.notation {
            Notation::Keyval => value.as_str().and_then(parse),
            Notation::Json => value.as_u64(),
        };
        let is_too_large = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let expected = match (&value, self.notation) {
            (Value::String(text), Notation::Keyval) if is_too_large(text) && !text.is_empty() => {
                "a number below 2^64"
            }
            _ => expected,
        };
        number.map(Some).ok_or_else(|| self.expects(key, expected))
    }

    fn nested(&self, key: &str, map: Map<String, Value>) -> Self {
        Self { map, notation: self.notation, prefix: format!("{}{key}.", self.prefix), keys: None }
    }

    /// What a key takes by the table.
    fn takes(&self, key: &str) -> &'static ValueType {
        let known = self.keys.and_then(|keys| keys.supported().find(|known| known.name == key));
        &known.unwrap_or_else(|| panic!("no table has '{key}'")).takes
    }

    /// Whether a key is what it is taken for. Before there is a table, that is what says which.
    fn expect(&self, key: &str, is_right: fn(&ValueType) -> bool) {
        assert!(self.keys.is_none() || is_right(self.takes(key)), "'{key}' takes something else");
    }

    fn expects(&self, key: &str, expected: &'static str) -> ArgumentError {
        ArgumentError::Expects { key: self.path(key), expected }
    }
}

/// An element of a list: the value of the tag, if it is of a union, and its keys.
pub type ListElement = (Option<&'static str>, OptionFields);

/// A reference by name, or the thing itself.
#[derive(Debug)]
pub enum TextOrObject {
    /// A name.
    Text(String),
    /// The thing itself.
    Object(OptionFields),
}

/// Whether a name is letters, digits, `-`, `.` and `_` and starts with a letter.
pub fn is_identifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// A boolean as QEMU reads it on a command line.
pub fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// A number in C's notation: decimal, `0x` hexadecimal or `0` octal, as QEMU reads it.
pub fn parse_number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    // `from_str_radix` would take a second sign.
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// A number of bytes: decimal with an optional unit (b, k, M, G, T, P, E in either case), or
/// hexadecimal.
pub fn parse_size(text: &str) -> Option<u64> {
    if text.starts_with("0x") || text.starts_with("0X") {
        return parse_number(text);
    }
    let Some(unit) = text.chars().next_back().filter(|last| !last.is_ascii_digit()) else {
        return text.parse().ok();
    };
    let shift = match unit.to_ascii_lowercase() {
        'b' => 0,
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        'p' => 50,
        'e' => 60,
        _ => return None,
    };
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::{OptionFields, TextOrObject, parse_number, parse_size};

    #[test]
    fn a_list_holds_texts_and_objects() {
        let list = |text: &str| OptionFields::parse(text, "driver").unwrap().texts_or_objects("c");
        for text in ["c.0=a,c.1.x=y", r#"{"c":["a",{"x":"y"}]}"#] {
            let list = list(text).unwrap();
            let [TextOrObject::Text(first), TextOrObject::Object(second)] = list.as_slice() else {
                panic!("{text} gives {list:?}");
            };
            assert_eq!((first.as_str(), second.path("x").as_str()), ("a", "c.1.x"));
        }
        let refused = |text| list(text).unwrap_err().to_string();
        assert_eq!(refused("d=a"), "parameter 'c' is missing");
        assert_eq!(refused("c=a"), "parameter 'c' expects a list");
        let number = r#"{"c":["a",5]}"#;
        assert_eq!(refused(number), "parameter 'c.1' expects a string or an object");
    }

    #[track_caller]
    fn check(text: &str, number: Option<u64>, size: Option<u64>) {
        assert_eq!(parse_number(text), number, "number {text}");
        assert_eq!(parse_size(text), size, "size {text}");
    }

    #[test]
    fn numbers_and_sizes_read_as_in_qemu() {
        check("0", Some(0), Some(0));
        check("4096", Some(4096), Some(4096));
        check("0x10", Some(16), Some(16));
        check("010", Some(8), Some(10));
        check("+5", Some(5), Some(5));
        check("4k", None, Some(4096));
        check("2M", None, Some(2 << 20));
        check("1E", None, Some(1 << 60));
        check("16E", None, None);
        check("18446744073709551615", Some(u64::MAX), Some(u64::MAX));
        check("18446744073709551616", None, None);
        for text in ["", "-1", "+-1", "++1", "0x", "08", "x", "1.5k", " 1", "1 "] {
            assert_eq!(parse_number(text), None, "{text}");
        }
        for text in ["", "-1", "k", "1kk", "1ü", "1.5k"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
