//! QEMU's two notations for one option's value: `key=value,…` and JSON.
//!
//! Both give a tree of the same shape. In the keyval form each leaf is a string, dots in a key
//! nest, and keys that are numbers make a list; the rules are those of QEMU's keyval parser.
//!
//! Limits: [`DEPTH_MAX`] levels of nesting, [`FRAGMENT_BYTES_MAX`] bytes between two dots (QEMU's
//! bound). JSON is bounded by `serde_json` at 128 levels.
//! Not here: what the keys mean (`fields` and the option modules).

use serde_json::{Map, Value};

use super::fault::ArgumentError;

/// The most levels a dotted key may have. QEMU has no bound; four are in use.
const DEPTH_MAX: usize = 32;

/// The longest name between two dots, as in QEMU.
const FRAGMENT_BYTES_MAX: usize = 127;

/// Which notation a value was written in: scalars have other rules in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    /// `key=value,…`: every scalar is text.
    Keyval,
    /// JSON: scalars have types.
    Json,
}

/// Reads one option's value. A value that starts with `{` is JSON. Otherwise, a first parameter
/// without `=` is the value of `implied`.
pub(crate) fn parse(
    text: &str,
    implied: &str,
) -> Result<(Map<String, Value>, Notation), ArgumentError> {
    if text.starts_with('{') {
        let map = serde_json::from_str(text).map_err(ArgumentError::Json)?;
        return Ok((map, Notation::Json));
    }
    let mut root = Map::new();
    let mut rest = text;
    if let Some((value, after)) = implied_value(text)? {
        if implied.is_empty() {
            return Err(ArgumentError::NoEquals(value.to_owned()));
        }
        root.insert(implied.to_owned(), Value::String(value.to_owned()));
        rest = after;
    }
    while !rest.is_empty() {
        rest = parameter(rest, &mut root)?;
    }
    for (key, value) in &mut root {
        listify(key, value)?;
    }
    Ok((root, Notation::Keyval))
}

/// Whether the value asks for help: `help` or `?` as a parameter of its own.
pub fn asks_for_help(text: &str) -> bool {
    !text.starts_with('{') && text.split(',').any(|part| part == "help" || part == "?")
}

/// The value of the implied key and what follows it, if the first parameter has no `=`.
fn implied_value(text: &str) -> Result<Option<(&str, &str)>, ArgumentError> {
    let end = text.find([',', '=']).unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    if rest.starts_with('=') || text.is_empty() {
        return Ok(None);
    }
    // An implied value can be neither empty nor hold a comma, or `,a=1` would be ambiguous.
    if first.is_empty() || rest.starts_with(",,") {
        return Err(ArgumentError::InvalidKey(String::new()));
    }
    Ok(Some((first, rest.strip_prefix(',').unwrap_or(rest))))
}

/// Takes one `key=value` and the comma after it; gives what follows.
fn parameter<'a>(text: &'a str, root: &mut Map<String, Value>) -> Result<&'a str, ArgumentError> {
    let end = text.find(['=', ',']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    let fragments = fragments(key)?;
    let Some(rest) = rest.strip_prefix('=') else {
        return Err(ArgumentError::NoEquals(key.to_owned()));
    };
    let (value, rest) = unescape(rest);
    insert(root, &fragments, value)?;
    Ok(rest)
}

/// The value up to a comma that is not doubled, and what follows that comma.
fn unescape(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let Some((before, after)) = rest.split_once(',') else {
            value.push_str(rest);
            return (value, "");
        };
        value.push_str(before);
        let Some(after_escape) = after.strip_prefix(',') else { return (value, after) };
        value.push(',');
        rest = after_escape;
    }
}

/// A dotted key's parts. The first is a name; each other is a name or an index.
fn fragments(key: &str) -> Result<Vec<&str>, ArgumentError> {
    let invalid = || ArgumentError::InvalidKey(key.to_owned());
    let fragments: Vec<&str> = key.split('.').collect();
    if fragments.len() > DEPTH_MAX {
        return Err(ArgumentError::TooDeep { key: key.to_owned(), levels_max: DEPTH_MAX });
    }
    for (position, fragment) in fragments.iter().enumerate() {
        let index = position > 0 && is_index(fragment);
        if fragment.len() > FRAGMENT_BYTES_MAX || !(index || is_name(fragment)) {
            return Err(invalid());
        }
    }
    Ok(fragments)
}

