//! What is known, as JSON for programs: rates of the last interval and the sums that they are made of.
//!
//! Invariants: members keep their names and meanings, which docs/top.md has; others may be added. What is not known is null.

use serde_json::{Value, json};

use crate::fleet::{Daemon, Fleet, Link};
use crate::rates::QueueRates;
use crate::snapshot::{Export, Job, Placement, Pool, Snapshot};
use crate::troubles::{Severity, Subject, Trouble};
use crate::views::Wanted;

/// All daemons, with what is wrong. Only exports and queues are left out that the filter does not want.
pub(crate) fn fleet(fleet: &Fleet, troubles: &[Trouble], wanted: &Wanted) -> Value {
    let daemons = fleet.all().iter().map(|it| daemon(it, troubles, wanted));
    json!({"format": 1, "daemons": daemons.collect::<Vec<_>>()})
}

fn daemon(daemon: &Daemon, troubles: &[Trouble], wanted: &Wanted) -> Value {
    let error = match &daemon.link {
        Link::Gone { why, .. } | Link::New(Some(why)) => Value::from(why.as_str()),
        Link::New(None) | Link::Up => Value::Null,
    };
    let filter = wanted.filter.to_lowercase();
    let is_wanted = |name: &str| name.to_lowercase().contains(&filter);
    let (last, rates) = (daemon.last.as_ref(), daemon.rates.as_ref());
    let exports = last.map(|last| {
        let all = last.exports.iter().filter(|it| is_wanted(&it.id));
        all.map(|it| export(daemon, last, it)).collect::<Vec<_>>()
    });
    let tells = last.is_some_and(|it| it.queues.is_some());
    let queues = rates.filter(|_| tells).map(|rates| {
        let all = rates.queues.iter().filter(|it| is_wanted(&it.export));
        all.map(queue).collect::<Vec<_>>()
    });
    let its = troubles.iter().filter(|it| it.daemon == daemon.number);
    json!({
        "daemon": daemon.label, "socket": daemon.socket, "error": error,
        "interval-s": rates.map(|it| it.interval.as_secs_f64()),
        "troubles": its.map(trouble).collect::<Vec<_>>(),
        "exports": exports, "queues": queues, "iothreads": iothreads(daemon),
        "jobs": last.map(|it| it.jobs.iter().map(|it| job(daemon, it)).collect::<Vec<_>>()),
        "pools": last.map(|it| it.pools.iter().map(pool).collect::<Vec<_>>()),
    })
}

fn trouble(it: &Trouble) -> Value {
    let severity = match it.severity {
        Severity::Bad => "bad",
        Severity::Warning => "warning",
    };
    let mut value = json!({"severity": severity, "text": it.text});
    match &it.of {
        Subject::Daemon => {}
        Subject::Export(export, queues) => {
            value["export"] = export.as_str().into();
            if !queues.is_empty() {
                value["queues"] = queues.clone().into();
            }
        }
        Subject::Iothreads(names) => value["iothreads"] = names.clone().into(),
        Subject::Job(id) => value["job"] = id.as_str().into(),
        Subject::Node(name) => value["node"] = name.as_str().into(),
    }
    value
}

/// What exports and queues have both.
fn figures(rates: &QueueRates) -> Value {
    json!({
        "iops": rates.iops, "read-iops": rates.read_iops, "write-iops": rates.write_iops,
        "read-bytes-per-s": rates.read_bytes, "written-bytes-per-s": rates.written_bytes,
        "errors-per-s": rates.errors_per_s,
        "p50-ns": rates.latency.percentile(50), "p99-ns": rates.latency.percentile(99),
        "in-flight": rates.in_flight, "depth": rates.depth, "wait": rates.wait,
        "answered": rates.answered, "errors": rates.errors, "moves": rates.moves,
        "requests": rates.requests,
    })
}

fn queue(rates: &QueueRates) -> Value {
    let mut value = figures(rates);
    value["export"] = rates.export.as_str().into();
    value["queue"] = rates.queue.into();
    value["iothread"] = rates.iothread.as_str().into();
    value
}

