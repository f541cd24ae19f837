//! Secrets: taken on the command line and by commands, and shown nowhere.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{monitor, monitor_socket, start, state};
use crate::support::{ringloom, stop, with};

/// What must not be seen anywhere, as it is and in base64.
const SECRETS: [&str; 2] = ["letmein", "bGV0bWVpbg"];

/// How long a line that is refused may take.
const REFUSAL_LIMIT: Duration = Duration::from_secs(30);

fn check_unseen(place: &str, bytes: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let seen = SECRETS.iter().find(|secret| text.contains(**secret));
    ensure!(seen.is_none(), "a secret is in {place}: {text}");
    Ok(())
}

fn objects(qmp: &mut QmpClient) -> Result<Vec<String>> {
    let all = qmp.execute("qom-list", &json!({"path": "/objects"}))?;
    let names = all.as_array().into_iter().flatten().filter(|it| it["name"] != "type");
    Ok(names.map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect())
}

fn secrets_are_seen_nowhere(program: &Program) -> Result<()> {
    let (bench, outside) = (Bench::new()?, Bench::new()?);
    std::fs::write(bench.path("password"), "letmein")?;
    std::fs::write(outside.path("password"), "letmein")?;
    let given = |words: [&str; 4]| [state(&bench), words.map(str::to_owned).to_vec()].concat();
    let of_file = format!("secret,id=file,file={}", outside.text("password"));
    let line = given(["--object", "secret,id=line,data=letmein", "--object", &of_file]);
    let (server, mut qmp) = start(program, &bench, &line, &[])?;
    let object =
        |id: &str, key: &str, value: &str| json!({"qom-type": "secret", "id": id, key: value});
    qmp.execute("object-add", &object("run", "data", "letmein"))?;
    qmp.execute("object-add", &object("below", "file", &bench.text("password")))?;
    let mut encoded = object("encoded", "data", "bGV0bWVpbg==");
    encoded["format"] = "base64".into();
    qmp.execute("object-add", &encoded)?;
    encoded["data"] = "bGV0bWVpbg!!".into();
    let mut answers = vec![qmp.ask("object-add", &encoded)?];
    // Behind the fences only what is allowed can be read; what the line named was read at the start.
    let (_, desc) =
        qmp.refused("object-add", &object("more", "file", &outside.text("password")))?;
    ensure!(desc.contains("--allow-below"), "{desc}");
    for id in ["line", "file", "run", "below", "encoded"] {
        let path = format!("/objects/{id}");
        let (_, desc) = qmp.refused("qom-get", &json!({"path": path, "property": "data"}))?;
        ensure!(desc == format!("the data of secret '{id}' is not told"), "{desc}");
        let listed = qmp.execute("qom-list", &json!({"path": path}))?;
        for property in listed.as_array().into_iter().flatten() {
            answers.push(qmp.ask("qom-get", &json!({"path": path, "property": property["name"]}))?);
        }
    }
    check_unseen("an answer", Value::from(answers).to_string().as_bytes())?;
    drop(qmp);
    for word in ["list", "show"] {
        let words = ["ctl", "-s", &bench.text("qmp.sock"), word];
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_ringloom")).args(words).output()?;
        ensure!(output.status.success(), "{output:?}");
        check_unseen(&format!("ctl {word}"), &[output.stdout, output.stderr].concat())?;
    }
    check_unseen("the state", &std::fs::read(bench.path("state"))?)?;
    check_unseen("the log", stop(server, &[&monitor_socket(&bench)])?.as_bytes())?;

    // What the line names and what is in files is there again.
    let (server, mut qmp) = start(program, &bench, &line, &[])?;
    let again = objects(&mut qmp)?;
    ensure!(again == ["below", "file", "line"], "{again:?}");
    drop(qmp);
    check_unseen("the log", stop(server, &[&monitor_socket(&bench)])?.as_bytes())?;
    // A state that names a file which the line does not name is refused, as one that names an image.
    let line = [monitor(&bench).as_slice(), &line[..4]].concat();
    let exit = program.refusal(&line, REFUSAL_LIMIT)?;
    let is_told = exit.stderr.contains("is neither on the command line nor below");
    ensure!(!exit.status.success() && is_told, "{exit:?}");
    check_unseen("a refusal", exit.stderr.as_bytes())
}

#[test]
fn a_secret_is_in_no_answer_no_log_and_no_state_file() {
    with(&ringloom(), secrets_are_seen_nowhere);
}

fn wrong_lines_show_nothing(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let file = bench.text("none");
    for (argument, expected) in [
        ("secret,id=s,data=x,letmein", "--object secret…: expects keys with values"),
        ("secret,id=s,data=x,letmein=y", "--object secret…: expects keys with values"),
        ("secret,id=s,dat=letmein", "--object secret…: expects keys with values"),
        ("secert,id=s,data=letmein", "--object secert,id=s,…: "),
        ("secret,id=s,data=letmein,format=hex", "parameter 'format' does not accept value 'hex'"),
        ("secret,id=s,data=letmein!,format=base64", "Base64 data contains invalid characters"),
        ("secret,data=letmein", "parameter 'id' is missing"),
        (&format!("secret,id=s,file={file}"), "secret s: Unable to read"),
        (
            "{\"qom-type\": \"secret\", \"id\": \"s\", \"data\": \"letmein\", \"x\"}",
            "--object …: expects keys with values",
        ),
    ] {
        let line = ["--object", argument, "--blockdev", "null-co,node-name=n,size=512"];
        let export = format!(
            "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={}",
            bench.text("e.sock")
        );
        let line = [line.map(str::to_owned).to_vec(), vec!["--export".to_owned(), export]].concat();
        let exit = program.refusal(&line, REFUSAL_LIMIT)?;
        ensure!(!exit.status.success() && exit.stderr.contains(expected), "{argument}: {exit:?}");
        check_unseen(argument, exit.stderr.as_bytes())?;
    }
    Ok(())
}

#[test]
fn a_line_that_is_wrong_does_not_show_the_secret_in_it() {
    with(&ringloom(), wrong_lines_show_nothing);
}
