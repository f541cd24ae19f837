//! The page as a whole.

use std::path::PathBuf;

use findings::compare::Comparison;
use plan::contender::{Contender, Iothreads, Subject};
use plan::testing::{cell, client};
use records::results::{Failure, Run};
use records::testing::curve_runs;
use records::testing::probe_runs;
use records::testing::{header, host_cpu, run};
use storage::target::Origin;

use super::*;
use crate::sizes::tests::{ALL as SIZES_ALL, measured as sizes_measured};
use crate::tests::findings;
use crate::{Compared, Findings, Side};

const COUNTS: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];

/// A run whose latencies and CPUs look like those of a machine.
fn likely(cell: Cell, contender: Contender, repeat: u16, operations: u64) -> Run {
    let mut run = run(cell, contender, repeat, operations);
    let shape = cell.shape();
    let in_flight = u64::from(shape.jobs()) * u64::from(shape.iodepth());
    let mean_ns = in_flight * 1_000_000_000 / operations.max(1);
    run.latency_ns = vec![
        (mean_ns, operations * 95 / 100),
        (mean_ns * 3, operations * 48 / 1000),
        (mean_ns * 9, operations / 500),
    ];
    run.cost.host = Some(host_cpu(
        1.0 + f64::from(contender.iothreads().map_or(0, Iothreads::count)) * 0.4,
        16,
    ));
    run
}

/// More iothreads help until there are as many as jobs.
fn rate(cell: Cell, contender: Contender) -> u64 {
    let shape = cell.shape();
    let host = 20_000 * u64::from(shape.jobs()) * u64::from(shape.iodepth().min(8))
        / u64::from(shape.block().get() / 2048).max(1).isqrt();
    let Some(iothreads) = contender.iothreads() else { return host };
    let useful = iothreads.busy().min(shape.jobs());
    let share = if contender.subject() == Subject::VmQemu { 55 } else { 80 };
    let served = 9_000 * u64::from(useful) * u64::from(shape.iodepth().min(6));
    (host * share / 100).min(served) + u64::from(iothreads.count()) * 17
}

fn page(findings: &Findings<'_>) -> String {
    super::page(&Report::new(findings))
}

fn swept_with(cells: &[Cell], contenders: &[Contender]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (index, cell) in (0_u64..).zip(cells) {
        for (number, contender) in (0_u64..).zip(contenders) {
            for repeat in 0..3 {
                let noise = (index * 7 + number * 3 + u64::from(repeat) * 5) % 11;
                let rate = rate(*cell, *contender);
                runs.push(likely(*cell, *contender, repeat, rate + rate * noise / 200));
            }
        }
    }
    runs
}

/// The host and three subjects with all counts.
fn contenders() -> Vec<Contender> {
    let qemu = |count| Contender::new(Subject::VmQemu, Iothreads::new(count));
    let ringloom = |count| Contender::new(Subject::VmRingloom, Iothreads::new(count));
    let counts = || COUNTS.iter().copied();
    let guests = counts().map(qemu).chain(counts().map(ringloom));
    std::iter::once(Contender::HOST).chain(counts().map(client)).chain(guests).collect()
}

/// All cells of `--full`.
fn full() -> Vec<Cell> {
    let mut cells = Vec::new();
    for bytes in [2048, 4096, 32_768, 1 << 20] {
        for operation in ["randread", "randwrite", "read", "write"] {
            for jobs in [1, 4, 16] {
                cells.extend([1, 4, 16].map(|iodepth| cell(operation, bytes, jobs, iodepth)));
            }
        }
    }
    cells
}

/// How often a piece of the page occurs.
fn count(page: &str, piece: &str) -> usize {
    page.matches(piece).count()
}

