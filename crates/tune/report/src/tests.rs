//! The report, compared with literal text.

mod cluster;

use std::path::PathBuf;

use plan::contender::Contender;
use plan::testing::{cell, client};
use records::testing::{header, host_cpu, run};

use super::*;

/// Findings without anything but runs.
pub(super) fn findings<'a>(header: &'a Header, runs: &'a [Run]) -> Findings<'a> {
    Findings { header, runs, failures: &[], skipped: &[], pruned: &[], notes: &[] }
}

/// The report of these runs as text, Markdown, page and JSON.
pub(crate) fn rendered(header: &Header, runs: &[Run]) -> [String; 4] {
    let findings = findings(header, runs);
    let report = Report::new(&findings);
    let (text, markdown) = (report.text(Style::Plain, ""), report.text(Style::Markdown, ""));
    [text, markdown, html::page(&report), report.json()]
}

fn runs() -> Vec<Run> {
    let (reads, writes) = (cell("randread", 4096, 2, 16), cell("write", 1 << 20, 1, 1));
    let mut runs = Vec::new();
    for (repeat, drift) in [(0, 0), (1, 100), (2, 50)] {
        runs.push(run(reads, Contender::HOST, repeat, 50_000 + drift));
        runs.push(run(reads, client(0), repeat, 20_000 + drift));
        runs.push(run(reads, client(1), repeat, 30_000 + drift));
        runs.push(run(reads, client(2), repeat, 31_000 + drift));
        runs.push(run(writes, Contender::HOST, repeat, 800));
        runs.push(run(writes, client(0), repeat, 400));
    }
    let host = host_cpu(1.94, 3);
    for run in &mut runs {
        run.cost.host = Some(host.clone());
        run.cost.groups[0].voluntary = run.operations / 4;
    }
    runs
}

#[test]
fn the_plain_report_is_exact() {
    let mut header = header("--seed 7 --repeats 3");
    header.machine.cores = 3;
    let skipped = [cell("randwrite", 4096, 2, 16)];
    let notes = ["tmpfs is memory".to_owned()];
    let runs = runs();
    let findings = Findings { skipped: &skipped, notes: &notes, ..findings(&header, &runs) };
    let text = Report::new(&findings).text(Style::Plain, "");
    let expected = "\
No guest was measured, but a client of ringloom serve on this host.
a scratch file: 1G on ext4, O_DIRECT
3 cores, Test CPU, Linux 6.1.0 x86_64
daemon 1.0
3 repeats of 1 s after 0.3 s of ramp, seed 7

randread 4k, 2 jobs × iodepth 16
  subject       IOPS       interval  MB/s  p50  p99  p99.9   CPU   ctx   CPUs   gain  /host
  host         50.0k  (50.0k–50.1k)   205  100  100    100  10.0  0.25  1.9/3      –      –
  client none  20.1k  (20.0k–20.1k)  82.1  100  100    100  10.0  0.25  1.9/3      –   40 %
  client 1     30.1k  (30.0k–30.1k)   123  100  100    100  10.0  0.25  1.9/3  +50 %   60 %
  client 2 *   31.1k  (31.0k–31.1k)   127  100  100    100  10.0  0.25  1.9/3  +55 %   62 %
  best: 2, n90: 1

write 1M, 1 job × iodepth 1
  subject      IOPS   interval  MB/s  p50  p99  p99.9   CPU   ctx   CPUs  gain  /host
  host          800  (800–800)   839  100  100    100  10.0  0.25  1.9/3     –      –
  client none   400  (400–400)   419  100  100    100  10.0  0.25  1.9/3     –   50 %
  best: none, n90: none

IOPS: median of the repeats; interval: contains the true median in 95 % of
  cases, or in brackets the lowest and highest of fewer than six repeats.
p50 to p99.9: latency in µs.
CPU: µs of CPU time per request, of the daemon (host: of the load).
ctx: context switches per request, of the same. CPUs: in use on the host, and
  how many there are.
gain: IOPS over none; /host: IOPS relative to the bare file; both within a
  repeat, median.
n90: fewest iothreads that reach 90 % of the best; in brackets what it is in
  95 % of resamplings, if that varies.
* CPU-bound on this machine: jobs and iothreads are more than its 3 cores, so
  these rows say little about a machine with more.

Note: tmpfs is memory.
Skipped, they write (--destructive allows it): randwrite 4k jobs=2 iodepth=16.

Configurations: config/ in the directory of the report; read its warnings.txt

2 iothreads would bring ±0 % to +3 %.
What would change the answer: for write alone: no iothread.

Use 1 iothread: at most 3 % below the best of each cell (randread 4k jobs=2
iodepth=16), +50 % over none (of too few repeats to rule out noise), for 0.3
CPUs instead of 0.2 where it costs most; likely: in 100 % of resamplings no
number is better by more than 5 %.

    ringloom serve PATH --socket /run/ringloom-disk.sock --iothreads 1
";
    assert_eq!(text, expected);
}

