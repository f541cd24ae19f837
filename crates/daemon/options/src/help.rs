//! The help texts of `ringloom serve`.
//!
//! Invariants: every option and key that works is in the text and in `docs/options.md`; the tests
//! hold both against the tables that the parser reads.

use graph::{BASE_HELP, DRIVERS};

use super::HelpTopic;

/// The text for a topic, ending in a newline.
pub fn help(topic: HelpTopic) -> String {
    match topic {
        HelpTopic::Object => OBJECT.to_owned(),
        HelpTopic::Blockdev => blockdev(),
        HelpTopic::Export => EXPORT.to_owned(),
        HelpTopic::Serve => {
            let blockdev = blockdev();
            format!("{HEAD}\n{SHORT}\n{LONG}\n{OBJECT}\n{blockdev}\n{EXPORT}\n{BOTH}\n{EXAMPLES}")
        }
    }
}

/// The version line, ending in a newline.
pub fn version() -> String {
    format!("ringloom {}\n", env!("CARGO_PKG_VERSION"))
}

fn blockdev() -> String {
    let drivers = DRIVERS.iter().map(|driver| driver.help);
    drivers.chain([BASE_HELP]).collect()
}

const HEAD: &str = "\
Usage: ringloom serve IMAGE --socket PATH [OPTIONS]
       ringloom serve IMAGE --nbd HOST:PORT|PATH [OPTIONS]
       ringloom serve [--object …] [--blockdev …] [--export …] [OPTIONS]
       ringloom serve --config FILE [OPTIONS]
Serves virtual disks to virtual machines over vhost-user-blk, and to all others over NBD.
Under the name qemu-storage-daemon it takes the same options.
";

const SHORT: &str = "\
One disk:
  IMAGE                  a raw disk image or a block device; a file that looks like an image
                         format needs --format
  --socket PATH          listen here
  --nbd HOST:PORT|PATH   offer the disk over NBD on this address or UNIX socket, read-only
  --writable             NBD clients may write
  --iothreads N|none     how many threads serve the queues, 1 to 64; none: the main thread
  --iothreads auto[:MAX] as many threads as pay, at most MAX; queues are moved as guests work
  --read-only            refuse writes
  --num-queues N         offer so many queues, 1 to 256; default: as many as the guest asks for
  --direct on|off        go past the host's page cache; default: on
  --format raw|qcow2     serve the file's bytes as they are, whatever it looks like, or the disk
                         in a qcow2 image
";

const LONG: &str = "\
Several disks, as for qemu-storage-daemon. Options are carried out in the order given, and each
names only what came before it. ARGUMENT is key=value,… (a comma in a value is doubled) or JSON.
";

const OBJECT: &str =
    "  --object [qom-type=]iothread,id=ID[,poll-max-ns=NS][,poll-grow=N][,poll-shrink=N]
                         create a thread that serves queues; it looks for work up to NS
                         nanoseconds before it sleeps (0: never; default: about 32768), longer and
                         shorter by these factors (default 0: twice, and not at all)
  --object [qom-type=]iothread-pool,id=ID[,min=N][,max=N][,cpus=LIST][,node=N][,budget=N]
           [,prefer=throughput|balanced|cpu][,mode=auto|frozen]
           [,poll-max-ns=NS][,poll-grow=N][,poll-shrink=N]
                         threads that start and end as they are needed, at least min (default 1)
                         and at most max (default: as many as CPUs); one more must bring 3, 10 or
                         25 %. They run on the CPUs of LIST (as 0-7) and of NUMA node N, and use
                         as much CPU time as budget CPUs have. frozen: queues stay where they
                         begin. The pool 'auto' is there if nothing else is called so
  --object [qom-type=]throttle-group,id=ID[,limits.LIMIT=N]…
                         limits that the throttle nodes which name the group share: bytes and
                         operations per second, of all requests, reads or writes. LIMIT:
                           bps-total   bps-total-max   bps-total-max-length
                           bps-read    bps-read-max    bps-read-max-length
                           bps-write   bps-write-max   bps-write-max-length
                           iops-total  iops-total-max  iops-total-max-length
                           iops-read   iops-read-max   iops-read-max-length
                           iops-write  iops-write-max  iops-write-max-length
                         -max: the rate in bursts of so many seconds (-max-length; default: 1);
                         iops-size: larger requests count as several. x-LIMIT=N is the same
  --object [qom-type=]secret,id=ID,file=PATH | data=TEXT [,format=raw|base64]
                         bytes that are not shown; data can be seen by whoever sees processes
  --object [qom-type=]tls-creds-x509,id=ID,dir=DIRECTORY,endpoint=server|client
           [,verify-peer=on|off][,sanity-check=on|off][,passwordid=SECRET][,priority=NORMAL]
                         certificates and keys for TLS: ca-cert.pem, server-cert.pem, server-key.pem
  --object [qom-type=]authz-simple,id=ID,identity=SUBJECT
  --object [qom-type=]authz-list,id=ID[,policy=deny|allow]
           [,rules.N.match=SUBJECT,rules.N.policy=deny|allow[,rules.N.format=exact|glob]]…
  --object [qom-type=]authz-list-file,id=ID,filename=FILE[,refresh=on|off]
                         who may come, by the subject of a certificate
  --object [qom-type=]main-loop,id=ID
                         taken for the sake of those who make it; it changes nothing
