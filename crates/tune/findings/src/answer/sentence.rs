//! The answer in words. Pure functions.

use plan::contender::Iothreads;
use plan::lists::sorted;
use plan::question::{Bound, Want};
use plan::repeats::Repeats;
use plan::units::{counted, percent_gain, short};
use plan::weights::{Goal, Weight};

use super::{
    Answer, BoundUse, Caveats, CellOnVariant, Certainty, Change, CheaperNumber, Condition,
    DearerNumber, Doubt, Gain, Limit, NoAnswer, Price, Today,
};
use crate::bottleneck::Bottleneck;

/// Other answers that are named.
const CHANGES_MAX: usize = 3;

/// The one sentence.
pub fn sentence(answer: &Answer) -> String {
    let (threads, is_of_cluster) = (threads(answer.iothreads), answer.subject.is_of_cluster());
    if let Some(why) = &answer.nothing {
        return nothing(why, answer.iothreads);
    }
    if !answer.doubts.is_empty() {
        let reasons: Vec<String> = answer.doubts.iter().map(doubt).collect();
        let purpose = purpose(answer).map_or_else(String::new, |purpose| format!(" for {purpose}"));
        return format!(
            "{} cannot tell how many iothreads are best{purpose}: {}. Of what was measured, {threads} would be the choice.",
            if is_of_cluster { "The cluster" } else { "Your machine" },
            reasons.join("; ")
        );
    }
    let mut text = match purpose(answer) {
        None => format!("Use {threads}: {}", lack(answer)),
        Some(purpose) => format!("For {purpose} use {threads}: {}", lack(answer)),
    };
    if let Some(BoundUse { bound, used, .. }) = answer.used {
        let end = if let Bound::P99Max(_) = bound { "most" } else { "least" };
        text.push_str(&format!(", {} at {end}", bound.reached(used)));
    }
    if let Some(gain) = answer.gain {
        text.push_str(&gained(gain, answer.want));
    }
    // Where CPU time is what is wanted, that was told.
    if let Some(price) = answer.price.filter(|_| answer.want != Want::Cpu) {
        text.push_str(&costs(price));
    }
    text.push_str(&format!("; {}", certainty(answer)));
    text.push_str(&but(answer.bent));
    text.push('.');
    text
}

/// What else to know, a sentence each: what the price buys, what would change the answer, how to find out more. `repeats` are
/// missing where no header says what to go on with.
pub fn details(answer: &Answer, repeats: Option<Repeats>) -> Vec<String> {
    let mut details = Vec::new();
    let is_of_cluster = answer.subject.is_of_cluster();
    let emulated = answer.doubts.contains(&Doubt::Emulated);
    if emulated {
        let place = if is_of_cluster { "Nodes" } else { "A host" };
        details.push(format!("{place} with KVM would tell."));
    }
    let more_would_tell = |it: &Doubt| {
        matches!(it, Doubt::FewRepeats(_) | Doubt::Explored(_) | Doubt::NotCompared(_))
    };
    let in_doubt = answer.recommends() && answer.certainty() == Certainty::Doubtful;
    if !emulated && (in_doubt || answer.doubts.iter().any(more_would_tell)) {
        let goes_on = match repeats {
            Some(Repeats::Until { most, .. }) => answer.repeats_of_cell < usize::from(most),
            Some(Repeats::Fixed(_)) | None => false,
        };
        let how = if is_of_cluster {
            "The same job with more rounds, such as 6, would tell more"
        } else if goes_on {
            "The same command with --resume and a longer --budget goes on measuring"
        } else {
            "A new command with more repeats, such as --repeats 6-40, would tell more"
        };
        let runtime = if is_of_cluster { "runtime" } else { "--runtime" };
        details.push(format!("{how}; a longer {runtime} makes each repeat steadier."));
    }
    if matches!(answer.nothing, Some(NoAnswer::NumbersFailed(_))) && repeats.is_some() {
        details.push("The same command with --resume tries the failed runs again.".to_owned());
    }
    if let Some(NoAnswer::NoneKeeps(BoundUse { bound, .. })) = answer.nothing {
        details.push(unkept(bound).to_owned());
    }
    if answer.nothing.is_none() {
        details.extend(answer.today.map(|today| self::today(today, answer)));
    }
    if !answer.recommends() {
        return details;
    }
    if answer.want == Want::Throughput {
        details.extend(limits(answer));
    }
    details.extend(answer.dearer.and_then(|dearer| self::dearer(dearer, answer)));
    details.extend(answer.cheaper.map(|cheaper| self::cheaper(cheaper, answer.want)));
    details.extend(answer.rate.and_then(|rate| self::rate(rate, answer)));
    details.extend(changed(&answer.changes));
    if answer.cpu_bound {
        details.push(
            "Load and iothreads had to share the cores of this machine: one with more cores may \
             want more iothreads."
                .to_owned(),
        );
    }
    details
}

