//! The keys of options: how each is called, what it takes, and whether it must be given.
//!
//! Where it stands: values are taken by these tables, and the help and the documents are held against them. Each
//! [`ValueType`] is a type of QEMU's schema language (QAPI), so that a schema can be made of them.

/// The table of keys of an option, driver or object.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// What has them, for messages.
    pub of: &'static str,
    /// The keys that work, in groups.
    pub supported: &'static [&'static [Key]],
    /// The keys that qemu-storage-daemon has and ringloom does not have yet, in groups.
    pub later: &'static [&'static [&'static str]],
}

impl Keys {
    /// The keys that work.
    pub fn supported(&self) -> impl Iterator<Item = &'static Key> {
        self.supported.iter().flat_map(|group| group.iter())
    }

    /// The names of these.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.supported().map(|key| key.name)
    }
}

/// A key: its name, the type of its value, and whether it is required.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub takes: ValueType,
    /// Whether it must be given.
    pub is_required: bool,
}

/// A key that must be given.
pub const fn required(name: &'static str, takes: ValueType) -> Key {
    Key { name, takes, is_required: true }
}

/// A key that may be left out.
pub const fn optional(name: &'static str, takes: ValueType) -> Key {
    Key { name, takes, is_required: false }
}

/// The type of a key's value, in QAPI's terms.
#[derive(Debug, Clone, Copy)]
pub enum ValueType {
    /// A text: `str`.
    Text,
    /// A boolean: `bool`.
    Flag,
    /// A whole number: `uint64`.
    Number,
    /// A whole number below 2^63: `int`.
    Int,
    /// A number of bytes, on a command line with a unit: `size`.
    Size,
    /// One of these words: an enumeration.
    Word(&'static [&'static str]),
    /// A text or a list of texts: an alternate.
    Texts,
    /// Keys of its own: a structure.
    Object(&'static Keys),
    /// One of these words, or keys of its own: an alternate.
    WordOrObject(&'static [&'static str], &'static Keys),
    /// A text, or keys of its own: an alternate.
    TextOrObject(&'static Keys),
    /// Keys of its own that depend on one of them: a union.
    Union(&'static Union),
    /// A text or nothing: `StrOrNull`.
    TextOrNull,
    /// A node, by name or written in place: `BlockdevRef`.
    Node,
    /// A node or nothing: `BlockdevRefOrNull`.
    NodeOrNull,
    /// A list of so many nodes: `['BlockdevRef']`.
    Nodes {
        /// At least.
        least: usize,
        /// At most.
        most: usize,
    },
    /// A node written in place: `BlockdevOptions`.
    Blockdev,
    /// A list of values of this type.
    List(&'static ValueType),
    /// Anything: `any`.
    Any,
}

impl ValueType {
    /// The keys in it.
    pub fn inner(&self) -> Vec<&'static Keys> {
        if let Self::Object(keys) | Self::WordOrObject(_, keys) | Self::TextOrObject(keys) = self {
            return vec![*keys];
        }
        if let Self::List(of) = self {
            return of.inner();
        }
        let Self::Union(union) = self else { return Vec::new() };
        union.branches.iter().map(|(_, keys)| keys).collect()
    }
}

/// A QAPI union: keys that depend on the value of one of them.
#[derive(Debug)]
pub struct Union {
    /// The one on which the others depend.
    pub tag: &'static str,
    /// Its value if it is not given; without one it must be given.
    pub default: Option<&'static str>,
    /// Its values, each with all keys that there are then.
    pub branches: &'static [(&'static str, Keys)],
    /// The values that qemu-storage-daemon has and ringloom does not have yet.
    pub later: &'static [&'static str],
}