fn is_index(fragment: &str) -> bool {
    !fragment.is_empty() && fragment.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(fragment: &str) -> bool {
    fragment.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && fragment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Stores a value; the later of two equal keys wins, as in QEMU.
fn insert(
    root: &mut Map<String, Value>,
    fragments: &[&str],
    value: String,
) -> Result<(), ArgumentError> {
    let (last, parents) = fragments.split_last().expect("a split string has a part");
    let mut map = root;
    for (depth, fragment) in parents.iter().enumerate() {
        let next = map.entry((*fragment).to_owned()).or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(inner) = next else {
            return Err(ArgumentError::Inconsistent(fragments[..=depth].join(".")));
        };
        map = inner;
    }
    if matches!(map.get(*last), Some(Value::Object(_))) {
        return Err(ArgumentError::Inconsistent(fragments.join(".")));
    }
    map.insert((*last).to_owned(), Value::String(value));
    Ok(())
}

/// Turns objects whose keys are indices into lists, from the leaves up.
fn listify(path: &str, value: &mut Value) -> Result<(), ArgumentError> {
    let Value::Object(map) = value else { return Ok(()) };
    for (key, inner) in map.iter_mut() {
        listify(&format!("{path}.{key}"), inner)?;
    }
    let indices = map.keys().filter(|key| is_index(key)).count();
    if indices == 0 {
        return Ok(());
    }
    if indices < map.len() {
        return Err(ArgumentError::Inconsistent(path.to_owned()));
    }
    let mut list = Vec::with_capacity(indices);
    for index in 0..indices {
        let missing = || ArgumentError::Missing(format!("{path}.{index}"));
        list.push(map.remove(&index.to_string()).ok_or_else(missing)?);
    }
    *value = Value::Array(list);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{asks_for_help, parse};

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "the cases read better with json! in place")]
    fn check(text: &str, expected: Value) {
        let (map, _) = parse(text, "driver").unwrap();
        assert_eq!(Value::Object(map), expected, "{text}");
    }

    #[track_caller]
    fn refuse(text: &str, expected: &str) {
        let fault = parse(text, "driver").unwrap_err();
        assert_eq!(fault.to_string(), expected, "{text}");
    }

    #[test]
    fn keys_nest_lists_form_and_commas_escape() {
        check("", json!({}));
        check("file", json!({"driver": "file"}));
        check("driver=file", json!({"driver": "file"}));
        check("file,a=1,b=2", json!({"driver": "file", "a": "1", "b": "2"}));
        check("a=1,", json!({"a": "1"}));
        check("a=,b=", json!({"a": "", "b": ""}));
        check("a=x,,y,b=,,", json!({"a": "x,y", "b": ","}));
        check("a=1=2", json!({"a": "1=2"}));
        check("a=1,a=2", json!({"a": "2"}));
        check("a.b=1,a.c.d=2", json!({"a": {"b": "1", "c": {"d": "2"}}}));
        check("a.0=x,a.1=y", json!({"a": ["x", "y"]}));
        check("a.1=y,a.0=x,a.0=z", json!({"a": ["z", "y"]}));
        check("a.0.b=x,a.1.b=y", json!({"a": [{"b": "x"}, {"b": "y"}]}));
        check("{\"driver\":\"file\",\"n\":1}", json!({"driver": "file", "n": 1}));
        check("[1]", json!({"driver": "[1]"}));
        check("a=ü", json!({"a": "ü"}));
    }

    #[test]
    fn what_qemu_refuses_is_refused() {
        refuse(",a=1", "invalid parameter ''");
        refuse("file,,a=1", "invalid parameter ''");
        refuse("a=1,=3", "invalid parameter ''");
        refuse("a..b=3", "invalid parameter 'a..b'");
        refuse(".b=3", "invalid parameter '.b'");
        refuse("a=1,b%c=2", "invalid parameter 'b%c'");
        refuse("0=1", "invalid parameter '0'");
        refuse("a=1,b", "expected '=' after parameter 'b'");
        refuse("a=1,a.b=2", "parameters 'a.*' used inconsistently");
        refuse("a.b=2,a=1", "parameters 'a.*' used inconsistently");
        refuse("a.0=1,a.b=2", "parameters 'a.*' used inconsistently");
        refuse("a.0=1,a.2=2", "parameter 'a.1' is missing");
        refuse("a.1=1", "parameter 'a.0' is missing");
        refuse("a.00=1", "parameter 'a.0' is missing");
        refuse("{\"a\":", "not valid JSON");
        refuse("{\"a\":1} x", "not valid JSON");
        let deep = format!("a{}=1", ".b".repeat(32));
        refuse(&deep, &format!("parameter '{}' is nested deeper than 32 levels", &deep[..65]));
        let long = "a".repeat(128);
        refuse(&format!("{long}=1"), &format!("invalid parameter '{long}'"));
    }

    #[test]
    fn help_is_a_parameter_of_its_own() {
        assert!(asks_for_help("help"));
        assert!(asks_for_help("file,help"));
        assert!(!asks_for_help("file,help=1"));
        assert!(!asks_for_help("file,filename=help"));
    }
}
