//! What can be done with a node and with the image behind it: QEMU's permissions.
//!
//! Where it stands: a claim on a node ([`crate::Rights`]), the edges of the graph, and the locks on an image say with these words
//! what somebody does, and what others may do meanwhile.

use std::fmt;

/// A permission on a node, as in QEMU (BLK_PERM_*). QEMU's numbering, which is part of the protocol of image locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Read, and find what was written.
    ConsistentRead = 0,
    /// Write.
    Write = 1,
    /// Write what is there already.
    WriteUnchanged = 2,
    /// Change the size.
    Resize = 3,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::ConsistentRead, Self::Write, Self::WriteUnchanged, Self::Resize];
}

impl fmt::Display for Permission {
    /// QEMU's names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConsistentRead => "consistent read",
            Self::Write => "write",
            Self::WriteUnchanged => "write unchanged",
            Self::Resize => "resize",
        })
    }
}

/// A set of permissions, such as to read, to write or to resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Permissions(u8);

impl Permissions {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(0b1111);
    /// What a user that only reads uses.
    pub const READS: Self = Self::NONE.and(Permission::ConsistentRead);
    /// What a user that also writes uses.
    pub const WRITES: Self = Self::READS.and(Permission::Write);
    /// What changes an image for those who read it.
    pub const CHANGES: Self = Self::NONE.and(Permission::Write).and(Permission::Resize);

    /// This set and one more.
    #[must_use]
    pub const fn and(self, permission: Permission) -> Self {
        Self(self.0 | 1 << permission as u8)
    }

    /// Whether it is in the set.
    pub const fn has(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u8 != 0
    }

    /// Those of this set and of the other one.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in the other one.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those of the set, in QEMU's order.
    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |permission| self.has(*permission))
    }

    /// The set as a number with a bit for each permission, in QEMU's order.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of such a number, if there are no other bits in it.
    pub fn from_bits(bits: u8) -> Option<Self> {
        Some(Self(bits)).filter(|set| set.without(Self::ALL) == Self::NONE)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|permission| permission.to_string()).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_said_in_qemus_words_and_is_the_same_after_a_journey() {
        assert_eq!(Permissions::ALL.to_string(), "consistent read, write, write unchanged, resize");
        assert_eq!(Permissions::CHANGES.to_string(), "write, resize");
        for bits in 0..=u8::MAX {
            let set = Permissions::from_bits(bits);
            assert_eq!(set.map(Permissions::bits), (bits < 16).then_some(bits));
        }
    }
}
