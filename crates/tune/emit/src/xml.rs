//! A writer of indented XML.
//!
//! Invariants: every element is closed; values are escaped.

use storage::quote;

/// The text so far and how deep it is.
#[derive(Debug, Default)]
pub(super) struct Xml {
    text: String,
    depth: usize,
}

/// Names and values.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Xml {
    /// Text that is XML already, such as a comment.
    pub(super) fn beginning(text: String) -> Self {
        Self { text, depth: 0 }
    }

    pub(super) fn empty(&mut self, name: &str, attributes: Attributes<'_>) {
        self.line(&format!("<{name}{}/>", written(attributes)));
    }

    pub(super) fn text(&mut self, name: &str, attributes: Attributes<'_>, text: &str) {
        self.line(&format!("<{name}{}>{}</{name}>", written(attributes), quote::xml(text)));
    }

    /// An element with what `inner` writes in it; empty if that is nothing.
    pub(super) fn around(
        &mut self,
        name: &str,
        attributes: Attributes<'_>,
        inner: impl FnOnce(&mut Self),
    ) {
        let mut within = Self { text: String::new(), depth: self.depth + 1 };
        inner(&mut within);
        if within.text.is_empty() {
            return self.empty(name, attributes);
        }
        self.line(&format!("<{name}{}>", written(attributes)));
        self.text.push_str(&within.text);
        self.line(&format!("</{name}>"));
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(&"  ".repeat(self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }
}

fn written(attributes: Attributes<'_>) -> String {
    attributes.iter().map(|(name, value)| format!(" {name}='{}'", quote::xml(value))).collect()
}
