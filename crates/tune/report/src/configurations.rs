//! The answer as files to use: what is written into `config/` of the results, and what to know before. Pure functions.
//!
//! Not here: what the files say (`emit`).

use findings::answer::Answer;
use findings::summary::{CellSummary, Row};
use plan::lists::unique;
use plan::variant::Variant;

use super::advice::Advice;
use super::text::listed;
use super::{Findings, Part, Style};

/// Where the files are, in the directory of the report.
const DIRECTORY: &str = "config";
/// The domain that is the baseline, with what is recommended.
const DOMAIN: &str = "domain.xml";
const WARNINGS: &str = "warnings.txt";
const WARNINGS_HEAD: &str = "Written by ringloom tune: what to know of these configurations.\n\n";

/// All paths that the files can have: those that are not written now may be there from an earlier answer.
pub fn names() -> Vec<String> {
    emit::NAMES
        .iter()
        .chain([&DOMAIN, &WARNINGS])
        .map(|name| format!("{DIRECTORY}/{name}"))
        .collect()
}

/// The files of all answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Configurations {
    /// Path in the directory of the report, and content.
    pub(super) files: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
    /// What changed in the domain that is the baseline, as `diff` shows it.
    pub(super) listing: String,
    /// Where the files are, in the directory of the report.
    directory: String,
}

/// The files of one answer.
struct OfAnswer {
    files: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl OfAnswer {
    /// Without the files that others replace; whether there is still something to say.
    fn outlasts(&mut self, others: &[(String, String)]) -> bool {
        let had_none = self.files.is_empty();
        self.files.retain(|(name, _)| others.iter().all(|(other, _)| other != name));
        had_none || !self.files.is_empty()
    }
}

/// The line to paste that runs what is written for `ringloom serve`.
pub(super) fn serve(part: Part) -> String {
    format!("sh {}/ringloom/serve.sh  # in the directory of the report", part.named(DIRECTORY))
}

/// The line to paste that gives libvirt the domain that is written.
pub(super) fn define(part: Part) -> String {
    let directory = part.named(DIRECTORY);
    format!(
        "virsh define {directory}/{DOMAIN}  # in the directory of the report; takes effect at the next start"
    )
}

impl Configurations {
    /// Nothing is written for an answer with doubts. Where several variants were measured, the files are for one (`variant`).
    pub(super) fn of(
        part: Part,
        findings: &Findings<'_>,
        cells: &[CellSummary],
        advice: &[Advice],
    ) -> Self {
        let directory = part.named(DIRECTORY);
        let mut answers: Vec<OfAnswer> = Vec::new();
        for answer in advice.iter().map(|advice| &advice.answer) {
            let Some(variant) = variant(answer, cells).filter(|_| answer.recommends()) else {
                continue;
            };
            let (header, iothreads) = (findings.header, answer.iothreads);
            let files = emit::files(header, answer.subject, variant, iothreads);
            let named =
                |file: emit::EmittedFile| (format!("{directory}/{}", file.name), file.content);
            let files: Vec<_> = files.into_iter().map(named).collect();
            let first = if files.is_empty() { None } else { of_several(answer, variant, cells) };
            let warnings = emit::warnings(header, answer.subject, variant, iothreads);
            // A client and a guest of ringloom want the same files; those of the guest are told last, and win.
            answers.retain_mut(|other| other.outlasts(&files));
            answers.push(OfAnswer { files, warnings: first.into_iter().chain(warnings).collect() });
        }
        let mut all = Self::together(directory, answers);
        for copy in advice.iter().filter_map(|advice| advice.copy.as_ref()) {
            all.files.insert(0, (format!("{}/{DOMAIN}", all.directory), copy.xml.clone()));
            all.listing.clone_from(&copy.listing);
        }
        all
    }