";

const EXPORT: &str = "  --export [type=]vhost-user-blk,id=ID,node-name=N
           ,addr.type=unix,addr.path=PATH | ,addr.type=fd,addr.str=DESCRIPTOR
           [,writable=on|off][,logical-block-size=BYTES][,num-queues=N]
           [,iothread=ID | ,iothread.0=ID,iothread.1=ID,…][,pin=QUEUE:N][,writethrough=on|off]
                         offer a node on a socket: at a path, or one at which the descriptor that
                         the daemon was started with listens (socket activation).
                         Queues go to the iothreads round-robin, those
                         of a pool (iothread=auto) where they are served best, or with pin on the
                         N-th iothread of the pool, from 0; none
                         named: the main thread. Default: read-only, blocks of 512 bytes, as many
                         queues as the guest asks for (at most 256), write-back.
                         writethrough: a change is durable when it is answered, until the guest
                         switches to write-back
  --export [type=]nbd,id=ID,node-name=N[,name=NAME][,description=TEXT][,writable=on|off]
           [,allocation-depth=on|off][,bitmaps.0=NAME…][,iothread=…][,writethrough=on|off]
                         offer a node on the NBD server, under NAME (default: the node's name).
                         Connections go to the iothreads as queues do. allocation-depth: clients may
                         ask how deep in its backing chain data lie. bitmaps: dirty bitmaps of
                         which clients may ask what is marked
";

const BOTH: &str = "\
Always:
  --socket-mode MODE     permission bits of the sockets in octal, as 0660
  --socket-group GROUP   group of the sockets, by name or number
  --config FILE          take options from this file of TOML, too (can be given several times): keys
                         are the options without dashes, those of --object and the like stand in
                         [[object]]. What the line says wins
  --print qemu|libvirt   print the lines that attach a guest; default: qemu for one disk given
                         as IMAGE, otherwise none
  --print config         print this line as such a file, and leave
  --sandbox on|off       on: give up all rights that serving does not need, or do not start;
                         off: give up nothing; default: give up what the host allows
  --named-files DIRECTORY|on|off
                         which files may be opened that only an image names, its backing or data
                         file: those below a directory for reading (can be given several times),
                         all, or none, which is the default
  --memory-files DIRECTORY
                         guest memory may also be a file on the file system of this directory (can
                         be given several times); default: only memfd, tmpfs, hugetlbfs and dax
  --max-guest-memory SIZE
                         how much memory a guest may share, as 2T; default: 16 TiB, or an equal
                         share of 96 TiB for each export if that is less
  --daemonize            go to the background once everything is set up
  --pidfile PATH         write the process id here once everything is set up
  --log-file PATH        append the log to this file, with the time; default: stderr, with
                         --daemonize the host's journal or syslog. SIGHUP opens it anew
  --log-format text|json how its lines look on stderr and in a file; json: an object a line
  --log-level [PART=]LEVEL
                         what is logged, error, warn, info, debug or trace, of all or of a part
                         of the program, as exports or qcow2 (can be given several times);
                         default: RINGLOOM_LOG, or info
  --gauges-fd N          write what iothreads, queues and disks do to this open descriptor, a line
                         of JSON each second
  --metrics ADDRESS:PORT | unix:PATH[,mode=MODE][,group=GROUP]
                         serve metrics for Prometheus at /metrics there: a numeric address of this
                         host alone, as 127.0.0.1:9476 or [::1]:9476, or a socket (MODE: 0600)
  --metrics-insecure     take an address that other hosts can reach
  --nbd-server addr.type=inet,addr.host=HOST,addr.port=PORT[,addr.ipv4=on|off][,addr.ipv6=on|off]
             | addr.type=unix,addr.path=PATH | addr.type=fd,addr.str=DESCRIPTOR
           [,max-connections=N][,handshake-max-seconds=N][,tls-creds=ID][,tls-authz=ID]
                         where exports of type nbd are offered: to at most N clients at a time
                         (default: 100; 0: as many as descriptors allow), which may take so many
                         seconds until they have chosen an export (default: 10; 0: any time)
  --allow-listen [HOST:]PORT
                         where commands may have the NBD server listen on TCP (can be given several
                         times). Default: nowhere
  --allow-connect HOST:PORT
                         servers that nodes of commands may connect to (can be given several
                         times), and with them UNIX sockets below --allow-below. Default: those that
                         the line names
  --chardev socket,id=ID,path=PATH[,server=on|off][,wait=on|off][,mode=MODE][,group=GROUP]
  --chardev socket,id=ID,fd=DESCRIPTOR,server=on[,wait=on|off]
  --chardev stdio,id=ID[,signal=on|off] | null,id=ID
  --chardev file,id=ID,path=PATH[,append=on|off][,input-path=PATH]
                         where a monitor is reached. server: clients connect, and with wait (the
                         default) the first one is waited for; MODE defaults to 0600: whoever may
                         use a monitor may do what the daemon may
  --monitor [chardev=]ID[,id=NAME][,mode=control][,pretty=on|off][,readonly=on|off]
                         take commands (QMP) there; readonly: only those that change nothing
  --state FILE           keep what is served with in this file, each change before it is answered,
                         and serve with that at the next start, whatever the line says
  --state-reset          forget what is kept there and begin anew with the line
  --allow-below DIRECTORY[,ro]
                         what commands may open, and where they may make files and sockets (can be
                         given several times); ro: only for reading. Default: nothing
  --takeover             take the place of the ringloom or qemu-storage-daemon that serves these
                         sockets now; guests go on without a lost request
  -h, --help             print this help and leave; --object help and the like print a part
  -V, --version          print the version and leave
SIGTERM and SIGINT finish the open requests, flush and leave; one that comes half a second later
leaves at once. SIGHUP does so too, unless there is --daemonize or --log-file: there it opens the
log file anew and has the sizes of all files looked at. SIGUSR1 logs what iothreads and queues do.
RINGLOOM_LOG=[PART=]LEVEL,… sets what is logged where --log-level does not; default: info.
";

const EXAMPLES: &str = "\
Examples:
  ringloom serve disk.img --socket /run/vm1.sock --iothreads 4
  ringloom serve \\
    --object iothread,id=t0 --object iothread,id=t1 \\
    --blockdev host_device,node-name=n0,filename=/dev/vg0/vm1,cache.direct=on,discard=unmap \\
    --export vhost-user-blk,id=vm1,node-name=n0,writable=on,addr.type=unix,\\
addr.path=/run/vm1.sock,iothread.0=t0,iothread.1=t1
  ringloom serve vm1.qcow2 --format qcow2 --named-files /srv/base --socket /run/vm1.sock
  ringloom serve --blockdev '{\"driver\": \"null-co\", \"node-name\": \"n0\"}' \\
    --export '{\"type\": \"vhost-user-blk\", \"id\": \"e0\", \"node-name\": \"n0\",
              \"addr\": {\"type\": \"unix\", \"path\": \"/run/e0.sock\"}}'
";

#[cfg(test)]
mod tests {
    use exports::EXPORT_TYPES;
    use graph::OBJECT_TYPES;
    use syntax::{Key, Keys};

    use super::*;
    use crate::getopt::{self, OptionKind};

    /// Every name that a user can write and that works: the options and the keys of their arguments.
    /// The documents are checked against it.
    fn documented_names() -> Vec<String> {
        let options = getopt::OPTIONS
            .iter()
            .filter(|known| known.name != OptionKind::Later)
            .map(|known| known.long.to_owned());
        let objects = OBJECT_TYPES.iter().map(|entry| &entry.keys);
        let drivers = DRIVERS.iter().map(|driver| &driver.keys);
        let exports = EXPORT_TYPES.iter().map(|(_, keys)| keys);
        let all = objects
            .chain(drivers)
            .chain(exports)
            .chain([&nbd_server::NBD_SERVER])
            .flat_map(|keys| names(keys, ""));
        // A property of a throttle group is an `x-` before what is a limit as well; the texts say that and name the limits.
        options.chain(all.filter(|name| !name.starts_with("x-"))).collect()
    }

    /// The names of keys, and of those inside them where there are such: of these two with what stands before them.
    fn names(keys: &Keys, prefix: &str) -> Vec<String> {
        let name = |key: &Key| {
            let prefixed = format!("{prefix}{}", key.name);
            let before = if ["cache", "addr"].contains(&key.name) {
                format!("{}.", key.name)
            } else {
                String::new()
            };
            let inner = key.takes.inner().into_iter().flat_map(|keys| names(keys, &before));
            if before.is_empty() {
                inner.chain([prefixed]).collect::<Vec<_>>()
            } else {
                inner.collect()
            }
        };
        keys.supported().flat_map(name).collect()
    }

    /// Whether the text has the name as a word: not as a part of a longer name.
    fn has_name(text: &str, name: &str) -> bool {
        let part = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        text.match_indices(name).any(|(start, _)| {
            !text[..start].ends_with(part) && !text[start + name.len()..].starts_with(part)
        })
    }

    #[test]
    fn every_name_that_works_is_documented() {
        let text = help(HelpTopic::Serve);
        let document = include_str!("../../../../docs/options.md");
        for name in documented_names() {
            assert!(has_name(&text, &name), "the help does not mention {name}");
            assert!(has_name(document, &name), "docs/options.md does not mention {name}");
        }
    }

    #[test]
    fn lines_of_the_help_fit_a_terminal() {
        for line in help(HelpTopic::Serve).lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn the_version_has_the_form_of_qemus() {
        assert_eq!(version(), concat!("ringloom ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}
