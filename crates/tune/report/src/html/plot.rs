//! Charts as SVG: categories on the x axis, one series per subject, intervals as bars. Pure functions.
//!
//! `charts` and its neighbours say what is drawn. Colours and fonts are those of the page's style sheet, by class; every
//! mark has its figures as `<title>`, and every series names its subject for the filters.
//!
//! Invariants: figures that are no finite numbers are not drawn; a chart without any is `None`.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

/// In the chart's own units, which the page scales: about CSS pixels.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 172.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 6.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// Between the marks of two subjects in one category, at most.
const LANE: f64 = 6.0;
/// Half of the width of a mark.
const MARK: f64 = 3.0;
/// Of a name that is a number, at most.
const DIGITS: usize = 2;
/// The room of a word relative to that of a number.
const WORD: f64 = 1.4;
/// What a name of letters is given at least, unless all together need more than there is.
const WORD_MIN: f64 = 28.0;
/// About what a letter or digit of a label takes, and what parts two labels.
const LETTER: f64 = 6.0;
const BETWEEN: f64 = 3.0;
/// Gaps between lines that are labelled, on a linear scale.
const GAPS: f64 = 4.0;
/// Lines of a logarithmic scale; of more only the decades are labelled.
const LADDER_MAX: usize = 5;
/// What a logarithmic scale begins with at the earliest, and ends with at the latest.
const LEAST: f64 = 1e-3;
const MOST: f64 = 1e15;

/// How values become heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From 0.
    Linear,
    Logarithmic,
}

/// What the x axis is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Across {
    /// Names: a word has more room than a number, and marks of two subjects stand beside each other.
    Names,
    /// Numbers at equal steps: a mark stands where its number is.
    Steps,
}

/// What surrounds a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Range {
    /// Of the values themselves: drawn thin.
    Spread { low: f64, high: f64 },
    /// A confidence interval: drawn with caps.
    Interval { low: f64, high: f64 },
}

/// A value in a category.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    /// Which category, from 0.
    pub(super) slot: usize,
    pub(super) value: f64,
    pub(super) range: Option<Range>,
    /// Higher values of the same, as percentiles: a ring, then a tick.
    pub(super) above: Vec<f64>,
    /// What the reader sees when pointing at it.
    pub(super) title: String,
    /// Whether it is to stand out.
    pub(super) ringed: bool,
    /// Whether a line leads to the next mark.
    pub(super) joined: bool,
    /// Whether it counts less than the others.
    pub(super) hollow: bool,
}

impl Mark {
    /// One of a line, with nothing around it.
    pub(super) fn new(slot: usize, value: f64, title: String) -> Self {
        Self {
            slot,
            value,
            range: None,
            above: Vec::new(),
            title,
            ringed: false,
            joined: true,
            hollow: false,
        }
    }
}

/// All marks of one subject.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// As the filter names it.
    pub(super) subject: String,
    /// Its colour and shape.
    pub(super) class: &'static str,
    /// How many others of the subject are drawn beside it, in the same colour.
    pub(super) nth: usize,
    pub(super) marks: Vec<Mark>,
}

/// The value of a line across, such as the number of CPUs, and the subject it belongs to, if it does.
pub(super) type Limit = (f64, Option<String>);

/// One chart.
#[derive(Clone, Debug)]
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) description: &'a str,
    pub(super) categories: &'a [String],
    pub(super) scale: Scale,
    /// How a value is written at the y axis.
    pub(super) label: fn(f64) -> String,
    pub(super) limit: Option<Limit>,
    pub(super) across: Across,
    pub(super) series: Vec<Series>,
}

/// Where values and categories are.
#[derive(Clone, Debug)]
struct Frame {
    low: f64,
    high: f64,
    scale: Scale,
    lane: f64,
    /// Where each category begins, and where the last one ends.
    edges: Vec<f64>,
}

