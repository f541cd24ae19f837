//! What nodes of all drivers can be told.

use block::{Access, DiscardPolicy, FlushPolicy};
use serde_json::{Map, Value, json};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional, required};

use crate::model::{Activity, ChildRole};

/// The key that says whether a node is held from the start.
pub(crate) const ACTIVE: &str = "active";

/// The keys that every driver has.
pub const BASE_KEYS: &[Key] = &[
    optional(ACTIVE, ValueType::Flag),
    required("driver", ValueType::Text),
    optional("node-name", ValueType::Text),
    optional("read-only", ValueType::Flag),
    optional("auto-read-only", ValueType::Flag),
    optional("discard", ValueType::Word(&["ignore", "unmap"])),
    optional("cache", ValueType::Object(&CACHE)),
    optional("force-share", ValueType::Flag),
];

/// The same for the tables of drivers.
pub(super) const BASE: &[Key] = BASE_KEYS;

/// The keys of qemu-storage-daemon that no driver has yet.
pub(super) const BASE_LATER: &[&str] = &["detect-zeroes"];

/// The keys of `cache`.
pub(crate) static CACHE: Keys = Keys {
    of: "--blockdev cache",
    supported: &[&[optional("direct", ValueType::Flag), optional("no-flush", ValueType::Flag)]],
    later: &[],
};

/// The options of all drivers that nodes which are there can have changed, where their driver can.
pub(super) const CHANGEABLE: &[&str] = &["read-only", "discard", "cache"];

/// What the help says of all drivers.
pub const BASE_HELP: &str =
    "             all of them: [,read-only=on|off][,auto-read-only=on|off][,discard=ignore|unmap]
                        [,cache.direct=on|off][,cache.no-flush=on|off][,force-share=on|off]
                        [,active=on|off]
                         default: off, off, ignore, off, off, off, on. auto-read-only: open a file
                         read-only if nobody writes to it. force-share: with read-only=on, deny
                         others nothing. active=off: hold the image, and its lock, only while
                         a guest runs on it, as live migration needs. no-flush: flushes have no
                         effect, and a power loss may cost the whole disk
";

/// The options that nodes of all drivers have, such as `read-only` and `cache`. A node written inside another one
/// inherits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseOptions {
    /// Whether it refuses changes: as it was told, or because nobody writes to it (`auto_read_only`).
    pub read_only: bool,
    /// Whether it is opened read-only as long as nobody on the line writes to it.
    pub auto_read_only: AutoReadOnly,
    /// What a discard does.
    pub discard: DiscardPolicy,
    /// Whether the host's page cache is left out.
    pub cache_direct: bool,
    /// What becomes of flushes (`cache.no-flush`).
    pub flushes: FlushPolicy,
    /// Whether others may do with its image what they like. Only with `read_only`.
    pub force_share: bool,
}

/// Whether a file is opened read-only although writing is allowed, if nothing on the command line writes to it (`auto-
/// read-only=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoReadOnly {
    /// It is opened as it is told.
    Off,
    /// It is; only files know the difference.
    On,
}

/// Whether a node is held from the start.
pub(super) fn read_activity(fields: &mut OptionFields) -> Result<Activity, ArgumentError> {
    let activity = fields.either(ACTIVE, Activity::Active, Activity::Inactive)?;
    Ok(activity.unwrap_or(Activity::Active))
}

/// Options of all drivers that contradict each other.
#[derive(Debug, thiserror::Error)]
enum BaseOptionsError {
    /// Who writes cannot let others write. QEMU's sentence.
    #[error("force-share=on can only be used with read-only images")]
    ForceShareWritable,
}

impl BaseOptions {
    /// What a node has that is written in none and says nothing.
    pub const DEFAULT: Self = Self {
        read_only: false,
        auto_read_only: AutoReadOnly::Off,
        discard: DiscardPolicy::Ignore,
        cache_direct: false,
        flushes: FlushPolicy::Obeyed,
        force_share: false,
    };

