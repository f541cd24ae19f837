//! Character devices: `chardev-add`, `chardev-remove`, `query-chardev`, `query-chardev-backends`.

use std::path::PathBuf;

use control::NoWait;
use exports::check_socket_path;
use serde_json::Value;
use syntax::{
    Keys, OptionFields, UNIX_KEYS, UNIX_LATER, Union, ValueType, is_identifier, optional, required,
};

use super::{CommandContext, answer, done};
use crate::chardev::Chardev;
use crate::options::{
    CHARDEVS, CHARDEVS_LATER, ChardevKind, ChardevOptions, SocketRole, socket_role,
};
use crate::qmp_error::QmpError;
use crate::types::{ChardevBackendInfo, ChardevInfo, ChardevReturn};

pub(super) static REMOVE: Keys =
    Keys { of: "chardev-remove", supported: &[&[required("id", ValueType::Text)]], later: &[] };

pub(super) static ADD: Keys = Keys {
    of: "chardev-add",
    supported: &[&[
        required("id", ValueType::Text),
        required("backend", ValueType::Union(&BACKEND)),
    ]],
    later: &[],
};

const NO_LOG: &[&str] = &["logfile", "logappend"];

static NULL: Keys = Keys { of: "chardev null", supported: &[], later: &[NO_LOG] };

static STDIO: Keys = Keys {
    of: "chardev stdio",
    supported: &[&[optional("signal", ValueType::Flag)]],
    later: &[NO_LOG],
};

static FILE: Keys = Keys {
    of: "chardev file",
    supported: &[&[
        required("out", ValueType::Text),
        optional("in", ValueType::Text),
        optional("append", ValueType::Flag),
    ]],
    later: &[NO_LOG],
};

static UNIX: Keys =
    Keys { of: "chardev socket unix", supported: &[UNIX_KEYS], later: &[UNIX_LATER] };

static ADDRESS: Union = Union {
    tag: "type",
    default: None,
    branches: &[(
        "unix",
        Keys {
            of: "chardev socket addr",
            supported: &[&[
                required("type", ValueType::Text),
                required("data", ValueType::Object(&UNIX)),
            ]],
            later: &[],
        },
    )],
    later: &["fd", "inet", "vsock"],
};

static SOCKET: Keys = Keys {
    of: "chardev socket",
    supported: &[&[
        required("addr", ValueType::Union(&ADDRESS)),
        optional("server", ValueType::Flag),
        optional("wait", ValueType::Flag),
    ]],
    later: &[
        NO_LOG,
        &[
            "nodelay",
            "reconnect",
            "reconnect-ms",
            "telnet",
            "tls-authz",
            "tls-creds",
            "tn3270",
            "websocket",
        ],
    ],
};

const fn wrapped(of: &'static str, data: &'static [&'static [syntax::Key]]) -> Keys {
    Keys { of, supported: data, later: &[] }
}

static BACKEND: Union = Union {
    tag: "type",
    default: None,
    branches: &[
        (
            "file",
            wrapped(
                "chardev-add file",
                &[&[required("type", ValueType::Text), required("data", ValueType::Object(&FILE))]],
            ),
        ),
        (
            "null",
            wrapped(
                "chardev-add null",
                &[&[required("type", ValueType::Text), required("data", ValueType::Object(&NULL))]],
            ),
        ),
        (
            "socket",
            wrapped(
                "chardev-add socket",
                &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&SOCKET)),
                ]],
            ),
        ),
        (
            "stdio",
            wrapped(
                "chardev-add stdio",
                &[&[
                    required("type", ValueType::Text),
                    required("data", ValueType::Object(&STDIO)),
                ]],
            ),
        ),
    ],
    later: CHARDEVS_LATER,
};

/// A device that was made at run time has no monitor: it is there for a monitor of the next start. A server that would wait
/// for its client does not, as in QEMU.
pub(super) fn add(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = fields.required_text("id")?;
    if !is_identifier(&id) {
        return Err(QmpError::generic(format!("Parameter 'id' expects an identifier, not '{id}'")));
    }
    if context.chardevs.contains_key(&id) {
        return Err(QmpError::generic(format!("Chardev with id '{id}' already exists")));
    }
    let missing = |key: &str| QmpError::generic(format!("parameter '{key}' is missing"));
    let (kind, mut backend) = fields.union("backend")?.ok_or_else(|| missing("backend"))?;
    let mut data = backend.object("data")?.ok_or_else(|| missing("backend.data"))?;
    let kind = match kind {
        "null" => ChardevKind::Null,
        "stdio" => {
            data.flag("signal")?;
            ChardevKind::Stdio
        }
        "file" => ChardevKind::File {
            path: data.required_text("out")?.into(),
            input: data.text("in")?.map(PathBuf::from),
            is_appended: data.flag("append")?.unwrap_or(false),
        },
        _ => {
            let (_unix, mut address) =
                data.union("addr")?.ok_or_else(|| missing("backend.data.addr"))?;
            let mut unix =
                address.object("data")?.ok_or_else(|| missing("backend.data.addr.data"))?;
            let path = check_socket_path(unix.required_text("path")?.into())?;
            let listens = data.flag("server")?.unwrap_or(true);
            let role = match socket_role(listens, data.flag("wait")?)? {
                SocketRole::Server { .. } => SocketRole::Server { waits: false },
                // The fences let nobody be connected to.
                SocketRole::Client => {
                    return Err(QmpError::generic(format!(
                        "Failed to add chardev '{id}': a socket that connects to '{}' (server=false) can be made \
                         at the start only",
                        path.display()
                    )));
                }
            };
            ChardevKind::Socket { path, descriptor: None, role, mode: None, group: None }
        }
    };
    let chardev = Chardev::open(&ChardevOptions { id: id.clone(), kind }, &mut NoWait)?;
    context.chardevs.insert(id, chardev);
    answer(ChardevReturn { pty: None })
}

pub(super) fn remove(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let id = fields.required_text("id")?;
    match context.chardevs.get(&id) {
        None => Err(QmpError::generic(format!("Chardev '{id}' not found"))),
        Some(chardev) if chardev.is_used() => {
            Err(QmpError::generic(format!("Chardev '{id}' is busy")))
        }
        Some(_) => {
            context.chardevs.remove(&id);
            done()
        }
    }
}

pub(super) fn query(context: &mut CommandContext<'_>, _: OptionFields) -> Result<Value, QmpError> {
    let info = |(id, chardev): (&String, &Chardev)| ChardevInfo {
        label: id.clone(),
        file_name: file_name(&chardev.options.kind, chardev.is_connected()),
        is_open: chardev.is_used(),
    };
    answer(context.chardevs.iter().map(info).collect::<Vec<_>>())
}

/// How QEMU writes what a character device is connected to.
fn file_name(kind: &ChardevKind, is_connected: bool) -> String {
    match kind {
        ChardevKind::Null => "null".to_owned(),
        ChardevKind::Stdio => "stdio".to_owned(),
        ChardevKind::File { .. } => "file".to_owned(),
        ChardevKind::Socket { path, role, .. } => {
            let server = match role {
                SocketRole::Server { .. } => ",server=on",
                SocketRole::Client => "",
            };
            let prefix = if is_connected { "" } else { "disconnected:" };
            format!("{prefix}unix:{}{server}", path.display())
        }
    }
}

pub(super) fn query_backends(
    _: &mut CommandContext<'_>,
    _: OptionFields,
) -> Result<Value, QmpError> {
    answer(CHARDEVS.iter().map(|(name, _)| ChardevBackendInfo { name }).collect::<Vec<_>>())
}