#[test]
fn block_sizes_are_one_chart_with_a_line_for_each() {
    let header = header("sizes --subject host,vm:qemu,vm:ringloom");
    let runs = sizes_measured(&SIZES_ALL, (10, 9), 6);
    let one = page(&findings(&header, &runs));
    assert_eq!((count(&one, "role=\"img\""), count(&one, "class=\"limit\"")), (1, 0));
    for who in ["host", "vm:qemu 1", "vm:ringloom auto"] {
        assert_eq!(count(&one, &format!("<title>{who}, ")), 14, "{who}");
    }
    assert_eq!(count(&one, "<section class=\"cell\""), 0);
    assert_eq!(count(&one, "<section class=\"sizes\""), 1);
    assert!(one.len() < 100_000, "{}", one.len());
    // In the chart and in the legend.
    let runs = sizes_measured(&[client(0), client(1), client(2)], (1, 1), 3);
    let several = page(&findings(&header, &runs));
    let of = |class: &str| count(&several, &format!("s-client {class}"));
    assert_eq!((of("second"), of("third")), (2, 2));
}

#[test]
fn every_cell_has_a_card_with_four_charts_and_a_table() {
    let cells = [cell("randread", 4096, 4, 16), cell("write", 1 << 20, 1, 1)];
    let runs = swept_with(&cells, &contenders()[..6]);
    let mut header = header("");
    header.machine.cores = 16;
    let page = page(&findings(&header, &runs));
    assert_eq!(count(&page, "<section class=\"cell\""), 2);
    for piece in [
        "data-op=\"randread\" data-size=\"4k\" data-subjects=\"host client\"><h3>randread 4k, 4 jobs × iodepth 16</h3>",
        "data-op=\"write\" data-size=\"1M\" data-subjects=\"host client\"><h3>write 1M, 1 job × iodepth 1</h3>",
        "<span id=\"shown\">2</span> of 2 cells shown",
    ] {
        assert_eq!(count(&page, piece), 1, "{piece}");
    }
    assert_eq!(count(&page, "role=\"img\""), 8);
    assert_eq!(count(&page, "<desc>"), 8);
    // Of 6 contenders in 2 cells: a mark in each chart, and a row.
    let marks = count(&page, "<title>client 1: ") + count(&page, "<title>host: ");
    assert_eq!(marks, 2 * 2 * 4);
    assert_eq!(count(&page, "<tbody data-subject=\"client\">"), 2);
    assert_eq!(count(&page, "<tr><th>client "), 10);
    for id in ["filter-op", "filter-size", "filter-subject"] {
        assert_eq!(count(&page, &format!("id=\"{id}\"")), 1, "{id}");
    }
}

#[test]
fn the_published_form_has_gain_n90_and_ratio_with_totals() {
    let (small, large) = (cell("randread", 4096, 4, 16), cell("randread", 65_536, 4, 16));
    let mut runs = Vec::new();
    for (cell, none, one) in [(small, 1000, 2005), (large, 1000, 1000)] {
        runs.push(run(cell, Contender::HOST, 0, 4000));
        runs.push(run(cell, client(0), 0, none));
        runs.push(run(cell, client(1), 0, one));
    }
    let page = page(&findings(&header(""), &runs));
    for piece in [
        // 100.5 % and 0 %: the geometric mean is of the unrounded ratios.
        "<td class=\"h5\">101</td><td class=\"total\">101</td>",
        "<td class=\"total\">42</td><td class=\"total\">42</td>",
        // n90 of 1 and of none.
        "<td class=\"h1\">1</td><td class=\"total\">1.0</td>",
        "<td class=\"h0\">0</td><td class=\"total\">0.0</td>",
        "<td class=\"total\">0.5</td><td class=\"total\">0.5</td>",
        // 50.1 % and 25 %: their geometric mean is 35.4 %.
        "<td class=\"total\">35</td><td class=\"total\">35</td>",
    ] {
        assert!(page.contains(piece), "{piece}");
    }
}

