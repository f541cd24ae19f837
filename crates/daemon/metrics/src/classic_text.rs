//! `OpenMetrics` as Prometheus' text format 0.0.4, for those who do not ask for the former.
//!
//! The lines of values are the same. In this format a family has the name that its lines have, so that of a counter ends in
//! `_total`; there is no type for names in labels, no unit, and no mark of the end.

/// Turns one form into the other.
pub(crate) fn classic_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            for part in ["# HELP ", name, ending, " ", help.take().unwrap_or_default(), "\n"] {
                text.push_str(part);
            }
            for part in ["# TYPE ", name, ending, " ", kind, "\n"] {
                text.push_str(part);
            }
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_names_of_their_lines_and_what_is_unknown_is_left_out() {
        let open_metrics = "# HELP a_seconds Why a.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                            a_seconds_total{b=\"# x\"} 1.5\n# HELP i Names.\n# TYPE i info\n\
                            i_info{n=\"v\"} 1\n# HELP g Now.\n# TYPE g gauge\ng 3\n# EOF\n";
        let classic = "# HELP a_seconds_total Why a.\n# TYPE a_seconds_total counter\n\
                       a_seconds_total{b=\"# x\"} 1.5\n# HELP i_info Names.\n# TYPE i_info gauge\n\
                       i_info{n=\"v\"} 1\n# HELP g Now.\n# TYPE g gauge\ng 3\n";
        assert_eq!(classic_text(open_metrics), classic);
    }
}
