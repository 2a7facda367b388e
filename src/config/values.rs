//! Single values: text, numbers, choices and lengths of time.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use super::{duration, field::Field, keys, problem::quoted, tree::Value};

impl<'a> Field<'a> {
    /// A text, quoted or not, but not empty.
    pub fn text(&self) -> Option<&'a str> {
        match self.value() {
            Value::Scalar { text, plain }
                if !(text.is_empty() || *plain && matches!(text.as_ref(), "~" | "null")) =>
            {
                Some(text)
            }
            Value::Scalar { .. } => self.refused("the value is missing"),
            Value::List(_) | Value::Mapping(_) => {
                self.refused(format!("{} stands where a single value belongs", self.kind()))
            }
        }
    }

    /// A whole number in decimal digits, within `allowed`.
    pub fn integer<N>(&self, allowed: RangeInclusive<N>) -> Option<N>
    where
        N: TryFrom<u64> + PartialOrd + Display,
    {
        let text = self.text()?;
        let range = format!("use {} to {}", allowed.start(), allowed.end());
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits && matches!(self.value(), Value::Scalar { plain: false, .. }) {
            return self.refused(format!("{} is a text here; leave out the quotes", quoted(text)));
        }
        if digits && text.len() > 1 && text.starts_with('0') {
            return self
                .refused(format!("{} begins with 0, which some read as octal; {range}", quoted(text)));
        }
        let negative =
            text.strip_prefix('-').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        if !digits && (!negative || text == "-") {
            return self.refused(format!("{} is not a whole number in digits; {range}", quoted(text)));
        }
        let number = text.parse::<u64>().ok().and_then(|number| N::try_from(number).ok());
        match number.filter(|number| allowed.contains(number)) {
            Some(number) => Some(number),
            None => self.refused(format!("{} is out of range; {range}", quoted(text).trim_matches('`'))),
        }
    }

    /// One of the words of `choices`, each of which stands for a value.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Some(*value),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.refused(keys::unknown_value(text, &words))
            }
        }
    }

    /// A length of time within `allowed`.
    pub fn duration(&self, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        let text = self.text()?;
        match duration::parse(text) {
            Ok(duration) if allowed.contains(&duration) => Some(duration),
            Ok(_) => {
                let (least, most) = (duration::format(*allowed.start()), duration::format(*allowed.end()));
                self.refused(format!(
                    "{} is out of range; use {least} to {most}",
                    quoted(text).trim_matches('`')
                ))
            }
            Err(error) => self.refused(format!("{} {error}", quoted(text))),
        }
    }
}
