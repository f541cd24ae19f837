//! The storage of a cluster: a claim by its name, and on which nodes those stand that use it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::choice::named;
use crate::units::{BadValue, stored_as_text};

/// The most bytes of the name of a claim.
pub const CLAIM_NAME_MAX: usize = 24;

/// The name that a job file gives a storage: 1 to `CLAIM_NAME_MAX` lower-case letters, digits and `-`, as Kubernetes wants it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimName {
    /// Zeroes behind the name.
    bytes: [u8; CLAIM_NAME_MAX],
}

impl ClaimName {
    /// The name.
    pub fn as_str(&self) -> &str {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(CLAIM_NAME_MAX);
        std::str::from_utf8(&self.bytes[..length]).expect("a name is ASCII")
    }
}

impl FromStr for ClaimName {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = [text.bytes().next(), text.bytes().next_back()];
        let is_name = text.len() <= CLAIM_NAME_MAX
            && ends.into_iter().all(|end| end.is_some_and(is_inner))
            && text.bytes().all(|byte| is_inner(byte) || byte == b'-');
        if !is_name {
            let valid = format!(
                "valid are 1 to {CLAIM_NAME_MAX} lower-case letters, digits and -, with none of the last at an end"
            );
            return Err(BadValue::new(text, "name of a storage", valid));
        }
        let mut bytes = [0; CLAIM_NAME_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes })
    }
}

stored_as_text!(ClaimName, Placement);

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimName({self})")
    }
}

/// On which nodes the pods or virtual machines stand that are measured at once.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// On as many as there are, as evenly as can be.
    #[default]
    Spread,
    /// All on one.
    Packed,
}

named!(Placement, "placement", ["spread" => Spread, "packed" => Packed]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        for name in ["a", "local-block", "ceph2", "abcdefghijklmnopqrstuvwx"] {
            let parsed: ClaimName = name.parse().unwrap();
            assert_eq!((parsed.as_str(), parsed.to_string()), (name, name.to_owned()));
            let json = serde_json::to_string(&parsed).unwrap();
            assert_eq!(serde_json::from_str::<ClaimName>(&json).unwrap(), parsed);
        }
        for name in ["", "-a", "a-", "A", "a_b", "ä", "abcdefghijklmnopqrstuvwxy"] {
            let message = name.parse::<ClaimName>().unwrap_err().to_string();
            assert!(message.contains("1 to 24 lower-case letters"), "{message}");
        }
    }
}