/// What the number is to be good for, unless that is what is usually asked.
fn purpose(answer: &Answer) -> Option<String> {
    let wanted = match answer.want {
        Want::Throughput if answer.bounds.is_empty() => return None,
        Want::Throughput => "the most IOPS",
        Want::Latency => "the lowest p99",
        Want::Cpu => "the least CPU per request",
    };
    let bounds: Vec<String> = answer.bounds.iter().map(Bound::to_string).collect();
    let with = if bounds.is_empty() { "" } else { " with " };
    Some(format!("{wanted}{with}{}", bounds.join(" and ")))
}

/// What else can be done where no number keeps a bound.
fn unkept(bound: Bound) -> &'static str {
    match bound {
        Bound::P99Max(_) => {
            "It is the p99 under the full load of a cell: fewer requests in flight (--jobs, --iodepth) lower it, \
             tune curve measures it at lower rates, and --weights says which cells count."
        }
        Bound::IopsMin(_) => {
            "More requests in flight (--jobs, --iodepth) may bring more, and --weights says which cells count."
        }
    }
}

/// Where there is nothing to recommend, however often it is measured.
fn nothing(why: &NoAnswer, iothreads: Iothreads) -> String {
    match why {
        NoAnswer::OneNumber => format!(
            "Only one number of iothreads was measured ({iothreads}), so there is nothing to compare."
        ),
        NoAnswer::Apart(numbers) => {
            let name = |(iothreads, repeats): &(Iothreads, usize)| {
                format!("{} in {}", threads(*iothreads), counted(*repeats, "repeat"))
            };
            format!(
                "No two numbers of iothreads were measured in enough of the same repeats ({}), so \
                 there is nothing to compare.",
                numbers.iter().map(name).collect::<Vec<_>>().join(", ")
            )
        }
        NoAnswer::Counts(weights) => {
            let weights: Vec<String> = weights.iter().map(Weight::to_string).collect();
            format!(
                "No cell that was measured counts by --weights {}, so no number of iothreads is \
                 recommended.",
                weights.join(",")
            )
        }
        NoAnswer::NotMeasured(spot) => format!(
            "What is wanted was not measured in {spot}, so no number of iothreads is recommended for it."
        ),
        NoAnswer::NoneKeeps(nearest) => none_keeps(*nearest),
        NoAnswer::NumbersFailed(0) => {
            "Every number of iothreads failed in some run, so none is recommended.".to_owned()
        }
        NoAnswer::NumbersFailed(_) => {
            "All numbers of iothreads but one failed in some run, so there is nothing to compare."
                .to_owned()
        }
    }
}

fn doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::Emulated => {
            "its guests are emulated, and what helps them does not help real ones".to_owned()
        }
        Doubt::FewRepeats(repeats) => {
            let do_not = if *repeats == 1 { "does not" } else { "do not" };
            format!("{} of a cell {do_not} show what is noise", counted(*repeats, "repeat"))
        }
        Doubt::Explored(spot) => format!("it was only explored in {spot}"),
        Doubt::NotCompared(spot) => format!("it was not compared in {spot}"),
        Doubt::Idle(spot) => format!("nothing was done in {spot}"),
        Doubt::Failures { measured, failed } => {
            let cells = counted(*measured, "cell");
            format!("{failed} of the cells failed, {cells} could be measured")
        }
    }
}

/// No number keeps a bound, and what the nearest one has.
fn none_keeps(BoundUse { iothreads, bound, used, spot, kept }: BoundUse) -> String {
    let nearest =
        format!("the nearest, {}, has {} in {spot}", threads(iothreads), bound.reached(used));
    if used > 1.0 {
        return format!("No number of iothreads has {bound} in every cell that counts: {nearest}.");
    }
    format!(
        "No number of iothreads is shown to have {bound} in every cell that counts: {nearest}, but keeps \
         that in {:.0} % of resamplings only.",
        (kept * 100.0).floor()
    )
}

