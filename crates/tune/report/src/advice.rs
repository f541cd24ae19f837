//! The recommendation of the report and the line to paste. Pure functions.

use std::path::Path;

use emit::{self, Wanted};
use findings::answer::{Answer, Caveats, answer, details, sentence};
use findings::drift::Flag;
use findings::summary::{CellSummary, compared, failed};
use load::probe::CacheMode;
use plan::contender::{Iothreads, Subject};
use plan::runs::Purpose;
use plan::variant::{Aio, Image, Variant};
use records::domain::{Copy, Outcome};
use records::results::{Header, Run};
use storage::quote::shell;
use storage::target::Origin;

use super::text::{listed, wrapped};
use super::{Findings, Part, Style, configurations};

/// The most iothreads that the short form of `ringloom serve` makes.
const SHORT_IOTHREADS_MAX: u16 = 64;

/// What to use for one subject.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Advice {
    pub(super) answer: Answer,
    /// With the subject before it, where there are several.
    pub(super) sentence: String,
    /// What else to know, a sentence each.
    pub(super) details: Vec<String>,
    /// The line to paste, where there is one.
    pub(super) command: Option<String>,
    /// The domain of libvirt that is the baseline, with what is recommended.
    pub(super) copy: Option<Copy>,
}

/// What to use, for each subject that compares numbers of iothreads.
pub(super) fn render(style: Style, all: &[Advice]) -> String {
    let heading = match style {
        Style::Markdown if !all.is_empty() => "\n## Recommendation\n",
        Style::Markdown | Style::Plain => "",
    };
    let texts = all.iter().map(|advice| text(style, advice));
    std::iter::once(heading.to_owned()).chain(texts).collect()
}

/// The same, advice by advice; `drift` is what is flagged of these runs.
pub(super) fn all(
    part: Part,
    findings: &Findings<'_>,
    drift: &[Flag],
    cells: &[CellSummary],
) -> Vec<Advice> {
    // For what the short form of `ringloom serve` cannot say.
    let serve = &configurations::serve(part);
    let header = findings.header;
    let subjects = compared(cells);
    let alone = subjects.len() == 1;
    let failed = failed(findings.failures);
    let advice = |subject| {
        let answer = answer(subject, cells, &header.settings.question(), &failed)?;
        let answer = Answer { bent: bent(findings, drift, &answer), ..answer };
        let who = if alone { String::new() } else { format!("{subject}: ") };
        let advice = Advice {
            sentence: format!("{who}{}", sentence(&answer)),
            details: details(&answer, (!header.is_unknown()).then_some(header.settings.repeats)),
            command: configurations::variant(&answer, cells)
                .and_then(|it| pasted(header, &answer, it, serve)),
            answer,
            copy: None,
        };
        Some(of_domain(part, header, advice))
    };
    let mut all: Vec<Advice> = subjects.into_iter().filter_map(advice).collect();
    one_serves(&mut all, serve);
    all
}

/// Where a domain is the baseline, its copy is what is handed over.
fn of_domain(part: Part, header: &Header, mut advice: Advice) -> Advice {
    let Some(domain) = &header.domain else { return advice };
    if advice.answer.subject != Subject::VmQemu || !advice.answer.recommends() {
        return advice;
    }
    advice.command = None;
    match domain.answered(advice.answer.iothreads) {
        Outcome::Same => advice.details.push("Nothing is to be changed in the domain.".to_owned()),
        Outcome::Fixed(why) => advice.details.push(why),
        Outcome::Copy(copy) => {
            advice.details.extend(copy.notes.iter().cloned());
            advice.command = Some(configurations::define(part));
            advice.copy = Some(copy);
        }
    }
    advice
}

/// With what is not in the table of a cell: what the sentinel says of its runs, and holes of its disk.
fn bent(findings: &Findings<'_>, drift: &[Flag], answer: &Answer) -> Caveats {
    let is_own = |run: &&Run| {
        run.key.purpose != Purpose::Sentinel && run.key.contender.subject() == answer.subject
    };
    let mut times = findings.runs.iter().filter(is_own).map(|run| run.started_unix_s);
    let Header { disk, given, .. } = findings.header;
    let holes = match answer.subject {
        Subject::VmGiven => given.as_ref().is_some_and(|given| given.disk.holes),
        Subject::Host | Subject::Client | Subject::VmQemu | Subject::VmRingloom => disk.holes,
        // Claims are filled.
        Subject::Pod | Subject::VmKubevirt => false,
    };
    Caveats {
        drifted: times.any(|time| drift.iter().any(|flag| flag.covers(time))),
        holes,
        ..answer.bent
    }
}

/// A client and a guest of ringloom want the same file; it is the guest's, so the client is not sent there.
fn one_serves(all: &mut [Advice], serve: &str) {
    let is_of = |advice: &&mut Advice, subject| advice.answer.subject == subject;
    let guest = all.iter_mut().find(|it| is_of(it, Subject::VmRingloom));
    if guest.is_none_or(|guest| !guest.answer.recommends()) {
        return;
    }
    let client = all.iter_mut().find(|it| is_of(it, Subject::Client));
    if let Some(client) = client.filter(|it| it.command.as_deref() == Some(serve)) {
        client.command = None;
    }
}

