//! Versions of QEMU: which one was measured, and which one the files need.

use std::fmt;

use plan::variant::Device;

/// The first two numbers of a version, which tell what a QEMU can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    major: u16,
    minor: u16,
}

/// The first that takes `reconnect-ms` for a socket; those before count seconds.
const RECONNECT_MS: QemuVersion = QemuVersion::new(9, 2);

impl QemuVersion {
    /// QEMU `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// `10.0.2` or `10.0.2 (Debian …)`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (major, rest) = text.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(Self::new(major.trim().parse().ok()?, minor.parse().ok()?))
    }

    pub(super) fn knows_reconnect_ms(self) -> bool {
        self >= RECONNECT_MS
    }

    /// The first that gives a device so many iothreads, where it matters.
    pub(super) fn for_iothreads(device: Device, iothreads: u16) -> Option<Self> {
        match (device, iothreads) {
            (_, 0 | 1) | (Device::Nvme | Device::Ide, _) => None,
            (Device::VirtioBlk, _) => Some(Self::new(9, 0)),
            (Device::VirtioScsi, _) => Some(Self::new(10, 0)),
        }
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_qemu_names_them() {
        for (text, expected) in [
            ("8.2.2", Some((8, 2))),
            ("10.0.2 (Debian 1:10.0.2+ds-2)", Some((10, 0))),
            ("9.2", Some((9, 2))),
            ("9.2-rc1", Some((9, 2))),
            ("unknown", None),
            ("x.2", None),
            ("9.x", None),
        ] {
            let expected = expected.map(|(major, minor)| QemuVersion::new(major, minor));
            assert_eq!(QemuVersion::read(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_of_a_version_are_compared_as_numbers() {
        assert!(QemuVersion::new(10, 0).knows_reconnect_ms());
        assert!(QemuVersion::new(9, 2).knows_reconnect_ms());
        assert!(!QemuVersion::new(9, 1).knows_reconnect_ms());
        assert!(!QemuVersion::new(8, 11).knows_reconnect_ms());
    }
}
