//! Where marks, lines and labels are.

use super::*;

#[test]
fn scales_have_few_round_lines() {
    for (high, ticks) in [
        (0.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
        (7.0, vec![0.0, 2.0, 4.0, 6.0, 8.0]),
        (90_000.0, vec![0.0, 25_000.0, 50_000.0, 75_000.0, 100_000.0]),
    ] {
        assert_eq!(linear(high).ticks, ticks, "{high}");
    }
    for (low, high, ends, ticks) in [
        (100.0, 100.0, (100.0, 200.0), vec![100.0, 200.0]),
        (90.0, 400.0, (50.0, 500.0), vec![50.0, 100.0, 200.0, 500.0]),
        (60.0, 12_000.0, (50.0, 20_000.0), vec![100.0, 1000.0, 10_000.0]),
        (0.0, 0.5, (0.001, 0.5), vec![0.001, 0.01, 0.1]),
    ] {
        let axis = logarithmic(low, high);
        let found: Vec<f64> = axis.ticks.iter().copied().chain([axis.low, axis.high]).collect();
        let expected: Vec<f64> = ticks.into_iter().chain([ends.0, ends.1]).collect();
        let close = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-9;
        let all = found.iter().zip(&expected).all(close);
        assert!(found.len() == expected.len() && all, "{axis:?}");
    }
    assert!(logarithmic(f64::MIN_POSITIVE, f64::MAX).ticks.len() < 30);
}

fn mark(slot: usize, value: f64) -> Mark {
    Mark::new(slot, value, format!("at {slot}"))
}

fn svg(scale: Scale, marks: Vec<Mark>) -> Option<String> {
    let categories = ["1", "2"].map(str::to_owned);
    let plot = Plot {
        title: "t",
        description: "d",
        categories: &categories,
        scale,
        label: |value| value.to_string(),
        limit: None,
        across: Across::Names,
        series: vec![Series { subject: "client".to_owned(), class: "s-client", nth: 0, marks }],
    };
    plot.svg().map(|svg| svg.into_string())
}

#[test]
fn marks_are_where_their_values_are() {
    let range = Some(Range::Interval { low: 2.0, high: 8.0 });
    let text = svg(Scale::Linear, vec![mark(0, 8.0), Mark { range, ..mark(1, 4.0) }]).unwrap();
    // The plot is 138 high and begins at 10: 8 is at the top, 4 in the middle.
    for piece in [
        "<circle cx=\"107\" cy=\"10\" r=\"3\"><title>at 0</title></circle>",
        "<circle cx=\"232\" cy=\"79\" r=\"3\"><title>at 1</title></circle>",
        "<path class=\"line\" d=\"M107 10l125 69\"/>",
        "<path class=\"interval\" d=\"M232 113.5V10m-3 0h6m-6 103.5h6\"/>",
        "data-subject=\"client\"",
    ] {
        assert!(text.contains(piece), "{piece} in {text}");
    }
}

/// The labels of a chart of the host, none and so many counts.
fn labels(counts: impl Iterator<Item = u16>) -> Vec<String> {
    let names = ["host".to_owned(), "none".to_owned()];
    let categories: Vec<String> =
        names.into_iter().chain(counts.map(|it| it.to_string())).collect();
    let edges = edges(&categories);
    assert!((edges[categories.len()] - (WIDTH - RIGHT)).abs() < 1e-6, "{edges:?}");
    let frame = Frame { low: 0.0, high: 1.0, scale: Scale::Linear, lane: LANE, edges };
    labelled(&frame, &categories).into_iter().map(|it| categories[it].clone()).collect()
}

#[test]
fn of_many_categories_every_nth_is_labelled() {
    let some = [1, 2, 3, 4, 6, 8, 12, 16];
    assert_eq!(labels(some.into_iter()).len(), 10);
    let expected = ["host", "none", "4", "8", "12", "16", "20", "24", "28", "32"];
    assert_eq!(labels(1..=32), expected);
    let many = labels(1..=256);
    assert!(many.len() < 12 && many.last().unwrap() == "256", "{many:?}");
    assert_eq!(many[..2], ["host", "none"]);
}

#[test]
fn what_is_no_number_is_not_drawn() {
    for scale in [Scale::Linear, Scale::Logarithmic] {
        assert_eq!(svg(scale, vec![]), None);
        assert_eq!(svg(scale, vec![mark(0, f64::NAN), mark(1, f64::INFINITY)]), None);
        let range = Some(Range::Spread { low: f64::NAN, high: f64::INFINITY });
        let above = vec![f64::NAN, f64::INFINITY];
        let marks = vec![Mark { range, above, ..mark(0, 0.0) }, mark(1, 1e300), mark(7, 5.0)];
        let text = svg(scale, marks).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(text.matches("<circle").count(), 2);
    }
}
