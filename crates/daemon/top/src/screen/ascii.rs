//! Screens for terminals that are not said to know UTF-8: the same, in ASCII.

use ratatui::buffer::Buffer;

/// What stands for a character.
const INSTEAD: [(&str, &str); 18] = [
    ("▁", "_"),
    ("▂", "_"),
    ("▃", "."),
    ("▄", "-"),
    ("▅", "-"),
    ("▆", "="),
    ("▇", "+"),
    ("█", "#"),
    ("░", "."),
    ("─", "-"),
    ("…", "~"),
    ("µ", "u"),
    ("≤", "<"),
    ("×", "x"),
    ("↑", "^"),
    ("↓", "v"),
    ("·", "."),
    ("\u{fffd}", "?"),
];

/// Whether the locale says that the terminal knows UTF-8.
pub(super) fn is_utf8() -> bool {
    let set = |name| std::env::var_os(name).filter(|it| !it.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    locale.is_some_and(|it| is_utf8_locale(&it.to_string_lossy()))
}

fn is_utf8_locale(locale: &str) -> bool {
    let locale = locale.to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Replaces what is not ASCII.
pub(super) fn replace(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let symbol = cell.symbol();
        if !symbol.is_ascii() {
            let found = INSTEAD.iter().find(|(of, _)| *of == symbol).map_or("?", |(_, it)| it);
            cell.set_symbol(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;

    use super::*;

    #[test]
    fn what_is_drawn_has_something_instead_and_the_rest_a_question_mark() {
        let mut buffer = Buffer::with_lines(["84µs ▁█░… é"]);
        replace(&mut buffer);
        assert_eq!(buffer, Buffer::with_lines(["84us _#.~ ?"]));
    }

    #[test]
    fn locales_say_whether_it_is_utf8() {
        for (locale, expected) in [
            ("C.UTF-8", true),
            ("de_DE.utf8", true),
            ("en_US.UTF-8@euro", true),
            ("C", false),
            ("POSIX", false),
            ("de_DE.ISO-8859-1", false),
        ] {
            assert_eq!(is_utf8_locale(locale), expected, "{locale}");
        }
    }
}
