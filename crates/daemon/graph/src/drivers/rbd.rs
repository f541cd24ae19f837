//! The driver `rbd`: an image of a Ceph cluster.

use std::path::PathBuf;
use std::sync::Arc;

use block::StoragePolicy;
use rbd::{ClientKey, RbdNode, RbdOptions as ImageOptions};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::{SECRET, TypedObjectId};

const OWN: &[Key] = &[
    required("pool", ValueType::Text),
    required("image", ValueType::Text),
    optional("namespace", ValueType::Text),
    optional("snapshot", ValueType::Text),
    optional("conf", ValueType::Text),
    optional("user", ValueType::Text),
    optional("auth-client-required", ValueType::Texts),
    optional("key-secret", ValueType::Text),
    optional("server", ValueType::List(MONITORS)),
];

const LATER: &[&str] = &["encrypt"];

/// The ways in which a client shows who it is.
const AUTHENTICATION: [&str; 2] = ["cephx", "none"];

const MONITORS: &ValueType = &ValueType::Object(&MONITOR);

static MONITOR: Keys = Keys {
    of: "server of driver=rbd",
    supported: &[&[required("host", ValueType::Text), required("port", ValueType::Text)]],
    later: &[],
};

/// `driver=rbd`.
pub(super) static RBD: Driver = Driver {
    name: "rbd",
    keys: Keys {
        of: "--blockdev driver=rbd",
        supported: &[BASE, OWN],
        later: &[BASE_LATER, LATER],
    },
    changeable: &[],
    roles: &[],
    help: "  --blockdev [driver=]rbd,node-name=N,pool=POOL,image=IMAGE[,namespace=NAME]
                   [,snapshot=NAME][,conf=FILE][,user=NAME][,key-secret=ID]
                   [,auth-client-required=cephx|none][,server.0.host=HOST,server.0.port=PORT]...
                         an image of a Ceph cluster, by librbd, which has to be installed. conf:
                         Ceph's configuration file (default: those of the usual places); user:
                         the client's name (default: admin); server: the monitors (default: as
                         the configuration file says); a snapshot needs read-only=on
",
    as_format: None,
    read,
};

/// The options of `driver=rbd`.
#[derive(Debug)]
struct RbdOptions {
    /// Without its key.
    image: ImageOptions,
    /// The secret that is the key.
    key_secret: Option<String>,
}

/// What an image cannot be.
#[derive(Debug, thiserror::Error)]
enum RbdOptionsError {
    #[error("a snapshot cannot be changed: snapshot={0} needs read-only=on")]
    WritableSnapshot(String),
    #[error("key-secret names the key of cephx, and auth-client-required=none shows none")]
    KeyWithoutAuthentication,
    #[error("no secret with id '{0}'")]
    NoSecret(String),
    #[error("secret '{0}' is no key of cephx in base64")]
    NoKey(String),
}

fn read(fields: &mut OptionFields, base: &BaseOptions) -> Result<Options, ArgumentError> {
    let snapshot = fields.text("snapshot")?;
    if let Some(snapshot) = snapshot.as_ref().filter(|_| !base.read_only) {
        return Err(ArgumentError::own(RbdOptionsError::WritableSnapshot(snapshot.clone())));
    }
    let authentication = read_authentication(fields)?;
    let key_secret = fields.text("key-secret")?;
    if key_secret.is_some() && authentication == ["none"] {
        return Err(ArgumentError::own(RbdOptionsError::KeyWithoutAuthentication));
    }
    let mut monitors = Vec::new();
    for (_, mut monitor) in fields.list("server")?.unwrap_or_default() {
        let port = monitor.required_text("port")?.parse().ok().filter(|port| *port > 0);
        let expected = "the number of a port";
        let port = port.ok_or(ArgumentError::Expects { key: monitor.path("port"), expected })?;
        monitors.push((monitor.required_text("host")?, port));
    }
    let image = ImageOptions {
        pool: fields.required_text("pool")?,
        namespace: fields.text("namespace")?.unwrap_or_default(),
        image: fields.required_text("image")?,
        snapshot,
        conf: fields.text("conf")?.map(PathBuf::from),
        user: fields.text("user")?,
        authentication,
        key: None,
        monitors,
    };
    Ok(Arc::new(RbdOptions { image, key_secret }))
}

fn read_authentication(fields: &mut OptionFields) -> Result<Vec<String>, ArgumentError> {
    const KEY: &str = "auth-client-required";
    if !fields.has(KEY) {
        return Ok(Vec::new());
    }
    let ways = fields.texts(KEY)?;
    match ways.iter().find(|way| !AUTHENTICATION.contains(&way.as_str())) {
        Some(way) => Err(fields.unknown_value(KEY, way.clone(), &AUTHENTICATION)),
        None => Ok(ways),
    }
}

impl RbdOptions {
    /// The key that the secret is.
    fn key(&self, context: &NodeContext<'_>) -> Result<Option<ClientKey>, NodeError> {
        let Some(id) = &self.key_secret else { return Ok(None) };
        let none = || context.failed(RbdOptionsError::NoSecret(id.clone()));
        let secret = context.secrets.get(id).ok_or_else(none)?;
        let key = std::str::from_utf8(secret.bytes()).ok().map(str::trim);
        let is_key = |key: &&str| !key.is_empty() && !key.contains('\0');
        let key = key.filter(is_key).map(|key| ClientKey(key.to_owned()));
        key.map(Some).ok_or_else(|| context.failed(RbdOptionsError::NoKey(id.clone())))
    }
}

impl DriverOptions for RbdOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        let secrets = self.key_secret.iter();
        let objects = secrets.map(|id| TypedObjectId { kind: SECRET, id }).collect();
        NodeRequirements { objects, joins_cluster: true, ..NodeRequirements::default() }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        let ImageOptions { pool, namespace, image, snapshot, conf, user, .. } = &self.image;
        let ImageOptions { authentication, monitors, .. } = &self.image;
        let text = |it: &Option<String>| it.clone().unwrap_or_default();
        let conf = conf.as_ref().map(|conf| conf.display().to_string()).unwrap_or_default();
        let mut all = vec![
            pair("pool", pool),
            pair("namespace", namespace),
            pair("image", image),
            pair("snapshot", &text(snapshot)),
            pair("conf", &conf),
            pair("user", &text(user)),
            pair("auth-client-required", &authentication.join(",")),
            pair("key-secret", &text(&self.key_secret)),
        ];
        for (number, (host, port)) in monitors.iter().enumerate() {
            all.push(pair(&format!("server.{number}.host"), host));
            all.push(pair(&format!("server.{number}.port"), port));
        }
        all
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let NodeContext { name, base, .. } = context;
        let policy =
            StoragePolicy { access: base.access(), discard: base.discard, flushes: base.flushes };
        let options = ImageOptions { key: self.key(context)?, ..self.image.clone() };
        let what = format!("node {name}: {}", options.name());
        let open = || RbdNode::open(name, &options, policy, context.fences);
        let node = context.watch.during(what, open).map_err(|error| context.failed(error))?;
        Ok(MadeNode::of(Arc::new(node)))
    }
}
