//! Reads TOML into the words of a line.
//!
//! A table becomes JSON, as which `--blockdev` and the like are read too; a plain value the argument that the line would
//! have. A size may be a text with a unit there as well.

use std::ffi::OsString;
use std::rc::Rc;

use serde_json::{Map, Value};
use syntax::{ValueType, parse_size};
use toml_edit::{Document, Item, TableLike};

use super::forms::{self, ValueForm, option_keys};
use super::key_values::visit;
use super::{ConfigError, ConfigText, KeyPlace, OptionPlace};
use crate::getopt::{OptionKind, OptionSpec, ParsedOption, ShortFormOption};

/// The words that a file stands for, in its order.
pub(super) fn words(file: &Rc<ConfigText>) -> Result<Vec<ParsedOption>, ConfigError> {
    let document = Document::parse(file.text.as_str()).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        // Some of its sentences have lines.
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        ConfigError::Syntax { place: file.position(offset), message }
    })?;
    let root = document.as_table();
    let mut reader = Reader { file, words: Vec::new() };
    for (key, item) in root.iter() {
        reader.take(key, key_start(root, key), item)?;
    }
    Ok(reader.words)
}

/// The argument of an option without one that a file says is not to be: nothing, but said.
pub(super) const SWITCHED_OFF: &str = "false";

/// Collects the words of a file.
struct Reader<'a> {
    file: &'a Rc<ConfigText>,
    words: Vec<ParsedOption>,
}

/// How an option is known: a row of the table of options, or the image.
#[derive(Clone, Copy)]
struct Known {
    name: OptionKind,
    option: &'static str,
    form: ValueForm,
}