/// How much the number lacks.
fn lack(answer: &Answer) -> String {
    // Of what shall be small, how much more it is.
    let (best, far, percent) = match answer.want {
        Want::Throughput => ("the best", "below", answer.shortfall * 100.0),
        Want::Latency => ("the lowest", "above", more(answer.shortfall)),
        Want::Cpu => ("the least", "above", more(answer.shortfall)),
    };
    let best = if answer.bounds.is_empty() {
        best.to_owned()
    } else {
        format!("{best} of those that keep that")
    };
    let many = answer.cells > 1;
    match (answer.goal, many) {
        (Goal::Weighted, true) if percent < 0.5 => {
            format!("within 1 % of {best} on weighted average")
        }
        (Goal::Weighted, true) => format!("{percent:.0} % {far} {best} on weighted average"),
        (_, true) if percent < 0.05 => format!("{best} in every cell"),
        (_, true) if percent < 1.0 => format!("within 1 % of {best} in every cell"),
        (_, true) => {
            let of = if answer.bounds.is_empty() { "of" } else { "in" };
            format!("at most {percent:.0} % {far} {best} {of} each cell ({})", answer.worst)
        }
        (_, false) if percent < 0.05 => best,
        (_, false) if percent < 1.0 => format!("within 1 % of {best}"),
        (_, false) => format!("{percent:.0} % {far} {best}"),
    }
}

/// By how many percent a reciprocal is higher that lacks so much.
fn more(shortfall: f64) -> f64 {
    (1.0 / (1.0 - shortfall) - 1.0) * 100.0
}

fn gained(gain: Gain, want: Want) -> String {
    let range = changes_of(want, gain.lowest, gain.highest);
    let against = if want == Want::Throughput { "over none" } else { "against none" };
    let (words, some) = match (gain.in_doubt, gain.unproved) {
        (0, 0) => return format!(", {range} {against}"),
        (0, unproved) => ("of too few repeats to rule out noise", unproved),
        (in_doubt, unproved) => ("which may be noise", in_doubt + unproved),
    };
    let doubt = match gain.cells {
        cells if cells == some => format!(" ({words})"),
        cells => format!(" ({words} in {some} of {})", counted(cells, "cell")),
    };
    format!(", {range} {against}{doubt}")
}

/// What changes by these ratios of what is wanted: `+3 % to +8 %`, `p99 −8 % to −3 %`.
fn changes_of(want: Want, lowest: f64, highest: f64) -> String {
    match want {
        Want::Throughput => gains(lowest, highest),
        Want::Latency => format!("p99 {}", gains(1.0 / highest, 1.0 / lowest)),
        Want::Cpu => format!("CPU per request {}", gains(1.0 / highest, 1.0 / lowest)),
    }
}

/// `+3 %`, `+3 % to +8 %`.
fn gains(lowest: f64, highest: f64) -> String {
    let [low, high] = [lowest, highest].map(percent_gain);
    if low == high { low } else { format!("{low} to {high}") }
}

fn costs(Price { cpus, none, .. }: Price) -> String {
    let words =
        |cpus: f64| if cpus < 0.05 { "less than 0.1".to_owned() } else { format!("{cpus:.1}") };
    let cpus = words(cpus);
    let none = none.map(words).filter(|none| *none != cpus);
    let instead = none.map_or_else(String::new, |none| format!(" instead of {none}"));
    format!(", for {cpus} CPUs{instead} where it costs most")
}

/// How sure it is that the number is good enough, and of what the share is one.
fn certainty(answer: &Answer) -> String {
    let percent = (answer.within * 100.0).floor();
    let what = match answer.bounds.is_empty() {
        true => format!("no number is better by more than {} %", answer.tolerance),
        false => {
            format!(
                "it keeps that and none that does is better by more than {} %",
                answer.tolerance
            )
        }
    };
    let certainty = answer.certainty();
    let (only, none) = match certainty {
        Certainty::Sure | Certainty::Likely => ("", ""),
        Certainty::Doubtful => ("only ", " (none is shown to be)"),
    };
    format!("{}: in {only}{percent:.0} % of resamplings {what}{none}", certainty.name())
}

/// What resamplings do not see.
fn but(Caveats { unsteady, drifted, holes, failed_cells }: Caveats) -> String {
    let mut reasons: Vec<String> = [
        (unsteady, "most runs were not steady"),
        (drifted, "the machine drifted meanwhile"),
        (holes, "the file has holes, which look too fast"),
    ]
    .into_iter()
    .filter(|(holds, _)| *holds)
    .map(|(_, reason)| reason.to_owned())
    .collect();
    if failed_cells > 0 {
        reasons.push(format!("every run of {} failed", counted(failed_cells, "other cell")));
    }
    if reasons.is_empty() { String::new() } else { format!(", but {}", reasons.join(", and ")) }
}

/// What the best number would bring and cost.
fn dearer(dearer: DearerNumber, answer: &Answer) -> Option<String> {
    let range = changes_of(answer.want, dearer.lowest, dearer.highest);
    let prices = dearer.price.zip(answer.price).filter(|_| answer.want != Want::Cpu);
    let price = prices.map_or_else(String::new, |(dearer, own)| {
        let [dearer, own] = [dearer.cpus, own.cpus].map(|cpus| format!("{cpus:.1}"));
        if dearer == own { String::new() } else { format!(", for {dearer} CPUs instead of {own}") }
    });
    // One that gains nothing is not worth a word.
    (dearer.highest >= 1.005)
        .then(|| format!("{} would bring {range}{price}.", capitalised(&threads(dearer.iothreads))))
}

