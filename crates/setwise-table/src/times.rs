//! Dates and times as text.

use crate::table::{Text, Values};

/// Where a date has its day, month and year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DateOrder {
    YearMonthDay,
    MonthDayYear,
    DayMonthYear,
}

/// Text as times, if every value is one.
///
/// Dates are `2024-05-31`, `2024/05/31`, `2024-05`, `31.05.2024`, `31/05/2024` or `05/31/2024`. A time of day and an
/// offset from UTC may follow. Where days and months fit both ways, a slash means that the month is first.
pub(crate) fn parse_times(text: &Text) -> Option<Values> {
    let first = text.levels.iter().next()?;
    let orders = [DateOrder::YearMonthDay, DateOrder::MonthDayYear, DateOrder::DayMonthYear];
    let orders = orders.into_iter().filter(|order| time(first, *order).is_some());
    let parse = |order| text.levels.iter().map(|level| time(level, order)).collect::<Option<Vec<f64>>>();
    let seconds = orders.into_iter().find_map(parse)?;
    let of = |code: &u32| if *code == Text::MISSING { f64::NAN } else { seconds[*code as usize] };
    Some(Values::Times(text.codes.iter().map(of).collect()))
}

/// Seconds since 1970 of a date, with or without a time of day.
fn time(text: &str, order: DateOrder) -> Option<f64> {
    let (date, clock) = match text.find(['T', ' ']) {
        Some(at) => (&text[..at], text[at + 1..].trim()),
        None => (text, ""),
    };
    let seconds = 86_400.0 * days(date, order)? as f64;
    if clock.is_empty() { Some(seconds) } else { Some(seconds + clock_seconds(clock)?) }
}

