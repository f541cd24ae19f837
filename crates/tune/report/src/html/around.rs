//! What the page says around its figures: notes, method, legend, settings and the host. Pure functions.

use maud::{Markup, html};
use plan::units::Bytes;
use records::host_load::{HostLoad, User};
use records::results::Header;
use serde::Serialize;
use serde_json::Value;

use super::View;
use crate::cells::legend;
use crate::{facts, repeats};

/// Deeper values are written as JSON.
const DEPTH_MAX: usize = 4;

pub(super) fn render(view: &View<'_>) -> Markup {
    let header = view.report.findings.header;
    let notes = &view.report.notes;
    let legend = if view.report.cells.is_empty() {
        Vec::new()
    } else {
        legend(header, &view.report.cells, true)
    };
    html! {
        section id="notes" {
            h2 { "Notes" }
            @if notes.is_empty() { p { "Nothing that bends these figures was seen." } }
            (list(notes))
        }
        @if !legend.is_empty() {
            section id="legend" { h2 { "What the words mean" } (list(&legend)) }
        }
        section id="method" {
            h2 { "How it was measured" }
            dl class="facts" {
                @for (name, fact) in facts(view.report.findings) { dt { (name) } dd { (fact) } }
                dt { "Written by" } dd { "ringloom " (header.ringloom) }
            }
            (folded("Settings", &settings(view)))
            (folded("Programs", &flattened(&header.programs)))
            (folded("Host", &flattened(&header.environment)))
            (folded("Load on the host before the start", &header.load_before.as_ref().map(load).unwrap_or_default()))
            (folded("Your guest", &flattened(&header.given)))
            (folded("Cluster", &flattened(&header.cluster)))
        }
    }
}

pub(super) fn list(sentences: &[String]) -> Markup {
    html! { @if !sentences.is_empty() { ul class="notes" { @for it in sentences { li { (it) } } } } }
}

/// The usual one has no name of its own.
fn variants(view: &View<'_>) -> String {
    let variants = &view.report.findings.header.settings.variants;
    let name = |name: String| if name.is_empty() { "the usual one".to_owned() } else { name };
    let names: Vec<String> = variants.iter().map(|it| name(it.to_string())).collect();
    names.join("; ")
}

/// The options in words; those of guests only where there are guests.
fn settings(view: &View<'_>) -> Vec<(String, String)> {
    let Header { settings, .. } = view.report.findings.header;
    let sizes: Vec<String> = settings.bs.iter().map(|it| Bytes((*it).into()).to_string()).collect();
    let guests = settings.subject.iter().any(|subject| subject.is_vm());
    let weights: Vec<String> = settings.weights.iter().map(ToString::to_string).collect();
    let mut facts = vec![
        ("mode", word(&settings.mode)),
        ("subjects", word(&settings.subject)),
        ("numbers of iothreads", word(&settings.iothreads)),
        ("how they are searched", word(&settings.search)),
        ("operations", word(&settings.op)),
        ("block sizes", sizes.join(", ")),
        ("jobs", word(&settings.jobs)),
        ("iodepths", word(&settings.iodepth)),
        ("measured time", format!("{} s", settings.runtime)),
        ("ramp before it", format!("{} s", settings.ramp)),
        ("repeats", repeats(settings.repeats)),
        (
            "time for all",
            settings.budget.map(|it| span(it.duration().as_secs())).unwrap_or_default(),
        ),
        ("what the number is to be good for", word(&settings.want)),
        ("highest p99", word(&settings.p99_max)),
        ("fewest IOPS", word(&settings.iops_min)),
        ("weights", weights.join(", ")),
        ("load of the host", word(&settings.load)),
        ("data verified", word(&settings.verify)),
        ("preconditioned", word(&settings.precondition)),
        ("runs from sentinel to sentinel", settings.sentinel.to_string()),
        ("may overwrite the disk", word(&settings.destructive)),
        ("seed", settings.seed.to_string()),
        ("variants", variants(view)),
    ];
    if guests {
        let guest = &settings.guest;
        facts.push(("fio's engine in guests", word(&settings.engine)));
        facts.push(("your guest", word(&guest.guest)));
        if settings.subject.iter().any(|subject| subject.is_booted()) {
            facts.extend([
                ("CPUs of a guest", guest.vcpus.to_string()),
                ("queues of a guest's disk", guest.queues.to_string()),
                ("memory of a guest", format!("{} MiB", guest.memory_mib)),
                ("accelerator asked for", word(&guest.accel)),
                ("kernel of guests", word(&guest.guest_kernel)),
                ("CPUs of the host for guests", word(&guest.pin_vcpus)),
                ("CPUs of the host for iothreads", word(&guest.pin_iothreads)),
                ("NUMA node", word(&guest.numa_node)),
            ]);
        }
    }
    facts.retain(|(_, fact)| !fact.is_empty());
    facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
}

