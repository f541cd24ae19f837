//! `--object`: one entry for each type, with its keys and what reads them.
//!
//! A new type is a file in `objects/`, an entry in [`OBJECT_TYPES`] and a variant of [`ObjectKind`].
//!
//! Not here: the other objects of qemu-storage-daemon; they are refused by name.

mod authorization;
mod iothread;
mod iothread_pool;
mod main_loop;
mod secret;
mod throttle_group;
mod tls_creds_x509;

use std::path::Path;

use layers::ThrottleLimits;
use serde_json::{Map, Value};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, is_identifier, required};

pub use authorization::AuthorizationOptions;
pub use iothread_pool::{PoolMode, PoolOptions};
pub use secret::{Secret, SecretError, SecretOptions};
pub use tls_creds_x509::TlsCredsOptions;

use crate::model::{
    IOTHREAD, IOTHREAD_POOL, MAIN_LOOP, SECRET, THROTTLE_GROUP, TLS_CREDS_X509, TypedObjectId,
};

/// The argument of `--object`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOptions {
    /// Its name, which no other object has.
    pub id: String,
    /// What it is.
    pub kind: ObjectKind,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectKind {
    /// A thread, and how long it looks for work before it sleeps.
    Iothread(PollOptions),
    /// Threads that start and end as they are needed.
    IothreadPool(PoolOptions),
    /// What the nodes that name it may do together.
    ThrottleGroup(ThrottleLimits),
    /// Bytes that are not shown.
    Secret(SecretOptions),
    /// The settings of the first thread, of which there are none.
    MainLoop,
    /// Certificates and keys.
    TlsCredsX509(TlsCredsOptions),
    /// Who may come.
    Authorization(AuthorizationOptions),
}

impl ObjectOptions {
    /// What it says of a pool of iothreads, if it is one.
    pub fn pool(&self) -> Option<&PoolOptions> {
        match &self.kind {
            ObjectKind::IothreadPool(pool) => Some(pool),
            ObjectKind::Iothread(_)
            | ObjectKind::ThrottleGroup(_)
            | ObjectKind::Secret(_)
            | ObjectKind::MainLoop
            | ObjectKind::TlsCredsX509(_)
            | ObjectKind::Authorization(_) => None,
        }
    }

    /// The same as JSON, from which it is read again; but the bytes of a secret.
    pub fn written(&self) -> Map<String, Value> {
        let mut written = match &self.kind {
            ObjectKind::Iothread(polling) => polling.written(),
            ObjectKind::IothreadPool(pool) => pool.written(),
            ObjectKind::ThrottleGroup(limits) => throttle_group::written(limits),
            ObjectKind::Secret(secret) => secret.written(),
            ObjectKind::MainLoop => Map::new(),
            ObjectKind::TlsCredsX509(options) => options.written(),
            ObjectKind::Authorization(options) => options.written(),
        };
        written.insert("qom-type".to_owned(), self.name().kind.into());
        written.insert("id".to_owned(), self.id.as_str().into());
        written
    }

    /// The same as it is kept for the next start: not at all if that would show a secret.
    pub fn kept(&self) -> Option<Map<String, Value>> {
        let is_shown = match &self.kind {
            ObjectKind::Secret(secret) => secret.file().is_some(),
            ObjectKind::Iothread(_)
            | ObjectKind::IothreadPool(_)
            | ObjectKind::ThrottleGroup(_)
            | ObjectKind::MainLoop
            | ObjectKind::TlsCredsX509(_)
            | ObjectKind::Authorization(_) => true,
        };
        is_shown.then(|| self.written())
    }

    /// The files of the host that it is read from, or the directory that has them.
    pub fn files(&self) -> Vec<&Path> {
        match &self.kind {
            ObjectKind::Secret(secret) => secret.file().into_iter().collect(),
            ObjectKind::TlsCredsX509(options) => vec![options.directory()],
            ObjectKind::Authorization(options) => options.file().into_iter().collect(),
            ObjectKind::Iothread(_)
            | ObjectKind::IothreadPool(_)
            | ObjectKind::ThrottleGroup(_)
            | ObjectKind::MainLoop => Vec::new(),
        }
    }

