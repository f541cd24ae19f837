//! `--chardev` and `--monitor`: where monitors are reached, and what their clients may do.
//!
//! Not here: the kinds of character devices that only a guest has a use for; they are refused by name.

use std::os::fd::RawFd;
use std::path::PathBuf;

use exports::{check_socket_path, descriptor_number, path_of_listener};
use syntax::{
    ArgumentError, Key, Keys, OptionFields, ValueType, is_identifier, optional, required,
    socket_mode,
};

/// The keys of `--monitor`.
pub static MONITOR: Keys = Keys {
    of: "--monitor",
    supported: &[&[
        required("chardev", ValueType::Text),
        optional("id", ValueType::Text),
        optional("mode", ValueType::Word(&["control"])),
        optional("pretty", ValueType::Flag),
        optional("readonly", ValueType::Flag),
    ]],
    later: &[],
};

/// The keys that every character device has on a command line.
const COMMON: &[Key] = &[required("backend", ValueType::Text), required("id", ValueType::Text)];

/// The keys of `--chardev`, by backend.
pub static CHARDEVS: &[(&str, Keys)] = &[
    (
        "socket",
        Keys {
            of: "--chardev socket",
            supported: &[
                COMMON,
                &[
                    optional("path", ValueType::Text),
                    optional("fd", ValueType::Text),
                    optional("server", ValueType::Flag),
                    optional("wait", ValueType::Flag),
                    optional("mode", ValueType::Text),
                    optional("group", ValueType::Text),
                ],
            ],
            later: &[&[
                "abstract",
                "delay",
                "host",
                "ipv4",
                "ipv6",
                "logappend",
                "logfile",
                "mux",
                "nodelay",
                "port",
                "reconnect",
                "reconnect-ms",
                "telnet",
                "tight",
                "tls-authz",
                "tls-creds",
                "tn3270",
                "to",
                "websocket",
            ]],
        },
    ),
    (
        "stdio",
        Keys {
            of: "--chardev stdio",
            supported: &[COMMON, &[optional("signal", ValueType::Flag)]],
            later: &[&["logappend", "logfile", "mux"]],
        },
    ),
    (
        "file",
        Keys {
            of: "--chardev file",
            supported: &[
                COMMON,
                &[
                    required("path", ValueType::Text),
                    optional("append", ValueType::Flag),
                    optional("input-path", ValueType::Text),
                ],
            ],
            later: &[&["logappend", "logfile", "mux"]],
        },
    ),
    (
        "null",
        Keys {
            of: "--chardev null",
            supported: &[COMMON],
            later: &[&["logappend", "logfile", "mux"]],
        },
    ),
];

/// The backends that qemu-storage-daemon has and ringloom does not have.
pub(crate) const CHARDEVS_LATER: &[&str] = &[
    "braille",
    "dbus",
    "hub",
    "memory",
    "msmouse",
    "mux",
    "parallel",
    "pipe",
    "pty",
    "qemu-vdagent",
    "ringbuf",
    "serial",
    "spiceport",
    "spicevmc",
    "testdev",
    "udp",
    "vc",
    "wctablet",
];

/// The argument of `--monitor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorOptions {
    /// The character device that it is reached through.
    pub chardev: String,
    /// How it is called in messages.
    pub id: Option<String>,
    /// Whether answers are indented.
    pub is_pretty: bool,
    /// Whether its clients may only ask.
    pub is_read_only: bool,
}

/// The argument of `--chardev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChardevOptions {
    /// Its name.
    pub id: String,
    /// What it is.
    pub kind: ChardevKind,
}

/// What a character device is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChardevKind {
    /// A UNIX socket.
    Socket {
        /// Where, at most 107 bytes.
        path: PathBuf,
        /// The descriptor at which it listens already: then its file and rights are another's.
        descriptor: Option<RawFd>,
        /// Whether it listens there, and clients connect; otherwise it connects once.
        role: SocketRole,
        /// Its permission bits; 0600 if they are not said.
        mode: Option<u32>,
        /// Its group, by name or number.
        group: Option<String>,
    },
    /// The standard streams of the process.
    Stdio,
    /// A file to which is written, and perhaps one that is read.
    File {
        /// Where is written.
        path: PathBuf,
        /// What is read.
        input: Option<PathBuf>,
        /// Whether what is in the file stays.
        is_appended: bool,
    },
    /// Nothing.
    Null,
}

/// Which end of a socket a character device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketRole {
    /// It listens; whether the daemon waits for the first client before it goes on.
    Server {
        /// Whether it waits.
        waits: bool,
    },
    /// It connects.
    Client,
}

