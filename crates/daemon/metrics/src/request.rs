//! What a client of the metrics asks, and the head of the answer. Pure.
//!
//! Limits: [`HEAD_BYTES_MAX`], [`HEADERS_MAX`]. A body is not read: what is asked for has none.

/// The most bytes of a request's head.
pub(crate) const HEAD_BYTES_MAX: usize = 8 << 10;

/// The most headers.
const HEADERS_MAX: usize = 64;

/// Where metrics are.
const PATH: &str = "/metrics";

/// The form in which metrics are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextForm {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Classic,
}

impl TextForm {
    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Whether the answer has a body, or only says how long it would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyUse {
    /// GET.
    Sent,
    /// HEAD.
    Left,
}

/// What a request asks for, as far as its head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The rest of the head is to come.
    More,
    /// Metrics.
    Metrics(TextForm, BodyUse),
    /// Something that is refused.
    Refused(Refusal, BodyUse),
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is no HTTP, or not as it has to be.
    Malformed,
    /// There is something else at another place only.
    NotFound,
    /// Metrics are only read.
    Method,
    /// Its head is too long, or has too many headers.
    TooLarge,
}

impl Refusal {
    /// The line of the status, a header more, and a sentence.
    fn answer(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Malformed => ("400 Bad Request", "", "this is no request of HTTP/1.1\n"),
            Self::NotFound => ("404 Not Found", "", "there is nothing here but /metrics\n"),
            Self::Method => {
                let allow = "Allow: GET, HEAD\r\n";
                ("405 Method Not Allowed", allow, "metrics are read by GET and HEAD only\n")
            }
            Self::TooLarge => {
                let status = "431 Request Header Fields Too Large";
                (status, "", "the head of a request has at most 8192 bytes and 64 headers\n")
            }
        }
    }
}

/// Reads the head of a request, or what has come of it.
pub(crate) fn read(bytes: &[u8]) -> Ask {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let refused = |refusal| Ask::Refused(refusal, BodyUse::Sent);
    match request.parse(bytes) {
        Err(httparse::Error::TooManyHeaders) => return refused(Refusal::TooLarge),
        Err(_) => return refused(Refusal::Malformed),
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_BYTES_MAX => {
            return refused(Refusal::TooLarge);
        }
        Ok(httparse::Status::Partial) => return Ask::More,
        Ok(httparse::Status::Complete(_)) => {}
    }
    let body = match request.method {
        Some("GET") => BodyUse::Sent,
        Some("HEAD") => BodyUse::Left,
        Some(_) | None => return refused(Refusal::Method),
    };
    // Every client of HTTP/1.1 says which host it means.
    let has_host = request.headers.iter().any(|it| it.name.eq_ignore_ascii_case("host"));
    if request.version == Some(1) && !has_host {
        return Ask::Refused(Refusal::Malformed, body);
    }
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some(PATH) {
        return Ask::Refused(Refusal::NotFound, body);
    }
    let accepts = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("accept"));
    let wants_open_metrics = |value: &[u8]| {
        String::from_utf8_lossy(value).to_ascii_lowercase().contains("application/openmetrics-text")
    };
    let form = match accepts.map(|it| it.value).any(wants_open_metrics) {
        true => TextForm::OpenMetrics,
        false => TextForm::Classic,
    };
    Ask::Metrics(form, body)
}

/// The answer with metrics in that form.
pub(crate) fn answer_with(metrics: &str, form: TextForm, body: BodyUse) -> Vec<u8> {
    answer("200 OK", form.content_type(), "", (metrics, body))
}

/// The answer to what is refused.
pub(crate) fn refuse(refusal: Refusal, body: BodyUse) -> Vec<u8> {
    let (status, header, sentence) = refusal.answer();
    answer(status, "text/plain; charset=utf-8", header, (sentence, body))
}

fn answer(status: &str, kind: &str, header: &str, (text, body): (&str, BodyUse)) -> Vec<u8> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{header}\
         Connection: close\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    if body == BodyUse::Sent {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(request: &str, expected: Ask) {
        assert_eq!(read(request.as_bytes()), expected, "{request:?}");
    }

    #[test]
    fn metrics_are_read_in_the_form_that_is_asked_for() {
        use TextForm::{Classic, OpenMetrics};
        let sent = |form| Ask::Metrics(form, BodyUse::Sent);
        check("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", sent(Classic));
        check("GET /metrics?x=y HTTP/1.0\r\n\r\n", sent(Classic));
        let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        check(&format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n\r\n"), sent(OpenMetrics));
        check("GET /metrics HTTP/1.1\r\nhost: a\r\nACCEPT: */*\r\n\r\n", sent(Classic));
        let left = Ask::Metrics(Classic, BodyUse::Left);
        check("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", left);
    }

    #[test]
    fn everything_else_is_refused_by_its_code() {
        let sent = |refusal| Ask::Refused(refusal, BodyUse::Sent);
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", sent(Refusal::NotFound));
        check("GET /metricsx HTTP/1.1\r\nHost: a\r\n\r\n", sent(Refusal::NotFound));
        check("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", sent(Refusal::Method));
        check("DELETE / HTTP/1.1\r\n\r\n", sent(Refusal::Method));
        check("GET /metrics HTTP/1.1\r\n\r\n", sent(Refusal::Malformed));
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", sent(Refusal::Malformed));
        check("\u{16}\u{3}\u{1}\r\n\r\n", sent(Refusal::Malformed));
        let many = "a: b\r\n".repeat(HEADERS_MAX + 1);
        check(&format!("GET /metrics HTTP/1.1\r\n{many}\r\n"), sent(Refusal::TooLarge));
        let long = "x".repeat(HEAD_BYTES_MAX);
        check(&format!("GET /{long}"), sent(Refusal::TooLarge));
        check("GET /metrics HTTP/1.1\r\nHost", Ask::More);
        check("", Ask::More);
    }

    #[test]
    fn an_answer_says_its_length_and_that_it_is_the_last() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(
            text(refuse(Refusal::Method, BodyUse::Sent)),
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: 38\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n\
             metrics are read by GET and HEAD only\n"
        );
        let head = text(answer_with("abc\n", TextForm::OpenMetrics, BodyUse::Left));
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
