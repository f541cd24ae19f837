//! `--chardev`, `--monitor`, `--state`, `--allow-below`, and a configuration that was kept.

use std::path::PathBuf;

use block::Access;
use monitor::{ChardevKind, ChardevOptions, MonitorOptions, SocketRole};

use super::{NULL, OldState, command, plan, refuse_line};
use crate::restored;

const SOCKET: &str = "--chardev=socket,id=c,path=s,server=on,wait=off";

#[test]
fn monitors_have_character_devices_of_their_own() {
    let plan = plan(&[SOCKET, "--monitor=c,pretty=on,readonly=on,mode=control", NULL]);
    let (path, role) = (PathBuf::from("s"), SocketRole::Server { waits: false });
    let kind = ChardevKind::Socket { path, descriptor: None, role, mode: None, group: None };
    assert_eq!(plan.chardevs, [ChardevOptions { id: "c".to_owned(), kind }]);
    let (chardev, is_pretty, is_read_only) = ("c".to_owned(), true, true);
    assert_eq!(plan.monitors, [MonitorOptions { chardev, id: None, is_pretty, is_read_only }]);
    // All that is served can be made by commands.
    assert!(command(&[SOCKET, "--monitor=chardev=c"]).is_ok());
    let refuse = |line: &[&str], expected: &str| refuse_line(line, expected);
    refuse(
        &["--monitor=c"],
        "--monitor c: chardev \"c\" not found; it has to stand before the monitor",
    );
    refuse(
        &[SOCKET, "--monitor=c", "--monitor=c"],
        "--monitor c: Device 'c' is in use by another monitor",
    );
    refuse(
        &[SOCKET, SOCKET],
        "--chardev socket,id=c,path=s,server=on,wait=off: Chardev with id 'c' already exists",
    );
    refuse(
        &[SOCKET, "--monitor=c,mode=readline"],
        "--monitor c,mode=readline: parameter 'mode' does not accept value 'readline' (supported: control)",
    );
    refuse(
        &["--chardev=pty,id=c"],
        "--chardev pty,id=c: chardev backend 'pty' is not supported yet (supported: socket, stdio, file, null)",
    );
    refuse(
        &["--chardev=socket,id=c,path=s,wait=on"],
        "--chardev socket,id=c,path=s,wait=on: 'wait' option is incompatible with socket in client connect mode",
    );
    refuse(
        &["--chardev=socket,id=c,host=h,port=1"],
        "--chardev socket,id=c,host=h,port=1: option 'host' of --chardev socket is not supported yet",
    );
    refuse(
        &["--chardev=socket,id=c,path=s,server=on,mode=888"],
        "--chardev socket,id=c,path=s,server=on,mode=888: parameter mode expects permission bits in octal, \
         0 to 0777, not '888'",
    );
    refuse(
        &["--chardev=socket,id=c,path=s,server=on,mode=+7"],
        "--chardev socket,id=c,path=s,server=on,mode=+7: parameter mode expects permission bits in octal, \
         0 to 0777, not '+7'",
    );
}

#[test]
fn directories_are_allowed_for_reading_or_for_all() {
    let line =
        [NULL, "--allow-below=src", "--allow-below=src/tests,ro", "--state=x", "--state-reset"];
    let plan = plan(&line);
    let found: Vec<_> = plan
        .allowed
        .iter()
        .map(|it| (it.path.file_name().unwrap().to_str().unwrap(), it.access))
        .collect();
    assert_eq!(found, [("src", Access::ReadWrite), ("tests", Access::ReadOnly)]);
    assert_eq!((plan.state, plan.old_state), (Some("x".into()), OldState::Forgotten));
    let refused = command(&[NULL, "--allow-below=Cargo.toml"]).unwrap_err();
    assert!(refused.contains("Cargo.toml"), "{refused}");
}

/// What a line makes is read back from what is kept of it.
#[test]
fn a_configuration_makes_what_the_line_made() {
    let line = [
        "--object=iothread,id=t0,poll-max-ns=5",
        "--object=throttle-group,id=g,limits.iops-total=7",
        "--object=iothread-pool,id=p,max=1,mode=frozen,prefer=cpu",
        "--blockdev=file,node-name=f,filename=Cargo.toml,read-only=on,cache.direct=on",
        "--blockdev=throttle,node-name=t,throttle-group=g,file.driver=null-co,file.size=1048576,\
         file.node-name=z",
        "--blockdev=stripe,node-name=s,chunk=64k,children.0.driver=null-co,children.0.size=1048576,\
         children.1.driver=null-co,children.1.size=1048576",
        "--export=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path=s,iothread=t0,num-queues=3",
        "--export=vhost-user-blk,id=g,node-name=t,addr.type=unix,addr.path=r,iothread=p,num-queues=3,\
         pin=2:0,writable=on,writethrough=on",
    ];
    let plan = plan(&line);
    let kept = plan.configuration();
    let text = serde_json::to_string(&kept).unwrap();
    let again = restored(&serde_json::from_str(&text).unwrap(), &(None, None)).unwrap();
    assert_eq!(again, (plan.steps, None));
    assert_eq!(kept.differences(&kept, "a", "b"), Vec::<String>::new());
    let mut other = kept.clone();
    other.exports.pop();
    other.objects[0]["poll-max-ns"] = 6.into();
    let found = kept.differences(&other, "the line", "the state");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("object 't0' is {"), "{found:?}");
    assert_eq!(found[1], "export 'g' is in the line only");
}
