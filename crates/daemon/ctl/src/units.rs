//! Sizes, times, limits and names as people write and read them.

use serde_json::{Map, Value};

/// Units in bytes, the largest first.
const UNITS: [(char, u32); 6] = [('E', 60), ('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// A size, or how much is added to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeChange {
    To(u64),
    By(u64),
}

pub(crate) fn parse_size(text: &str) -> Result<SizeChange, String> {
    match text.strip_prefix('+') {
        Some(more) => parse_bytes(more).map(SizeChange::By),
        None => parse_bytes(text).map(SizeChange::To),
    }
}

/// Bytes with a unit, as QEMU takes them: `20G` is 20 × 1024³.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let plain = text.strip_suffix("iB").unwrap_or(text);
    let unit = plain.chars().last().map(|it| it.to_ascii_uppercase());
    let (digits, bits) = match UNITS.iter().find(|(letter, _)| Some(*letter) == unit) {
        Some((_, bits)) => (&plain[..plain.len() - 1], *bits),
        None => (plain, 0),
    };
    let number = if digits.starts_with('+') { None } else { digits.parse::<u64>().ok() };
    let bytes = number.and_then(|number| number.checked_mul(1 << bits));
    bytes
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| format!("'{text}' is no size: say bytes, or 512K, 100M, 20G, 2T"))
}

/// Bytes with the unit that suits them, rounded down: a disk is not shown larger than it is.
pub(crate) fn bytes(count: u64) -> String {
    let Some((letter, bits)) = UNITS.iter().find(|(_, bits)| count >> bits > 0) else {
        return format!("{count} B");
    };
    match (count >> bits, ((u128::from(count) * 10) >> bits) % 10) {
        (whole, 0) => format!("{whole} {letter}iB"),
        (whole, tenths) => format!("{whole}.{tenths} {letter}iB"),
    }
}

/// Nanoseconds with the unit that suits them, rounded down.
pub(crate) fn time(nanoseconds: u64) -> String {
    let steps = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs"), (1, "ns")];
    let suits = |(step, _): &&(u64, &str)| nanoseconds >= *step;
    let (step, unit) = steps.iter().find(suits).unwrap_or(&(1, "ns"));
    format!("{} {unit}", nanoseconds / step)
}

/// A limit of a throttle group and its value.
pub(crate) type Limit = (String, u64);

/// All limits there are (QEMU's `ThrottleLimits`).
fn limit_names() -> impl Iterator<Item = String> {
    let kinds = ["iops", "bps"]
        .into_iter()
        .flat_map(|unit| ["total", "read", "write"].map(|operation| format!("{unit}-{operation}")));
    kinds
        .flat_map(|kind| ["", "-max", "-max-length"].map(|end| format!("{kind}{end}")))
        .chain(["iops-size".to_owned()])
}

fn is_in_bytes(limit: &str) -> bool {
    limit == "iops-size" || limit.starts_with("bps") && !limit.ends_with("length")
}

pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    let (given, value) = text.split_once('=').ok_or("say LIMIT=VALUE, as iops-total=2000")?;
    let known = limit_names().find(|name| name == given);
    let name = known.ok_or_else(|| format!("there is {}", no("limit", given, limit_names())))?;
    let value = match is_in_bytes(&name) {
        true => parse_bytes(value)?,
        false => value.parse().map_err(|error| format!("'{value}': {error}"))?,
    };
    Ok((name, value))
}

/// The limits that limit something. The length of a burst says something only beside the burst.
pub(crate) fn limits(limits: &Value) -> String {
    let value = |name: &str| limits[name].as_u64().unwrap_or(0);
    let says_something =
        |name: &String| value(name.strip_suffix("-length").unwrap_or(name)) > 0 && value(name) > 0;
    let shown = |name: String| match is_in_bytes(&name) {
        true => format!("{name}={}", bytes(value(&name)).replace(' ', "")),
        false => format!("{name}={}", value(&name)),
    };
    let all: Vec<String> = limit_names().filter(says_something).map(shown).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

/// An export, or one of its queues.
pub(crate) fn parse_queue(text: &str) -> Result<(String, Option<u16>), String> {
    let Some((export, queue)) = text.rsplit_once(':') else { return Ok((text.to_owned(), None)) };
    let queue = queue.parse().map_err(|error| format!("queue '{queue}': {error}"))?;
    Ok((export.to_owned(), Some(queue)))
}

/// A JSON object.
pub(crate) fn parse_object(text: &str) -> Result<Value, String> {
    let object: Result<Map<String, Value>, _> = serde_json::from_str(text);
    object.map(Value::from).map_err(|error| {
        format!("arguments are a JSON object, as {{\"node-name\": \"disk\"}}: {error}")
    })
}

/// The sentence of a name that is not there, with the nearest one, unless all are far.
pub(crate) fn no<T: AsRef<str>>(
    kind: &str,
    given: &str,
    names: impl IntoIterator<Item = T>,
) -> String {
    let distance = |name: T| (strsim::damerau_levenshtein(given, name.as_ref()), name);
    let nearest = names.into_iter().map(distance).min_by_key(|(distance, _)| *distance);
    match nearest.filter(|(distance, _)| *distance <= given.chars().count().div_ceil(3)) {
        Some((_, name)) => format!("no {kind} '{given}'; did you mean '{}'?", name.as_ref()),
        None => format!("no {kind} '{given}'"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        for (text, expected) in [
            ("512", Some(512)),
            ("20G", Some(20 << 30)),
            ("20GiB", Some(20 << 30)),
            ("1k", Some(1024)),
            ("7E", Some(7 << 60)),
            ("8E", None),
            ("99999999999999999999", None),
            ("", None),
            ("G", None),
            ("1.5G", None),
            ("-1", None),
            ("+1", None),
            ("5 G", None),
            ("20GB", None),
            ("1é", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), expected, "{text}");
        }
        assert_eq!(parse_size("+5G"), Ok(SizeChange::By(5 << 30)));
        assert_eq!(parse_size("5G"), Ok(SizeChange::To(5 << 30)));
    }

    #[test]
    fn sizes_and_times_are_shown_with_the_unit_that_suits_them() {
        for (count, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 40) - 1, "1023.9 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        for (nanoseconds, expected) in [(0, "0 ns"), (1999, "1 µs"), (85_000_000_000, "85 s")] {
            assert_eq!(time(nanoseconds), expected);
        }
    }

    #[test]
    fn limits_have_names_and_units() {
        assert_eq!(parse_limit("iops-total=2000"), Ok(("iops-total".to_owned(), 2000)));
        assert_eq!(parse_limit("bps-read=100M"), Ok(("bps-read".to_owned(), 100 << 20)));
        assert!(
            parse_limit("iops-totl=1").is_err_and(|it| it.contains("did you mean 'iops-total'?"))
        );
        assert!(parse_limit("iops-total=2k").is_err() && parse_limit("iops-total").is_err());
        assert_eq!(limit_names().count(), 19);
        let burst = json!({"bps-read": 1 << 20, "bps-read-max-length": 1, "iops-read": 5});
        assert_eq!(limits(&burst), "iops-read=5 bps-read=1MiB");
        assert_eq!(limits(&json!("")), "none");
    }
}
