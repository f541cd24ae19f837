//! What a command line asks for that its options alone do not forbid.

/// Options or names that do not go together: nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub(crate) String);

/// A refusal of what does not go together.
pub fn wrong(text: impl Into<String>) -> anyhow::Error {
    WrongUsage(text.into()).into()
}