#[test]
fn hostile_text_stays_text() {
    let hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";
    let mut header = header("");
    header.disk.origin = Origin::User;
    header.disk.path = PathBuf::from(format!("/disks/{hostile}"));
    header.disk.description = hostile.to_owned();
    header.machine.cpu = hostile.to_owned();
    header.programs.qemu = Some(hostile.to_owned());
    header.environment.cpu.model = Some(hostile.to_owned());
    let runs = [run(cell("read", 4096, 1, 1), client(1), 0, 5)];
    let failures = [Failure::new(
        run(cell("read", 4096, 1, 1), client(2), 0, 5).key,
        &anyhow::anyhow!("{hostile}"),
    )];
    let (notes, pruned) = ([hostile.to_owned()], [hostile.to_owned()]);
    let page = page(&Findings {
        failures: &failures,
        notes: &notes,
        pruned: &pruned,
        ..findings(&header, &runs)
    });
    assert_eq!(count(&page, "<script>"), 2, "one before the page is drawn, one after");
    assert!(!page.contains("<img"));
    assert!(count(&page, "&lt;script&gt;alert(1)") >= 7);
}

#[test]
fn nothing_is_fetched() {
    let runs = swept_with(&[cell("randread", 4096, 4, 16)], &contenders());
    let page = page(&findings(&header(""), &runs));
    // What is to be copied may name anything.
    let copied = |rest: &str| rest.split_once("</pre>").map(|(_, after)| after.to_owned());
    let mut parts = page.split("<pre>");
    let mut bare = parts.next().unwrap().to_owned();
    bare.extend(parts.map(|rest| copied(rest).unwrap()));
    assert!(bare.len() < page.len(), "there is a configuration");
    for piece in ["http:", "https:", "src=", "url(", "@import", "<link", "<iframe", "fetch("] {
        assert!(!bare.contains(piece), "{piece}");
    }
    let targets: Vec<&str> =
        page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(targets.iter().all(|target| target.starts_with('#')), "{targets:?}");
}

#[test]
fn a_full_sweep_of_three_subjects_is_less_than_3500_kb_and_of_two_less_than_2500_kb() {
    for (subjects, limit) in [(3, 3_500_000), (2, 2_500_000)] {
        let runs = swept_with(&full(), &contenders()[..1 + subjects * COUNTS.len()]);
        let page = page(&findings(&header(""), &runs));
        assert_eq!(count(&page, "<section class=\"cell\""), 144);
        assert!(page.len() < limit, "{subjects} subjects: {}", page.len());
    }
}

#[test]
fn what_is_missing_is_said_in_words() {
    let reads = cell("read", 4096, 1, 1);
    let shown = |runs: &[Run]| page(&findings(&header(""), runs));
    let no_host = shown(&[run(reads, client(0), 0, 5), run(reads, client(1), 0, 6)]);
    assert!(no_host.contains("The host was not measured with the same load"));
    let no_none = shown(&[run(reads, client(1), 0, 5), run(reads, client(2), 0, 6)]);
    assert!(no_none.contains("None was not measured beside"));
    let host_alone = shown(&[run(reads, Contender::HOST, 0, 5)]);
    assert!(host_alone.contains("No numbers of iothreads were compared, so"));
    assert!(shown(&[]).contains("No run succeeded"));
}

#[test]
fn rates_that_are_no_numbers_are_named_and_not_drawn() {
    let reads = cell("read", 4096, 1, 1);
    let mut never = run(reads, client(1), 0, 0);
    never.elapsed_ns = 0;
    let mut endless = run(reads, client(2), 0, 7);
    endless.elapsed_ns = 0;
    let runs = [run(reads, client(0), 0, 0), never, endless, run(reads, Contender::HOST, 0, 9)];
    let page = page(&findings(&header(""), &runs));
    let sentence =
        "Not drawn, because the rate is no number or zero: client none, client 1, client 2.";
    assert!(page.contains(sentence), "{page}");
    assert!(!page.contains("\"NaN\"") && !page.contains("MNaN") && !page.contains("Minf"));
}