    fn together(directory: String, answers: Vec<OfAnswer>) -> Self {
        let mut all = Self { directory, ..Self::default() };
        for answer in answers {
            all.files.extend(answer.files);
            all.warnings.extend(answer.warnings);
        }
        all.warnings = unique(all.warnings);
        if !all.files.is_empty() {
            let list: String = all.warnings.iter().map(|it| format!("- {it}\n")).collect();
            let text = format!("{WARNINGS_HEAD}{list}");
            all.files.push((format!("{}/{WARNINGS}", all.directory), text));
        }
        all
    }

    fn why_none(&self, style: Style) -> String {
        if self.warnings.is_empty() {
            return String::new();
        }
        let warnings = listed(style, &self.warnings);
        match style {
            Style::Plain => warnings,
            Style::Markdown => format!("## Configurations\n\n{warnings}"),
        }
    }

    /// What changed in the domain, as lines of code.
    fn changes(&self) -> String {
        if self.listing.is_empty() {
            return String::new();
        }
        let lines: String = self.listing.lines().map(|line| format!("    {line}\n")).collect();
        format!("What differs in {}/{DOMAIN} from the domain:\n\n{lines}\n", self.directory)
    }

    /// A section of the Markdown, a line of the terminal.
    pub(super) fn render(&self, style: Style) -> String {
        if self.files.is_empty() {
            return self.why_none(style);
        }
        match style {
            Style::Plain => format!(
                "{}Configurations: {}/ in the directory of the report; read its {WARNINGS}\n",
                self.changes(),
                self.directory
            ),
            Style::Markdown => {
                let files: Vec<String> =
                    self.files.iter().map(|(name, _)| format!("[{name}]({name})")).collect();
                let warnings = listed(style, &self.warnings);
                let changes = self.changes();
                format!("## Configurations\n\n{changes}{}\n\n{warnings}", files.join(", "))
            }
        }
    }
}

/// The variant that the files and the line to paste are for: the first in which the number was compared.
pub(super) fn variant<'a>(answer: &Answer, cells: &'a [CellSummary]) -> Option<&'a Variant> {
    let is_number = |row: &Row| row.iothreads() == Some(answer.iothreads);
    let mut compared = compared_by(answer, cells);
    compared.find(|cell| cell.rows_of(answer.subject).any(is_number)).map(|cell| &cell.variant)
}

fn compared_by<'a>(
    answer: &Answer,
    cells: &'a [CellSummary],
) -> impl Iterator<Item = &'a CellSummary> {
    let subject = answer.subject;
    cells.iter().filter(move |cell| cell.verdicts.iter().any(|(of, _)| *of == subject))
}

/// Which of several variants the files are for.
fn of_several(answer: &Answer, variant: &Variant, cells: &[CellSummary]) -> Option<String> {
    let mut compared = compared_by(answer, cells).map(|cell| &cell.variant);
    let is_first = compared.next() == Some(variant);
    if is_first && compared.all(|other| other == variant) {
        return None;
    }
    let which = if is_first { "" } else { " in which their number was compared" };
    let name = match variant.to_string() {
        name if name.is_empty() => "with none of the options that make variants".to_owned(),
        name => name,
    };
    Some(format!("several variants were measured; the files are for the first{which}: {name}"))
}

#[cfg(test)]
mod tests {
    use findings::summary::summarise;
    use plan::contender::{Contender, Iothreads, Subject};
    use plan::testing::cell;
    use plan::variant::Device;
    use records::results::{Header, Run};
    use records::testing::{header, run};
    use storage::target::Origin;

    use super::*;
    use crate::tests::findings;
    use crate::{Report, advice};

    fn made(header: &Header, runs: &[Run]) -> Configurations {
        let cells = summarise(runs, 8);
        let findings = findings(header, runs);
        let advice = advice::all(Part::FIRST, &findings, &[], &cells);
        Configurations::of(Part::FIRST, &findings, &cells, &advice)
    }

