//! The published tables, read from the examples; and tables that are damaged.

use super::*;

fn examples() -> PublishedSweep {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    PublishedSweep::read(&root.join("docs/examples/published-sweep")).unwrap().unwrap()
}

#[test]
fn the_published_sweep_is_read_whole() {
    let sweep = examples();
    assert_eq!(sweep.problems, [""; 0]);
    for table in [&sweep.gains.unwrap(), &sweep.n90s.unwrap()] {
        assert_eq!((table.cells.len(), table.form.rows.len()), (144, 16));
        assert_eq!(table.form.columns.len(), 9);
        assert!(table.form.cells.iter().flatten().all(Option::is_some) && table.is_rounded());
    }
}

#[test]
fn its_90_percent_rule_holds() {
    let (gains, n90s) = (examples().gains.unwrap(), examples().n90s.unwrap());
    for ((cell, gain), (other, n90)) in gains.cells.iter().zip(&n90s.cells) {
        assert_eq!(cell, other);
        assert_eq!(*n90 == 0.0, *gain <= 10.0, "{cell}: {gain} %, {n90}");
        assert_eq!(*n90 >= 1.0, *gain >= 12.0, "{cell}: {gain} %, {n90}");
    }
}

#[test]
fn its_shares_are_the_published_ones() {
    let n90s = examples().n90s.unwrap();
    for (most, cells) in [(0.0, 33), (1.0, 79), (4.0, 112), (8.0, 129), (12.0, 142), (16.0, 144)] {
        assert_eq!(n90s.at_most(most), (144, cells), "{most}");
    }
    let one_job = n90s.cells.iter().filter(|(cell, _)| cell.shape().jobs() == 1);
    assert!(one_job.clone().count() == 48 && one_job.clone().all(|(_, n90)| *n90 <= 1.0));
}

/// The mean of figures by a property of their cells.
fn mean(table: &PublishedTable, wanted: impl Fn(&Cell) -> bool) -> f64 {
    let own: Vec<f64> =
        table.cells.iter().filter(|(cell, _)| wanted(cell)).map(|(_, figure)| *figure).collect();
    own.iter().sum::<f64>() / own.len() as f64
}

/// The study of the published tables gives these means, to whole percent.
#[test]
fn its_means_are_the_published_ones() {
    let gains = examples().gains.unwrap();
    assert_eq!(gains.form.total.unwrap().round(), 100.0);
    for (jobs, expected) in [(1, 35.0), (4, 75.0), (16, 191.0)] {
        assert_eq!(mean(&gains, |cell| cell.shape().jobs() == jobs).round(), expected);
    }
    for (size, expected) in [(2048, 165.0), (4096, 159.0), (32_768, 73.0), (1 << 20, 4.0)] {
        let of_size = |cell: &Cell| cell.shape().block().get() == size;
        assert_eq!(mean(&gains, of_size).round(), expected, "{size}");
        let total = gains.form.size_total(Mean::Arithmetic, crate::units::Bytes(size.into()));
        assert_eq!(total.unwrap().round(), expected, "{size}");
    }
}

/// The published totals are means of figures that were not rounded, and are not known here. Whatever those figures were,
/// our totals of the rounded ones differ from theirs by no more than rounding explains: a half, and so, rounded
/// themselves, by one at most.
#[test]
fn its_totals_are_right_as_far_as_rounding_lets_them() {
    let gains = examples().gains.unwrap();
    for seed in 0..100 {
        let mut random = load::Random::new(seed);
        let mut unrounded = |figure: f64| {
            let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
            // As they would be before rounding to the nearest.
            figure - 0.5 + part
        };
        let cells: Vec<(Cell, f64)> =
            gains.cells.iter().map(|(cell, figure)| (*cell, unrounded(*figure))).collect();
        assert!(cells.iter().zip(&gains.cells).all(|(a, b)| (a.1 + 0.5).floor() == b.1));
        let theirs = PublishedForm::new(Mean::Arithmetic, cells);
        let totals = |form: &PublishedForm| -> Vec<f64> {
            let sizes = form.size_totals.iter().flat_map(|(_, totals)| totals);
            let all = sizes.chain(&form.row_totals).chain(&form.column_totals).chain([&form.total]);
            all.map(|total| total.unwrap()).collect()
        };
        let (ours, theirs) = (totals(&gains.form), totals(&theirs));
        assert_eq!(ours.len(), 4 * 9 + 16 + 9 + 1);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() <= 0.5, "{ours} {theirs}");
            let whole = |total: &f64| (total + 0.5).floor();
            assert!((whole(ours) - whole(theirs)).abs() <= 1.0, "{ours} {theirs}");
        }
    }
}