/// `1 h 30 min`, `90 s`.
fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) | (_, _, 1..) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (hours, 0, 0) => format!("{hours} h"),
        (hours, minutes, 0) => format!("{hours} h {minutes} min"),
    }
}

/// What ran on the host, with what matters of the numbers.
fn load(load: &HostLoad) -> Vec<(String, String)> {
    let user = |it: &User| format!("{} {:.1}", it.comm, it.cpus);
    let in_use = load.cpus_in_use.map(|in_use| match load.of {
        Some(of) => format!("{in_use:.1} of {of}"),
        None => format!("{in_use:.1}"),
    });
    let average = load.load_average.map(|[one, five, fifteen]| {
        format!("{one:.1} in 1 minute, {five:.1} in 5, {fifteen:.1} in 15")
    });
    let users = load.users.iter().map(user).collect::<Vec<_>>().join(", ");
    let facts = [
        ("CPUs in use", in_use),
        ("load average", average),
        ("processes by CPUs in use", (!users.is_empty()).then_some(users)),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}

/// As an option is written; nothing for one that was not given.
fn word(value: &impl Serialize) -> String {
    let value = json(value);
    if value.is_null() { String::new() } else { written(&value) }
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Nothing where nothing is known.
fn folded(title: &str, facts: &[(String, String)]) -> Markup {
    html! {
        @if !facts.is_empty() {
            details {
                summary { (title) }
                dl class="facts" { @for (name, fact) in facts { dt { (name) } dd { (fact) } } }
            }
        }
    }
}

/// Names and values of all fields that are known: `cpu model`, `Test CPU`.
fn flattened(value: &impl Serialize) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    flatten(&json(value), &[], &mut facts);
    facts
}

fn flatten(value: &Value, path: &[&str], facts: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if path.len() < DEPTH_MAX => {
            for (name, value) in fields {
                flatten(value, &[path, &[name.as_str()]].concat(), facts);
            }
        }
        Value::Null => {}
        Value::Array(values) if values.is_empty() => {}
        Value::Object(_)
        | Value::Array(_)
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => {
            let name = path.join(" ").replace(['_', '-'], " ");
            facts.push(match (name.strip_suffix(" kib"), value.as_u64()) {
                (Some(name), Some(kib)) => (name.to_owned(), gib(kib)),
                (Some(_) | None, _) => (name, written(value)),
            });
        }
    }
}

/// `15.6 GiB`.
fn gib(kib: u64) -> String {
    format!("{:.1} GiB", kib as f64 / f64::from(1 << 20))
}

fn written(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => format!("{}", (number * 100.0).round() / 100.0),
            None => number.to_string(),
        },
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(written).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let known = fields.iter().filter(|(_, value)| !value.is_null());
            let field = |(name, value): (&String, &Value)| {
                format!("{} {}", name.replace(['_', '-'], " "), written(value))
            };
            format!("({})", known.map(field).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_on_the_host_is_in_round_numbers() {
        let user = |comm: &str, cpus| User { pid: 4711, comm: comm.to_owned(), cpus };
        let before = HostLoad {
            load_average: Some([0.512_345, 1.0, 2.25]),
            cpus_in_use: Some(0.299_746_197_401_005_67),
            of: Some(2),
            users: vec![user("cargo", 0.299_746_197), user("sshd", 0.1)],
        };
        let facts = load(&before).into_iter().map(|(name, fact)| format!("{name}: {fact}"));
        assert_eq!(
            facts.collect::<Vec<_>>(),
            [
                "CPUs in use: 0.3 of 2",
                "load average: 0.5 in 1 minute, 1.0 in 5, 2.2 in 15",
                "processes by CPUs in use: cargo 0.3, sshd 0.1",
            ]
        );
        assert_eq!(written(&serde_json::json!([0.123_456_789, 7])), "0.12, 7");
        assert_eq!(
            flattened(&serde_json::json!({ "memory_kib": 16 << 20 })),
            [("memory".to_owned(), "16.0 GiB".to_owned())]
        );
    }

    #[test]
    fn a_time_has_its_units() {
        for (seconds, text) in
            [(60, "1 min"), (90, "90 s"), (30, "30 s"), (7200, "2 h"), (5400, "1 h 30 min")]
        {
            assert_eq!(span(seconds), text);
        }
    }
}
