//! What a client of a monitor sends: JSON in pieces, requests, and the arguments of commands.
//!
//! Not here: what a command does, which needs a daemon.

use exports::ExportOptions;
use graph::{Blockdev, ObjectOptions};
use monitor::{JsonError, JsonStream, QmpError, Request};
use serde_json::Value;

/// The first byte says into how large pieces the others are split.
pub fn qmp(data: &[u8]) {
    let Some((size, text)) = data.split_first() else { return };
    let whole = values(text, text.len().max(1));
    let split = values(text, usize::from(*size).max(1));
    assert_eq!(whole, split, "it depends on how it is split");
    for found in whole {
        match found {
            Ok(value) => check(value),
            Err(error) => said(&QmpError::from(error)),
        }
    }
}

/// All values in the text, which arrives in pieces of that size.
fn values(text: &[u8], size: usize) -> Vec<Result<Value, JsonError>> {
    let (mut stream, mut all) = (JsonStream::default(), Vec::new());
    text.chunks(size).for_each(|piece| stream.take(piece, |found| all.push(found)));
    assert!(all.len() <= text.len(), "more values than bytes");
    all
}

fn check(value: Value) {
    let text = format!("{value}\n");
    if !has_float(&value) {
        let again = values(text.as_bytes(), text.len());
        assert_eq!(again, [Ok(value.clone())], "what was read is written and read");
    }
    let given = value.get("id").cloned();
    let (id, plain) = Request::read(value.clone(), false);
    assert_eq!(id, given, "the id is the answer's");
    let (_, request) = Request::read(value, true);
    if let Ok(plain) = plain {
        assert_eq!(request.as_ref(), Ok(&plain), "more is taken with out-of-band, not less");
    }
    match request {
        Ok(request) => arguments(request),
        Err(error) => said(&error),
    }
}

/// Whether a number in it is no integer: it may be read as its neighbour.
fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_float),
        Value::Object(members) => members.values().any(has_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// The arguments as far as they are read without a daemon.
fn arguments(request: Request) {
    let command = request.command.clone();
    let read = request.fields().and_then(|fields| match command.as_str() {
        "blockdev-add" => Blockdev::read(fields).map(drop).map_err(QmpError::from),
        "object-add" => ObjectOptions::read(fields).map(drop).map_err(QmpError::from),
        "block-export-add" => ExportOptions::read(fields).map(drop).map_err(QmpError::from),
        _ => Ok(()),
    });
    if let Err(error) = read {
        said(&error);
    }
}

fn said(error: &QmpError) {
    assert!(!error.desc.is_empty(), "it says nothing");
}