#[test]
fn a_cell_that_only_failed_is_shown_with_its_failures() {
    let (good, bad) = (cell("read", 4096, 1, 1), cell("write", 4096, 1, 1));
    let runs = [run(good, client(0), 0, 5)];
    let failures = [0, 1].map(|repeat| {
        Failure::new(run(bad, client(3), repeat, 5).key, &anyhow::anyhow!("no memory"))
    });
    let page = page(&Findings { failures: &failures, ..findings(&header(""), &runs) });
    let sentence = "No run of this cell succeeded. 2 runs failed: client 3; the notes say why.";
    assert!(page.contains(sentence), "{page}");
    assert!(page.contains("data-op=\"write\" data-size=\"4k\" data-subjects=\"client\""));
    assert!(page.contains("of 2 cells shown"));
}

#[test]
fn probes_and_curves_have_charts_and_tables() {
    let mut runs = probe_runs(client(1), 0, [40_000, 100_000, 80_000]);
    runs.extend(curve_runs(client(2), 0, [1000, 500, 700, 850]));
    let page = page(&findings(&header("--jobs 4,40"), &runs));
    for piece in [
        "<h3>client 1: randread 4k, 4 → 40 → 4 jobs × iodepth 1</h3>",
        "<text x=\"169\">high (40)</text>",
        "<h3>client 2: randread 4k, 2 jobs × iodepth 16</h3>",
        "90 % of the maximum was missed: 850 reached",
    ] {
        assert!(page.contains(piece), "{piece}");
    }
    assert_eq!(count(&page, "role=\"img\""), 4);
    assert_eq!(count(&page, "<section class=\"cell\""), 0);
    assert!(!page.contains("id=\"shown\""));
}

#[test]
fn configurations_are_named_after_what_there_are_files_for() {
    let reads = cell("randread", 4096, 2, 16);
    let shown = |contender: fn(Iothreads) -> Contender| {
        let mut runs = Vec::new();
        for (repeat, count) in (0..3).flat_map(|repeat| [(repeat, 0), (repeat, 2)]) {
            let contender = contender(Iothreads::new(count));
            runs.push(run(reads, contender, repeat, 100 + 50 * u64::from(count)));
        }
        page(&findings(&header("--subject vm:qemu --repeats 3"), &runs))
    };
    let qemu = shown(|iothreads| Contender::new(Subject::VmQemu, iothreads));
    let ringloom = shown(|iothreads| Contender::new(Subject::VmRingloom, iothreads));
    for (page, targets) in
        [(qemu, "QEMU, libvirt and KubeVirt"), (ringloom, "ringloom, QEMU and libvirt")]
    {
        assert!(page.contains(&format!("Configurations</a> for {targets}<")), "{targets}");
        assert!(page.contains(&format!("The answer for {targets};")), "{targets}");
    }
}

#[test]
fn the_page_of_a_comparison_is_whole_and_takes_no_text_for_markup() {
    let hostile = "<script>alert(1)</script>\"'>";
    let runs =
        swept_with(&[cell("randread", 4096, 4, 16), cell("write", 4096, 1, 1)], &contenders());
    let cells = findings::summary::summarise(&runs, 16);
    let header = header("");
    let side = Side { name: hostile, findings: findings(&header, &runs), cells: &cells };
    let compared = Compared {
        a: side,
        b: side,
        differences: &[hostile.to_owned()],
        comparison: &Comparison::new(&cells, &cells),
    };
    let page = comparison(&compared);
    assert_eq!(count(&page, "<script>"), 2, "one before the page is drawn, one after");
    assert!(count(&page, "&lt;script&gt;alert(1)") >= 2);
    for piece in ["http:", "https:", "src=", "url(", "@import", "<link", "<iframe", "fetch("] {
        assert!(!page.contains(piece), "{piece}");
    }
    assert_eq!(count(&page, "id=\"filter-op\""), 1);
    assert_eq!(count(&page, "class=\"strip\""), 2 * contenders().len());
    assert_eq!(count(&page, "data-verdict=\"noise\""), 2 * contenders().len());
    let nothing = Comparison::new(&cells, &[]);
    let page = comparison(&Compared { comparison: &nothing, ..compared });
    assert!(page.contains("No row is in both") && !page.contains("id=\"filter-op\""), "{page}");
}

