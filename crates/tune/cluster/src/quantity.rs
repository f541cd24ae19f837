//! Kubernetes' quantities: numbers with a unit, such as `500m`, `4` and `10Gi`.

/// Units and what they are worth; those of two letters come first.
const UNITS: [(&str, f64); 13] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// What a quantity is as a number.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (digits, factor) =
        unit.map_or((text, 1.0), |(unit, factor)| (&text[..text.len() - unit.len()], *factor));
    let is_plain = digits.starts_with(|it: char| it.is_ascii_digit())
        && digits
            .chars()
            .all(|it| it.is_ascii_digit() || matches!(it, '.' | 'e' | 'E' | '+' | '-'));
    is_plain.then(|| digits.parse::<f64>().ok()).flatten().map(|it| it * factor)
}

/// A number as whole bytes or the like; what is no such number is 0.
pub(crate) fn whole(text: &str) -> u64 {
    parse(text).and_then(|it| format!("{it:.0}").parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_kubernetes() {
        for (text, expected) in [
            ("4", Some(4.0)),
            ("500m", Some(0.5)),
            ("1.5", Some(1.5)),
            ("2Ki", Some(2048.0)),
            ("1G", Some(1e9)),
            ("1e3", Some(1000.0)),
            ("123456789n", Some(0.123_456_789)),
            ("", None),
            ("Gi", None),
            ("1Gb", None),
            ("-1", None),
            ("infinity", None),
        ] {
            let found = parse(text);
            let is_near = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
                (found, expected) => found == expected,
            };
            assert!(is_near, "{text}: {found:?}");
        }
        assert_eq!(whole("128974848"), 128_974_848);
        assert_eq!(whole("nonsense"), 0);
    }
}
