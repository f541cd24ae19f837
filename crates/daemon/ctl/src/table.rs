//! Rows of JSON as tables and lists of text.
//!
//! Columns are written `NAME=key NAME=key`: the key says the values, and how they are shown ([`cell`]).

use serde_json::{Value, json};

use crate::units::{bytes, limits, time};

/// What came of a word, for people and for programs.
#[derive(Debug)]
pub struct Answer {
    /// Lines, each with its end.
    pub text: String,
    /// The same for programs.
    pub json: Value,
    /// What has to be looked at, although it was done.
    pub warnings: Vec<String>,
}

impl Answer {
    /// Lines, each with its end.
    pub(crate) fn of(text: String, json: Value) -> Self {
        Self { text, json, warnings: Vec::new() }
    }

    /// A sentence.
    pub(crate) fn said(text: &str, json: Value) -> Self {
        Self::of(format!("{text}\n"), json)
    }

    /// A table, or the sentence that there is none of these.
    pub(crate) fn table(columns: &str, rows: Vec<Value>, what: &str) -> Self {
        match rows.as_slice() {
            [] => Self::said(&format!("no {what}"), json!([])),
            _ => Self::of(table(columns, &rows), rows.into()),
        }
    }
}

fn is_bytes(key: &str) -> bool {
    matches!(key, "size" | "used" | "cluster-size")
}

/// A value as text: sizes and times with a unit, the members of a list beside each other, `-` where there is nothing.
fn cell(key: &str, value: &Value) -> String {
    let text = match (value, value.as_u64()) {
        (_, Some(count)) if is_bytes(key) => bytes(count),
        (_, Some(count)) if key.ends_with("-ns") && key != "poll-max-ns" => time(count),
        _ if key == "limits" => limits(value),
        (Value::String(text), _) => text.clone(),
        (Value::Null, _) => String::new(),
        (Value::Array(all), _) => all.iter().map(|it| cell("", it)).collect::<Vec<_>>().join(", "),
        (other, _) => other.to_string(),
    };
    if text.is_empty() { "-".to_owned() } else { text }
}

/// The columns of which something is known.
fn parse<'a>(columns: &'a str, rows: &[Value]) -> Vec<(&'a str, &'a str)> {
    let all = columns.split(' ').filter_map(|column| column.split_once('='));
    all.filter(|(_, key)| rows.iter().any(|row| !row[*key].is_null())).collect()
}

/// A line with the names of the columns, then one for each row. Numbers are on the right.
pub(crate) fn table(columns: &str, rows: &[Value]) -> String {
    let columns = parse(columns, rows);
    let head: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let cells = |row: &Value| columns.iter().map(|(_, key)| cell(key, &row[*key])).collect();
    let lines: Vec<Vec<String>> = [head].into_iter().chain(rows.iter().map(cells)).collect();
    let padded = |line: &Vec<String>| {
        let cells = line.iter().zip(&columns).enumerate().map(|(place, (text, (_, key)))| {
            let width = lines.iter().map(|line| line[place].chars().count()).max().unwrap_or(0);
            match rows.iter().any(|row| row[*key].is_number()) {
                true => format!("{text:>width$}"),
                false => format!("{text:<width$}"),
            }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(padded).collect()
}

/// The values of one row below each other.
pub(crate) fn details(title: &str, columns: &str, row: &Value) -> String {
    let columns = parse(columns, std::slice::from_ref(row));
    let width = columns.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    let line = |(name, key): &(&str, &str)| {
        let exactly = match row[*key].as_u64().filter(|_| is_bytes(key)) {
            Some(count) => format!(" ({count} bytes)"),
            None => String::new(),
        };
        format!("  {:<width$} {}{exactly}\n", format!("{name}:"), cell(key, &row[*key]))
    };
    format!("{title}\n{}", columns.iter().map(line).collect::<String>())
}