impl Plot<'_> {
    /// The chart; `None` if there is nothing to draw.
    pub(super) fn svg(&self) -> Option<Markup> {
        let (frame, ticks) = self.frame()?;
        let shared = |series: &&Series| series.marks.iter().any(|mark| mark.joined);
        let lanes = self.series.iter().filter(shared).count();
        let limit = self.limit.as_ref().filter(|(value, _)| value.is_finite());
        let mut lane = 0;
        let lanes = self.series.iter().map(|series| {
            let own = lane;
            lane += usize::from(shared(&series));
            (own, lanes)
        });
        let svg = html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" {
                title { (self.title) }
                desc { (self.description) }
                (grid(&frame, &ticks, self.label))
                (names(&frame, self.categories))
                @if let Some((value, subject)) = limit {
                    path class="limit" d=(across(frame.y(*value))) data-subject=[subject] {}
                }
                @for (lane, series) in lanes.zip(&self.series) { (drawn(&frame, series, lane)) }
            }
        };
        // SVG inside of HTML may end an empty element so (HTML, 13.1.2.1); a page has many.
        Some(PreEscaped(svg.into_string().replace("\"></path>", "\"/>")))
    }

    fn frame(&self) -> Option<(Frame, Vec<f64>)> {
        let limit = self.limit.as_ref().map(|(value, _)| *value);
        let values: Vec<f64> = self.series.iter().flat_map(extent).chain(limit).collect();
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let any = self.series.iter().flat_map(|series| &series.marks);
        if !any.into_iter().any(|mark| mark.value.is_finite()) {
            return None;
        }
        let (low, high) = (finite().reduce(f64::min)?, finite().reduce(f64::max)?);
        let Axis { low, high, ticks } = match self.scale {
            Scale::Linear => linear(high),
            Scale::Logarithmic => logarithmic(low, high),
        };
        let (lane, edges) = match self.across {
            Across::Names => (LANE, edges(self.categories)),
            Across::Steps => (0.0, steps(self.categories.len())),
        };
        Some((Frame { low, high, scale: self.scale, lane, edges }, ticks))
    }
}

/// All values of a series that must be inside the chart.
fn extent(series: &Series) -> impl Iterator<Item = f64> {
    series.marks.iter().flat_map(|mark| {
        let ends = match mark.range {
            Some(Range::Spread { low, high } | Range::Interval { low, high }) => vec![low, high],
            None => Vec::new(),
        };
        ends.into_iter().chain(mark.above.iter().copied()).chain([mark.value])
    })
}

/// From where to where, and which values have a line.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

/// From 0 to a round number, at least `high`.
fn linear(high: f64) -> Axis {
    let high = if high > 0.0 { high } else { 1.0 };
    let rough = high / GAPS;
    let decade = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = steps.iter().map(|step| step * decade).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let mut ticks = vec![0.0];
    let mut top = 0.0;
    while top < high * 0.999 {
        top = ticks.len() as f64 * step;
        ticks.push(top);
    }
    Axis { low: 0.0, high: top, ticks }
}

/// Ends at 1, 2 or 5 times a power of ten, with lines at those; where that would be many, at powers of ten.
fn logarithmic(low: f64, high: f64) -> Axis {
    let low = low.clamp(LEAST, MOST);
    let high = high.clamp(low, MOST);
    let decades = Decades { low: low.log10().floor(), high: high.log10().ceil() };
    let rungs = decades.rungs();
    let first = rungs.iter().rposition(|rung| *rung <= low * 1.001).unwrap_or(0);
    let last = rungs.iter().position(|rung| *rung >= high * 0.999).unwrap_or(first);
    let last = last.max(first + 1).min(rungs.len() - 1);
    let rungs = &rungs[first..=last];
    let is_decade = |rung: f64| (rung.log10() - rung.log10().round()).abs() < 1e-9;
    let many = rungs.len() > LADDER_MAX;
    let ticks = rungs.iter().copied().filter(|rung| !many || is_decade(*rung)).collect();
    Axis { low: rungs[0], high: rungs[rungs.len() - 1], ticks }
}

/// Powers of ten that surround the values.
struct Decades {
    low: f64,
    high: f64,
}

impl Decades {
    fn rungs(&self) -> Vec<f64> {
        let mut rungs = Vec::new();
        let mut power = self.low;
        while power <= self.high {
            rungs.extend([1.0, 2.0, 5.0].map(|step| step * 10_f64.powf(power)));
            power += 1.0;
        }
        rungs
    }
}

impl Frame {
    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => value / self.high,
            Scale::Logarithmic => {
                (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
            }
        };
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn has(&self, slot: usize) -> bool {
        slot + 1 < self.edges.len()
    }

    /// Whole, as `in_lane` is: a page has many of them.
    fn x(&self, slot: usize) -> f64 {
        f64::midpoint(self.edges[slot], self.edges[slot + 1]).round()
    }

    /// Beside each other, as far as the category is wide.
    fn in_lane(&self, slot: usize, (lane, lanes): (usize, usize)) -> f64 {
        let step = self.edges[slot + 1] - self.edges[slot];
        let apart = self.lane.min(step / lanes.max(1) as f64);
        (self.x(slot) + (lane as f64 - (lanes as f64 - 1.0) / 2.0) * apart).round()
    }
}

fn steps(count: usize) -> Vec<f64> {
    let step = (WIDTH - LEFT - RIGHT) / count.max(1) as f64;
    (0..=count).map(|edge| LEFT + step * edge as f64).collect()
}

