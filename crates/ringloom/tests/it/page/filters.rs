//! The filters: what they let through is shown, all else is not.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::browser::Scripts;
use testkit::results::Plan;

use super::{Desk, full, usual, with_browser};

/// What is filtered by: id of the group, attribute of what is filtered.
const KINDS: [(&str, &str); 3] =
    [("filter-op", "op"), ("filter-size", "size"), ("filter-subject", "subject")];

/// The values that a filter offers.
fn values(desk: &Desk, group: &str) -> Result<Vec<String>> {
    let buttons = desk.browser.find_all(&format!("#{group} [data-value]"))?;
    let mut values = Vec::new();
    for button in buttons {
        values.push(button.attribute("data-value")?.context("a button has a value")?);
    }
    // The first one takes the filter away.
    ensure!(values.first().is_some_and(String::is_empty), "{group}: {values:?}");
    Ok(values.split_off(1))
}

pub(super) fn press(desk: &Desk, group: &str, value: &str) -> Result<()> {
    desk.browser.find(&format!("#{group} [data-value={value:?}]"))?.click()
}

/// The number in `#shown`.
pub(super) fn said(desk: &Desk) -> Result<usize> {
    let text = desk.browser.find("#shown")?.text()?;
    text.parse().with_context(|| format!("#shown says {text:?}"))
}

/// The values of an attribute on the elements that are displayed, each once.
pub(super) fn displayed(desk: &Desk, attribute: &str) -> Result<Vec<String>> {
    let body = "const found = [...document.querySelectorAll(`[data-${arguments[0]}]`)]
            .filter(it => it.checkVisibility() && it.getClientRects().length > 0)
            .map(it => it.dataset[arguments[0]]);
        return [...new Set(found)].sort();";
    let found = desk.browser.script(body, &[Value::from(attribute)])?;
    Ok(serde_json::from_value(found)?)
}

/// What each displayed cell has of an attribute.
fn cells(desk: &Desk, attribute: &str) -> Result<Vec<String>> {
    let body = "return [...document.querySelectorAll('section.cell')]
        .filter(it => it.checkVisibility() && it.getClientRects().length > 0)
        .map(it => it.dataset[arguments[0]]);";
    Ok(serde_json::from_value(desk.browser.script(body, &[Value::from(attribute)])?)?)
}

fn check_all_shown(desk: &Desk, count: usize) -> Result<()> {
    let shown = desk.browser.count_displayed("section.cell")?;
    ensure!(shown == count && said(desk)? == count, "{shown} of {count}, says {}", said(desk)?);
    ensure!(desk.browser.count_displayed("[data-subject], [data-op]")? > count);
    Ok(())
}

/// Alone, a value lets through what has it.
pub(super) fn check_value(
    desk: &Desk,
    group: &str,
    attribute: &str,
    value: &str,
    of: usize,
) -> Result<()> {
    press(desk, group, value)?;
    let name = format!("{group} {value}");
    ensure!(displayed(desk, attribute)? == [value], "{name}: {:?}", displayed(desk, attribute)?);
    let of_cells = if attribute == "subject" { "subjects" } else { attribute };
    let left = cells(desk, of_cells)?;
    let has = |it: &String| it.split(' ').any(|word| word == value);
    ensure!(left.len() == of && left.iter().all(has), "{name}: {of} cells expected: {left:?}");
    ensure!(said(desk)? == of, "{name}: says {} of {of}", said(desk)?);
    press(desk, group, "")
}

#[test]
fn each_filter_alone_shows_what_has_its_value_and_nothing_else() {
    with_browser(|desk| {
        let page = desk.open(full()?)?;
        desk.unfold()?;
        check_all_shown(desk, 144)?;
        for (group, attribute) in KINDS {
            let mut found = values(desk, group)?;
            let mut shown = displayed(desk, attribute)?;
            found.sort_unstable();
            shown.sort_unstable();
            ensure!(found == shown, "{group} offers {found:?} of {shown:?}");
            let count = if attribute == "subject" { 144 } else { 36 };
            for value in &found {
                check_value(desk, group, attribute, value, count)?;
            }
            check_all_shown(desk, 144)?;
        }
        desk.check_quiet(&page)
    });
}

#[test]
fn filters_work_together_and_several_values_of_one_add_up() {
    with_browser(|desk| {
        desk.open(full()?)?;
        press(desk, "filter-op", "randread")?;
        press(desk, "filter-size", "4k")?;
        ensure!(said(desk)? == 9, "says {}", said(desk)?);
        press(desk, "filter-op", "write")?;
        ensure!(said(desk)? == 18, "says {}", said(desk)?);
        ensure!(displayed(desk, "op")? == ["randread", "write"]);
        press(desk, "filter-subject", "vm:ringloom")?;
        ensure!(
            displayed(desk, "subject")? == ["vm:ringloom"] && displayed(desk, "size")? == ["4k"]
        );
        for (group, _) in KINDS {
            press(desk, group, "")?;
        }
        check_all_shown(desk, 144)
    });
}

#[test]
fn filters_obey_the_keyboard_and_say_what_is_pressed() {
    /// The key Enter (W3C WebDriver, 17.4.2).
    const ENTER: &str = "\u{e007}";
    with_browser(|desk| {
        let plan = Plan::usual();
        desk.open_report(&usual())?;
        let button = desk.browser.find("#filter-op [data-value=randread]")?;
        ensure!(button.attribute("aria-pressed")?.as_deref() == Some("false"));
        button.press(ENTER)?;
        ensure!(button.attribute("aria-pressed")?.as_deref() == Some("true"));
        ensure!(said(desk)? == plan.block_sizes.len(), "says {}", said(desk)?);
        // Pressed once more, it lets all through again.
        button.press(ENTER)?;
        check_all_shown(desk, 4)
    });
}

#[test]
fn without_scripts_all_is_shown_and_no_filter() {
    with_browser(|desk| {
        desk.browser.switch_scripts(Scripts::Off)?;
        let page = desk.open(full()?)?;
        let shown = desk.browser.count_displayed("section.cell")?;
        ensure!(shown == 144, "{shown} of 144 cells");
        for (group, _) in KINDS {
            ensure!(desk.browser.count_displayed(&format!("#{group}"))? == 0, "{group} is shown");
        }
        ensure!(desk.browser.count_displayed("button")? == 0, "a button that does nothing");
        desk.check_quiet(&page)
    });
}
