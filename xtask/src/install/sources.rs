//! Reads and writes apt's lists of sources, in both formats (sources.list(5)).
//!
//! Invariants: pure. A new suite is written as a copy of a source that this machine already
//! uses: same mirror, same key, same options; no address is known here.

/// Whether a file of sources names the suite and does not switch it off.
pub(crate) fn has_suite(text: &str, suite: &str) -> bool {
    stanza_of(text, suite).is_some() || line_of(text, suite).is_some()
}

/// A stanza for `suite`, made from the source of `from` in this file, if it has one.
pub(crate) fn with_suite(text: &str, from: &str, suite: &str) -> Option<String> {
    let fields = stanza_of(text, from).or_else(|| line_of(text, from))?;
    let mut stanza = format!(
        "# Written by `cargo xtask`: QEMU and a kernel that the tests of ringloom need.\n\
         Types: deb\nSuites: {suite}\nComponents: main\n"
    );
    for (name, value) in fields {
        if !["types", "suites", "components"].contains(&name.to_lowercase().as_str()) {
            stanza.push_str(&format!("{name}:{value}\n"));
        }
    }
    Some(stanza)
}

/// Names and values (with their leading blank, lines of continuation included) of a stanza.
type Fields = Vec<(String, String)>;

/// The first deb822 stanza that has binary packages of the suite.
fn stanza_of(text: &str, suite: &str) -> Option<Fields> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.split(|line| line.trim().is_empty()).map(fields_of).find(|fields| {
        let has = |name: &str, word: &str| {
            fields.iter().any(|(key, value)| {
                key.eq_ignore_ascii_case(name) && value.split_whitespace().any(|it| it == word)
            })
        };
        has("Types", "deb") && has("Suites", suite) && !has("Enabled", "no")
    })
}

fn fields_of(lines: &[&str]) -> Fields {
    let mut fields = Fields::new();
    for line in lines {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.to_owned(), value.to_owned()));
        }
    }
    fields
}

/// The first line `deb [options] uri suite components` of the suite, as fields of a stanza.
fn line_of(text: &str, suite: &str) -> Option<Fields> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let uri = words.next()?;
        if words.next()? != suite {
            return None;
        }
        let mut fields = vec![("URIs".to_owned(), format!(" {uri}"))];
        for (name, value) in options.split_whitespace().filter_map(|it| it.split_once('=')) {
            let name = match name {
                "arch" => "Architectures",
                "signed-by" => "Signed-By",
                "trusted" => "Trusted",
                "check-valid-until" => "Check-Valid-Until",
                _ => continue,
            };
            fields.push((name.to_owned(), format!(" {}", value.replace(',', " "))));
        }
        Some(fields)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN_SOURCES: &str = "\
Types: deb
# a remark
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN KEY-----
 .
";

    #[track_caller]
    fn check_suite(text: &str, suite: &str, expected: bool) {
        assert_eq!(has_suite(text, suite), expected, "{suite} in {text}");
    }

    #[test]
    fn a_suite_is_known_by_its_whole_name() {
        check_suite(DEBIAN_SOURCES, "bookworm", true);
        check_suite(DEBIAN_SOURCES, "bookworm-backports", false);
        check_suite("deb http://m/debian bookworm-backports main\n", "bookworm-backports", true);
        check_suite("# deb http://m/debian bookworm-backports main\n", "bookworm-backports", false);
        check_suite("Types: deb\nEnabled: no\nSuites: bookworm\n", "bookworm", false);
        check_suite("Types: deb-src\nSuites: bookworm\n", "bookworm", false);
    }

    #[test]
    fn a_stanza_is_copied_with_mirror_and_key() {
        let text = with_suite(DEBIAN_SOURCES, "bookworm", "bookworm-backports")
            .expect("the file has bookworm");
        assert!(text.ends_with(
            "Types: deb\nSuites: bookworm-backports\nComponents: main\n\
             URIs: http://mirror.example/debian\nSigned-By:\n -----BEGIN KEY-----\n .\n"
        ));
        assert!(has_suite(&text, "bookworm-backports"));
    }

    #[test]
    fn a_one_line_source_becomes_a_stanza() {
        let line = "deb [arch=amd64,i386 signed-by=/k.gpg] http://m/debian bookworm main\n";
        let text = with_suite(line, "bookworm", "bookworm-backports").expect("it has bookworm");
        assert!(
            text.ends_with("URIs: http://m/debian\nArchitectures: amd64 i386\nSigned-By: /k.gpg\n")
        );
    }

    #[test]
    fn a_file_without_the_release_gives_nothing() {
        assert_eq!(with_suite("deb http://m/node nodistro main", "bookworm", "x"), None);
    }
}
