//! Text as Markdown shows it: no text is markup, whatever a results file or the name of a file says. Pure functions.
//!
//! Invariants: inside a line or a cell of a table, neither CommonMark nor the tables and struck-out text of GitHub see
//! anything but text in it. A bare address (`https://…`) may still become a link to itself.
//! Not here: line breaks, which end a line (`report::text`), and what stands in fenced blocks, which is as it is.

/// What begins or ends markup wherever it stands.
const MARKUP: &str = "`*[]~|";

/// The text with all that Markdown would take as markup escaped.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut before = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let after = letters.peek().copied();
        match letter {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            _ => {
                if is_markup(before, letter, after) {
                    escaped.push('\\');
                }
                escaped.push(letter);
            }
        }
        before = Some(letter);
    }
    escaped
}

/// Between letters and digits `_` is none, as in `io_uring`; before them `\` is none.
fn is_markup(before: Option<char>, letter: char, after: Option<char>) -> bool {
    let is_word = |it: Option<char>| it.is_some_and(char::is_alphanumeric);
    match letter {
        '_' => !(is_word(before) && is_word(after)),
        '\\' => after.is_none_or(|it| it.is_ascii_punctuation()),
        letter => MARKUP.contains(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_markup_is_text() {
        for (text, expected) in [
            ("/images/disk-1.img, +12 % (a)", "/images/disk-1.img, +12 % (a)"),
            ("[text](url)", r"\[text\](url)"),
            ("![x](y)", r"!\[x\](y)"),
            ("<b>&lt;", "&lt;b>&amp;lt;"),
            ("`rm` **b** ~~c~~", r"\`rm\` \*\*b\*\* \~\~c\~\~"),
            ("a | b", r"a \| b"),
            ("io_uring _a_ b__c", r"io_uring \_a\_ b\_\_c"),
            (r"a\nb \* c\", r"a\nb \\\* c\\"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }
}
