//! What a command answers when it cannot be done: QEMU's classes of errors, and a sentence.

use std::error::Error;

use host::chain_of;
use serde::Serialize;

/// The class of an error (QAPI's `QapiErrorClass`), by which programs tell errors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ErrorClass {
    /// Any that has no class of its own.
    GenericError,
    /// There is no such command, or it is not available now.
    CommandNotFound,
    /// A device that does not exist was named.
    DeviceNotFound,
    /// What was named is not active, such as a job that has ended.
    DeviceNotActive,
}

/// The answer to a command that could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QmpError {
    /// For programs.
    pub class: ErrorClass,
    /// For people: the thing and the value.
    pub desc: String,
}

impl QmpError {
    /// One without a class of its own.
    pub fn generic(desc: impl Into<String>) -> Self {
        Self { class: ErrorClass::GenericError, desc: desc.into() }
    }

    /// One of a command that is not there.
    pub fn no_command(desc: impl Into<String>) -> Self {
        Self { class: ErrorClass::CommandNotFound, desc: desc.into() }
    }

    /// One of a device that is not there.
    pub fn no_device(name: &str) -> Self {
        Self { class: ErrorClass::DeviceNotFound, desc: format!("Device '{name}' not found") }
    }

    /// One of a node that is not there. QEMU's sentence.
    pub fn no_node(name: &str) -> Self {
        Self::generic(format!("Cannot find device='' nor node-name='{name}'"))
    }
}

impl<E: Error> From<E> for QmpError {
    fn from(error: E) -> Self {
        Self::generic(chain_of(&error).to_string())
    }
}
