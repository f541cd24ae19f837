//! The object types `authz-simple`, `authz-list` and `authz-list-file`: who may come.
//!
//! Not here: how rules are compared (`credentials`); `authz-pam`, which is refused by name.

use std::path::{Path, PathBuf};

use credentials::{
    Authorization, AuthorizationList, AuthorizationRule, IdentityMatch, RuleFileError, RulePolicy,
};
use serde_json::{Map, Value, json};
use syntax::{ArgumentError, Keys, OptionFields, ValueType, optional, required};

use super::{OBJECT_KEYS, ObjectKind, ObjectType};
use crate::model::{AUTHZ_LIST, AUTHZ_LIST_FILE, AUTHZ_SIMPLE};

/// The words of a policy.
const POLICIES: &[&str] = &["deny", "allow"];

/// `qom-type=authz-simple`.
pub(super) const SIMPLE: ObjectType = ObjectType {
    name: AUTHZ_SIMPLE,
    keys: Keys {
        of: "--object authz-simple",
        supported: &[OBJECT_KEYS, &[required("identity", ValueType::Text)]],
        later: &[],
    },
    read: read_simple,
};

/// `qom-type=authz-list`.
pub(super) const LIST: ObjectType = ObjectType {
    name: AUTHZ_LIST,
    keys: Keys {
        of: "--object authz-list",
        supported: &[
            OBJECT_KEYS,
            &[
                optional("policy", ValueType::Word(POLICIES)),
                optional("rules", ValueType::List(RULES)),
            ],
        ],
        later: &[],
    },
    read: read_list,
};

/// `qom-type=authz-list-file`.
pub(super) const FILE: ObjectType = ObjectType {
    name: AUTHZ_LIST_FILE,
    keys: Keys {
        of: "--object authz-list-file",
        supported: &[
            OBJECT_KEYS,
            &[required("filename", ValueType::Text), optional("refresh", ValueType::Flag)],
        ],
        later: &[],
    },
    read: read_file,
};

const RULES: &ValueType = &ValueType::Object(&RULE);

static RULE: Keys = Keys {
    of: "a rule of authz-list",
    supported: &[&[
        required("match", ValueType::Text),
        required("policy", ValueType::Word(POLICIES)),
        optional("format", ValueType::Word(&["exact", "glob"])),
    ]],
    later: &[],
};

/// Rules about identities, or where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizationOptions {
    /// One identity.
    Simple(String),
    /// These rules.
    List(AuthorizationList),
    /// Those in a file, and whether it is read anew when it has changed.
    File(PathBuf, bool),
}

impl AuthorizationOptions {
    /// The rules; a file is read now. Blocks.
    pub fn load(&self) -> Result<Authorization, RuleFileError> {
        match self {
            Self::Simple(identity) => Ok(Authorization::Simple(identity.clone())),
            Self::List(list) => Ok(Authorization::List(list.clone())),
            Self::File(path, refreshes) => Authorization::of_file(path, *refreshes),
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Simple(_) => AUTHZ_SIMPLE,
            Self::List(_) => AUTHZ_LIST,
            Self::File(..) => AUTHZ_LIST_FILE,
        }
    }

    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Simple(_) | Self::List(_) => None,
            Self::File(path, _) => Some(path),
        }
    }

    pub(super) fn written(&self) -> Map<String, Value> {
        let written = match self {
            Self::Simple(identity) => json!({"identity": identity}),
            Self::File(path, refreshes) => {
                json!({"filename": path.to_string_lossy(), "refresh": refreshes})
            }
            Self::List(list) => {
                let rule = |rule: &AuthorizationRule| {
                    let format = match rule.format {
                        IdentityMatch::Exact => "exact",
                        IdentityMatch::Glob => "glob",
                    };
                    let policy = policy_word(rule.policy);
                    json!({"match": rule.identity, "policy": policy, "format": format})
                };
                let rules: Vec<Value> = list.rules.iter().map(rule).collect();
                json!({"policy": policy_word(list.policy), "rules": rules})
            }
        };
        let Value::Object(written) = written else { panic!("each of them is an object") };
        written
    }
}

fn policy_word(policy: RulePolicy) -> &'static str {
    match policy {
        RulePolicy::Deny => "deny",
        RulePolicy::Allow => "allow",
    }
}

fn policy(word: Option<&'static str>) -> RulePolicy {
    if word == Some("allow") { RulePolicy::Allow } else { RulePolicy::Deny }
}

fn read_simple(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let identity = fields.required_text("identity")?;
    Ok(ObjectKind::Authorization(AuthorizationOptions::Simple(identity)))
}

fn read_list(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let default = policy(fields.word("policy")?);
    let mut rules = Vec::new();
    for (_, mut rule) in fields.list("rules")?.unwrap_or_default() {
        rules.push(AuthorizationRule {
            identity: rule.required_text("match")?,
            policy: policy(rule.word("policy")?),
            format: match rule.word("format")? {
                Some("glob") => IdentityMatch::Glob,
                Some(_) | None => IdentityMatch::Exact,
            },
        });
    }
    let list = AuthorizationList { policy: default, rules };
    Ok(ObjectKind::Authorization(AuthorizationOptions::List(list)))
}

fn read_file(fields: &mut OptionFields) -> Result<ObjectKind, ArgumentError> {
    let path = fields.required_text("filename")?.into();
    let refreshes = fields.flag("refresh")?.unwrap_or(true);
    Ok(ObjectKind::Authorization(AuthorizationOptions::File(path, refreshes)))
}
