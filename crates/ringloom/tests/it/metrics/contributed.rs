//! `contrib`: the dashboard and the alerts name only metrics that there are, and promtool understands them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::report::skipped;

use super::*;

/// A file of the repository.
fn contributed(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// Whether Prometheus is there; if not, that is said.
pub(super) fn has_prometheus() -> bool {
    let has = ["prometheus", "promtool"].iter().all(|program| {
        Command::new(program).arg("--version").output().is_ok_and(|it| it.status.success())
    });
    if !has {
        skipped("prometheus is not installed");
    }
    has
}

/// Runs promtool, which must be content.
fn promtool(words: &[&str]) -> Result<Output> {
    let output = Command::new("promtool").args(words).output().context("run promtool")?;
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    ensure!(output.status.success(), "promtool {words:?}: {}", String::from_utf8_lossy(&text));
    Ok(output)
}

/// All queries of the dashboard, with what Grafana puts in the place of its variables.
fn queries() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(contributed("grafana/ringloom.json"))?;
    let dashboard: Value = serde_json::from_str(&text).context("the dashboard")?;
    let mut found = Vec::new();
    let mut left = vec![&dashboard];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(map) => {
                let query = map.get("expr").and_then(Value::as_str);
                found.extend(query.map(|query| query.replace("$__rate_interval", "5m")));
                left.extend(map.values());
            }
            Value::Array(all) => left.extend(all),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(found)
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let words = text.split(|char| !is_part(char));
    let is_ours = |word: &&str| {
        (word.starts_with("ringloom_") || word.starts_with("process_")) && word.len() > 9
    };
    words.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_there_are() {
    let document = include_str!("../../../../../docs/metrics.md");
    let known = |name: &str| {
        let whole = name.strip_suffix("_bucket").unwrap_or(name);
        document.contains(&format!("| `{whole}` |"))
    };
    let rules =
        std::fs::read_to_string(contributed("prometheus/ringloom.rules.yml")).expect("rules");
    let queries = queries().expect("a dashboard");
    assert!(queries.len() >= 30, "{} queries", queries.len());
    let all = names(&rules).into_iter().chain(queries.iter().flat_map(|query| names(query)));
    for name in all {
        assert!(known(&name), "docs/metrics.md has no {name}");
    }
}

#[test]
fn promtool_understands_queries_and_rules_and_alerts_fire_when_they_should() {
    if !has_prometheus() {
        return;
    }
    let check = || -> Result<()> {
        let bench = Bench::new()?;
        let rules = contributed("prometheus/ringloom.rules.yml");
        promtool(&["check", "rules", rules.to_str().context("a path")?])?;
        let tests = contributed("prometheus/ringloom.rules.test.yml");
        promtool(&["test", "rules", tests.to_str().context("a path")?])?;
        let mut text = "groups:\n- name: dashboard\n  rules:\n".to_owned();
        for (number, query) in queries()?.iter().enumerate() {
            let query = serde_json::to_string(query)?;
            writeln!(text, "  - {{record: \"query:{number}\", expr: {query}}}")?;
        }
        std::fs::write(bench.path("queries.yml"), text)?;
        promtool(&["check", "rules", &bench.text("queries.yml")]).map(drop)
    };
    check().expect("promtool is content");
}
