//! A copy of a domain's XML in which one disk has another number of iothreads; all else is byte for byte the same. Pure.
//!
//! Invariants: the copy is read again before it is handed over: the disk has that number, and no other device another one.
//! Iothreads keep their numbers, since pins and other devices name them.
//! Limits: as many edits as a disk has places for iothreads, in the text's order, none over another.

use std::collections::BTreeSet;
use std::ops::Range;

use plan::units::counted;
use similar::TextDiff;

use super::view::{Node, View, child, parse, short};

/// Of a line in the list of what changed.
const LINE_CHARACTERS_MAX: usize = 160;

/// The copy and what is to be known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// All of it.
    pub xml: String,
    /// The lines that changed, as `diff` shows them.
    pub listing: String,
    /// Sentences.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
}

impl Edit {
    fn insert(at: usize, text: String) -> Self {
        Self { range: at..at, text }
    }
}

/// Gives the disk so many iothreads.
///
/// # Errors
/// Why it cannot have them, a sentence.
pub fn with_iothreads(xml: &str, view: &View<'_>, count: u16) -> Result<Copy, String> {
    let holder = view.holder().ok_or_else(|| why_fixed(view))?;
    let (own, existing) = (view.own(), view.ids());
    let others: BTreeSet<u32> = view.others().into_iter().map(|(id, _)| id).collect();
    let chosen = chosen(count, &own, &existing, &others);
    let mut edits = vec![head(xml, view, count)];
    edits.extend(domain_count(xml, view, &chosen, &others));
    edits.extend(driver(xml, holder, &chosen));
    edits.sort_by_key(|edit| edit.range.start);
    let copy = applied(xml, &edits);
    let idle = left_over(&copy, view, &chosen).ok_or_else(|| {
        let (place, count) = (view.place(), counted(count.into(), "iothread"));
        format!(
            "The domain's XML is written so that its iothreads cannot be changed here: {place} takes {count}."
        )
    })?;
    let notes = notes(view, holder, &chosen, &idle);
    Ok(Copy { listing: listing(xml, &copy), xml: copy, notes })
}

/// The iothreads of a copy that serve nothing; `None` unless the disk has those that were chosen, and every other device its
/// own.
fn left_over(copy: &str, view: &View<'_>, chosen: &[u32]) -> Option<Vec<u32>> {
    let document = parse(copy).ok()?;
    let again = View::new(&document, Some(view.target())).ok()?;
    let (ids, others) = (again.ids(), again.others());
    let used: BTreeSet<u32> = others.iter().map(|it| it.0).chain(chosen.iter().copied()).collect();
    let is_as_wanted = again.own() == chosen && others == view.others() && used.is_subset(&ids);
    is_as_wanted.then(|| ids.difference(&used).copied().collect())
}

/// Why no number of iothreads can be given to the disk.
fn why_fixed(view: &View<'_>) -> String {
    let (target, bus) = (short(view.target()), short(view.bus()));
    if view.is_vhost_user() {
        return format!(
            "{target} is a vhost-user disk: iothreads are those of the program that serves it, so the domain stays as it is."
        );
    }
    match view.bus() {
        "scsi" => format!(
            "The XML has no virtio-scsi controller for {target} (<controller type='scsi' model='virtio-scsi'>), and \
             other ones know no iothreads: the domain stays as it is."
        ),
        _ => format!(
            "A disk on the bus {bus} knows no iothreads, so the domain stays as it is; {target} with \
             <target bus='virtio'/> could have them."
        ),
    }
}

/// Those that it has, then free ones, then new ones with the numbers that libvirt would give.
fn chosen(count: u16, own: &[u32], existing: &BTreeSet<u32>, others: &BTreeSet<u32>) -> Vec<u32> {
    let free = existing.iter().filter(|id| !own.contains(id) && !others.contains(id));
    let new =
        (1..).filter(|id| !existing.contains(id) && !own.contains(id) && !others.contains(id));
    own.iter().chain(free).copied().chain(new).take(count.into()).collect()
}

