//! From YAML text to a tree of nodes that know their positions.
//!
//! The tree keeps what a typed deserializer throws away: the text of every scalar as it was written, whether it was
//! quoted, every key of a mapping, and where all of it stands. Only this module knows the YAML parser.

use std::{borrow::Cow, collections::HashMap};

use serde_saphyr::granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, Span};

use super::problem::Position;

/// Nodes of one file, keys and copies made by aliases included; 16 MiB of services and backends written out in full
/// have fewer. More are an attack or an accident, and memory.
const MOST_NODES: usize = 3_000_000;
/// Anchors of one file.
const MOST_ANCHORS: usize = 10_000;
/// Levels of nesting; the configuration itself needs six.
const DEEPEST: usize = 32;

/// A fatal problem: what follows it cannot be understood.
pub type Fatal = (Position, String);

/// A value in the file.
#[derive(Clone, Debug)]
pub struct Node<'t> {
    /// Where it begins.
    pub at: Position,
    /// What it is.
    pub value: Value<'t>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Value<'t> {
    /// A word, number or text.
    Scalar {
        /// The text, quotes taken off.
        text: Cow<'t, str>,
        /// True where it stands without quotes.
        plain: bool,
    },
    /// A list.
    List(Vec<Node<'t>>),
    /// Keys and values.
    Mapping(Vec<Entry<'t>>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry<'t> {
    /// The key.
    pub key: Cow<'t, str>,
    /// Where the key begins.
    pub at: Position,
    /// The value.
    pub value: Node<'t>,
}

/// Reads the only document of `text`.
pub fn read(text: &str) -> Result<Node<'_>, Fatal> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = DEEPEST;
    options.block_nesting_limit = DEEPEST;
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| syntax(&error, text))?;
        builder.take(event, &span)?;
    }
    let start = Position { line: 1, column: 1, offset: 0, width: 1 };
    builder.root.ok_or_else(|| {
        (start, "the file is empty; name at least one interface: interfaces: [{ name: eth0 }]".to_owned())
    })
}

/// A list or mapping whose end was not met yet.
struct Open<'t> {
    at: Position,
    anchor: usize,
    nodes_before: usize,
    height: usize,
    content: Content<'t>,
}

enum Content<'t> {
    List(Vec<Node<'t>>),
    Mapping { entries: Vec<Entry<'t>>, key: Option<(Cow<'t, str>, Position)> },
}

/// What an alias stands for.
struct Anchored<'t> {
    node: Node<'t>,
    nodes: usize,
    height: usize,
}

#[derive(Default)]
struct Builder<'t> {
    root: Option<Node<'t>>,
    open: Vec<Open<'t>>,
    anchors: HashMap<usize, Anchored<'t>>,
    nodes: usize,
}

impl<'t> Builder<'t> {
    fn take(&mut self, event: Event<'t>, span: &Span) -> Result<(), Fatal> {
        let at = position(span);
        if event.tag().is_some() {
            let at = span.tag_start().map_or(at, |mark| place(&mark));
            return Err((at, "YAML tags have no meaning here; leave it out".to_owned()));
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err((at, "a second YAML document begins here; one file is one document".to_owned()))
            }
            Event::Scalar(text, style, anchor, _) => {
                self.count(1, at)?;
                let node = Node { at, value: Value::Scalar { text, plain: style == ScalarStyle::Plain } };
                self.place(node, anchor, 1, 0)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(at, anchor, Content::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                self.begin(at, anchor, Content::Mapping { entries: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, at),
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, at: Position) -> Result<(), Fatal> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err((at, format!("the file has more than {MOST_NODES} values, aliases counted in full")));
        }
        Ok(())
    }

    fn begin(&mut self, at: Position, anchor: usize, content: Content<'t>) -> Result<(), Fatal> {
        check_depth(self.open.len() + 1, at)?;
        self.count(1, at)?;
        self.open.push(Open { at, anchor, nodes_before: self.nodes - 1, height: 1, content });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fatal> {
        let Some(Open { at, anchor, nodes_before, height, content }) = self.open.pop() else {
            return Ok(());
        };
        let value = match content {
            Content::List(items) => Value::List(items),
            Content::Mapping { entries, .. } => Value::Mapping(entries),
        };
        self.place(Node { at, value }, anchor, self.nodes - nodes_before, height)
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Fatal> {
        let size = self.anchors.get(&anchor).map(|anchored| (anchored.nodes, anchored.height));
        let Some((nodes, height)) = size else {
            return Err((at, "an alias inside of what it stands for".to_owned()));
        };
        check_depth(self.open.len() + height, at)?;
        self.count(nodes, at)?; // before the copy is made
        match self.anchors.get(&anchor).map(|anchored| anchored.node.clone()) {
            Some(node) => self.place(node, 0, nodes, height),
            None => Ok(()),
        }
    }

    /// Puts a finished node where it belongs.
    fn place(&mut self, node: Node<'t>, anchor: usize, nodes: usize, height: usize) -> Result<(), Fatal> {
        if anchor != 0 {
            self.count(nodes, node.at)?;
            if self.anchors.len() >= MOST_ANCHORS {
                return Err((node.at, format!("the file has more than {MOST_ANCHORS} anchors")));
            }
            self.anchors.insert(anchor, Anchored { node: node.clone(), nodes, height });
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.height = parent.height.max(height + 1);
        match &mut parent.content {
            Content::List(items) => items.push(node),
            Content::Mapping { entries, key } => match (key.take(), node) {
                (Some((name, at)), value) => entries.push(Entry { key: name, at, value }),
                (None, Node { at, value: Value::Scalar { text, .. } }) => *key = Some((text, at)),
                (None, Node { at, .. }) => {
                    return Err((at, "a key must be a single word; put quotes around this value".to_owned()));
                }
            },
        }
        Ok(())
    }
}

fn check_depth(depth: usize, at: Position) -> Result<(), Fatal> {
    if depth > DEEPEST {
        return Err((at, too_deep()));
    }
    Ok(())
}

fn too_deep() -> String {
    format!("nested deeper than {DEEPEST} levels")
}

fn syntax(error: &ScanError, text: &str) -> Fatal {
    let at = place(error.marker());
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        return (at, too_deep());
    }
    let line_start =
        text.get(..at.offset as usize).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    let line = text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let hint = match line.split_once("address:").map(|(_, rest)| rest.trim_start()) {
        Some(rest) if rest.starts_with('[') || rest.contains("::") => {
            "; put an IPv6 address in quotes: \"2001:db8::\", \"[2001:db8::10]:80\""
        }
        _ => "",
    };
    (at, format!("not valid YAML: {}{hint}", error.info()))
}

fn place(mark: &Marker) -> Position {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position {
        line: small(mark.line()).max(1),
        column: small(mark.col()).saturating_add(1),
        offset: small(mark.byte_offset().unwrap_or_default()),
        width: 1,
    }
}

fn position(span: &Span) -> Position {
    let start = place(&span.start);
    let width = if span.end.line() == span.start.line() {
        span.end.col().saturating_sub(span.start.col())
    } else {
        1
    };
    Position { width: u32::try_from(width).unwrap_or(1).max(1), ..start }
}
