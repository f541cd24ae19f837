//! `--metrics` and `--metrics-insecure`.

use metrics::MetricsAddress;

use super::{NULL, plan, refuse_line};

#[test]
fn an_address_of_this_host_is_taken_and_another_one_where_that_is_asked_for() {
    let address = |line: &[&str]| plan(line).metrics.map(|it| it.address.to_string());
    assert_eq!(address(&[NULL]), None);
    assert_eq!(address(&[NULL, "--metrics=[::1]:9476"]).as_deref(), Some("[::1]:9476"));
    // The last one counts.
    let last = [NULL, "--metrics=0.0.0.0:1", "--metrics", "127.0.0.1:2"];
    assert_eq!(address(&last).as_deref(), Some("127.0.0.1:2"));
    let insecure = ["--metrics-insecure", NULL, "--metrics=0.0.0.0:1"];
    assert_eq!(address(&insecure).as_deref(), Some("0.0.0.0:1"));
    let exposed = "--metrics 0.0.0.0:1: 0.0.0.0:1 can be reached from other hosts, and metrics are neither encrypted \
                   nor guarded by a password: give an address of this host alone (127.0.0.1, [::1], unix:PATH), or \
                   add --metrics-insecure";
    refuse_line(&[NULL, "--metrics=0.0.0.0:1"], exposed);
    let form = "--metrics here: expects unix:PATH[,mode=MODE][,group=GROUP] or the number of an address with a port, \
                as 127.0.0.1:9476 or [::1]:9476";
    refuse_line(&[NULL, "--metrics=here"], form);
}

#[test]
fn a_socket_has_rights_and_may_be_removed_behind_the_fences() {
    let plan = plan(&[NULL, "--metrics=unix:m,group=g"]);
    let Some(MetricsAddress::Unix(socket)) = plan.metrics.as_ref().map(|it| &it.address) else {
        panic!("{:?}", plan.metrics)
    };
    assert_eq!((socket.mode, socket.group.as_deref()), (Some(0o600), Some("g")));
    assert!(plan.sandbox_needs().removed.iter().any(|path| *path == socket.path));
}
