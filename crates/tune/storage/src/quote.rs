//! Text from outside in other syntaxes: shell, JSON, QEMU's `key=value`, XML, comments.

use serde_json::Value;

/// What stands for characters that a syntax has no way to write.
const UNWRITABLE: char = '\u{fffd}';
/// Keys that come first in an object, for the reader.
const FIRST: [&str; 5] = ["driver", "qom-type", "type", "id", "node-name"];

/// An argument as a POSIX shell takes it.
pub fn shell(argument: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./,=:@%+".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// JSON on one line, what names an object first.
pub fn json(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let place = |name: &str| FIRST.iter().position(|first| *first == name);
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(name, _)| place(name).unwrap_or(FIRST.len()));
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), json(value)))
                .collect();
            format!("{{{}}}", pairs.join(","))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(json).collect::<Vec<_>>().join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// A value in QEMU's `key=value,…`, where a comma is doubled.
pub fn keyval(value: &str) -> String {
    value.replace(',', ",,")
}

/// An attribute or text of XML, which has no way to write control characters.
pub fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            _ if letter.is_control() || "\u{fffe}\u{ffff}".contains(letter) => {
                escaped.push(UNWRITABLE);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Lines as comments that begin with `#`.
pub fn hash_comment(lines: &[String]) -> String {
    lines.iter().map(|line| format!("# {}\n", one_line(line))).collect()
}

/// Lines as one comment of XML, in which `--` may not be.
pub fn xml_comment(lines: &[String]) -> String {
    let lines: Vec<_> =
        lines.iter().map(|line| one_line(line).replace("--", "-\u{2010}")).collect();
    format!("<!-- {} -->\n", lines.join("\n     "))
}

fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { UNWRITABLE } else { letter }).collect()
}
