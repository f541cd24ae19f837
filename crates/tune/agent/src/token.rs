//! What a client must know before an agent obeys it.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=128;
/// What the kernel's random bytes are made of when they are a token.
const RANDOM_BYTES: usize = 16;

/// A secret that an agent and its client share. It is never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

/// What is wrong with a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It has other characters or another length.
    #[error("a token is {} to {} letters, digits and signs - and _", TOKEN_BYTES.start(), TOKEN_BYTES.end())]
    Form,
    /// Its file cannot be read.
    #[error("token file {path}")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel gives no random bytes.
    #[error("read random bytes")]
    Random(#[source] io::Error),
}

impl Token {
    /// A token that was given.
    ///
    /// # Errors
    /// If it is too short or has characters that a kernel's command line would change.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
        if TOKEN_BYTES.contains(&text.len()) && text.bytes().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(TokenError::Form)
        }
    }

    /// A new one.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn random() -> Result<Self, TokenError> {
        let mut bytes = [0; RANDOM_BYTES];
        fs::File::open("/dev/urandom")
            .and_then(|mut it| io::Read::read_exact(&mut it, &mut bytes))
            .map_err(TokenError::Random)?;
        Ok(Self(bytes.iter().map(|it| format!("{it:02x}")).collect()))
    }

    /// The token in a file, which may end with a newline.
    ///
    /// # Errors
    /// If it cannot be read or is none.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let name = || path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|source| TokenError::Read { path: name(), source })?;
        Self::new(text.trim_end())
    }

    /// The secret itself, for the command line of a guest's kernel.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether somebody who says this knows it. Takes the same time for all wrong ones of the right length.
    pub(crate) fn is_known(&self, said: Option<&Self>) -> bool {
        let said = said.map_or("", |it| &it.0);
        let differs =
            self.0.bytes().zip(said.bytes()).fold(0, |all, (own, other)| all | (own ^ other));
        self.0.len() == said.len() && differs == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_enough_and_plain() {
        for (text, good) in [
            ("0123456789abcdef", true),
            ("0123456789-_ABCD", true),
            ("0123456789abcde", false),
            ("0123456789abcde ", false),
            (&"a".repeat(129), false),
        ] {
            assert_eq!(Token::new(text).is_ok(), good, "{text}");
        }
        let (one, other) = (Token::random().expect("random bytes"), Token::random().expect("more"));
        assert!(one.is_known(Some(&one)) && !one.is_known(Some(&other)) && !one.is_known(None));
        assert!(Token::new(one.reveal()).is_ok(), "it can be handed on");
        assert!(!format!("{one:?}").contains(one.reveal()), "it is never printed");
    }
}