/// Words need more room than numbers.
fn edges(categories: &[String]) -> Vec<f64> {
    let weight = |name: &String| if name.chars().count() > DIGITS { WORD } else { 1.0 };
    let room = WIDTH - LEFT - RIGHT;
    let all: f64 = categories.iter().map(weight).sum();
    let words = categories.iter().filter(|name| is_word(name));
    // Beside many numbers a word's share is too little for it; then words have a width of their own.
    let fixed = words.clone().count() as f64 * WORD_MIN;
    let scarce = room * WORD / all < WORD_MIN && fixed < room / 2.0;
    let numbers = all - words.map(weight).sum::<f64>();
    let mut edges = vec![LEFT];
    for name in categories {
        let width = match scarce {
            true if is_word(name) => WORD_MIN,
            true => (room - fixed) * weight(name) / numbers,
            false => room * weight(name) / all,
        };
        edges.push(edges[edges.len() - 1] + width);
    }
    edges
}

/// `none`, not `16` and not `50 %`.
fn is_word(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
}

/// Which categories have a label: all if there is room, else of the numbers every second, fourth, … up to the last.
fn labelled(frame: &Frame, categories: &[String]) -> Vec<usize> {
    let width = |name: &String| name.chars().count() as f64 * LETTER + BETWEEN;
    let numbers: Vec<usize> =
        (0..categories.len()).filter(|it| !is_word(&categories[*it])).collect();
    let widest = numbers.iter().map(|it| width(&categories[*it])).fold(0.0, f64::max);
    let narrowest = numbers.iter().map(|it| frame.edges[it + 1] - frame.edges[*it]);
    let narrowest = narrowest.fold(f64::INFINITY, f64::min);
    let mut step = 1;
    while (step as f64) * narrowest < widest && step < numbers.len() {
        step *= 2;
    }
    let kept: Vec<usize> = numbers.into_iter().rev().step_by(step).collect();
    let mut labelled: Vec<usize> = Vec::new();
    for (slot, name) in categories.iter().enumerate() {
        // A number that touches the word before it goes.
        let touches = labelled.last().is_some_and(|before| {
            let apart = frame.x(slot) - frame.x(*before);
            apart < f64::midpoint(width(name), width(&categories[*before]))
        });
        if is_word(name) || (kept.contains(&slot) && !(step > 1 && touches)) {
            labelled.push(slot);
        }
    }
    labelled
}

fn grid(frame: &Frame, ticks: &[f64], label: fn(f64) -> String) -> Markup {
    let lines: String = ticks.iter().map(|tick| across(frame.y(*tick))).collect();
    html! {
        path class="grid" d=(lines) {}
        g class="y" transform=(format!("translate({} 3.5)", px(LEFT - 6.0))) {
            @for tick in ticks { text y=(px(frame.y(*tick))) { (label(*tick)) } }
        }
    }
}

fn across(y: f64) -> String {
    format!("M{} {}H{}", px(LEFT), px(y), px(WIDTH - RIGHT))
}

fn names(frame: &Frame, categories: &[String]) -> Markup {
    html! {
        g class="x" transform=(format!("translate(0 {})", px(HEIGHT - 8.0))) {
            @for slot in labelled(frame, categories) {
                text x=(px(frame.x(slot))) { (categories[slot]) }
            }
        }
    }
}

fn drawn(frame: &Frame, series: &Series, lane: (usize, usize)) -> Markup {
    let marks: Vec<(&Mark, f64)> = series
        .marks
        .iter()
        .filter(|mark| mark.value.is_finite() && frame.has(mark.slot))
        .map(|mark| {
            // What is alone in its category stands in the middle of it.
            let x = if mark.joined { frame.in_lane(mark.slot, lane) } else { frame.x(mark.slot) };
            (mark, x)
        })
        .collect();
    let path = |class: &str, d: String| {
        html! { @if !d.is_empty() { path class=(class) d=(d) {} } }
    };
    let stems = |mark: &Mark, x| stem(frame, mark, x);
    html! {
        g class={ "series " (series.class) (of_nth(series.nth)) } data-subject=(series.subject) {
            (path("line", line(frame, &marks)))
            (path("spread", marks.iter().map(|(mark, x)| spread(frame, mark, *x)).collect()))
            (path("interval", marks.iter().map(|(mark, x)| interval(frame, mark, *x)).collect()))
            (path("above", marks.iter().map(|(mark, x)| stems(mark, *x)).collect()))
            @for (mark, x) in &marks { (dot(frame, series.class, mark, *x)) }
        }
    }
}

