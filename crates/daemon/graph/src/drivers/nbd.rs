//! The driver `nbd`: a disk of an NBD server.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use block::StoragePolicy;
use credentials::X509Credentials;
use nbd_client::{ClientTls, NbdNode, RemoteOptions, ServerAddress};
use syntax::{
    ArgumentError, INET_KEYS, INET_LATER, Key, Keys, OptionFields, UNIX_KEYS, UNIX_LATER, Union,
    ValueType, optional, read_address_families, required,
};

use super::base::{BASE, BASE_LATER, BaseOptions, CHANGEABLE, pair};
use super::driver::{
    Driver, DriverOptions, MadeNode, NodeContext, NodeError, NodeRequirements, Options,
    ThrottleGroups,
};
use crate::model::{TLS_CREDS_X509, TypedObjectId};

/// The longest name of an export, in bytes.
const EXPORT_BYTES_MAX: usize = 4096;

/// The longest path of a UNIX socket, in bytes: `sun_path`, with its zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

const OWN: &[Key] = &[
    required("server", ValueType::Union(&SERVER)),
    optional("export", ValueType::Text),
    optional("tls-creds", ValueType::Text),
    optional("tls-hostname", ValueType::Text),
    optional("reconnect-delay", ValueType::Number),
    optional("open-timeout", ValueType::Number),
];

const LATER: &[&str] = &["x-dirty-bitmap"];

static SERVER: Union = Union {
    tag: "type",
    default: None,
    branches: &[("inet", INET), ("unix", UNIX), ("fd", DESCRIPTOR)],
    later: &["vsock"],
};

const INET: Keys = Keys {
    of: "server.type=inet",
    supported: &[&[required("type", ValueType::Text)], INET_KEYS],
    later: &[INET_LATER],
};

const UNIX: Keys = Keys {
    of: "server.type=unix",
    supported: &[&[required("type", ValueType::Text)], UNIX_KEYS],
    later: &[UNIX_LATER],
};

const DESCRIPTOR: Keys = Keys {
    of: "server.type=fd",
    supported: &[&[required("type", ValueType::Text), required("str", ValueType::Text)]],
    later: &[],
};

/// `driver=nbd`.
pub(super) static NBD: Driver = Driver {
    name: "nbd",
    keys: Keys {
        of: "--blockdev driver=nbd",
        supported: &[BASE, OWN],
        later: &[BASE_LATER, LATER],
    },
    changeable: CHANGEABLE,
    roles: &[],
    help: "  --blockdev [driver=]nbd,node-name=N,server.type=inet,server.host=HOST,server.port=PORT
                         [,server.ipv4=on|off][,server.ipv6=on|off]
             | server.type=unix,server.path=PATH | server.type=fd,server.str=DESCRIPTOR
                   [,export=NAME][,tls-creds=ID][,tls-hostname=NAME]
                   [,reconnect-delay=SECONDS][,open-timeout=SECONDS]
                         a disk of an NBD server. reconnect-delay: how long requests wait for
                         another connection when one is lost (default: 0, they fail at once);
                         open-timeout: how long the first one is tried for (default: 0, once)
",
    as_format: None,
    read,
};

/// The options of `driver=nbd`.
#[derive(Debug)]
struct NbdOptions {
    server: ServerAddress,
    export: String,
    tls_creds: Option<String>,
    tls_hostname: Option<String>,
    reconnect_delay: Duration,
    open_timeout: Duration,
}

/// What an NBD node cannot be. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
enum NbdOptionsError {
    #[error("export name too long: it has {0} bytes, and {EXPORT_BYTES_MAX} are the most")]
    ExportTooLong(usize),
    #[error("a socket path has 1 to {SOCKET_PATH_BYTES_MAX} bytes, not {0}")]
    SocketPath(usize),
    #[error("tls-hostname is only used with tls-creds")]
    HostnameAlone,
    #[error("tls-creds on a {0} needs tls-hostname: the name in the server's certificate")]
    NoHostname(&'static str),
    #[error("Unable to parse FD number {0}")]
    Descriptor(String),
    #[error(
        "{0} is of no use with server.type=fd: there is no other connection than that descriptor"
    )]
    OneConnection(&'static str),
}