/// Nothing to paste where nothing is recommended.
fn pasted(header: &Header, answer: &Answer, variant: &Variant, serve: &str) -> Option<String> {
    let trusted = answer.recommends() && !emit::destroys(header, variant);
    match answer.subject {
        Subject::VmGiven | Subject::Host | Subject::Pod => None,
        // What is written for it is no line.
        Subject::VmKubevirt => None,
        Subject::VmQemu => {
            let wanted = Wanted::of(header, answer.subject, variant, answer.iothreads)?;
            trusted.then(|| wanted.qemu_line())
        }
        Subject::Client | Subject::VmRingloom => {
            let wanted = Wanted::of(header, answer.subject, variant, answer.iothreads)?;
            trusted.then(|| command(header, &wanted).unwrap_or_else(|| serve.to_owned()))
        }
    }
}

fn text(style: Style, advice: &Advice) -> String {
    let details = match advice.details.as_slice() {
        [] => String::new(),
        details => format!("\n{}", listed(style, details)),
    };
    let sentence = wrapped(style, &advice.sentence);
    let last = match (style, &advice.command) {
        (Style::Plain, Some(command)) => format!("\n{sentence}\n    {command}\n"),
        (Style::Markdown, Some(command)) => format!("\n{sentence}\n```sh\n{command}\n```\n"),
        (Style::Plain | Style::Markdown, None) => format!("\n{sentence}"),
    };
    details + &last
}

/// The line to paste, where the short form can say it. A scratch file is gone by then, so it names no path.
fn command(header: &Header, wanted: &Wanted) -> Option<String> {
    let path = match header.disk.origin {
        Origin::Scratch | Origin::Guest => "PATH".to_owned(),
        Origin::User => shell(plain(&header.disk.path)?),
    };
    let is_short = wanted.aio == Aio::Auto
        && wanted.pin_iothreads.is_none()
        && wanted.iothreads.count() <= SHORT_IOTHREADS_MAX;
    if !is_short {
        return None;
    }
    let format = match wanted.image {
        // Of such a name ringloom does not guess what is meant.
        Image::Raw if formats::of_name(&header.disk.path).is_some() => " --format raw",
        Image::Raw => "",
        Image::Qcow2(qcow2) if qcow2.cache.is_none() => " --format qcow2",
        Image::Qcow2(_) => return None,
    };
    let direct = match wanted.cache {
        CacheMode::Direct => "",
        CacheMode::Buffered => " --direct off",
    };
    let threads = match wanted.iothreads {
        Iothreads::NONE => String::new(),
        count => format!(" --iothreads {count}"),
    };
    let socket = wanted.socket.display();
    Some(format!("ringloom serve {path} --socket {socket}{threads}{format}{direct}"))
}