/// Says whose copy it is, in a comment before all else that may have one.
fn head(xml: &str, view: &View<'_>, count: u16) -> Edit {
    // A mark of the encoding and a declaration stay the first.
    let start = if xml.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let declared = xml[start..].starts_with("<?xml").then(|| xml.find("?>")).flatten();
    let at = declared.map_or(start, |end| end + 2);
    let threads = counted(usize::from(count), "iothread");
    // Nothing ends or breaks a comment.
    let target: String = view.target().chars().filter(char::is_ascii_alphanumeric).collect();
    let about = format!("{threads} for {target}");
    let comment = format!("<!-- Written by ringloom tune: {about} -->");
    let text = if at == start { format!("{comment}\n") } else { format!("\n{comment}") };
    Edit::insert(at, text)
}

/// The number in `<iothreads>` of the domain, unless it stays. Those that nobody uses any more are taken away where they are
/// the last ones and nothing else names them.
fn domain_count(
    xml: &str,
    view: &View<'_>,
    chosen: &[u32],
    others: &BTreeSet<u32>,
) -> Option<Edit> {
    let existing = view.ids();
    let used: BTreeSet<u32> = chosen.iter().chain(others).copied().collect();
    let is_named = child(view.root, "iothreadids").is_some()
        || child(view.root, "cputune").is_some_and(|it| {
            it.children()
                .any(|it| it.has_tag_name("iothreadpin") || it.has_tag_name("iothreadsched"))
        });
    let count = if is_named {
        existing.union(&used).count()
    } else {
        used.last().map_or(0, |last| usize::try_from(*last).unwrap_or(usize::MAX))
    };
    let element = format!("<iothreads>{count}</iothreads>");
    match child(view.root, "iothreads") {
        Some(_) if count == existing.len() => None,
        Some(old) if count == 0 => Some(removal(xml, old.range())),
        Some(old) => Some(Edit { range: old.range(), text: element }),
        None if count == existing.len() => None,
        None => {
            let (after, before) = (child(view.root, "vcpu"), child(view.root, "devices")?);
            Some(match after {
                Some(vcpu) => {
                    Edit::insert(vcpu.range().end, format!("{}{element}", space(xml, vcpu)))
                }
                None => Edit::insert(before.range().start, element + space(xml, before)),
            })
        }
    }
}

/// The driver of a disk or controller: an attribute for one iothread, a list for several.
fn driver(xml: &str, holder: Node<'_>, ids: &[u32]) -> Vec<Edit> {
    let Some(driver) = child(holder, "driver") else {
        return without_driver(xml, holder, ids).into_iter().collect();
    };
    let mut edits = Vec::new();
    let (alone, list) = (driver.attribute_node("iothread"), child(driver, "iothreads"));
    match (ids, alone) {
        ([id], Some(old)) => edits.push(Edit { range: old.range_value(), text: id.to_string() }),
        ([id], None) => {
            let name = driver.range().start + 1 + driver.tag_name().name().len();
            let at = driver.attributes().next_back().map_or(name, |last| last.range().end);
            edits.push(Edit::insert(at, format!(" iothread='{id}'")));
        }
        (_, Some(old)) => edits.push(removal(xml, old.range())),
        (_, None) => {}
    }
    match (ids, list) {
        ([] | [_], Some(old)) => edits.push(removal(xml, old.range())),
        ([] | [_], None) => {}
        (_, Some(old)) => {
            edits.push(Edit { range: old.range(), text: mapping(ids, space(xml, old)) });
        }
        (_, None) => {
            let inner = inner_space(xml, driver);
            edits.push(added(xml, driver, &format!("{inner}{}", mapping(ids, &inner))));
        }
    }
    edits
}

fn without_driver(xml: &str, holder: Node<'_>, ids: &[u32]) -> Option<Edit> {
    let inner = inner_space(xml, holder);
    let name =
        if holder.has_tag_name("disk") { "<driver name='qemu' type='raw'" } else { "<driver" };
    let text = match ids {
        [] => return None,
        [id] => format!("{inner}{name} iothread='{id}'/>"),
        _ => {
            let within = deeper(&inner);
            format!("{inner}{name}>{within}{}{inner}</driver>", mapping(ids, &within))
        }
    };
    Some(added(xml, holder, &text))
}