#[test]
fn of_all_cells_at_a_glance_those_that_changed_are_coloured() {
    let measured = |rates: [u64; 2]| {
        let cells = [4096, 65_536].map(|bytes| cell("randread", bytes, 4, 16));
        let of = |(cell, iops): (Cell, u64)| {
            (0..6).map(move |repeat| run(cell, client(1), repeat, iops + u64::from(repeat)))
        };
        let runs: Vec<Run> = cells.into_iter().zip(rates).flat_map(of).collect();
        (findings::summary::summarise(&runs, 16), runs)
    };
    let ((a, runs_a), (b, runs_b)) = (measured([1000, 1000]), measured([1000, 2000]));
    let header = header("");
    let page = comparison(&Compared {
        a: Side { name: "a", findings: findings(&header, &runs_a), cells: &a },
        b: Side { name: "b", findings: findings(&header, &runs_b), cells: &b },
        differences: &[],
        comparison: &Comparison::new(&a, &b),
    });
    for (piece, times) in [("<td class=\"f3\">2.00</td>", 1), ("<td class=\"none\">1.00</td>", 1)] {
        assert_eq!(count(&page, piece), times, "{piece} in\n{page}");
    }
}

#[test]
fn how_it_was_measured_is_in_words_and_without_guests_where_there_were_none() {
    let runs = swept_with(&[cell("randread", 4096, 4, 16)], &contenders());
    let with = |options: &str| {
        let header = header(options);
        page(&findings(&header, &runs))
    };
    let alone = with("--subject client,host --budget 90m --bs 4k,1m");
    for piece in ["<dt>time for all</dt><dd>1 h 30 min</dd>", "<dt>block sizes</dt><dd>4k, 1M</dd>"]
    {
        assert!(alone.contains(piece), "{piece}\nis missing in\n{alone}");
    }
    assert!(!alone.contains("accelerator asked for") && !alone.contains("engine in guests"));
    let guests = with("--subject vm:ringloom");
    assert!(guests.contains("<dt>accelerator asked for</dt><dd>auto</dd>"), "{guests}");
}

#[test]
fn sentinels_and_the_windows_of_runs_are_drawn_over_time() {
    let cell = cell("randread", 4096, 2, 16);
    let with = |sentinels: u32, windows: &[(u64, u64)]| {
        let mut runs = vec![run(cell, client(1), 0, 1000)];
        runs[0].windows = windows.to_vec();
        for step in 0..sentinels {
            let mut sentinel = run(cell, Contender::HOST, 0, 2000 + u64::from(step));
            sentinel.key.purpose = plan::runs::Purpose::Sentinel;
            sentinel.key.step = step;
            sentinel.started_unix_s += 60 * u64::from(step);
            runs.push(sentinel);
        }
        page(&findings(&header(""), &runs))
    };
    let windows: Vec<(u64, u64)> = [150, 100, 100, 100, 50].map(|it| (200_000_000, it)).to_vec();
    let all = with(3, &windows);
    assert!(all.contains("host at 22:15: 2.00k IOPS"), "{all}");
    assert!(all.contains("client, 1st fifth: 150 % (150–150)"), "{all}");
    assert!(all.contains("client, 5th fifth: 50 % (50–50)"), "{all}");
    assert!(!with(2, &[]).contains("id=\"times\""), "two sentinels show no course");
    assert!(with(2, &windows).contains("Nothing was measured for this."));
}
