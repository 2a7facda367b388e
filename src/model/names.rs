//! Names that an operator gives to things.

use std::{fmt, str::FromStr, sync::Arc};

/// The unique handle of a service in configuration, API, CLI and metrics.
///
/// One to 63 characters of `a-z`, `A-Z`, `0-9`, `.`, `_` and `-`, beginning with a letter or digit, so that it fits
/// unquoted in a URL path, a shell word and a metric label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(Arc<str>);

/// Why a text is not a [`ServiceName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a service name: use 1 to 63 characters of a-z, A-Z, 0-9, `.`, `_` and `-`, beginning with a letter or digit"
)]
pub struct InvalidName {
    /// The text that was refused.
    pub text: String,
}

impl ServiceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts_well && text.len() <= 63 && text.chars().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidName { text: text.to_owned() })
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for ServiceName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for ServiceName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_fits_a_url_a_shell_and_a_label() {
        for good in ["web", "web-6", "a", "0.dns_udp", &"x".repeat(63)] {
            assert_eq!(good.parse::<ServiceName>().unwrap().as_str(), good);
        }
        for bad in ["", "-web", ".", "two words", "caf\u{e9}", "a/b", &"x".repeat(64)] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad:?}");
        }
    }
}