fn export(daemon: &Daemon, last: &Snapshot, export: &Export) -> Value {
    let rates = daemon.rates.as_ref().and_then(|it| it.of_export(&export.id));
    let mut value = rates.as_ref().map_or_else(|| json!({}), figures);
    let served = last.queues.as_ref();
    let queues = served.map(|all| all.iter().filter(|it| it.export == export.id).count());
    value["export"] = export.id.as_str().into();
    value["type"] = export.kind.as_str().into();
    value["node-name"] = export.node_name.as_str().into();
    value["queues"] = queues.into();
    value
}

fn iothreads(daemon: &Daemon) -> Value {
    let Some(rates) = &daemon.rates else { return Value::Null };
    let is_told = daemon.last.as_ref().is_some_and(|it| it.iothreads.is_some());
    let all = rates.iothreads.iter().map(|it| {
        json!({
            "iothread": it.name, "queues": it.queues, "iops": it.iops, "cpu": it.cpu,
            "work": it.work, "look": it.look, "sleep": it.sleep, "run-delay": it.run_delay,
        })
    });
    if is_told { all.collect() } else { Value::Null }
}

fn job(daemon: &Daemon, job: &Job) -> Value {
    let rates = daemon.rates.iter().flat_map(|it| &it.jobs).find(|it| it.id == job.id);
    json!({
        "job": job.id, "type": job.kind, "status": job.status, "error": job.error,
        "current-progress": job.current_progress, "total-progress": job.total_progress,
        "rate-per-s": rates.and_then(|it| it.rate),
        "left-s": rates.and_then(|it| it.left).map(|it| it.as_secs()),
        "speed": job.speed, "io-status": job.io_status,
    })
}

fn pool(pool: &Pool) -> Value {
    let of = |it: &Placement| {
        json!({
            "export": it.export, "iothreads": it.iothreads, "gain-max": it.gain_max,
            "trying": it.trying, "tries": it.tries, "gain-predicted": it.gain_predicted,
            "note": it.note,
        })
    };
    json!({
        "pool": pool.name, "max": pool.max, "mode": pool.mode, "iothreads": pool.iothreads,
        "exports": pool.exports.iter().map(of).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::fleet::News;
    use crate::views::tests::{self, wanted};

    fn names(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(name, value)| {
                found.insert(name.clone());
                names(value, found);
            }),
            Value::Array(all) => all.iter().for_each(|value| names(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn rates_and_sums_are_there_and_the_document_has_all_names() {
        let all = tests::fleet(&["vm"], 2);
        let trouble = Trouble {
            severity: Severity::Bad,
            daemon: 0,
            of: Subject::Export("vm1".to_owned(), vec![1]),
            text: "it is bad".to_owned(),
        };
        let found = fleet(&all, &[trouble], &wanted());
        let daemon = &found["daemons"][0];
        assert_eq!(daemon["interval-s"], 1.0);
        assert_eq!(daemon["queues"][1]["answered"], 20_000);
        assert_eq!(daemon["queues"][1]["requests"], 40_000);
        assert_eq!(daemon["exports"][0]["iops"], 21_000.0);
        assert_eq!(daemon["exports"][1]["queues"], 0);
        assert_eq!(daemon["jobs"][0]["left-s"], 98);
        assert_eq!(daemon["troubles"][0]["queues"], json!([1]));
        let document = include_str!("../../../../docs/top.md");
        let mut all = BTreeSet::new();
        names(&found, &mut all);
        for name in all {
            assert!(document.contains(&format!("`{name}`")), "docs/top.md has no {name}");
        }
    }

    #[test]
    fn a_daemon_that_is_gone_is_there_with_its_error_and_a_filter_leaves_out_exports() {
        let mut all = tests::fleet(&["vm"], 2);
        let filtered = Wanted { filter: "VM2".to_owned(), ..wanted() };
        let found = fleet(&all, &[], &filtered);
        let daemon = &found["daemons"][0];
        assert_eq!(daemon["exports"].as_array().map(Vec::len), Some(1));
        assert_eq!(daemon["queues"], json!([]));
        all.hear(0, News::Gone("it has ended".to_owned()), Duration::ZERO);
        let found = fleet(&all, &[], &wanted());
        assert_eq!(found["daemons"][0]["error"], "it has ended");
        assert_eq!(found["daemons"][0]["queues"], Value::Null);
    }
}
