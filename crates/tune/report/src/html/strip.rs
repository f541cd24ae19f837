//! A ratio on a line: what two commands differ by as a band, the interval as a bar, the ratio as a dot. Pure functions.
//!
//! All strips of a page have one scale, so that they can be compared down a table.
//!
//! Invariants: nothing is drawn outside of a strip; what lies further out is at its end.

use findings::compare::{EQUAL_WITHIN, Ratio};
use findings::stats::factor;
use maud::{Markup, html};

use super::plot::px;

/// In the strip's own units, of which only the height is that of the page.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 18.0;
/// Left and right, for half of a mark.
const MARGIN: f64 = 20.0;
/// By what factor up and down the ends may be from 1.
const ENDS: [f64; 8] = [1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0];

/// What all strips of a page have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ruler {
    /// The right end; the left one is as far on the other side of 1.
    end: f64,
}

impl Ruler {
    /// That all of these fit on, if they can.
    pub(super) fn of(ratios: impl Iterator<Item = Ratio>) -> Self {
        let furthest = ratios
            .flat_map(|Ratio { ratio, interval }| {
                let (low, high) = interval.unwrap_or((ratio, ratio));
                [ratio, low, high, EQUAL_WITHIN]
            })
            .filter(|value| value.is_finite() && *value > 0.0)
            .map(factor)
            .fold(1.0, f64::max);
        let last = ENDS[ENDS.len() - 1];
        Self { end: ENDS.into_iter().find(|end| *end >= furthest).unwrap_or(last) }
    }

    /// Whole.
    fn x(self, value: f64) -> f64 {
        let share = (value.ln() / self.end.ln()).clamp(-1.0, 1.0);
        (WIDTH / 2.0 + share * (WIDTH / 2.0 - MARGIN)).round()
    }

    /// The scale, to stand above the strips.
    pub(super) fn scale(self) -> Markup {
        let ends = [1.0 / self.end, 1.0, self.end];
        html! { span class="ruler" { @for value in ends { span { (written(value)) } } } }
    }

    /// One ratio.
    pub(super) fn strip(self, title: &str, Ratio { ratio, interval }: Ratio) -> Markup {
        let (left, right) = (self.x(1.0 / EQUAL_WITHIN), self.x(EQUAL_WITHIN));
        let middle = px(WIDTH / 2.0);
        let bar = interval.map(|(low, high)| {
            let (low, high) = (px(self.x(low)), px(self.x(high)));
            format!("M{low} 9H{high}M{low} 6v6M{high} 6v6")
        });
        // Stretched to the width of the column: nothing but lines, which stay as thick as they are.
        html! {
            svg class="strip" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" {
                title { (title) }
                path class="band" d=(format!("M{} 0H{}V{HEIGHT}H{}z", px(left), px(right), px(left))) {}
                path class="one" d=(format!("M{middle} 0V{HEIGHT}")) {}
                @if let Some(d) = bar { path d=(d) {} }
                path class="dot" d=(format!("M{} 9h0", px(self.x(ratio)))) {}
            }
        }
    }
}

/// `0.67`, `1`, `1.5`.
fn written(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(ratio: f64, interval: Option<(f64, f64)>) -> Ratio {
        Ratio { ratio, interval }
    }

    #[test]
    fn the_scale_is_as_wide_as_the_furthest_needs_and_no_wider() {
        for (ratios, end) in [
            (vec![], 1.1),
            (vec![ratio(1.01, None)], 1.1),
            (vec![ratio(1.01, Some((0.7, 1.1)))], 1.5),
            (vec![ratio(0.4, None), ratio(1.9, None)], 3.0),
            (vec![ratio(0.0, None), ratio(f64::INFINITY, None)], 1.1),
            (vec![ratio(1e9, None)], 100.0),
        ] {
            assert_eq!(Ruler::of(ratios.iter().copied()).end, end, "{ratios:?}");
        }
    }

    #[test]
    fn a_strip_shows_band_bar_and_dot_and_stays_inside() {
        let ruler = Ruler { end: 2.0 };
        let drawn = ruler.strip("t", Ratio { ratio: 2.0, interval: Some((1.0, 9.0)) });
        let drawn = drawn.into_string();
        for piece in [
            "d=\"M486 0H514V18H486z\"",
            "d=\"M500 9H980M500 6v6M980 6v6\"",
            "class=\"dot\" d=\"M980 9h0\"",
            "<title>t</title>",
        ] {
            assert!(drawn.contains(piece), "{piece} in {drawn}");
        }
        let scale = ruler.scale().into_string();
        assert!(
            scale.contains(">0.5<") && scale.contains(">1<") && scale.contains(">2<"),
            "{scale}"
        );
        let none = ruler.strip("t", Ratio { ratio: 0.0, interval: None }).into_string();
        assert!(none.contains("d=\"M20 9h0\"") && !none.contains("NaN"), "{none}");
    }
}