/// Credentials that cannot be used. QEMU's sentences.
#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error("No TLS credentials with id '{0}'")]
    None(String),
    #[error("Expecting TLS credentials with a client endpoint: '{0}' has endpoint=server")]
    OfServer(String),
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let missing = ArgumentError::Missing(fields.path("server"));
    let (kind, mut server) = fields.union("server")?.ok_or(missing)?;
    let server = read_server(kind, &mut server)?;
    let export = fields.text("export")?.unwrap_or_default();
    if export.len() > EXPORT_BYTES_MAX {
        return Err(ArgumentError::own(NbdOptionsError::ExportTooLong(export.len())));
    }
    let (tls_creds, tls_hostname) = (fields.text("tls-creds")?, fields.text("tls-hostname")?);
    match (&tls_creds, &tls_hostname, &server) {
        (None, Some(_), _) => return Err(ArgumentError::own(NbdOptionsError::HostnameAlone)),
        (Some(_), None, ServerAddress::Unix(_)) => {
            return Err(ArgumentError::own(NbdOptionsError::NoHostname("UNIX socket")));
        }
        (Some(_), None, ServerAddress::Descriptor(_)) => {
            return Err(ArgumentError::own(NbdOptionsError::NoHostname("descriptor")));
        }
        (_, _, _) => {}
    }
    let mut seconds = |key: &'static str| -> Result<Duration, ArgumentError> {
        Ok(Duration::from_secs(fields.number_u32(key)?.unwrap_or(0).into()))
    };
    let (reconnect_delay, open_timeout) = (seconds("reconnect-delay")?, seconds("open-timeout")?);
    if let ServerAddress::Descriptor(_) = server {
        let waits = [("reconnect-delay", reconnect_delay), ("open-timeout", open_timeout)];
        if let Some((key, _)) = waits.into_iter().find(|(_, time)| !time.is_zero()) {
            return Err(ArgumentError::own(NbdOptionsError::OneConnection(key)));
        }
    }
    Ok(Arc::new(NbdOptions {
        server,
        export,
        tls_creds,
        tls_hostname,
        reconnect_delay,
        open_timeout,
    }))
}

fn read_server(kind: &str, fields: &mut OptionFields) -> Result<ServerAddress, ArgumentError> {
    if kind == "unix" {
        let path = fields.required_text("path")?;
        if !(1..=SOCKET_PATH_BYTES_MAX).contains(&path.len()) {
            return Err(ArgumentError::own(NbdOptionsError::SocketPath(path.len())));
        }
        return Ok(ServerAddress::Unix(path.into()));
    }
    if kind == "fd" {
        let text = fields.required_text("str")?;
        let number = text.parse::<RawFd>().ok().filter(|number| *number >= 0);
        let number = number.ok_or(NbdOptionsError::Descriptor(text));
        return Ok(ServerAddress::Descriptor(number.map_err(ArgumentError::own)?));
    }
    let port = fields.required_text("port")?;
    let port = port.parse().ok().filter(|port| *port > 0);
    let (ipv4, ipv6) = read_address_families(fields)?;
    Ok(ServerAddress::Inet {
        host: fields.required_text("host")?,
        port: port.ok_or(ArgumentError::Expects {
            key: fields.path("port"),
            expected: "the number of a port",
        })?,
        ipv4,
        ipv6,
    })
}

impl NbdOptions {
    /// With what TLS is done, if it is.
    fn tls(&self, context: &NodeContext<'_>) -> Result<Option<ClientTls>, NodeError> {
        let Some(id) = &self.tls_creds else { return Ok(None) };
        let config = match context.credentials.get(id) {
            Some(X509Credentials::Client(config)) => Arc::clone(config),
            Some(X509Credentials::Server(_)) => {
                return Err(context.failed(CredentialsError::OfServer(id.clone())));
            }
            None => return Err(context.failed(CredentialsError::None(id.clone()))),
        };
        let host = match &self.server {
            ServerAddress::Inet { host, .. } => Some(host),
            ServerAddress::Unix(_) | ServerAddress::Descriptor(_) => None,
        };
        let name = self.tls_hostname.as_ref().or(host).expect("the reader has asked for one");
        ClientTls::new(config, name).map(Some).map_err(|error| context.failed(error))
    }
}

impl DriverOptions for NbdOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        let credentials = self.tls_creds.iter();
        let objects = credentials.map(|id| TypedObjectId { kind: TLS_CREDS_X509, id });
        NodeRequirements {
            objects: objects.collect(),
            server: Some(&self.server),
            ..NodeRequirements::default()
        }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        let Self { server, export, tls_creds, tls_hostname, reconnect_delay, open_timeout } = self;
        let none = String::new();
        vec![
            pair("server", server),
            pair("export", export),
            pair("tls-creds", tls_creds.as_ref().unwrap_or(&none)),
            pair("tls-hostname", tls_hostname.as_ref().unwrap_or(&none)),
            pair("reconnect-delay", &reconnect_delay.as_secs()),
            pair("open-timeout", &open_timeout.as_secs()),
        ]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let NodeContext { name, base, .. } = context;
        let tls = self.tls(context)?;
        let what = format!("node {name}: NBD server {}", self.server);
        let policy =
            StoragePolicy { access: base.access(), discard: base.discard, flushes: base.flushes };
        let given = match self.server {
            ServerAddress::Descriptor(number) => {
                Some(host::duplicate(number).map_err(|error| context.failed(error))?)
            }
            ServerAddress::Inet { .. } | ServerAddress::Unix(_) => None,
        };
        let open = || {
            let remote = RemoteOptions {
                address: self.server.clone(),
                given,
                export: self.export.clone(),
                tls,
                open_timeout: self.open_timeout,
                reconnect_delay: self.reconnect_delay,
            };
            NbdNode::open(name, remote, policy, context.hosts)
        };
        let node = context.watch.during(what, open).map_err(|error| context.failed(error))?;
        let node = Arc::new(node);
        Ok(MadeNode { remote: Some(Arc::clone(&node)), ..MadeNode::of(node) })
    }
}