impl Reader<'_> {
    fn take(&mut self, key: &str, start: usize, item: &Item) -> Result<(), ConfigError> {
        let place = || self.file.position(start);
        let known = match forms::spec(key) {
            Some(&OptionSpec { name, long, .. }) => {
                Known { name, option: long, form: forms::form(name) }
            }
            None if key == forms::IMAGE => {
                let name = OptionKind::Short(ShortFormOption::Image);
                Known { name, option: "an image", form: ValueForm::File }
            }
            None => {
                let nearest = syntax::nearest(key, forms::file_keys());
                return Err(ConfigError::UnknownKey { place: place(), key: key.into(), nearest });
            }
        };
        if let ValueForm::LineOnly(why) = known.form {
            return Err(ConfigError::LineOnly { place: place(), key: key.to_owned(), why });
        }
        if let ValueForm::Tables(_) = known.form {
            return self.take_tables(known, key, start, item);
        }
        if known.form == ValueForm::Table {
            let table = item.as_table_like();
            let table = table.ok_or_else(|| self.wrong_type(known, key, item, start))?;
            return self.take_table(known, format!("'{key}'"), start, table);
        }
        if let (ValueForm::Several(_), Some(list)) = (known.form, item.as_array()) {
            let mut values = list.iter().cloned().map(Item::Value);
            return values.try_for_each(|value| self.take_value(known, key, start, &value));
        }
        self.take_value(known, key, start, item)
    }

    fn take_tables(
        &mut self,
        known: Known,
        key: &str,
        start: usize,
        item: &Item,
    ) -> Result<(), ConfigError> {
        let what = format!("[[{key}]]");
        if let Some(tables) = item.as_array_of_tables() {
            for table in tables {
                let start = table.span().map_or(start, |span| span.start);
                self.take_table(known, what.clone(), start, table)?;
            }
            return Ok(());
        }
        let list = item.as_array().ok_or_else(|| self.wrong_type(known, key, item, start))?;
        for value in list {
            let at = value.span().map_or(start, |span| span.start);
            let Some(table) = value.as_inline_table() else {
                return Err(self.wrong_type(known, key, &Item::Value(value.clone()), at));
            };
            self.take_table(known, what.clone(), at, table)?;
        }
        Ok(())
    }

    fn take_table(
        &mut self,
        known: Known,
        what: String,
        start: usize,
        table: &dyn TableLike,
    ) -> Result<(), ConfigError> {
        let mut keys = Vec::new();
        let mut map = self.map(table, "", &mut keys)?;
        if let Some(keys) = option_keys(known.name, &map) {
            visit(&mut map, keys, &mut |takes, value| {
                if let (ValueType::Size, Value::String(text)) = (takes, &*value)
                    && let Some(bytes) = parse_size(text)
                {
                    *value = bytes.into();
                }
            });
        }
        let what = if let ValueForm::Tables(key) = known.form
            && let Some(Value::String(name)) = map.get(key)
        {
            format!("{what} '{name}'")
        } else {
            what
        };
        let argument = OsString::from(Value::Object(map).to_string());
        self.push(known, argument, what, start, keys);
        Ok(())
    }

    /// A plain value, as the line would have it.
    fn take_value(
        &mut self,
        known: Known,
        key: &str,
        start: usize,
        item: &Item,
    ) -> Result<(), ConfigError> {
        let wrong = || self.wrong_type(known, key, item, start);
        let form = known.form.of_one();
        let given = item.as_value().ok_or_else(wrong)?;
        let text = match (given.as_bool(), given.as_integer(), given.as_str()) {
            (Some(flag), _, _) if form == ValueForm::Flag => {
                let argument = if flag { OsString::new() } else { SWITCHED_OFF.into() };
                self.push(known, argument, format!("'{key}'"), start, Vec::new());
                return Ok(());
            }
            (Some(true), _, _) if form.takes_switch() => "on".to_owned(),
            (Some(false), _, _) if form.takes_switch() => "off".to_owned(),
            (_, Some(number), _) if form.takes_number() => number.to_string(),
            (_, _, Some(text)) if form.takes_text() => text.to_owned(),
            _ => return Err(wrong()),
        };
        let value = item.span().map_or(start, |span| span.start);
        self.push(known, OsString::from(text), format!("'{key}'"), value, Vec::new());
        Ok(())
    }

    fn push(
        &mut self,
        known: Known,
        argument: OsString,
        what: String,
        start: usize,
        keys: Vec<KeyPlace>,
    ) {
        let place = OptionPlace { file: Rc::clone(self.file), what, start, keys: Rc::new(keys) };
        let Known { name, option, .. } = known;
        self.words.push(ParsedOption { name, option, argument, place: Some(place) });
    }

    fn wrong_type(&self, known: Known, key: &str, item: &Item, start: usize) -> ConfigError {
        let place = self.file.position(item.span().map_or(start, |span| span.start));
        ConfigError::WrongType { place, key: key.to_owned(), expected: known.form.expected(key) }
    }

    /// A table as JSON; notes where each of its keys stands.
    fn map(
        &self,
        table: &dyn TableLike,
        prefix: &str,
        keys: &mut Vec<KeyPlace>,
    ) -> Result<Map<String, Value>, ConfigError> {
        let mut map = Map::new();
        for (key, item) in table.iter() {
            let path = format!("{prefix}{key}");
            let start = key_start(table, key);
            let value = item.span().map_or(start, |span| span.start);
            keys.push(KeyPlace { path: path.clone(), key: start, value });
            map.insert(key.to_owned(), self.json(item, &path, keys)?);
        }
        Ok(map)
    }

    fn json(
        &self,
        item: &Item,
        path: &str,
        keys: &mut Vec<KeyPlace>,
    ) -> Result<Value, ConfigError> {
        if let Some(table) = item.as_table_like() {
            return self.map(table, &format!("{path}."), keys).map(Value::Object);
        }
        let items: Vec<Item> = match item {
            Item::ArrayOfTables(tables) => tables.iter().cloned().map(Item::Table).collect(),
            Item::Value(toml_edit::Value::Array(list)) => {
                list.iter().cloned().map(Item::Value).collect()
            }
            Item::Value(value) => return self.scalar(value),
            Item::None | Item::Table(_) => return Ok(Value::Null),
        };
        let element = |(index, item): (usize, &Item)| {
            let path = format!("{path}.{index}");
            if let Some(span) = item.span() {
                keys.push(KeyPlace { path: path.clone(), key: span.start, value: span.start });
            }
            self.json(item, &path, keys)
        };
        items.iter().enumerate().map(element).collect::<Result<_, _>>().map(Value::Array)
    }

    fn scalar(&self, value: &toml_edit::Value) -> Result<Value, ConfigError> {
        Ok(match value {
            toml_edit::Value::String(text) => text.value().as_str().into(),
            toml_edit::Value::Integer(number) => (*number.value()).into(),
            toml_edit::Value::Float(number) => (*number.value()).into(),
            toml_edit::Value::Boolean(flag) => (*flag.value()).into(),
            toml_edit::Value::Datetime(_) => {
                let start = value.span().map_or(0, |span| span.start);
                return Err(ConfigError::Date(self.file.position(start)));
            }
            toml_edit::Value::Array(_) | toml_edit::Value::InlineTable(_) => {
                unreachable!("lists and tables are looked into")
            }
        })
    }
}

/// Where a key stands.
fn key_start(table: &dyn TableLike, key: &str) -> usize {
    table.key(key).and_then(|key| key.span()).map_or(0, |span| span.start)
}
