//! A Prometheus that nobody here wrote scrapes a daemon, and promtool reads what it is served.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::contributed::has_prometheus;
use super::refusals::address;
use super::*;

/// A Prometheus, ended when it is dropped.
struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _already_ended = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

impl Prometheus {
    /// One that scrapes this target every second.
    fn start(bench: &Bench, target: &str) -> Result<Self> {
        let configuration = format!(
            "scrape_configs:\n- job_name: ringloom\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  \
             static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        std::fs::write(bench.path("prometheus.yml"), configuration)?;
        // Nobody else takes it so soon.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = std::fs::File::create(bench.path("prometheus.log"))?;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", bench.text("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", bench.text("data")))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start prometheus")?;
        Ok(Self { child, address })
    }

    /// What the API answers to a query, if it answers.
    fn ask(&self, path: &str) -> Result<Option<Value>> {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return Ok(None) };
        stream.set_read_timeout(Some(LIMIT))?;
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(serde_json::from_str(body).ok())
    }

    /// The value of a query, when it is that.
    fn wait_for(&self, query: &str, expected: &str) -> Result<()> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("query?query={escaped}");
        poll_until(&format!("{query} to be {expected}"), LIMIT, || {
            let answer = self.ask(&path)?.unwrap_or_default();
            let result = &answer["data"]["result"];
            Ok((result[0]["value"][1] == expected).then_some(()))
        })
    }
}

#[test]
fn a_prometheus_scrapes_it_and_has_the_values() {
    if !has_prometheus() {
        return;
    }
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |program| {
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x33)?;
        let line =
            [disk.arguments(), ["--metrics", "127.0.0.1:0"].map(str::to_owned).into()].concat();
        let server = program.start(&line, &[disk.socket()])?;
        let target = address(&server)?;
        let client = write(&disk, 12)?;
        let prometheus = Prometheus::start(&bench, &target)?;
        let failed = |error: anyhow::Error| {
            let log = std::fs::read_to_string(bench.path("prometheus.log"));
            error.context(log.unwrap_or_default())
        };
        let write = "ringloom_queue_requests_total{job=\"ringloom\",export=\"e0\",queue=\"0\",op=\"write\"}";
        prometheus.wait_for(write, "12").map_err(failed)?;
        prometheus.wait_for("ringloom_export_clients{export=\"e0\"}", "1")?;
        prometheus
            .wait_for("count(ringloom_request_duration_seconds_bucket{op=\"write\"})", "17")?;
        // What Prometheus works quantiles out from.
        let all = "ringloom_request_duration_seconds_bucket{op=\"write\",le=\"+Inf\"} > bool 0";
        prometheus.wait_for(all, "1")?;
        prometheus.wait_for("ringloom_build_info{version!=\"\"}", "1")?;
        // What each metric is and means goes along.
        let metadata = prometheus.ask("metadata")?.unwrap_or_default();
        let requests = &metadata["data"]["ringloom_queue_requests"][0];
        ensure!(requests["type"] == "counter", "{metadata}");
        ensure!(requests["help"] == "Requests that were answered.", "{requests}");
        drop(client);
        drop(prometheus);
        stop(server, &[&disk.socket()]).map(drop)
    });
}

/// The text format, as promtool and older programs read it.
#[test]
fn promtool_finds_nothing_to_say_of_the_metrics() {
    if !has_prometheus() {
        return;
    }
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let (server, socket) = (start(&bench, &[])?, bench.path("m.sock"));
        let client = write(&disk(&bench), 3)?;
        wait_for(&socket, WRITES, 3.0)?;
        let mut stream = UnixStream::connect(&socket)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
        ensure!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start promtool")?;
        promtool.stdin.take().context("its input")?.write_all(body.as_bytes())?;
        let output = promtool.wait_with_output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
        drop(client);
        stop(server, &[&socket]).map(drop)
    });
}
