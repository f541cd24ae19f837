//! Objects and their properties: `object-add`, `object-del`, `qom-get`, `qom-set`, `qom-list`, `qom-list-types`,
//! `qom-list-properties`.
//!
//! An object has the path `/objects/ID`; its id alone is enough where it is the only one of that name.

use graph::{ModelError, OBJECT_TYPES, ObjectKind, ObjectOptions, ObjectType};
use serde_json::{Map, Value};
use syntax::{Key, Keys, OptionFields, ValueType, optional, required};

use super::{CommandContext, answer, done, wrong};
use crate::qmp_error::{ErrorClass, QmpError};
use crate::types::{ObjectPropertyInfo, ObjectTypeInfo};

pub(super) static DEL: Keys =
    Keys { of: "object-del", supported: &[&[required("id", ValueType::Text)]], later: &[] };

pub(super) static LIST: Keys =
    Keys { of: "qom-list", supported: &[&[required("path", ValueType::Text)]], later: &[] };

pub(super) static GET: Keys = Keys {
    of: "qom-get",
    supported: &[&[required("path", ValueType::Text), required("property", ValueType::Text)]],
    later: &[],
};

pub(super) static SET: Keys = Keys {
    of: "qom-set",
    supported: &[&[
        required("path", ValueType::Text),
        required("property", ValueType::Text),
        required("value", ValueType::Any),
    ]],
    later: &[],
};

pub(super) static LIST_TYPES: Keys = Keys {
    of: "qom-list-types",
    supported: &[&[optional("implements", ValueType::Text), optional("abstract", ValueType::Flag)]],
    later: &[],
};

pub(super) static LIST_PROPERTIES: Keys = Keys {
    of: "qom-list-properties",
    supported: &[&[required("typename", ValueType::Text)]],
    later: &[],
};

/// How long an iothread looks for work if nobody said it, in nanoseconds (QEMU's default too).
const POLL_MAX_NS: u64 = 32_768;

/// The containers of the composition tree.
const CONTAINERS: [&str; 3] = ["backend", "chardevs", "objects"];

pub(super) fn add(
    context: &mut CommandContext<'_>,
    fields: OptionFields,
) -> Result<Value, QmpError> {
    context.state.add_object_at_run_time(&ObjectOptions::read(fields)?)?;
    done()
}

pub(super) fn del(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    context.state.remove_object_at_run_time(&fields.required_text("id")?)?;
    done()
}

/// What a path leads to.
enum QomPath<'a> {
    Root,
    Objects,
    Chardevs,
    Backend,
    Object(&'a ObjectOptions),
}

fn resolve<'a>(context: &'a CommandContext<'_>, path: &str) -> Result<QomPath<'a>, QmpError> {
    if path.is_empty() {
        return Err(QmpError::generic("Path '' is ambiguous"));
    }
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let object = |id: &str| context.state.objects().find(|object| object.id == id);
    let is_absolute = path.starts_with('/');
    let found = match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) if is_absolute => Some(QomPath::Root),
        (Some("objects"), None, None) => Some(QomPath::Objects),
        (Some("chardevs"), None, None) => Some(QomPath::Chardevs),
        (Some("backend"), None, None) => Some(QomPath::Backend),
        (Some("objects"), Some(id), None) => object(id).map(QomPath::Object),
        (Some(id), None, None) if !is_absolute => object(id).map(QomPath::Object),
        _ => None,
    };
    found.ok_or_else(|| QmpError::no_device(path))
}

fn object_type(name: &str) -> Option<&'static ObjectType> {
    OBJECT_TYPES.iter().find(|of| of.name == name)
}

/// The keys of an object that can be asked for.
fn properties(of: &'static ObjectType) -> impl Iterator<Item = &'static Key> {
    of.keys.supported().filter(|key| !matches!(key.name, "qom-type" | "id"))
}

fn property(name: &str, kind: impl Into<String>) -> ObjectPropertyInfo {
    ObjectPropertyInfo {
        name: name.to_owned(),
        kind: kind.into(),
        description: None,
        default: None,
    }
}

fn list_of(of: &'static ObjectType) -> Vec<ObjectPropertyInfo> {
    let kind = |key: &Key| {
        if matches!(key.takes, ValueType::Number | ValueType::Int) {
            "int"
        } else if matches!(key.takes, ValueType::Object(_)) {
            "ThrottleLimits"
        } else if (of.name, key.name) == ("secret", "format") {
            "QCryptoSecretFormat"
        } else {
            "string"
        }
    };
    let own = properties(of).map(|key| property(key.name, kind(key)));
    [property("type", "string")].into_iter().chain(own).collect()
}

pub(super) fn list(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let path = fields.required_text("path")?;
    let child = |name: &str, of: &str| property(name, format!("child<{of}>"));
    let kind = [property("type", "string")].into_iter();
    let all: Vec<_> = match resolve(context, &path)? {
        QomPath::Root => kind.chain(CONTAINERS.map(|name| child(name, "container"))).collect(),
        QomPath::Backend => kind.collect(),
        QomPath::Objects => {
            let objects = context.state.objects();
            kind.chain(objects.map(|object| child(&object.id, object.name().kind))).collect()
        }
        QomPath::Chardevs => {
            kind.chain(context.chardevs.keys().map(|id| child(id, "chardev"))).collect()
        }
        QomPath::Object(object) => list_of(of_object(object)),
    };
    answer(all)
}

fn of_object(object: &ObjectOptions) -> &'static ObjectType {
    object_type(object.name().kind).expect("every object has a type of the table")
}