fn line(frame: &Frame, marks: &[(&Mark, f64)]) -> String {
    let mut path = String::new();
    let mut before = None;
    for (mark, x) in marks.iter().filter(|(mark, _)| mark.joined) {
        let (x, y) = (tenths(*x), tenths(frame.y(mark.value)));
        match before {
            None => write!(path, "M{} {}", px(x), px(y)),
            Some((from_x, from_y)) => write!(path, "l{} {}", px(x - from_x), px(y - from_y)),
        }
        .expect("a string takes all");
        before = Some((x, y));
    }
    if path.contains('l') { path } else { String::new() }
}

fn spread(frame: &Frame, mark: &Mark, x: f64) -> String {
    match mark.range {
        Some(Range::Spread { low, high }) if low.is_finite() && high.is_finite() => {
            upright(frame, x, low, high)
        }
        Some(Range::Spread { .. } | Range::Interval { .. }) | None => String::new(),
    }
}

fn interval(frame: &Frame, mark: &Mark, x: f64) -> String {
    let Some(Range::Interval { low, high }) = mark.range else { return String::new() };
    if !(low.is_finite() && high.is_finite()) {
        return String::new();
    }
    let height = tenths(frame.y(low)) - tenths(frame.y(high));
    format!("{}m-3 0h6m-6 {}h6", upright(frame, x, low, high), px(height))
}

fn upright(frame: &Frame, x: f64, low: f64, high: f64) -> String {
    format!("M{} {}V{}", px(x), px(frame.y(low)), px(frame.y(high)))
}

/// A thin line up to the highest, a ring at each but the last, a tick at the last.
fn stem(frame: &Frame, mark: &Mark, x: f64) -> String {
    let above: Vec<f64> = mark.above.iter().copied().filter(|value| value.is_finite()).collect();
    let Some((&last, rings)) = above.split_last() else { return String::new() };
    let ring = |value: &f64| {
        let y = px(frame.y(*value));
        format!("M{} {y}a2 2 0 1 1 0 .1z", px(x - 2.0))
    };
    let rings: String = rings.iter().map(ring).collect();
    format!("{}m-3 0h6{rings}", upright(frame, x, mark.value, last))
}

/// The mark itself: a shape per subject, so that colour is not needed to tell them apart.
fn dot(frame: &Frame, class: &str, mark: &Mark, x: f64) -> Markup {
    let y = frame.y(mark.value);
    let title = html! { title { (mark.title) } };
    let hollow = mark.hollow.then_some("hollow");
    html! {
        @if mark.ringed { circle class="ring" cx=(px(x)) cy=(px(y)) r="5.5" {} }
        @match shape(class, x, y) {
            Some(d) => { path class=[hollow] d=(d) { (title) } }
            None => { circle class=[hollow] cx=(px(x)) cy=(px(y)) r=(MARK) { (title) } }
        }
    }
}

/// The outline of a mark that is no circle.
fn shape(class: &str, x: f64, y: f64) -> Option<String> {
    let (left, top) = (px(x - MARK), px(y - MARK));
    match class {
        "s-qemu" => Some(format!("M{left} {top}h6v6h-6z")),
        "s-ringloom" => Some(format!("M{} {}l4 4-4 4-4-4z", px(x), px(y - 4.0))),
        "s-given" => Some(format!("M{} {}l4 7h-8z", px(x), px(y - 4.0))),
        _ => None,
    }
}

/// How the line of another one of the same subject is drawn.
fn of_nth(nth: usize) -> &'static str {
    match nth {
        0 => "",
        1 => " second",
        _ => " third",
    }
}

/// Its mark on its line, for a legend.
pub(super) fn line_swatch(class: &str, nth: usize) -> Markup {
    html! {
        svg class={ "swatch series " (class) (of_nth(nth)) } viewBox="0 0 30 12" aria-hidden="true" {
            path class="line" d="M0 6h30" {}
            @match shape(class, 15.0, 6.0) {
                Some(d) => { path d=(d) {} }
                None => { circle cx="15" cy="6" r="3.5" {} }
            }
        }
    }
}

/// The same mark for a legend, outside of any chart.
pub(super) fn swatch(class: &str) -> Markup {
    html! {
        svg class={ "swatch " (class) } viewBox="0 0 12 12" aria-hidden="true" {
            @match shape(class, 6.0, 6.0) {
                Some(d) => { path d=(d) {} }
                None => { circle cx="6" cy="6" r="3.5" {} }
            }
        }
    }
}

/// With one decimal at most: half a tenth of a pixel is invisible, and a page has many of them.
pub(super) fn px(value: f64) -> String {
    let text = format!("{}", tenths(value) + 0.0);
    // `0.5` may be written `.5`.
    match text.split_once('.') {
        Some((whole @ ("0" | "-0"), part)) => format!("{}.{part}", whole.trim_end_matches('0')),
        Some(_) | None => text,
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
