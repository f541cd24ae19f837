//! Cuts what a client sends into JSON values, however it is split into packets.
//!
//! Single quotes are taken as QEMU takes them: they become double ones. What is wrong is said once, and reading goes on
//! behind it.
//!
//! Limits: [`MESSAGE_BYTES_MAX`] for one value, [`DEPTH_MAX`] levels. What is longer or deeper is dropped up to the end
//! of its line, and costs no memory. Hostile input: fuzz target `qmp`.

use serde_json::Value;

use crate::distinct_keys::DistinctKeys;

/// The longest value that a client may send, in bytes. The longest command that makes sense has some kilobytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// How deep objects and lists may be nested; nodes nest at most 8 deep.
pub const DEPTH_MAX: usize = 100;

/// What was found wrong with what a client sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is no JSON.
    #[error("JSON parse error, {0}")]
    Syntax(String),
    /// It is longer than a command can be.
    #[error("JSON parse error, a message has at most {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// It is nested deeper than a command can be.
    #[error("JSON parse error, a message has at most {DEPTH_MAX} levels")]
    TooDeep,
}

/// The part of a value that has arrived, and where in it the next byte stands.
#[derive(Debug, Default)]
pub struct JsonStream {
    bytes: Vec<u8>,
    depth: usize,
    /// The quote that ends the string, inside one.
    quote: Option<u8>,
    /// Behind a backslash.
    is_escaped: bool,
    /// Everything up to the end of the line is left out.
    is_skipping: bool,
}

impl JsonStream {
    /// Takes what has arrived; gives each value that is whole, or what is wrong with it, to `found`.
    pub fn take(&mut self, arrived: &[u8], mut found: impl FnMut(Result<Value, JsonError>)) {
        for byte in arrived {
            if let Some(result) = self.step(*byte) {
                found(result);
            }
        }
    }

    /// Whether nothing of a value has arrived.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn step(&mut self, byte: u8) -> Option<Result<Value, JsonError>> {
        if self.is_skipping {
            self.is_skipping = byte != b'\n';
            return None;
        }
        if self.bytes.len() >= MESSAGE_BYTES_MAX {
            return Some(Err(self.skip(JsonError::TooLong, byte)));
        }
        if let Some(quote) = self.quote {
            self.step_in_string(quote, byte);
            return (self.quote.is_none() && self.depth == 0).then(|| self.end());
        }
        match byte {
            b'"' | b'\'' => {
                self.quote = Some(byte);
                self.bytes.push(b'"');
                None
            }
            b'{' | b'[' => {
                // A scalar before it ends.
                let before = (self.depth == 0 && !self.bytes.is_empty()).then(|| self.end());
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Some(Err(self.skip(JsonError::TooDeep, byte)));
                }
                self.bytes.push(byte);
                before
            }
            b'}' | b']' => {
                self.bytes.push(byte);
                self.depth = self.depth.saturating_sub(1);
                (self.depth == 0).then(|| self.end())
            }
            b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                (!self.bytes.is_empty()).then(|| self.end())
            }
            _ => {
                self.bytes.push(byte);
                None
            }
        }
    }

    /// A byte of a string, written as JSON has it.
    fn step_in_string(&mut self, quote: u8, byte: u8) {
        if self.is_escaped {
            self.is_escaped = false;
            // In single quotes a double one is itself, and a single one may be escaped.
            if byte == b'\'' {
                self.bytes.pop();
            }
            self.bytes.push(byte);
        } else if byte == quote {
            self.quote = None;
            self.bytes.push(b'"');
        } else {
            self.is_escaped = byte == b'\\';
            if byte == b'"' {
                self.bytes.push(b'\\');
            }
            self.bytes.push(byte);
        }
    }

    /// The value that is whole.
    fn end(&mut self) -> Result<Value, JsonError> {
        let value = serde_json::from_slice(&self.bytes).map(|DistinctKeys(value)| value);
        let failed = |error: serde_json::Error| JsonError::Syntax(error.to_string());
        *self = Self::default();
        value.map_err(failed)
    }

    /// Leaves the value out, and all that stands behind it in its line, whose next byte that is.
    fn skip(&mut self, error: JsonError, byte: u8) -> JsonError {
        *self = Self { is_skipping: byte != b'\n', ..Self::default() };
        error
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// However the bytes are split, the same values are found.
    #[track_caller]
    fn check(text: &str, expected: &[Option<Value>]) {
        for size in [1, 2, 3, 7, text.len().max(1)] {
            let (mut stream, mut all) = (JsonStream::default(), Vec::new());
            for part in text.as_bytes().chunks(size) {
                stream.take(part, |found| all.push(found.ok()));
            }
            assert_eq!(all, expected, "{text} by {size}");
        }
    }

    #[test]
    fn values_are_found_where_they_end() {
        check("", &[]);
        check("{}", &[Some(json!({}))]);
        check("{}{}\n[1]", &[Some(json!({})), Some(json!({})), Some(json!([1]))]);
        check(r#"{"a":"}\"{"} "#, &[Some(json!({"a": "}\"{"}))]);
        check(
            r#"{'execute':'a','b':'say \'x\' and "y"'}"#,
            &[Some(json!({"execute": "a", "b": "say 'x' and \"y\""}))],
        );
        check("1 true {}", &[Some(json!(1)), Some(json!(true)), Some(json!({}))]);
        check("nonsense {}\n", &[None, Some(json!({}))]);
        check("} {}", &[None, Some(json!({}))]);
        check("{\"a\":1,}\n{}", &[None, Some(json!({}))]);
        check("{\"a\":", &[]);
        check("{\"a\":[{\"b\":1,\"b\":2}]}\n{}", &[None, Some(json!({}))]);
    }

    #[test]
    fn what_is_too_long_or_too_deep_is_said_once_and_dropped() {
        let deep = format!("{}\n{{}}", "[".repeat(10_000));
        check(&deep, &[None, Some(json!({}))]);
        let mut stream = JsonStream::default();
        let mut all = Vec::new();
        stream.take(b"{\"a\":\"", |found| all.push(found));
        for _ in 0..200 {
            stream.take(&[b'x'; 1 << 16], |found| all.push(found));
            assert!(stream.bytes.capacity() <= 2 * MESSAGE_BYTES_MAX);
        }
        stream.take(b"\"}\n{}", |found| all.push(found));
        assert_eq!(all, [Err(JsonError::TooLong), Ok(json!({}))]);
    }
}
