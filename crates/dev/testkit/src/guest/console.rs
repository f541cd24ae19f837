//! What a guest prints, and the marked sections in it.
//!
//! Invariants: a section's text is what stands between its two marker lines; kernel messages may stand between too.

/// The shell function that guests report with; see `Guest::script`.
pub(super) const SECTION_FUNCTION: &str = "section() {\n\
    name=$1; shift\n\
    echo \"@@begin $name\"\n\
    \"$@\" 2>&1\n\
    result=$?\n\
    echo\n\
    echo \"@@end $name $result\"\n\
    return $result\n\
    }\n";
/// Lines shown of a guest that went wrong.
const TAIL_LINES: usize = 60;

/// The lines of a guest's serial console.
#[derive(Clone, Debug)]
pub struct Console {
    lines: Vec<String>,
}

/// One command that the guest reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its output.
    pub text: String,
    /// Its exit status.
    pub status: i32,
}

impl Console {
    /// Of all that it has printed.
    pub fn new(text: &str) -> Self {
        Self { lines: text.lines().map(|line| line.trim_end().to_owned()).collect() }
    }

    /// The last section of this name that has ended.
    pub fn section(&self, name: &str) -> Option<Section> {
        let begin = format!("@@begin {name}");
        let end = format!("@@end {name} ");
        let last = self.lines.iter().rposition(|line| line.starts_with(&end))?;
        let first = self.lines[..last].iter().rposition(|line| line.ends_with(&begin))?;
        let text = self.lines[first + 1..last].join("\n").trim().to_owned();
        let status = self.lines[last][end.len()..].parse().ok()?;
        Some(Section { text, status })
    }

    /// The section, which must exist and have ended well.
    pub fn success(&self, name: &str) -> anyhow::Result<String> {
        let section = self.section(name);
        match section {
            Some(Section { text, status: 0 }) => Ok(text),
            Some(Section { text, status }) => {
                anyhow::bail!("{name} ended with {status} in the guest: {text}\n{}", self.tail())
            }
            None => anyhow::bail!("the guest did not report {name}: {}", self.tail()),
        }
    }

    /// The last lines, for messages.
    pub fn tail(&self) -> String {
        self.lines[self.lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_what_stands_between_its_markers() {
        let console =
            Console::new("noise\r\n\x1bc@@begin a\r\none\r\ntwo\r\n\r\n@@end a 3\r\n@@begin b\r\n");
        let expected = Section { text: "one\ntwo".to_owned(), status: 3 };
        assert_eq!(console.section("a"), Some(expected));
        assert_eq!(console.section("b"), None);
        console.success("a").expect_err("status 3 is no success");
    }
}