/// `<iothreads>` of a driver, which stands after this space.
fn mapping(ids: &[u32], space: &str) -> String {
    let within = deeper(space);
    let entries: String = ids.iter().map(|id| format!("{within}<iothread id='{id}'/>")).collect();
    format!("<iothreads>{entries}{space}</iothreads>")
}

/// What is added as the last child of an element.
fn added(xml: &str, node: Node<'_>, text: &str) -> Edit {
    let range = node.range();
    let whole = &xml[range.clone()];
    if !node.has_children() && whole.ends_with("/>") {
        let name = node.tag_name().name();
        let text = format!(">{text}{}</{name}>", space(xml, node));
        return Edit { range: range.end - 2..range.end, text };
    }
    let close = whole.rfind("</").unwrap_or(whole.len());
    Edit::insert(range.start + whole[..close].trim_end().len(), text.to_owned())
}

/// Takes it away with the space before it.
fn removal(xml: &str, range: Range<usize>) -> Edit {
    Edit { range: xml[..range.start].trim_end().len()..range.end, text: String::new() }
}

/// The space before an element: where there are lines, the beginning of its line.
fn space<'a>(xml: &'a str, node: Node<'_>) -> &'a str {
    let before = &xml[..node.range().start];
    let space = &before[before.trim_end().len()..];
    if space.contains('\n') { space } else { "" }
}

fn inner_space(xml: &str, node: Node<'_>) -> String {
    deeper(space(xml, node))
}

fn deeper(space: &str) -> String {
    if space.contains('\n') { format!("{space}  ") } else { space.to_owned() }
}

fn applied(xml: &str, edits: &[Edit]) -> String {
    let mut text = String::new();
    let mut from = 0;
    for edit in edits {
        text.push_str(&xml[from..edit.range.start]);
        text.push_str(&edit.text);
        from = edit.range.end;
    }
    text + &xml[from..]
}

/// The lines that changed.
fn listing(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    let diff = diff.unified_diff().context_radius(0).missing_newline_hint(false).to_string();
    let short =
        |line: &str| line.chars().take(LINE_CHARACTERS_MAX).chain(['\n']).collect::<String>();
    diff.lines().map(short).collect()
}

fn notes(view: &View<'_>, holder: Node<'_>, chosen: &[u32], idle: &[u32]) -> Vec<String> {
    let mut notes = Vec::new();
    let is_controller = holder.has_tag_name("controller");
    if chosen.len() > 1 {
        let needs = if is_controller {
            "libvirt 11.2.0 and QEMU 10.0"
        } else {
            "libvirt 10.0.0 and QEMU 9.0"
        };
        notes.push(format!("Several iothreads for one disk need {needs} or newer."));
    }
    let list = child(holder, "driver").and_then(|it| child(it, "iothreads"));
    let has_queues = |it: Node<'_>| it.descendants().any(|it| it.has_tag_name("queue"));
    if list.is_some_and(has_queues) {
        notes.push("Queues go to iothreads in turn, as measured, not as <queue> said.".to_owned());
    }
    let graphics = child(view.root, "devices").and_then(|it| child(it, "graphics"));
    if graphics.is_some_and(|it| it.attribute("passwd").is_none()) {
        notes.push("virsh leaves the passwords of <graphics> out: the copy needs them again, if there are any.".to_owned());
    }
    let others = view.others();
    let shared: Vec<String> = others
        .iter()
        .filter(|(id, _)| chosen.contains(id))
        .map(|(id, name)| format!("iothread {id} serves {name} too"))
        .collect();
    if !shared.is_empty() {
        notes.push(format!("Not as measured: {}.", shared.join(", ")));
    }
    let pinned: Vec<u32> =
        view.pins("iothreadpin", "iothread").into_iter().map(|it| it.0).collect();
    let new = chosen.iter().filter(|id| !pinned.contains(id));
    let new: Vec<String> = new.map(u32::to_string).collect();
    if !pinned.is_empty() && !new.is_empty() {
        notes.push(format!(
            "Iothreads without a pin: {}; <iothreadpin> gives them CPUs.",
            new.join(", ")
        ));
    }
    let idle: Vec<String> = idle.iter().map(u32::to_string).collect();
    if !idle.is_empty() {
        notes.push(format!("Iothreads that serve nothing any more: {}.", idle.join(", ")));
    }
    notes
}