/// Numbers of iothreads are whole, so their totals are exact.
#[test]
fn the_totals_of_the_minimum_are_exact() {
    let n90s = examples().n90s.unwrap();
    let (size, totals) = &n90s.form.size_totals[0];
    assert_eq!(size.0, 2048);
    let of = |jobs, iodepth| {
        mean(&n90s, |cell| {
            let shape = cell.shape();
            (shape.block().get(), shape.jobs(), shape.iodepth()) == (2048, jobs, iodepth)
        })
    };
    assert_eq!(totals[0], Some(of(1, 1)));
    assert_eq!(totals[8], Some(of(16, 16)));
}

#[track_caller]
fn check(lines: &[&str], kind: Kind, cells: usize, problem: &str) {
    let text = format!("{HEADER}\n{}\n", lines.join("\n"));
    let (table, problems) = parse(&text, kind).unwrap();
    assert_eq!(table.cells.len(), cells, "{problems:?}");
    assert!(problems.len() == 1 && problems[0].contains(problem), "{problems:?}");
}

#[test]
fn lines_that_are_wrong_are_named_and_left_out() {
    let good = "4096,randread,4,16,87.5";
    for (line, problem) in [
        ("4096,randread,4,16", "line 3 (it has 4 fields, not 5)"),
        ("4096,randread,4,16,NaN", "line 3 (value 'NaN' cannot be)"),
        ("4096,randread,4,16,inf", "cannot be"),
        ("4096,randread,4,16,-101", "cannot be"),
        ("4096,randread,4,16,x", "value 'x': invalid float"),
        ("4095,randread,4,16,1", "4095"),
        ("4096,readrandom,4,16,1", "readrandom"),
        ("4096,randread,0,16,1", "jobs 0"),
        ("4096,randread,70000,16,1", "jobs '70000': number too large"),
        ("4096,randread,4,16,9", "as they repeat a cell, 1 line: line 3 (randread 4k jobs=4"),
    ] {
        check(&[good, line], Kind::Gains, 1, problem);
    }
    check(&["4096,read,1,1,1", "4096,read,1,4,1.5"], Kind::N90s, 1, "value '1.5' cannot be");
    check(&["4096,read,1,1,1", "4096,read,1,4,257"], Kind::N90s, 1, "value '257' cannot be");
    let many = ["x"; 7];
    check(&[&[good], &many[..]].concat(), Kind::Gains, 1, "7 lines: line 3 (");
}

#[test]
fn other_files_are_refused_or_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    assert!(PublishedSweep::read(directory.path()).unwrap().is_none());
    let path = directory.path().join("improvement.csv");
    for (text, words) in [
        ("", "first line is not size,op,jobs,iodepth,value"),
        ("a,b\n1,2\n", "first line is not size,op,jobs,iodepth,value"),
        ("size,op,jobs,iodepth,value\n", "no line of it can be used"),
        ("size,op,jobs,iodepth,value\nx\n", "no line of it can be used: left out, as they cannot"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = format!("{:#}", PublishedSweep::read(directory.path()).unwrap_err());
        assert!(error.contains("improvement.csv") && error.contains(words), "{error}");
    }
    std::fs::write(&path, "\u{feff}size,op,jobs,iodepth,value\r\n4096,read,1,1,5\r\n\r\n").unwrap();
    let sweep = PublishedSweep::read(directory.path()).unwrap().unwrap();
    assert!(sweep.n90s.is_none() && sweep.gains.unwrap().cells.len() == 1);
    std::fs::write(&path, vec![b'x'; 5 << 20]).unwrap();
    let error = PublishedSweep::read(directory.path()).unwrap_err().to_string();
    assert!(error.contains("is larger than"), "{error}");
}
