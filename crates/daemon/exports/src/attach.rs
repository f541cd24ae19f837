//! The lines that attach a guest to the exports of a plan.
//!
//! Where it stands: the daemon prints what [`attach_lines`] gives once it listens. The one thing that
//! everybody gets wrong first is in all of them: the guest's memory must be shared, or the daemon
//! cannot reach it.
//!
//! Not here: the guest itself. What depends on it (its memory's size) is an example to change.

use std::fmt::Write;
use std::path::Path;

use crate::export_options::ExportOptions;
use crate::vhost_user_blk_options::VhostUserBlkOptions;

/// The example of a guest's memory.
const MEMORY_EXAMPLE: &str = "4G";

/// The format of the printed lines that attach a guest: a QEMU command line or libvirt XML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachLinesFormat {
    /// A QEMU command line.
    Qemu,
    /// Elements of a libvirt domain.
    Libvirt,
}

/// Gives the lines for every export of vhost-user-blk, ending in a newline; nothing if there is none. Relative socket paths are taken from
/// `directory`, the one the process was started in.
pub fn attach_lines<'a>(
    format: AttachLinesFormat,
    exports: impl Iterator<Item = &'a ExportOptions>,
    directory: &Path,
) -> String {
    let exports = exports.filter_map(|export| Some((&*export.id, export.vhost_user_blk()?)));
    let mut exports = exports.peekable();
    if exports.peek().is_none() {
        return String::new();
    }
    match format {
        AttachLinesFormat::Qemu => qemu(exports, directory),
        AttachLinesFormat::Libvirt => libvirt(exports, directory),
    }
}

/// An export with its id.
type VhostUserBlkExport<'a> = (&'a str, &'a VhostUserBlkOptions);

/// A QEMU command line without its head: memory once, then each disk.
fn qemu<'a>(exports: impl Iterator<Item = VhostUserBlkExport<'a>>, directory: &Path) -> String {
    let mut arguments = vec![
        format!("-m {MEMORY_EXAMPLE}"),
        format!("-object memory-backend-memfd,id=mem0,size={MEMORY_EXAMPLE},share=on"),
        "-machine q35,memory-backend=mem0".to_owned(),
    ];
    for (id, export) in exports {
        // In QEMU's keyval a comma in a value is doubled.
        let path = socket_path(export, directory).replace(',', ",,");
        let chardev = format!("socket,id=char-{id},path={path},reconnect-ms=1000");
        arguments.push(format!("-chardev {}", quote(&chardev)));
        let queues = num_queues(export, |queues| format!(",num-queues={queues}"));
        arguments.push(format!("-device vhost-user-blk-pci,id={id},chardev=char-{id}{queues}"));
    }
    let mut text = String::from(
        "# start this daemon first: without it QEMU waits for the socket without a word, and so does a\n\
         # running guest that gets the disk by hot-plug.\n\
         # add to qemu-system-x86_64 (-m and size= are the guest's memory, which must be shared;\n\
         # QEMU before 9.2 says reconnect=1 instead of reconnect-ms=1000):\n",
    );
    text.push_str(&arguments.join(" \\\n"));
    text.push('\n');
    text
}

/// Elements of a libvirt domain.
fn libvirt<'a>(exports: impl Iterator<Item = VhostUserBlkExport<'a>>, directory: &Path) -> String {
    let mut text = String::from(
        "<!-- start the daemon first: without it virsh start waits, and at a hot-plug the guest stands still -->\n\
         <!-- in <domain>: the guest's memory must be shared -->\n\
         <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n\
         <!-- in <devices>; each target has a name that no other disk of the domain has -->\n",
    );
    for (number, (_, export)) in exports.enumerate() {
        let queues = num_queues(export, |queues| format!(" queues='{queues}'"));
        let path = escape_xml(&socket_path(export, directory));
        let target = disk_name(number);
        write!(
            text,
            "<disk type='vhostuser' device='disk'>\n  \
             <driver name='qemu' type='raw'{queues}/>\n  \
             <source type='unix' path='{path}'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  \
             </source>\n  \
             <target dev='{target}' bus='virtio'/>\n\
             </disk>\n"
        )
        .expect("a String takes all text");
    }
    text
}

