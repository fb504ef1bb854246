//! Calendar periods: the years, months, days and so on that times lie in.

use crate::times::{civil_from_days, days_from_civil};

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// Years.
    Year,
    /// Quarters of years.
    Quarter,
    /// Months.
    Month,
    /// Weeks, from Monday.
    Week,
    /// Days.
    Day,
    /// Hours.
    Hour,
}

const DAY: f64 = 86_400.0;
const HOUR: f64 = 3600.0;

impl Period {
    /// All units.
    pub const ALL: [Period; 6] =
        [Period::Year, Period::Quarter, Period::Month, Period::Week, Period::Day, Period::Hour];

    /// The name that a person types.
    pub fn name(self) -> &'static str {
        match self {
            Period::Year => "year",
            Period::Quarter => "quarter",
            Period::Month => "month",
            Period::Week => "week",
            Period::Day => "day",
            Period::Hour => "hour",
        }
    }

    /// The number of the period that holds a time, given as seconds since 1970-01-01 UTC.
    pub fn of(self, seconds: f64) -> i64 {
        let days = (seconds / DAY).floor() as i64;
        let (year, month, _) = civil_from_days(days);
        match self {
            Period::Year => year,
            Period::Quarter => 4 * year + (month - 1) / 3,
            Period::Month => 12 * year + month - 1,
            // 1970-01-01 was a Thursday.
            Period::Week => (days + 3).div_euclid(7),
            Period::Day => days,
            Period::Hour => (seconds / HOUR).floor() as i64,
        }
    }

    /// The name of a period; weeks have that of their Monday.
    pub fn label(self, number: i64) -> String {
        let date = |days: i64| {
            let (year, month, day) = civil_from_days(days);
            format!("{year:04}-{month:02}-{day:02}")
        };
        match self {
            Period::Year => format!("{number:04}"),
            Period::Quarter => format!("{:04}-Q{}", number.div_euclid(4), number.rem_euclid(4) + 1),
            Period::Month => format!("{:04}-{:02}", number.div_euclid(12), number.rem_euclid(12) + 1),
            Period::Week => date(7 * number - 3),
            Period::Day => date(number),
            Period::Hour => format!("{} {:02}:00", date(number.div_euclid(24)), number.rem_euclid(24)),
        }
    }

    /// The first second of a period.
    pub fn start(self, number: i64) -> f64 {
        let of_month = |number: i64| days_from_civil(number.div_euclid(12), number.rem_euclid(12) + 1, 1);
        let days = match self {
            Period::Year => days_from_civil(number, 1, 1),
            Period::Quarter => of_month(3 * number),
            Period::Month => of_month(number),
            Period::Week => 7 * number - 3,
            Period::Day => number,
            Period::Hour => return HOUR * number as f64,
        };
        DAY * days as f64
    }
}

impl std::fmt::Display for Period {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known: Vec<&str> = Period::ALL.iter().map(|p| p.name()).collect();
        let found = Period::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| format!("{text:?} is no period; there are {}", known.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_in_the_period_that_is_named_after_them() {
        // 2026-05-31 was a Sunday.
        let time = DAY * days_from_civil(2026, 5, 31) as f64 + 23.5 * HOUR;
        let labels = Period::ALL.map(|p| p.label(p.of(time)));
        assert_eq!(labels, ["2026", "2026-Q2", "2026-05", "2026-05-25", "2026-05-31", "2026-05-31 23:00"]);
        assert_eq!(Period::Month.label(Period::Month.of(-1.0)), "1969-12");
        assert_eq!(Period::Week.label(Period::Week.of(0.0)), "1969-12-29");
        assert_eq!("week".parse(), Ok(Period::Week));
        assert!("fortnight".parse::<Period>().unwrap_err().ends_with("year, quarter, month, week, day, hour"));
    }

    proptest::proptest! {
        #[test]
        fn a_period_begins_with_its_first_second(seconds in -4e9..4e9f64) {
            for period in Period::ALL {
                let number = period.of(seconds);
                proptest::prop_assert!(period.start(number) <= seconds && seconds < period.start(number + 1));
                proptest::prop_assert_eq!(period.of(period.start(number)), number);
            }
        }
    }
}
