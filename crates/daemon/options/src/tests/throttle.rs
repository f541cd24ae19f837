//! Throttle groups and the nodes that name them.

use graph::{ObjectKind, ObjectOptions};
use layers::{Limit, LimitKind, ThrottleLimits, ThrottleSettings};

use super::{NULL, check, children, own, plan, refuse, refuse_line};
use crate::PlanStep;

fn group(change: impl FnOnce(&mut ThrottleSettings)) -> PlanStep {
    let mut settings = ThrottleSettings::default();
    change(&mut settings);
    let limits = ThrottleLimits::check(settings).unwrap();
    PlanStep::Object(ObjectOptions { id: "g".to_owned(), kind: ObjectKind::ThrottleGroup(limits) })
}

#[test]
fn limits_read_the_same_in_all_notations() {
    check(
        "--object",
        &[
            "throttle-group,id=g",
            "qom-type=throttle-group,id=g,x-bps-read=0,limits.iops-total=0",
            r#"{"qom-type":"throttle-group","id":"g","limits":{}}"#,
        ],
        &group(|_| ()),
    );
    check(
        "--object",
        &[
            "throttle-group,id=g,x-iops-total=100,x-iops-total-max=200,x-iops-total-max-length=3,\
             x-iops-size=4096,x-bps-read=5,x-bps-write=0x10",
            "throttle-group,id=g,limits.iops-total=100,limits.iops-total-max=200,\
             limits.iops-total-max-length=3,limits.iops-size=4096,limits.bps-read=5,\
             limits.bps-write=16",
            r#"{"qom-type":"throttle-group","id":"g","limits":{"iops-total":100,"iops-total-max":200,
                "iops-total-max-length":3,"bps-read":5,"bps-write":16},"x-iops-size":4096}"#,
            "throttle-group,id=g,limits.iops-total=100,x-iops-total=100,x-iops-total-max=200,\
             limits.iops-total-max-length=3,limits.iops-size=4096,limits.bps-read=5,x-bps-write=16",
        ],
        &group(|settings| {
            let iops = Limit { rate: 100, burst: 200, burst_seconds: 3 };
            *settings.limit_mut(LimitKind::IopsTotal) = iops;
            settings.limit_mut(LimitKind::BpsRead).rate = 5;
            settings.limit_mut(LimitKind::BpsWrite).rate = 16;
            settings.iops_size = 4096;
        }),
    );
    // Each of them means what it says.
    for kind in LimitKind::ALL {
        let argument = format!("throttle-group,id=g,x-{kind}=7,limits.{kind}-max=8");
        let argument = format!("{argument},x-{kind}-max-length=9");
        let expected = Limit { rate: 7, burst: 8, burst_seconds: 9 };
        check("--object", &[&argument], &group(|settings| *settings.limit_mut(kind) = expected));
    }
}

#[test]
fn wrong_limits_are_named() {
    let refuse = |argument: &str, expected: &str| {
        refuse("--object", &format!("throttle-group,id=g,{argument}"), expected);
    };
    refuse(
        "limits.iops-total=10,x-iops-total=20",
        "limits.iops-total=10 and x-iops-total=20 are the same limit",
    );
    refuse(
        "x-iops-total=100,limits.iops-read=5",
        "iops-total=100 and iops-read=5 cannot be used at the same time",
    );
    refuse(
        "x-iops-total=100,x-iops-total-max=50",
        "iops-total-max=50 is lower than iops-total=100",
    );
    refuse(
        "x-iops-total=1000000000000001",
        "iops-total=1000000000000001 is more than 1000000000000000",
    );
    refuse("x-iops-total=-1", "parameter 'x-iops-total' expects a whole number without unit");
    refuse("x-bps-total=1M", "parameter 'x-bps-total' expects a whole number without unit");
    refuse(
        "limits.bps-total=1M",
        "parameter 'limits.bps-total' expects a whole number without unit",
    );
    refuse(
        "x-iops-totl=1",
        "unknown option 'x-iops-totl' of --object throttle-group; did you mean 'x-iops-total'?",
    );
    refuse(
        "limits.iops-totl=1",
        "unknown option 'limits.iops-totl' of --object throttle-group limits; did you mean \
         'iops-total'?",
    );
    refuse("limits=5", "parameter 'limits' has no value but keys of its own: limits.KEY=VALUE");
    refuse(
        "iops-total=5",
        "unknown option 'iops-total' of --object throttle-group; did you mean 'limits.iops-total'?",
    );
}

const GROUP: &str = "--object=throttle-group,id=g";

#[test]
fn a_throttle_node_names_its_group_and_its_child() {
    for (argument, child) in [
        ("throttle,node-name=a,throttle-group=g,file=n", "file=n"),
        (r#"{"driver":"throttle","node-name":"a","throttle-group":"g","file":"n"}"#, "file=n"),
        (
            "throttle,node-name=a,throttle-group=g,file.driver=null-co",
            "file: null-co size=1073741824 read-zeroes=off latency-ns=0",
        ),
    ] {
        let plan = plan(&[GROUP, NULL, "--blockdev", argument]);
        let Some(PlanStep::Blockdev(node)) = plan.steps.last() else { panic!("{plan:?}") };
        assert_eq!(own(node), "throttle throttle-group=g");
        assert_eq!(children(node), [child]);
    }
}

#[test]
fn wrong_throttle_nodes_are_named() {
    let refuse = |argument: &str, expected: &str| {
        let expected = format!("--blockdev {argument}: {expected}");
        refuse_line(&[GROUP, "--object=iothread,id=t0", NULL, "--blockdev", argument], &expected);
    };
    refuse("throttle,node-name=a,file=n", "parameter 'throttle-group' is missing");
    refuse("throttle,node-name=a,throttle-group=g", "parameter 'file' is missing");
    refuse(
        "throttle,node-name=a,throttle-group=h,file=n",
        "throttle-group 'h' is not defined before its use; did you mean 'g'?",
    );
    refuse(
        "throttle,node-name=a,throttle-group=t0,file=n",
        "throttle-group 't0' is not defined before its use",
    );
    refuse(
        "throttle,node-name=a,throttle-group=g,file=m",
        "node 'm' is not defined before its use; did you mean 'n'?",
    );
    refuse(
        "throttle,node-name=a,throttle-grup=g,file=n",
        "unknown option 'throttle-grup' of --blockdev driver=throttle; did you mean \
         'throttle-group'?",
    );
    let argument = "throttle,node-name=a,throttle-group=g,file=n";
    refuse_line(
        &[NULL, "--blockdev", argument, GROUP],
        &format!(
            "--blockdev {argument}: throttle-group 'g' is defined only after its use; options are \
             carried out in order"
        ),
    );
}