    /// What a node written inside this one has unless it says otherwise. It takes discards
    /// whatever this one was told: whoever stands above decides which come through. What an image stands on
    /// is only read, as in QEMU.
    pub fn below(self, role: ChildRole) -> Self {
        if role == ChildRole::Backing {
            let auto_read_only = AutoReadOnly::Off;
            return Self {
                read_only: true,
                auto_read_only,
                discard: DiscardPolicy::Ignore,
                ..self
            };
        }
        Self { discard: DiscardPolicy::Unmap, ..self }
    }

    /// Whether its node may be changed.
    pub fn access(&self) -> Access {
        if self.read_only { Access::ReadOnly } else { Access::ReadWrite }
    }

    pub(super) fn read(fields: &mut OptionFields, inherited: Self) -> Result<Self, ArgumentError> {
        let read_only = fields.flag("read-only")?.unwrap_or(inherited.read_only);
        let auto = fields.either("auto-read-only", AutoReadOnly::On, AutoReadOnly::Off)?;
        let auto_read_only = auto.unwrap_or(inherited.auto_read_only);
        let force_share = fields.flag("force-share")?.unwrap_or(inherited.force_share);
        if force_share && !read_only {
            return Err(ArgumentError::own(BaseOptionsError::ForceShareWritable));
        }
        let discard = match fields.word("discard")? {
            Some("unmap") => DiscardPolicy::Unmap,
            Some(_) => DiscardPolicy::Ignore,
            None => inherited.discard,
        };
        let (cache_direct, flushes) = inherited.cache(fields)?;
        Ok(Self { read_only, auto_read_only, discard, cache_direct, flushes, force_share })
    }

    /// Whether the page cache is left out, and what becomes of flushes.
    fn cache(self, fields: &mut OptionFields) -> Result<(bool, FlushPolicy), ArgumentError> {
        let Some(mut cache) = fields.object("cache")? else {
            return Ok((self.cache_direct, self.flushes));
        };
        let direct = cache.flag("direct")?.unwrap_or(self.cache_direct);
        let flushes = cache.either("no-flush", FlushPolicy::Ignored, FlushPolicy::Obeyed)?;
        Ok((direct, flushes.unwrap_or(self.flushes)))
    }

    /// These options as JSON.
    pub(super) fn written(&self) -> Map<String, Value> {
        let Self { read_only, auto_read_only, discard, cache_direct, flushes, force_share } = *self;
        let discard = match discard {
            DiscardPolicy::Ignore => "ignore",
            DiscardPolicy::Unmap => "unmap",
        };
        let cache = json!({"direct": cache_direct, "no-flush": flushes == FlushPolicy::Ignored});
        let all = json!({
            "read-only": read_only,
            "auto-read-only": auto_read_only == AutoReadOnly::On,
            "discard": discard,
            "cache": cache,
            "force-share": force_share,
        });
        let Value::Object(all) = all else { unreachable!("it is written as an object") };
        all
    }

    /// These options in canonical form.
    pub fn describe(&self) -> Vec<(String, String)> {
        // What came of `auto_read_only` is in `read_only`.
        let Self { read_only, auto_read_only: _, discard, cache_direct, flushes, force_share } =
            self;
        let discard = match discard {
            DiscardPolicy::Ignore => "ignore",
            DiscardPolicy::Unmap => "unmap",
        };
        vec![
            pair("read-only", on_off(*read_only)),
            pair("discard", discard),
            pair("cache.direct", on_off(*cache_direct)),
            pair("cache.no-flush", on_off(*flushes == FlushPolicy::Ignored)),
            pair("force-share", on_off(*force_share)),
        ]
    }
}

/// An option in canonical form.
pub(crate) fn pair(key: &str, value: &(impl ToString + ?Sized)) -> (String, String) {
    (key.to_owned(), value.to_string())
}

/// A boolean in canonical form.
pub(crate) fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}