/// How the number that is in use compares.
fn today(Today { iothreads, shortfall, worst }: Today, answer: &Answer) -> String {
    let reaches = match answer.want {
        Want::Throughput => format!("{:.0} % of the best", (1.0 - shortfall) * 100.0),
        Want::Latency => format!("a p99 {:.0} % above the lowest", more(shortfall)),
        Want::Cpu => format!("{:.0} % more CPU time per request than the least", more(shortfall)),
    };
    let place = match (answer.cells, answer.goal) {
        (1, _) => String::new(),
        (_, Goal::Weighted) => " on weighted average".to_owned(),
        (_, _) => format!(" where it lacks most ({worst})"),
    };
    format!("Today: {}: {reaches}{place}.", threads(iothreads))
}

fn cheaper(CheaperNumber { iothreads, shortfall, saves }: CheaperNumber, want: Want) -> String {
    let lacks = match want {
        Want::Throughput => format!("lack {:.0} %", shortfall * 100.0),
        Want::Latency => format!("have a p99 {:.0} % higher", more(shortfall)),
        Want::Cpu => format!("take {:.0} % more per request", more(shortfall)),
    };
    format!("{} would {lacks} and cost {saves:.1} CPUs less.", capitalised(&threads(iothreads)))
}

/// What the number costs in IOPS, where others are wanted more of it.
fn rate((rate, spot): (f64, CellOnVariant), answer: &Answer) -> Option<String> {
    let lacks = 1.0 - rate;
    let at_most = if answer.cells > 1 {
        format!("up to {:.0} % (in {spot})", lacks * 100.0)
    } else {
        format!("{:.0} %", lacks * 100.0)
    };
    (lacks > answer.tolerance.share())
        .then(|| format!("Its IOPS are {at_most} below the most that any number reaches."))
}

/// What limits the cells, the most common first, a sentence each.
fn limits(answer: &Answer) -> Vec<String> {
    let all = &answer.limits;
    let kinds = sorted(all.iter().map(|limit| limit.bottleneck));
    let mut kinds: Vec<(Bottleneck, Vec<&Limit>)> = kinds
        .into_iter()
        .map(|kind| (kind, all.iter().filter(|limit| limit.bottleneck == kind).collect()))
        .collect();
    kinds.sort_by_key(|(_, own)| std::cmp::Reverse(own.len()));
    let sentence = |(kind, own): &(Bottleneck, Vec<&Limit>)| {
        let cells = match (own.len(), answer.cells) {
            (_, 1) => String::new(),
            (count, cells) if count == cells => " in every cell".to_owned(),
            (1, _) => format!(" in {}", own[0].spot),
            (count, cells) => format!(" in {count} of {}", counted(cells, "cell")),
        };
        let rates = own[0].host.map_or_else(String::new, |host| {
            let at = if answer.cells > 1 && own.len() > 1 {
                format!("in {} ", own[0].spot)
            } else {
                String::new()
            };
            format!(" ({at}the host reaches {}, this {})", short(host), short(own[0].iops))
        });
        let what = capitalised(&kind.to_string());
        let verb = if kind.is_plural() { "limit" } else { "limits" };
        format!("{what} {verb} the rate{cells}: {}{rates}.", kind.remedy(answer.subject))
    };
    kinds.iter().map(sentence).collect()
}

fn changed(changes: &[Change]) -> Option<String> {
    let parts: Vec<String> = changes
        .iter()
        .take(CHANGES_MAX)
        .map(|Change { condition, iothreads }| match condition {
            Condition::Without(spot) => format!("without {spot}: {}", threads(*iothreads)),
            Condition::WithoutBounds => format!("without a bound: {}", threads(*iothreads)),
            Condition::Only(operation) => format!("for {operation} alone: {}", threads(*iothreads)),
        })
        .collect();
    (!parts.is_empty()).then(|| format!("What would change the answer: {}.", parts.join("; ")))
}

/// `no iothread`, `1 iothread`, `4 iothreads`, `iothread=auto`.
pub fn threads(iothreads: Iothreads) -> String {
    match iothreads {
        Iothreads::NONE => "no iothread".to_owned(),
        Iothreads::AUTO => "iothread=auto".to_owned(),
        count => counted(usize::from(count.count()), "iothread"),
    }
}

/// The beginning of a sentence, unless that is an option.
fn capitalised(text: &str) -> String {
    if text.contains('=') {
        return text.to_owned();
    }
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}
