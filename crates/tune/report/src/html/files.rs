//! The configurations of the answer, to be copied from the page. Pure functions.

use maud::{Markup, html};

use super::{View, around, head};
use crate::configurations::Configurations;
use crate::text::enumerated;

/// A file name and what takes such a file.
const TARGETS: [(&str, &str); 5] = [
    ("domain.xml", "your domain"),
    ("serve.sh", "ringloom"),
    ("qemu.args", "QEMU"),
    ("libvirt.xml", "libvirt"),
    ("kubevirt.yaml", "KubeVirt"),
];

/// `QEMU, libvirt and KubeVirt`: what there are files for.
pub(super) fn targets(files: &[(String, String)]) -> String {
    let is_there = |ending: &str| files.iter().any(|(name, _)| name.ends_with(ending));
    let names = TARGETS.iter().filter(|(ending, _)| is_there(ending)).map(|(_, target)| *target);
    enumerated(&names.collect::<Vec<_>>())
}

/// Nothing where nothing is recommended.
pub(super) fn render(view: &View<'_>) -> Markup {
    let Configurations { files, warnings, listing, .. } = &view.report.configurations;
    if files.is_empty() && warnings.is_empty() {
        return Markup::default();
    }
    html! {
        section id="configurations" {
            h2 { "Configurations" }
            @if !files.is_empty() { p class="lead" { "The answer for " (targets(files)) "; the same files are beside this page." } }
            @if !listing.is_empty() {
                p { "What differs in domain.xml from the domain:" }
                pre { code { (listing) } }
            }
            (around::list(warnings))
            @for (name, content) in files.iter().filter(|(name, _)| !name.ends_with(".txt")) {
                details class="file" {
                    summary { (name) }
                    (head::paste(&html! { pre { code { (content) } } }))
                }
            }
        }
    }
}