    /// The object for the model.
    pub fn name(&self) -> TypedObjectId<'_> {
        let kind = match &self.kind {
            ObjectKind::Iothread(_) => IOTHREAD,
            ObjectKind::IothreadPool(_) => IOTHREAD_POOL,
            ObjectKind::ThrottleGroup(_) => THROTTLE_GROUP,
            ObjectKind::Secret(_) => SECRET,
            ObjectKind::MainLoop => MAIN_LOOP,
            ObjectKind::TlsCredsX509(_) => TLS_CREDS_X509,
            ObjectKind::Authorization(options) => options.type_name(),
        };
        TypedObjectId { kind, id: &self.id }
    }
}

/// The polling of an iothread, as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollOptions {
    /// The longest time to look, in nanoseconds; 0 switches polling off. `None` leaves it to the
    /// daemon.
    pub max_ns: Option<u64>,
    /// By how much a time that was too short grows; 0 leaves it to the daemon.
    pub grow: u32,
    /// By how much a time that was in vain shrinks; 0 leaves it to the daemon.
    pub shrink: u32,
}

impl PollOptions {
    /// What is not left to the daemon, by key.
    fn written(self) -> Map<String, Value> {
        let Self { max_ns, grow, shrink } = self;
        let some = |factor: u32| (factor > 0).then(|| u64::from(factor));
        given([("poll-max-ns", max_ns), ("poll-grow", some(grow)), ("poll-shrink", some(shrink))])
    }
}

/// The numbers that were given, by key.
fn given<const N: usize>(numbers: [(&str, Option<u64>); N]) -> Map<String, Value> {
    let given = numbers.into_iter().filter_map(|(key, it)| Some((key.to_owned(), it?.into())));
    given.collect()
}

/// A type of `--object`: its name and keys, and how it is read.
#[derive(Debug, Clone, Copy)]
pub struct ObjectType {
    /// Its name, as in `qom-type=`.
    pub name: &'static str,
    /// All its keys.
    pub keys: Keys,
    /// Reads the keys that only this type has.
    read: fn(&mut OptionFields) -> Result<ObjectKind, ArgumentError>,
}

/// The keys that every object has.
pub const OBJECT_KEYS: &[Key] =
    &[required("qom-type", ValueType::Text), required("id", ValueType::Text)];

/// The object types that work.
pub const OBJECT_TYPES: &[ObjectType] = &[
    iothread::ENTRY,
    iothread_pool::ENTRY,
    throttle_group::ENTRY,
    secret::ENTRY,
    main_loop::ENTRY,
    tls_creds_x509::ENTRY,
    authorization::SIMPLE,
    authorization::LIST,
    authorization::FILE,
];

/// The object types that qemu-storage-daemon has and ringloom does not have yet.
const LATER: &str = "authz-listfile authz-pam pr-manager-helper secret_keyring thread-context \
    tls-cipher-suites tls-creds-anon tls-creds-psk";

impl ObjectOptions {
    /// Reads the argument of `--object`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        Self::read(OptionFields::parse(text, "qom-type")?)
    }

    /// Takes an object out of these fields.
    pub fn read(mut fields: OptionFields) -> Result<Self, ArgumentError> {
        let kind = fields.required_text("qom-type")?;
        let Some(entry) = OBJECT_TYPES.iter().find(|entry| entry.name == kind) else {
            let accepted: Vec<&str> = OBJECT_TYPES.iter().map(|entry| entry.name).collect();
            if LATER.split(' ').any(|known| known == kind) {
                return Err(ArgumentError::ValueNotYet {
                    key: "object type".to_owned(),
                    value: kind,
                    accepted,
                });
            }
            return Err(fields.unknown_value("qom-type", kind, &accepted));
        };
        fields.check_keys(&entry.keys)?;
        let id = fields.required_text("id")?;
        if !is_identifier(&id) {
            return Err(ArgumentError::NotAnIdentifier { key: "id", value: id });
        }
        Ok(Self { id, kind: (entry.read)(&mut fields)? })
    }
}
