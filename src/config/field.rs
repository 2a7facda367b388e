//! Fields: values of the file that know their path, and mappings whose keys are checked.

use std::fmt;

use super::{
    keys,
    problem::{Position, Report, quoted},
    tree::{Node, Value},
};

/// Where a field is in the structure, such as `services[0].backends[1].weight`. Written out only when needed.
#[derive(Clone, Copy)]
pub struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl FieldPath<'_> {
    /// The whole file.
    pub const ROOT: Self = Self { parent: None, step: Step::Key("") };

    /// The value of `key` in this mapping.
    pub fn key<'a>(&'a self, key: &'a str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), step: Step::Key(key) }
    }

    fn index(&self, index: usize) -> FieldPath<'_> {
        FieldPath { parent: Some(self), step: Step::Index(index) }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = self.parent else { return Ok(()) };
        parent.fmt(f)?;
        match self.step {
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => {
                let separator = if parent.parent.is_some() { "." } else { "" };
                write!(f, "{separator}{}", quoted(key).trim_matches('`'))
            }
        }
    }
}

/// A value of the file, and whom to tell what is wrong with it.
///
/// Readers return `None` for a value that was reported as wrong.
#[derive(Clone, Copy)]
pub struct Field<'a> {
    node: &'a Node<'a>,
    path: FieldPath<'a>,
    report: &'a Report,
}

impl<'a> Field<'a> {
    /// The whole file.
    pub fn root(node: &'a Node<'a>, report: &'a Report) -> Self {
        Self { node, path: FieldPath::ROOT, report }
    }

    /// Where the value begins.
    pub fn at(&self) -> Position {
        self.node.at
    }

    /// The value as it was parsed.
    pub fn value(&self) -> &'a Value<'a> {
        &self.node.value
    }

    /// Says what is wrong with this field.
    pub fn refuse(&self, message: impl Into<String>) {
        self.report.add(self.node.at, &self.path, message);
    }

    /// As [`Self::refuse`], for an expression that must have a value.
    pub fn refused<T>(&self, message: impl Into<String>) -> Option<T> {
        self.refuse(message);
        None
    }

    /// The items of a list.
    pub fn list(&self) -> Option<impl ExactSizeIterator<Item = Field<'_>>> {
        match &self.node.value {
            Value::List(items) => Some(items.iter().enumerate().map(|(index, node)| Field {
                node,
                path: self.path.index(index),
                report: self.report,
            })),
            _ => self
                .refused(format!("{} stands where a list belongs; write [] for an empty one", self.kind())),
        }
    }

    /// The fields of a mapping. Keys other than `allowed` and keys that come twice are reported.
    pub fn mapping(&self, allowed: &[&str]) -> Option<Fields<'_>> {
        let Value::Mapping(entries) = &self.node.value else {
            let allowed = allowed.join(", ");
            return self
                .refused(format!("{} stands where keys belong; allowed here: {allowed}", self.kind()));
        };
        let mut lines: Vec<Option<u32>> = vec![None; allowed.len()];
        for entry in entries {
            let path = self.path.key(&entry.key);
            let known = allowed.iter().position(|key| *key == entry.key);
            let earlier = known.and_then(|index| lines[index].replace(entry.at.line));
            if self.report.is_full() && (known.is_none() || earlier.is_some()) {
                self.report.count();
            } else if known.is_none() {
                self.report.add(entry.at, &path, keys::unknown(&entry.key, allowed));
            } else if let Some(line) = earlier {
                self.report.add(entry.at, &path, format!("duplicate key; line {line} gives it already"));
            }
        }
        Some(Fields { field: self })
    }

    /// The value of `key`, where this is a mapping that has it. Of duplicate keys the first counts.
    pub fn find<'b>(&'b self, key: &'b str) -> Option<Field<'b>> {
        let Value::Mapping(entries) = &self.node.value else { return None };
        let entry = entries.iter().find(|entry| entry.key == key)?;
        Some(Field { node: &entry.value, path: self.path.key(key), report: self.report })
    }

    /// What kind of value this is, for a message.
    pub fn kind(&self) -> String {
        match &self.node.value {
            Value::Scalar { text, plain: true } if matches!(text.as_ref(), "" | "~" | "null") => {
                "nothing".to_owned()
            }
            Value::Scalar { text, .. } => quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// The fields of a mapping whose keys were checked.
pub struct Fields<'a> {
    field: &'a Field<'a>,
}

impl Fields<'_> {
    /// The field `key`, where it is given.
    pub fn get<'b>(&'b self, key: &'b str) -> Option<Field<'b>> {
        self.field.find(key)
    }

    /// The field `key`; its absence is reported with `hint`, which says what to write.
    pub fn require<'b>(&'b self, key: &'b str, hint: &str) -> Option<Field<'b>> {
        let field = self.get(key);
        if field.is_none() {
            self.field.report.add(self.field.at(), &self.field.path.key(key), format!("missing; {hint}"));
        }
        field
    }
}