    fn configurations(repeats: u16, contender: fn(Iothreads) -> Contender) -> Configurations {
        let header = header("--subject vm:qemu");
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            for (count, iops) in [(0, 100), (2, 200)] {
                let contender = contender(Iothreads::new(count));
                runs.push(run(cell("randread", 4096, 2, 16), contender, repeat, iops));
            }
        }
        made(&header, &runs)
    }

    fn names(configurations: &Configurations) -> Vec<&str> {
        configurations.files.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn an_answer_is_written_for_each_target() {
        let qemu = configurations(3, |iothreads| Contender::new(Subject::VmQemu, iothreads));
        assert_eq!(
            names(&qemu),
            [
                "config/qemu-iothreads/qemu.args",
                "config/qemu-iothreads/libvirt.xml",
                "config/qemu-iothreads/kubevirt.yaml",
                "config/warnings.txt"
            ]
        );
        assert!(qemu.files[1].1.contains("<iothreads>2</iothreads>"), "{}", qemu.files[1].1);
        let text = qemu.render(Style::Markdown);
        assert!(text.contains("(config/qemu-iothreads/libvirt.xml)"), "{text}");
        assert!(!qemu.warnings.is_empty() && text.contains(&qemu.warnings[0]));
        let client = configurations(3, |iothreads| Contender::new(Subject::Client, iothreads));
        assert!(names(&client).contains(&"config/ringloom/qemu.args"), "{client:?}");
    }

    #[test]
    fn warnings_are_those_of_the_files_that_are_there() {
        let header = header("--subject client,vm:ringloom");
        let client: fn(Iothreads) -> Contender =
            |iothreads| Contender::new(Subject::Client, iothreads);
        let guest: fn(Iothreads) -> Contender =
            |iothreads| Contender::new(Subject::VmRingloom, iothreads);
        let of_client = "measured without a guest";
        for (contenders, is_there) in [(vec![client], true), (vec![client, guest], false)] {
            let mut runs = Vec::new();
            for (repeat, count) in (0..3).flat_map(|repeat| [0, 2].map(|count| (repeat, count))) {
                for contender in &contenders {
                    let contender = contender(Iothreads::new(count));
                    let iops = 100 + 50 * u64::from(count);
                    runs.push(run(cell("randread", 4096, 2, 16), contender, repeat, iops));
                }
            }
            let made = made(&header, &runs);
            assert_eq!(made.files.len(), 4, "{:?}", made.files);
            let text = &made.files.last().unwrap().1;
            assert_eq!(text.contains(of_client), is_there, "{text}");
            assert!(text.contains("must be shared"), "{text}");
        }
    }

    #[test]
    fn of_several_variants_the_first_is_written_and_named() {
        let header = header("--subject vm:qemu --vms 1,2");
        let mut runs = Vec::new();
        for (repeat, (vms, count)) in
            (0..3).flat_map(|repeat| [(1, 0), (1, 2), (2, 0), (2, 2)].map(|it| (repeat, it)))
        {
            let contender = Contender::new(Subject::VmQemu, Iothreads::new(count));
            let iops = 100 + 50 * u64::from(count);
            let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, iops);
            run.key.variant.vms = vms;
            runs.push(run);
        }
        let made = made(&header, &runs);
        let expected = "several variants were measured; the files are for the first: with none of";
        assert!(made.warnings[0].starts_with(expected), "{:?}", made.warnings);
        let one = configurations(3, |iothreads| Contender::new(Subject::VmQemu, iothreads));
        assert!(!one.warnings.concat().contains("several variants"), "{:?}", one.warnings);
    }

    #[test]
    fn a_variant_that_could_not_compare_the_number_is_passed_over() {
        let header = header("--subject vm:qemu --device ide,virtio-blk");
        let mut runs = Vec::new();
        for (repeat, (device, count)) in (0..3).flat_map(|repeat| {
            [("ide", 0), ("virtio-blk", 0), ("virtio-blk", 2)].map(|it| (repeat, it))
        }) {
            let contender = Contender::new(Subject::VmQemu, Iothreads::new(count));
            let iops = 100 + 50 * u64::from(count);
            let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, iops);
            run.key.variant.device = device.parse().unwrap();
            runs.push(run);
        }
        let cells = summarise(&runs, 8);
        assert_eq!(cells[0].variant.device, Device::Ide);
        let findings = findings(&header, &runs);
        let advice = advice::all(Part::FIRST, &findings, &[], &cells);
        let made = Configurations::of(Part::FIRST, &findings, &cells, &advice);
        assert!(made.files[0].1.contains("virtio-blk-pci"), "{}", made.files[0].1);
        let expected = "the files are for the first in which their number was compared: with none";
        assert!(made.warnings[0].contains(expected), "{:?}", made.warnings);
        let line = advice[0].command.as_ref().unwrap();
        assert!(line.contains("virtio-blk-pci"), "{line}");
    }

    #[test]
    fn an_image_that_was_measured_raw_is_given_to_no_guest() {
        let mut header = header("--subject vm:qemu,vm:ringloom,client");
        header.disk.origin = Origin::User;
        header.disk.path = "/images/a.qcow2".into();
        let contenders: [fn(Iothreads) -> Contender; 3] = [
            |iothreads| Contender::new(Subject::Client, iothreads),
            |iothreads| Contender::new(Subject::VmQemu, iothreads),
            |iothreads| Contender::new(Subject::VmRingloom, iothreads),
        ];
        let formats = ["qcow2", "qcow", "qed", "vmdk", "vdi", "vhdx", "vpc"];
        let raw = formats.map(|format| (Some(format), "raw", false));
        let others = [(Some("qcow2"), "qcow2", true), (None, "raw", true)];
        for (format, image, is_written) in raw.into_iter().chain(others) {
            header.disk.looks_like = format.map(str::to_owned);
            let mut runs = Vec::new();
            for (repeat, count) in (0..3).flat_map(|repeat| [0, 2].map(|count| (repeat, count))) {
                for contender in contenders {
                    let contender = contender(Iothreads::new(count));
                    let iops = 100 + 50 * u64::from(count);
                    let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, iops);
                    run.key.variant.image = image.parse().unwrap();
                    runs.push(run);
                }
            }
            let cells = summarise(&runs, 8);
            let findings = findings(&header, &runs);
            let advice = advice::all(Part::FIRST, &findings, &[], &cells);
            let made = Configurations::of(Part::FIRST, &findings, &cells, &advice);
            assert_eq!(advice.len(), 3);
            assert_eq!(advice.iter().all(|it| it.command.is_some()), is_written, "{advice:?}");
            assert_eq!(advice.iter().any(|it| it.command.is_some()), is_written, "{advice:?}");
            assert_eq!(!made.files.is_empty(), is_written, "{:?}", made.files);
            let refusals: Vec<_> =
                made.warnings.iter().filter(|it| it.contains("destroy the image")).collect();
            assert_eq!(refusals.len(), usize::from(!is_written), "{:?}", made.warnings);
            if let ([refusal], Some(format)) = (&refusals[..], format) {
                assert!(refusal.contains(&format!("like a {format} image")), "{refusal}");
                assert_eq!(refusal.contains("--image qcow2"), format == "qcow2", "{refusal}");
            }
            let page = crate::html::page(&Report::new(&findings));
            for text in [made.render(Style::Plain), made.render(Style::Markdown), page] {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert_eq!(text.contains("no configuration is written"), !is_written, "{text}");
            }
        }
    }

    #[test]
    fn an_answer_with_doubts_is_not() {
        let none = configurations(2, |iothreads| Contender::new(Subject::VmQemu, iothreads));
        assert!(none.files.is_empty() && none.warnings.is_empty(), "{none:?}");
        assert_eq!(none.render(Style::Plain), "");
    }
}
