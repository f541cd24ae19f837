//! The tables of what files look like.
//!
//! Invariants: nothing is read but the bytes that hold every magic, and nothing is written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a file's first bytes say: format, offset, bytes.
const MAGICS: &[(&str, usize, &[u8])] = &[
    ("qcow2", 0, b"QFI\xfb\0\0\0\x02"),
    ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
    ("qcow", 0, b"QFI\xfb"),
    ("qed", 0, b"QED\0"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"COWD"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vdi", 0x40, b"\x7f\x10\xda\xbe"),
    ("vhdx", 0, b"vhdxfile"),
    ("vpc", 0, b"conectix"),
];

/// What a file's name says: extension, format. The formats have QEMU's names.
const EXTENSIONS: &[(&str, &str)] = &[
    ("qcow2", "qcow2"),
    ("qcow", "qcow"),
    ("qed", "qed"),
    ("vmdk", "vmdk"),
    ("vdi", "vdi"),
    ("vhd", "vpc"),
    ("vpc", "vpc"),
    ("vhdx", "vhdx"),
];

/// The bytes that hold every magic.
const HEAD_BYTES: usize = 0x44;

/// A file extension that stands for an image format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtension {
    /// In lower case, without its dot: `vhd`.
    pub extension: &'static str,
    /// QEMU's name of the format: `vpc`.
    pub format: &'static str,
}

/// The formats that a file can look like, by QEMU's names.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXTENSIONS.iter().map(|(_, format)| *format)
}

/// What a file's name says, in any case. The file need not be there.
pub fn of_name(path: &Path) -> Option<FileExtension> {
    let extension = path.extension()?.to_ascii_lowercase();
    let found = EXTENSIONS.iter().find(|(known, _)| extension == *known);
    found.map(|&(extension, format)| FileExtension { extension, format })
}

/// The format that a file's first bytes say, by QEMU's name.
///
/// # Errors
/// If the file cannot be read.
pub fn of_head(path: &Path) -> io::Result<Option<&'static str>> {
    let head = read_head(path)?;
    let magic = MAGICS
        .iter()
        .find(|(_, offset, magic)| head.get(*offset..).is_some_and(|at| at.starts_with(magic)));
    Ok(magic.map(|(format, _, _)| *format))
}

/// The first bytes of a file, fewer if it is shorter.
fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut head = vec![0; HEAD_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        let offset = u64::try_from(filled).expect("the head is short");
        match file.read_at(&mut head[filled..], offset) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    head.truncate(filled);
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(head: &[u8], expected: Option<&str>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, head).unwrap();
        assert_eq!(of_head(&path).unwrap(), expected, "{head:?}");
    }

    #[test]
    fn a_file_begins_as_its_format_does() {
        check(b"", None);
        check(&[0; 4096], None);
        check(b"QFI", None);
        check(b"QFI\xfb\0\0\0\x03", Some("qcow2"));
        check(b"QFI\xfb\0\0\0\x01", Some("qcow"));
        check(b"QED\0", Some("qed"));
        check(b"# Disk DescriptorFile\n", Some("vmdk"));
        check(b"vhdxfile", Some("vhdx"));
        check(b"conectix", Some("vpc"));
        let late = [[0; 0x40].as_slice(), b"\x7f\x10\xda\xbe"].concat();
        check(&late, Some("vdi"));
        check(&late[..0x43], None);
        check(&[&late[..], &[0; 4096]].concat(), Some("vdi"));
    }

    #[test]
    fn a_file_that_is_missing_is_an_error() {
        assert_eq!(
            of_head(Path::new("/missing/disk")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_name_ends_as_its_format_does() {
        for (name, expected) in [
            ("/d/a.qcow2", Some("qcow2")),
            ("/d/a.VHD", Some("vpc")),
            ("/d/a.img", None),
            ("/d/qcow2", None),
            ("/d.qcow2/a", None),
        ] {
            let found = of_name(Path::new(name)).map(|it| it.format);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn every_magic_has_a_name_and_fits_what_is_read() {
        for (format, offset, magic) in MAGICS {
            assert!(names().any(|name| name == *format), "{format}");
            assert!(offset + magic.len() <= HEAD_BYTES, "{format}");
        }
    }
}
