//! A request of a client: which command, with which arguments, and the id that comes back with the answer.
//!
//! Specification: QEMU, docs/interop/qmp-spec.rst, sections 2.3 (issuing commands) and 2.4 (responses).

use serde_json::{Map, Value};

use crate::qmp_error::QmpError;

/// A command as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The name of the command.
    pub command: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// Whether it is to go before those that were asked for earlier (`exec-oob`).
    pub is_out_of_band: bool,
}

impl Request {
    /// Reads a request; whether commands may be out of band was negotiated. Its id is taken out first, also of one that
    /// is refused.
    pub fn read(value: Value, may_be_out_of_band: bool) -> (Option<Value>, Result<Self, QmpError>) {
        let Value::Object(mut map) = value else {
            return (None, Err(QmpError::generic("QMP input must be a JSON object")));
        };
        let id = map.remove("id");
        (id, Self::of_members(map, may_be_out_of_band))
    }

    fn of_members(members: Map<String, Value>, may_be_out_of_band: bool) -> Result<Self, QmpError> {
        let (mut command, mut arguments) = (None, Map::new());
        for (name, value) in members {
            match (name.as_str(), value) {
                ("execute" | "exec-oob", Value::String(asked))
                    if name == "execute" || may_be_out_of_band =>
                {
                    if command.is_some() {
                        return Err(QmpError::generic(format!(
                            "QMP input member '{name}' clashes with 'exec-oob'"
                        )));
                    }
                    command = Some((asked, name == "exec-oob"));
                }
                ("execute", _) => {
                    return Err(QmpError::generic("QMP input member 'execute' must be a string"));
                }
                ("exec-oob", _) if may_be_out_of_band => {
                    return Err(QmpError::generic("QMP input member 'exec-oob' must be a string"));
                }
                ("arguments", Value::Object(given)) => arguments = given,
                ("arguments", _) => {
                    return Err(QmpError::generic(
                        "QMP input member 'arguments' must be an object",
                    ));
                }
                _ => {
                    let desc = format!("QMP input member '{name}' is unexpected");
                    return Err(QmpError::generic(desc));
                }
            }
        }
        let missing = || QmpError::generic("QMP input lacks member 'execute'");
        let (command, is_out_of_band) = command.ok_or_else(missing)?;
        Ok(Self { command, arguments, is_out_of_band })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refuse(value: Value, expected: &str) {
        let (_, result) = Request::read(value, true);
        assert_eq!(result.unwrap_err().desc, expected);
    }

    #[test]
    fn requests_are_read_as_in_qemu() {
        let (id, request) = Request::read(json!({"execute": "quit", "id": [1]}), false);
        let request = request.unwrap();
        assert_eq!((id, request.command.as_str()), (Some(json!([1])), "quit"));
        refuse(json!([]), "QMP input must be a JSON object");
        refuse(json!({}), "QMP input lacks member 'execute'");
        refuse(json!({"execute": 5}), "QMP input member 'execute' must be a string");
        refuse(
            json!({"execute": "a", "arguments": []}),
            "QMP input member 'arguments' must be an object",
        );
        refuse(json!({"execute": "a", "extra": 1}), "QMP input member 'extra' is unexpected");
        refuse(
            json!({"execute": "a", "exec-oob": "b"}),
            "QMP input member 'execute' clashes with 'exec-oob'",
        );
        let (_, refused) = Request::read(json!({"exec-oob": "a"}), false);
        assert_eq!(refused.unwrap_err().desc, "QMP input member 'exec-oob' is unexpected");
    }
}
