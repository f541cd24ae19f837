//! Writes a line as a configuration file (`--print config`): the way from one to the other.
//!
//! Invariants: what is written is read as the same plan. Values have the types that their keys take.

use serde_json::{Map, Value};
use syntax::{OptionFields, ValueType, parse_flag, parse_number, parse_size};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table};

use super::ConfigError;
use super::forms::{self, IMAGE, ValueForm, first_key, option_keys};
use super::key_values::visit;
use crate::fault::CommandLineError;
use crate::getopt::{EitherFormOption, OPTIONS, OptionKind, ParsedOption, ShortFormOption};

const HEAD: &str = "# For ringloom serve --config FILE.\n\n";

/// What words of a line say, as a configuration file. They are those of a line that was understood.
pub(crate) fn printed(words: &[ParsedOption]) -> Result<String, CommandLineError> {
    let mut document = DocumentMut::new();
    let root = document.as_table_mut();
    let image = (IMAGE, OptionKind::Short(ShortFormOption::Image));
    let all = OPTIONS.iter().map(|spec| (forms::key_of(spec), spec.name));
    for (key, name) in [image].into_iter().chain(all) {
        let said: Vec<&ParsedOption> = words.iter().filter(|word| word.name == name).collect();
        let Some(last) = said.last() else { continue };
        let form = forms::form(name);
        // What no file has, and this very option.
        if matches!(form, ValueForm::LineOnly(_)) || is_config(last) {
            continue;
        }
        let item = if let ValueForm::Tables(_) = form {
            let tables = said.iter().map(|word| table(word));
            Item::ArrayOfTables(tables.collect::<Result<Vec<_>, _>>()?.into_iter().collect())
        } else if form == ValueForm::Table {
            Item::Table(table(last)?)
        } else if said.len() > 1
            && let ValueForm::Several(of) = form
        {
            let values = said.iter().map(|word| plain(word, *of));
            Item::Value(values.collect::<Result<Array, _>>()?.into())
        } else {
            Item::Value(plain(last, form.of_one())?)
        };
        root.insert(key, item);
    }
    Ok(format!("{HEAD}{document}"))
}

fn is_config(word: &ParsedOption) -> bool {
    word.name == OptionKind::Shared(EitherFormOption::Print) && word.argument == "config"
}

/// The argument of an option that has no keys.
fn plain(word: &ParsedOption, form: ValueForm) -> Result<toml_edit::Value, CommandLineError> {
    let text = word.text()?;
    if form == ValueForm::Flag {
        return Ok(true.into());
    }
    if form.takes_switch()
        && let Some(flag) = parse_flag(text)
    {
        return Ok(flag.into());
    }
    // What only a line can write, as 0x10, is counted.
    let counted = || parse_number(text).and_then(|it| i64::try_from(it).ok());
    let number = match (form == ValueForm::Number, form.takes_number()) {
        (true, _) => counted(),
        (false, true) => as_written(text),
        (false, false) => None,
    };
    Ok(number.map_or_else(|| text.into(), Into::into))
}

/// A number that would be written in the same way.
fn as_written(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// The argument of an option that has keys.
fn table(word: &ParsedOption) -> Result<Table, CommandLineError> {
    let text = word.text()?;
    let is_json = text.starts_with('{');
    let first = first_key(word.name);
    let fields = OptionFields::parse(text, first).map_err(|fault| word.wrong(fault))?;
    let mut map = fields.into_map();
    if let Some(keys) = option_keys(word.name, &map) {
        visit(&mut map, keys, &mut |takes, value| {
            if !is_json && let Some(typed) = typed(takes, value) {
                *value = typed;
            }
        });
    }
    let name = if let ValueForm::Tables(name) = forms::form(word.name) { name } else { first };
    let too_large = |TooLarge: TooLarge| too_large(word, text);
    written(&map, &[first, name, "node-name"]).map_err(too_large)
}

fn too_large(word: &ParsedOption, text: &str) -> CommandLineError {
    ConfigError::NumberTooLarge { option: word.option, text: text.to_owned() }.into()
}

/// A text of the line as what its key takes, if that is no text.
fn typed(takes: &ValueType, value: &Value) -> Option<Value> {
    let text = value.as_str()?;
    if matches!(takes, ValueType::Flag) {
        return parse_flag(text).map(Value::from);
    }
    if matches!(takes, ValueType::Number | ValueType::Int) {
        return parse_number(text).map(Value::from);
    }
    matches!(takes, ValueType::Size).then(|| parse_size(text).map(Value::from)).flatten()
}

/// A number that TOML does not have.
struct TooLarge;

/// Keys and values as a table, these keys first; what is inside them with dots.
fn written(map: &Map<String, Value>, first: &[&str]) -> Result<Table, TooLarge> {
    let mut table = Table::new();
    let place = |key: &str| first.iter().position(|name| *name == key).unwrap_or(first.len());
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_by_key(|key| place(key));
    for key in keys {
        let given = &map[key];
        let item = match given.as_object().filter(|inner| !inner.is_empty()) {
            Some(inner) => {
                let mut inner = written(inner, &["type", "driver"])?;
                inner.set_dotted(true);
                Item::Table(inner)
            }
            None => Item::Value(value(given)?),
        };
        table.insert(key, item);
    }
    Ok(table)
}

fn value(json: &Value) -> Result<toml_edit::Value, TooLarge> {
    Ok(match json {
        // TOML has no null; where a key takes it, an empty text says the same.
        Value::Null => "".into(),
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(_)) => return Err(TooLarge),
            (None, None) => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => list.iter().map(value).collect::<Result<Array, _>>()?.into(),
        Value::Object(map) => {
            let mut table = InlineTable::new();
            for (key, inner) in map {
                table.insert(key, value(inner)?);
            }
            table.into()
        }
    })
}