/// Character devices that contradict themselves. QEMU's sentences.
#[derive(Debug, thiserror::Error)]
enum ChardevError {
    /// A client that waits for clients.
    #[error("'wait' option is incompatible with socket in client connect mode")]
    ClientWaits,
    /// Two sockets.
    #[error("one of 'path' and 'fd' is enough")]
    Places,
    /// A socket that listens already, and whose rights are those of who has made it.
    #[error(
        "'fd' is a socket that listens: it needs server=on, and has its mode and group already"
    )]
    Inherited,
    /// A mode that is none.
    #[error("parameter mode expects permission bits in octal, 0 to 0777, not '{0}'")]
    Mode(String),
}

impl MonitorOptions {
    /// Reads the argument of `--monitor`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        let mut fields = OptionFields::parse(text, "chardev")?;
        fields.check_keys(&MONITOR)?;
        let chardev = fields.required_text("chardev")?;
        let id = fields.text("id")?.map(|id| identifier("id", id)).transpose()?;
        fields.word("mode")?;
        let is_pretty = fields.flag("pretty")?.unwrap_or(false);
        let is_read_only = fields.flag("readonly")?.unwrap_or(false);
        Ok(Self { chardev, id, is_pretty, is_read_only })
    }
}

impl ChardevOptions {
    /// Reads the argument of `--chardev`.
    pub fn parse(text: &str) -> Result<Self, ArgumentError> {
        let mut fields = OptionFields::parse(text, "backend")?;
        let backend = fields.required_text("backend")?;
        let accepted: Vec<&str> = CHARDEVS.iter().map(|(name, _)| *name).collect();
        let Some((name, keys)) = CHARDEVS.iter().find(|(name, _)| *name == backend) else {
            let key = "chardev backend".to_owned();
            if CHARDEVS_LATER.contains(&backend.as_str()) {
                return Err(ArgumentError::ValueNotYet { key, value: backend, accepted });
            }
            return Err(fields.unknown_value("backend", backend, &accepted));
        };
        fields.check_keys(keys)?;
        let id = identifier("id", fields.required_text("id")?)?;
        let kind = match *name {
            "socket" => socket(&mut fields)?,
            "stdio" => ChardevKind::Stdio,
            "file" => file(&mut fields)?,
            _ => ChardevKind::Null,
        };
        Ok(Self { id, kind })
    }
}

fn identifier(key: &'static str, value: String) -> Result<String, ArgumentError> {
    if is_identifier(&value) {
        Ok(value)
    } else {
        Err(ArgumentError::NotAnIdentifier { key, value })
    }
}

fn socket(fields: &mut OptionFields) -> Result<ChardevKind, ArgumentError> {
    let (path, descriptor) = match (fields.text("path")?, fields.text("fd")?) {
        (Some(path), None) => (check_socket_path(path.into())?, None),
        (None, Some(number)) => {
            let number = descriptor_number(&number)?;
            (path_of_listener(number).map_err(ArgumentError::own)?, Some(number))
        }
        (None, None) => return Err(ArgumentError::Missing("path".to_owned())),
        (Some(_), Some(_)) => return Err(ArgumentError::own(ChardevError::Places)),
    };
    let listens = fields.flag("server")?.unwrap_or(false);
    let waits = fields.flag("wait")?;
    let role = socket_role(listens, waits)?;
    if descriptor.is_some()
        && (role == SocketRole::Client || fields.has("mode") || fields.has("group"))
    {
        return Err(ArgumentError::own(ChardevError::Inherited));
    }
    let mode = fields
        .text("mode")?
        .map(|text| socket_mode(&text).ok_or_else(|| ArgumentError::own(ChardevError::Mode(text))));
    let (mode, group) = (mode.transpose()?, fields.text("group")?);
    Ok(ChardevKind::Socket { path, descriptor, role, mode, group })
}

pub(crate) fn socket_role(listens: bool, waits: Option<bool>) -> Result<SocketRole, ArgumentError> {
    match (listens, waits) {
        (true, waits) => Ok(SocketRole::Server { waits: waits.unwrap_or(true) }),
        (false, None) => Ok(SocketRole::Client),
        (false, Some(_)) => Err(ArgumentError::own(ChardevError::ClientWaits)),
    }
}

fn file(fields: &mut OptionFields) -> Result<ChardevKind, ArgumentError> {
    let path = fields.required_text("path")?;
    if path.is_empty() {
        return Err(ArgumentError::EmptyPath("path of the character device"));
    }
    let input = fields.text("input-path")?.map(PathBuf::from);
    let is_appended = fields.flag("append")?.unwrap_or(false);
    Ok(ChardevKind::File { path: path.into(), input, is_appended })
}