/// A path that can stand in one line of text.
fn plain(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| !text.contains(char::is_control))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use findings::drift::flagged;
    use findings::summary::summarise;
    use plan::contender::Contender;
    use plan::testing::{cell, client};
    use records::testing::{header, run};

    use super::*;
    use crate::tests::findings;

    fn advised(header: &Header, runs: &[Run]) -> Vec<Advice> {
        all(Part::FIRST, &findings(header, runs), &flagged(runs), &summarise(runs, 8))
    }

    #[test]
    fn the_line_for_qemu_has_its_iothreads_and_the_disk() {
        let header = header("--subject vm:qemu");
        let mut runs = Vec::new();
        for (repeat, (count, iops)) in (0..3).flat_map(|it| [(it, (0, 100)), (it, (2, 200))]) {
            let contender = Contender::new(Subject::VmQemu, Iothreads::new(count));
            runs.push(run(cell("randread", 4096, 2, 16), contender, repeat, iops));
        }
        let found = advised(&header, &runs);
        let line = found[0].command.clone().unwrap();
        assert_eq!(line.lines().count(), 1);
        for part in ["iothread0", "iothread1", "-blockdev ", "-device ", "iothread-vq-mapping"] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        assert!(!line.contains('#') && !line.contains('\\'), "{line}");
        assert!(!line.contains("memory"), "{line}");
        let header = self::header("--subject vm:qemu --numa-node 0");
        let found = advised(&header, &runs);
        let bound = found[0].command.clone().unwrap();
        assert!(bound.contains("host-nodes\":[0]") && bound.ends_with(&line), "{bound}");
    }

    #[test]
    fn the_line_to_paste_survives_a_shell() {
        let mut header = header("");
        header.disk.origin = Origin::User;
        for (path, text) in [
            ("/images/disk-1.img", "/images/disk-1.img"),
            ("/my disk", "'/my disk'"),
            ("/it's", r"'/it'\''s'"),
        ] {
            header.disk.path = PathBuf::from(path);
            let expected = format!("ringloom serve {text} --socket /run/ringloom-disk.sock");
            assert_eq!(pasted_for(&header, 0), Some(expected));
        }
    }

    fn pasted_for(header: &Header, iothreads: u16) -> Option<String> {
        let (plain, iothreads) = (Variant::default(), Iothreads::new(iothreads));
        let wanted = Wanted::of(header, Subject::Client, &plain, iothreads).unwrap();
        command(header, &wanted)
    }

    #[test]
    fn the_line_is_one_that_ringloom_takes() {
        let mut header = header("");
        header.disk.origin = Origin::User;
        for (path, is_said) in
            [("/d.qcow2", true), ("/d.VMDK", true), ("/d.vhd", true), ("/d.raw", false)]
        {
            header.disk.path = PathBuf::from(path);
            let line = pasted_for(&header, 1).unwrap();
            assert_eq!(line.ends_with(" --iothreads 1 --format raw"), is_said, "{line}");
        }
        assert!(pasted_for(&header, 64).unwrap().contains("--iothreads 64"));
        assert_eq!(pasted_for(&header, 65), None);
        header.disk.path = PathBuf::from("/d\n```\nx");
        assert_eq!(pasted_for(&header, 1), None);
    }

    #[test]
    fn the_line_for_ringloom_says_what_was_measured() {
        let short = "ringloom serve PATH --socket /run/ringloom-disk.sock --iothreads 2";
        let file = configurations::serve(Part::FIRST);
        let (direct, buffered) = ("1G on ext4, O_DIRECT", "1G on zfs, through the page cache");
        for (description, image, aio, expected) in [
            (direct, "raw", "auto", short.to_owned()),
            (buffered, "raw", "auto", format!("{short} --direct off")),
            (direct, "qcow2", "auto", format!("{short} --format qcow2")),
            (buffered, "qcow2", "auto", format!("{short} --format qcow2 --direct off")),
            (direct, "qcow2:cache=8M", "auto", file.clone()),
            (direct, "raw", "native", file.clone()),
            (buffered, "raw", "threads", file.clone()),
        ] {
            let mut header = header("--subject client");
            header.disk.opened = None;
            header.disk.description = description.to_owned();
            let mut runs = Vec::new();
            for (repeat, (count, iops)) in (0..3).flat_map(|it| [(it, (0, 100)), (it, (2, 200))]) {
                let mut run = run(cell("randread", 4096, 2, 16), client(count), repeat, iops);
                run.key.variant.image = image.parse().unwrap();
                run.key.variant.aio = aio.parse().unwrap();
                runs.push(run);
            }
            let found = advised(&header, &runs);
            assert_eq!(found[0].command.as_ref(), Some(&expected), "{image} {aio}");
        }
    }

    #[test]
    fn pins_are_in_serve_sh_only() {
        for (subject, options, expected) in [
            (Subject::VmRingloom, "", true),
            (Subject::VmRingloom, "--pin-iothreads 1", false),
            (Subject::Client, "--pin-iothreads 1", true),
        ] {
            let header = header(&format!("--subject client,vm:ringloom {options}"));
            for iothreads in [0, 2].map(Iothreads::new) {
                let wanted = Wanted::of(&header, subject, &Variant::default(), iothreads).unwrap();
                assert_eq!(command(&header, &wanted).is_some(), expected, "{subject} {options}");
            }
        }
    }

    #[test]
    fn an_answer_carries_what_bends_all_figures() {
        let sentence = |times: [u64; 2], holes: bool| {
            let mut header = header("");
            header.disk.holes = holes;
            let mut runs = Vec::new();
            for (repeat, (count, iops)) in (0..3).flat_map(|it| [(it, (0, 100)), (it, (2, 200))]) {
                runs.push(run(cell("randread", 4096, 2, 16), client(count), repeat, iops));
            }
            let start = runs[0].started_unix_s;
            for (step, (time, iops)) in (0..).zip(times.into_iter().zip([1000, 700])) {
                let mut sentinel = run(cell("read", 4096, 1, 1), Contender::HOST, 0, iops);
                (sentinel.key.purpose, sentinel.key.step) = (Purpose::Sentinel, step);
                sentinel.started_unix_s = start + time - 60;
                runs.push(sentinel);
            }
            advised(&header, &runs).remove(0).sentence
        };
        let calm = sentence([0, 30], false);
        assert!(calm.ends_with("by more than 5 %."), "{calm}");
        let drifted = sentence([0, 120], false);
        assert!(drifted.ends_with("5 %, but the machine drifted meanwhile."), "{drifted}");
        let holed = sentence([0, 30], true);
        assert!(holed.ends_with(", but the file has holes, which look too fast."), "{holed}");
    }

    #[test]
    fn a_client_is_not_sent_to_the_file_of_a_guest() {
        let header = header("--subject client,vm:ringloom");
        let mut runs = Vec::new();
        for (repeat, (count, iops)) in (0..3).flat_map(|it| [(it, (0, 100)), (it, (2, 200))]) {
            let guest = Contender::new(Subject::VmRingloom, Iothreads::new(count));
            for contender in [client(count), guest] {
                let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, iops);
                run.key.variant.aio = Aio::Native;
                runs.push(run);
            }
        }
        let found = advised(&header, &runs);
        let commands: Vec<_> = found.iter().map(|it| it.command.as_deref()).collect();
        assert_eq!(commands, [None, Some(configurations::serve(Part::FIRST).as_str())]);
    }
}