fn is_secret(object: &ObjectOptions) -> bool {
    matches!(object.kind, ObjectKind::Secret(_))
}

/// The value of a property of an object.
fn value(object: &ObjectOptions, name: &str) -> Option<Value> {
    if name == "type" {
        return Some(object.name().kind.into());
    }
    let key = properties(of_object(object)).find(|key| key.name == name)?;
    let written = object.written();
    let limits = written.get("limits").and_then(Value::as_object);
    let given = written.get(name).or_else(|| limits?.get(name.strip_prefix("x-")?));
    let default = || match matches!(key.takes, ValueType::Number | ValueType::Int) {
        true if name == "poll-max-ns" => POLL_MAX_NS.into(),
        true => 0.into(),
        false => "".into(),
    };
    Some(given.cloned().unwrap_or_else(default))
}

fn no_property(of: &str, name: &str) -> QmpError {
    QmpError::generic(format!("Property '{of}.{name}' not found"))
}

pub(super) fn get(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let (path, name) = (fields.required_text("path")?, fields.required_text("property")?);
    match resolve(context, &path)? {
        QomPath::Object(object) if is_secret(object) && name == "data" => {
            Err(QmpError::generic(format!("the data of secret '{}' is not told", object.id)))
        }
        QomPath::Object(object) => {
            value(object, &name).ok_or_else(|| no_property(object.name().kind, &name))
        }
        QomPath::Root | QomPath::Objects | QomPath::Chardevs | QomPath::Backend
            if name == "type" =>
        {
            Ok("container".into())
        }
        QomPath::Root | QomPath::Objects | QomPath::Chardevs | QomPath::Backend => {
            Err(no_property("container", &name))
        }
    }
}

/// Settings are given to the object that is there; limits that are not said stay, as in QEMU.
pub(super) fn set(
    context: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let (path, name) = (fields.required_text("path")?, fields.required_text("property")?);
    let value =
        fields.any("value").ok_or_else(|| QmpError::generic("parameter 'value' is missing"))?;
    let QomPath::Object(object) = resolve(context, &path)? else {
        return Err(no_property("container", &name));
    };
    let kind = object.name().kind;
    if properties(of_object(object)).all(|key| key.name != name) {
        return Err(no_property(kind, &name));
    }
    if is_secret(object) {
        return Err(ModelError::FixedObject(object.id.clone()).into());
    }
    if name.starts_with("x-") {
        return Err(QmpError::generic("Property cannot be set after initialization"));
    }
    let mut written = object.written();
    match (written.get_mut(&name), value) {
        (Some(Value::Object(before)), Value::Object(given)) => {
            let before: &mut Map<String, Value> = before;
            before.extend(given);
        }
        (_, value) => drop(written.insert(name, value)),
    }
    let changed = ObjectOptions::read(OptionFields::of_json(written)).map_err(|it| wrong(&it))?;
    context.state.change_object(&changed)?;
    done()
}

/// Only those that can be made: what QEMU derives them from is not here.
pub(super) fn list_types(
    _: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let implements = fields.text("implements")?;
    fields.flag("abstract")?;
    let info = |of: &ObjectType| {
        let parent = Some(match of.name {
            "iothread" | "main-loop" => "event-loop-base",
            "secret" => "secret_common",
            "tls-creds-x509" => "tls-creds",
            "authz-simple" | "authz-list" | "authz-list-file" => "authz",
            _ => "object",
        });
        ObjectTypeInfo { name: of.name, is_abstract: None, parent }
    };
    let all = OBJECT_TYPES.iter().map(info).filter(|it| match implements.as_deref() {
        None => true,
        Some(of) => of == it.name || of == "object" || it.parent == Some(of),
    });
    answer(all.collect::<Vec<_>>())
}

pub(super) fn list_properties(
    _: &mut CommandContext<'_>,
    mut fields: OptionFields,
) -> Result<Value, QmpError> {
    let name = fields.required_text("typename")?;
    let missing = || QmpError {
        class: ErrorClass::DeviceNotFound,
        desc: format!("Class '{name}' not found"),
    };
    answer(list_of(object_type(&name).ok_or_else(missing)?))
}