/// Days since 1970-01-01.
fn days(date: &str, order: DateOrder) -> Option<i64> {
    let delimiter = date.chars().find(|c| matches!(c, '-' | '/' | '.'))?;
    let mut parts = date.split(delimiter);
    let (first, second, third) = (parts.next()?, parts.next()?, parts.next());
    if parts.next().is_some() {
        return None;
    }
    let (year, month, day) = match (order, third) {
        (DateOrder::YearMonthDay, None) if delimiter == '-' && second.len() == 2 => (first, second, "1"),
        (DateOrder::YearMonthDay, Some(third)) => (first, second, third),
        (DateOrder::MonthDayYear, Some(third)) if delimiter == '/' => (third, first, second),
        (DateOrder::DayMonthYear, Some(third)) => (third, second, first),
        _ => return None,
    };
    let (year, month, day) = (digits(year, 4, 4)?, digits(month, 1, 2)?, digits(day, 1, 2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    (1..=length).contains(&day).then(|| days_from_civil(year, month, day))
}

/// Days since 1970-01-01 of a Gregorian date: years are counted from March, in eras of 400 years.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Seconds since midnight in UTC of a time of day with an optional offset.
fn clock_seconds(clock: &str) -> Option<f64> {
    let (clock, offset) = match clock.strip_suffix('Z').or_else(|| clock.strip_suffix(" UTC")) {
        Some(rest) => (rest, 0),
        None => match clock.rfind(['+', '-']) {
            Some(at) => (clock[..at].trim_end(), offset_seconds(&clock[at..])?),
            None => (clock, 0),
        },
    };
    let mut parts = clock.split(':');
    let hours = digits(parts.next()?, 1, 2)?;
    let minutes = digits(parts.next()?, 2, 2)?;
    let seconds = match parts.next() {
        None => 0.0,
        Some(text) => {
            let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
            let whole = digits(whole, 2, 2)?;
            digits(fraction, 1, 9)?;
            whole as f64 + format!("0.{fraction}").parse::<f64>().ok()?
        }
    };
    let valid = parts.next().is_none() && hours < 24 && minutes < 60 && seconds < 61.0;
    valid.then_some((3600 * hours + 60 * minutes - offset) as f64 + seconds)
}

/// The seconds of an offset such as `+02:00`, `+0200` or `+02`.
fn offset_seconds(offset: &str) -> Option<i64> {
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let text = offset[1..].replace(':', "");
    let (hours, minutes) = match text.len() {
        2 => (digits(&text, 2, 2)?, 0),
        4 => (digits(text.get(..2)?, 2, 2)?, digits(text.get(2..)?, 2, 2)?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (3600 * hours + 60 * minutes))
}

/// A number of `min` to `max` digits.
fn digits(text: &str, min: usize, max: usize) -> Option<i64> {
    let valid = (min..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| text.parse().ok()).flatten()
}

/// Seconds since 1970 as a date, with the time of day if it is not midnight.
pub fn format_time(seconds: f64) -> String {
    const MAX: f64 = 3e11; // about ten thousand years
    if seconds.is_nan() || seconds.abs() >= MAX {
        return seconds.to_string();
    }
    let whole = seconds.floor() as i64;
    let (year, month, day) = civil_from_days(whole.div_euclid(86_400));
    let clock = whole.rem_euclid(86_400);
    let date = format!("{year:04}-{month:02}-{day:02}");
    match clock {
        0 => date,
        _ if clock % 60 == 0 => format!("{date} {:02}:{:02}", clock / 3600, clock / 60 % 60),
        _ => format!("{date} {:02}:{:02}:{:02}", clock / 3600, clock / 60 % 60, clock % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Option<Vec<f64>> {
        let mut text = Text::default();
        values.iter().for_each(|v| text.push(Some(v)));
        match parse_times(&text)? {
            Values::Times(times) => Some(times),
            _ => None,
        }
    }

    #[test]
    fn civil_dates_and_days_are_inverse() {
        for (date, days) in [((1970, 1, 1), 0), ((2000, 3, 1), 11_017), ((1969, 12, 31), -1), ((2024, 2, 29), 19_782)] {
            assert_eq!(days_from_civil(date.0, date.1, date.2), days);
        }
        for days in (-800_000..800_000).step_by(97) {
            let (y, m, d) = civil_from_days(days);
            assert_eq!(days_from_civil(y, m, d), days);
        }
    }

    #[test]
    fn common_dates_and_times_are_parsed() {
        let may = 19_874.0 * 86_400.0; // 2024-05-31
        for date in ["2024-05-31", "2024/05/31", "31.05.2024", "31/05/2024", "5/31/2024", "2024-05-31 00:00:00"] {
            assert_eq!(parse(&[date]), Some(vec![may]), "{date}");
        }
        let noon = may + 43_200.5;
        for time in ["2024-05-31T12:00:00.5Z", "2024-05-31 14:00:00.5+02:00", "2024-05-31 07:00:00.500-0500"] {
            assert_eq!(parse(&[time]), Some(vec![noon]), "{time}");
        }
        assert_eq!(parse(&["2024-05"]), Some(vec![19_844.0 * 86_400.0]));
        // The second value decides that days come first.
        assert_eq!(parse(&["01/05/2024", "31/05/2024"]).unwrap()[1], may);
        assert_eq!(parse(&["05/01/2024"]).unwrap()[0], 19_844.0 * 86_400.0);
        for other in ["2023-02-29", "1.2.3", "12:30", "x", "", "2024-05-31 25:00", "192.168.1.1", "2024-13-01"] {
            assert_eq!(parse(&[other]), None, "{other}");
        }
        assert_eq!(parse(&["2024-05-31", "unknown"]), None);
    }

    #[test]
    fn times_are_formatted_as_dates() {
        assert_eq!(format_time(19_874.0 * 86_400.0), "2024-05-31");
        assert_eq!(format_time(19_874.0 * 86_400.0 + 43_260.0), "2024-05-31 12:01");
        assert_eq!(format_time(-1.0), "1969-12-31 23:59:59");
    }
}
