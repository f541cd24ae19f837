//! The lines by which clients reach the NBD exports of a plan: for QEMU, libvirt, nbd-client and libnbd's tools.
//!
//! Not here: the lines of vhost-user-blk (`exports::attach_lines`), and credentials of clients for TLS.

use std::fmt::Write;
use std::path::Path;

use exports::{AttachLinesFormat, ExportKind, ExportOptions, escape_xml, quote};

use crate::options::{InetAddress, ListenAddress};

/// What stands for a host that listens on all of its addresses.
const ANY_HOST: &str = "HOST";

/// Gives the lines for every NBD export, ending in a newline; nothing if there is none, or the server listens at a
/// descriptor. A relative path is taken from `directory`, the one the process was started in.
pub fn nbd_attach_lines<'a>(
    format: AttachLinesFormat,
    address: &ListenAddress,
    exports: impl Iterator<Item = &'a ExportOptions>,
    directory: &Path,
) -> String {
    let Some(server) = ServerPlace::of(address, directory) else { return String::new() };
    let mut text = String::new();
    for export in exports {
        let ExportKind::Nbd(own) = &export.kind else { continue };
        let access = if export.writable { "writable" } else { "read-only" };
        match format {
            AttachLinesFormat::Qemu => server.qemu(&mut text, &export.id, &own.name, access),
            AttachLinesFormat::Libvirt => server.libvirt(&mut text, &own.name, access),
        }
    }
    text
}

/// Where clients find the server.
enum ServerPlace {
    Inet { host: String, port: u16 },
    Unix { path: String },
}

impl ServerPlace {
    fn of(address: &ListenAddress, directory: &Path) -> Option<Self> {
        match address {
            ListenAddress::Inet(InetAddress { host, port, .. }) => {
                let is_any = ["", "0.0.0.0", "::"].contains(&host.as_str());
                let host = if is_any { ANY_HOST } else { host };
                Some(Self::Inet { host: host.to_owned(), port: *port })
            }
            ListenAddress::Unix(socket) => {
                Some(Self::Unix { path: directory.join(&socket.path).display().to_string() })
            }
            ListenAddress::Descriptor(_) => None,
        }
    }

    /// As libnbd and QEMU write it.
    fn uri(&self, name: &str) -> String {
        let name = percent_encoded(name);
        match self {
            Self::Inet { host, port } if host.contains(':') => {
                format!("nbd://[{host}]:{port}/{name}")
            }
            Self::Inet { host, port } => format!("nbd://{host}:{port}/{name}"),
            Self::Unix { path } => format!("nbd+unix:///{name}?socket={}", percent_encoded(path)),
        }
    }

    fn qemu(&self, text: &mut String, id: &str, name: &str, access: &str) {
        // In QEMU's keyval a comma in a value is doubled.
        let doubled = |value: &str| value.replace(',', ",,");
        let (server, client) = match self {
            Self::Inet { host, port } => (
                format!("server.type=inet,server.host={host},server.port={port}"),
                format!("{host} {port} /dev/nbd0"),
            ),
            Self::Unix { path } => (
                format!("server.type=unix,server.path={}", doubled(path)),
                format!("-unix {} /dev/nbd0", quote(path)),
            ),
        };
        let blockdev = format!("driver=nbd,node-name=nbd-{id},{server},export={}", doubled(name));
        let read_only = if access == "read-only" { ",read-only=on" } else { "" };
        write!(
            text,
            "# NBD export {}, {access}:\n\
             nbdinfo {}\n\
             nbd-client {client} -name {} -connections 4\n\
             # add to qemu-system-x86_64:\n\
             -blockdev {} \\\n\
             -device virtio-blk-pci,drive=nbd-{id}\n",
            quote(name),
            quote(&self.uri(name)),
            quote(name),
            quote(&(blockdev + read_only)),
        )
        .expect("a String takes all text");
    }

    fn libvirt(&self, text: &mut String, name: &str, access: &str) {
        let host = match self {
            Self::Inet { host, port } => {
                format!("<host name='{}' port='{port}'/>", escape_xml(host))
            }
            Self::Unix { path } => {
                format!("<host transport='unix' socket='{}'/>", escape_xml(path))
            }
        };
        let read_only = if access == "read-only" { "  <readonly/>\n" } else { "" };
        write!(
            text,
            "<!-- in <devices>; the target has a name that no other disk of the domain has -->\n\
             <disk type='network' device='disk'>\n  \
             <driver name='qemu' type='raw'/>\n  \
             <source protocol='nbd' name='{}'>\n    {host}\n  </source>\n  \
             <target dev='vdz' bus='virtio'/>\n{read_only}</disk>\n",
            escape_xml(name),
        )
        .expect("a String takes all text");
    }
}

/// Text as a part of a URI.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes all text");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: AttachLinesFormat, address: &ListenAddress, export: &str, expected: &str) {
        let export = ExportOptions::parse(&format!("nbd,node-name=n,{export}")).unwrap();
        let lines = nbd_attach_lines(format, address, [&export].into_iter(), Path::new("/run/x"));
        assert_eq!(lines, expected);
    }

    #[test]
    fn qemu_and_the_tools_get_a_line_each() {
        check(
            AttachLinesFormat::Qemu,
            &ListenAddress::parse_inet("[::1]:10809").unwrap(),
            "id=e,name=a b",
            "# NBD export 'a b', read-only:\n\
             nbdinfo 'nbd://[::1]:10809/a%20b'\n\
             nbd-client ::1 10809 /dev/nbd0 -name 'a b' -connections 4\n\
             # add to qemu-system-x86_64:\n\
             -blockdev 'driver=nbd,node-name=nbd-e,server.type=inet,server.host=::1,server.port=10809,export=a b,read-only=on' \\\n\
             -device virtio-blk-pci,drive=nbd-e\n",
        );
        check(
            AttachLinesFormat::Qemu,
            &ListenAddress::unix("s,1".into()),
            "id=e,writable=on",
            "# NBD export n, writable:\n\
             nbdinfo 'nbd+unix:///n?socket=/run/x/s%2C1'\n\
             nbd-client -unix /run/x/s,1 /dev/nbd0 -name n -connections 4\n\
             # add to qemu-system-x86_64:\n\
             -blockdev driver=nbd,node-name=nbd-e,server.type=unix,server.path=/run/x/s,,1,export=n \\\n\
             -device virtio-blk-pci,drive=nbd-e\n",
        );
    }

    #[test]
    fn libvirt_gets_a_network_disk() {
        check(
            AttachLinesFormat::Libvirt,
            &ListenAddress::parse_inet(":10809").unwrap(),
            "id=e,writable=on,name=<n>",
            "<!-- in <devices>; the target has a name that no other disk of the domain has -->
<disk type='network' device='disk'>
  <driver name='qemu' type='raw'/>
  <source protocol='nbd' name='&lt;n&gt;'>
    <host name='HOST' port='10809'/>
  </source>
  <target dev='vdz' bus='virtio'/>
</disk>
",
        );
    }
}