#[test]
fn the_markdown_report_has_the_same_parts() {
    let mut header = header("--seed 7 --repeats 3");
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from("/images/my disk.img");
    let runs: Vec<_> = runs().into_iter().filter(|run| run.bytes < 800 << 20).collect();
    let text = Report::new(&findings(&header, &runs)).text(Style::Markdown, "");
    for part in [
        "# ringloom tune\n\nNo guest was measured, but a client of ringloom serve on this host.\n\n- Disk: /images/my disk.img: 1G on ext4, O_DIRECT\n",
        "\n## randread 4k, 2 jobs × iodepth 16\n\n| subject | IOPS | interval |",
        "| client 2 | 31.1k | (31.0k–31.1k) | 127 | 100 | 100 | 100 | 10.0 | 0.25 | 1.9/3 | +55 % | 62 % |\n\n\
         best: 2, n90: 1\n",
        "\n- n90: fewest iothreads that reach 90 % of the best; in brackets what it is in 95 % of \
         resamplings, if that varies.\n",
        "\n## Recommendation\n\n- 2 iothreads would bring ±0 % to +3 %.\n- What would change the answer: for write alone: no iothread.\n\nUse 1 iothread: ",
        "ringloom serve '/images/my disk.img' --socket /run/ringloom-disk.sock --iothreads 1\n```\n",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    assert!(!text.contains('*'), "{text}");
}

#[test]
fn only_the_line_to_paste_keeps_what_looks_like_html() {
    let mut header = header("--seed 7 --repeats 3");
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from("/d/<b>.img");
    let (runs, notes) = (runs(), ["<i>".to_owned()]);
    let findings = Findings { notes: &notes, ..findings(&header, &runs) };
    let text = Report::new(&findings).text(Style::Markdown, "");
    assert!(text.contains("```sh\nringloom serve '/d/<b>.img' --socket"), "{text}");
    assert!(text.contains("- Disk: /d/&lt;b>.img: "), "{text}");
    assert!(text.contains("&lt;i>"), "{text}");
    assert_eq!(text.matches('<').count(), 1, "{text}");
}

/// Every text of a results file that the Markdown shows.
#[test]
fn what_looks_like_markup_is_text_in_markdown() {
    const HOSTILE: &str = "[a](u) <i> `b` *c* _d_ e|f ~~g~~ &amp; \\[h\\](v)";
    const SHOWN: &str = r"\[a\](u) &lt;i> \`b\` \*c\* \_d\_ e\|f \~\~g\~\~ &amp;amp; \\\[h\\\](v)";
    let hostile = || HOSTILE.to_owned();
    let mut header = header("--seed 7 --repeats 3");
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from(HOSTILE);
    header.disk.description = hostile();
    (header.machine.cpu, header.machine.kernel) = (hostile(), hostile());
    let programs = &mut header.programs;
    programs.daemon = hostile();
    for program in [&mut programs.fio, &mut programs.qemu, &mut programs.guest_kernel] {
        *program = Some(hostile());
    }
    programs.accelerator = Some(hostile());
    let mut runs = runs();
    runs[0].crashes.push(hostile());
    let failed = run(cell("read", 512, 1, 1), client(1), 0, 1).key;
    let failures = [Failure::new(failed, &anyhow::anyhow!(hostile()))];
    let (notes, pruned) = ([hostile()], [hostile()]);
    let findings = Findings {
        notes: &notes,
        pruned: &pruned,
        failures: &failures,
        ..findings(&header, &runs)
    };
    let text = Report::new(&findings).text(Style::Markdown, "");
    // The line to paste is in a fenced block.
    let (text, pasted) = text.split_once("```sh\n").unwrap();
    assert!(pasted.contains(HOSTILE), "{pasted}");
    let without = text.replace(SHOWN, "");
    assert_eq!(text.matches(SHOWN).count(), 14, "{text}");
    let links = without.matches("[config/").count();
    assert_eq!(without.matches(['[', '`', '<', '~']).count(), links, "{without}");
}

#[test]
fn a_path_with_line_breaks_stays_on_its_line() {
    let mut header = header("--seed 7 --repeats 3");
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from("/d/a\n# b\r\tc.img");
    let (runs, notes) = (runs(), ["a\nb".to_owned()]);
    let findings = Findings { notes: &notes, ..findings(&header, &runs) };
    let text = Report::new(&findings).text(Style::Markdown, "");
    assert!(text.contains("- Disk: /d/a\\n# b\\r\\tc.img: 1G on ext4, O_DIRECT\n"), "{text}");
    assert!(text.contains("\n- Note: a\\nb.\n"), "{text}");
}

#[test]
fn a_report_without_clients_recommends_nothing() {
    let runs = [run(cell("read", 4096, 1, 1), Contender::HOST, 0, 5)];
    let text = Report::new(&findings(&header("--subject host"), &runs)).text(Style::Plain, "");
    assert!(text.starts_with("No guest was measured, but this host alone."), "{text}");
    assert!(!text.contains("best:") && !text.contains("ringloom serve"), "{text}");
}

#[test]
fn the_head_names_the_programs_that_took_part() {
    let mut header = header("");
    header.programs.fio = Some("3.33".to_owned());
    header.programs.qemu = Some("10.0.2".to_owned());
    header.programs.guest_kernel = Some("6.12.95".to_owned());
    header.programs.accelerator = Some("kvm".to_owned());
    assert_eq!(
        programs::sentence(&findings(&header, &[])),
        "daemon 1.0, fio 3.33, QEMU 10.0.2, guests with Linux 6.12.95, run by kvm"
    );
    for subjects in ["vm:qemu,host", "client,vm:ringloom"] {
        let header = records::testing::header(&format!("--subject {subjects}"));
        assert_eq!(unmeasured(&header), None, "{subjects}");
    }
}