/// What a fixed number of queues adds; without one the guest's own choice stands.
fn num_queues(export: &VhostUserBlkOptions, show: fn(u16) -> String) -> String {
    export.num_queues.map(show).unwrap_or_default()
}

fn socket_path(export: &VhostUserBlkOptions, directory: &Path) -> String {
    directory.join(&export.socket.path).display().to_string()
}

/// An argument as a POSIX shell takes it.
pub fn quote(argument: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./,=:@%+".contains(&byte);
    if argument.bytes().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// Text as XML has it between tags and in attributes.
pub fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// `vda`, …, `vdz`, `vdaa`, …, as a guest names its disks.
fn disk_name(number: usize) -> String {
    let mut letters = String::new();
    let mut rest = number + 1;
    while rest > 0 {
        let letter = b'a' + u8::try_from((rest - 1) % 26).expect("less than 26");
        letters.insert(0, char::from(letter));
        rest = (rest - 1) / 26;
    }
    format!("vd{letters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(format: AttachLinesFormat, exports: &[&str], expected: &str) {
        let export = |export| format!("vhost-user-blk,node-name=n,addr.type=unix,{export}");
        let exports: Vec<_> =
            exports.iter().map(|it| ExportOptions::parse(&export(it)).unwrap()).collect();
        assert_eq!(attach_lines(format, exports.iter(), Path::new("/run/x")), expected);
    }

    #[test]
    fn qemu_gets_shared_memory_once_and_a_device_per_export() {
        check(
            AttachLinesFormat::Qemu,
            &["id=a,addr.path=/a.sock", "id=b,addr.path=b c,,d'e.sock,num-queues=4"],
            r"# start this daemon first: without it QEMU waits for the socket without a word, and so does a
# running guest that gets the disk by hot-plug.
# add to qemu-system-x86_64 (-m and size= are the guest's memory, which must be shared;
# QEMU before 9.2 says reconnect=1 instead of reconnect-ms=1000):
-m 4G \
-object memory-backend-memfd,id=mem0,size=4G,share=on \
-machine q35,memory-backend=mem0 \
-chardev socket,id=char-a,path=/a.sock,reconnect-ms=1000 \
-device vhost-user-blk-pci,id=a,chardev=char-a \
-chardev 'socket,id=char-b,path=/run/x/b c,,d'\''e.sock,reconnect-ms=1000' \
-device vhost-user-blk-pci,id=b,chardev=char-b,num-queues=4
",
        );
    }

    #[test]
    fn libvirt_gets_shared_memory_once_and_a_disk_per_export() {
        check(
            AttachLinesFormat::Libvirt,
            &["id=a,addr.path=/a.sock,num-queues=16", "id=b,addr.path=b&<'>.sock"],
            "<!-- start the daemon first: without it virsh start waits, and at a hot-plug the guest stands still -->
<!-- in <domain>: the guest's memory must be shared -->
<memoryBacking>
  <source type='memfd'/>
  <access mode='shared'/>
</memoryBacking>
<!-- in <devices>; each target has a name that no other disk of the domain has -->
<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw' queues='16'/>
  <source type='unix' path='/a.sock'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <target dev='vda' bus='virtio'/>
</disk>
<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw'/>
  <source type='unix' path='/run/x/b&amp;&lt;&apos;&gt;.sock'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <target dev='vdb' bus='virtio'/>
</disk>
",
        );
    }

    #[test]
    fn disks_are_named_as_a_guest_names_them() {
        let names = [0, 25, 26, 51, 52, 701, 702].map(disk_name);
        assert_eq!(names, ["vda", "vdz", "vdaa", "vdaz", "vdba", "vdzz", "vdaaa"]);
    }
}
