//! The interfaces whose packets are balanced.

use std::collections::HashMap;

use super::{field::Field, problem::quoted};
use crate::model::{AttachMode, Interface};

const KEYS: [&str; 2] = ["name", "mode"];
const MODES: [(&str, AttachMode); 3] =
    [("native", AttachMode::Native), ("generic", AttachMode::Generic), ("auto", AttachMode::Auto)];

/// Bytes of the longest interface name that the kernel allows (`IFNAMSIZ` - 1).
const LONGEST_NAME: usize = 15;

/// Reads the list of interfaces.
pub fn interfaces(field: &Field<'_>) -> Option<Vec<Interface>> {
    let items = field.list()?;
    if items.len() == 0 {
        return field.refused("the list is empty; name at least one interface, such as - name: eth0");
    }
    let mut names = HashMap::new();
    let interfaces: Vec<_> = items.map(|item| interface(&item, &mut names)).collect();
    interfaces.into_iter().collect()
}

fn interface(field: &Field<'_>, names: &mut HashMap<String, u32>) -> Option<Interface> {
    let fields = field.mapping(&KEYS)?;
    let mode = fields.get("mode").map_or(Some(AttachMode::default()), |mode| mode.choice(&MODES));
    let name_field = fields.require("name", "write the kernel's name of the interface, such as eth0")?;
    let name = name_field.text()?;
    if !is_interface_name(name) {
        return name_field.refused(format!(
            "{} is not an interface name; use 1 to {LONGEST_NAME} bytes without `/`, `:` and white space",
            quoted(name)
        ));
    }
    if let Some(line) = names.insert(name.to_owned(), name_field.at().line) {
        return name_field.refused(format!("{} was given on line {line} already", quoted(name)));
    }
    Some(Interface { name: name.to_owned(), mode: mode? })
}

/// The kernel's own rule (`dev_valid_name`).
fn is_interface_name(name: &str) -> bool {
    let allowed = |c: char| !matches!(c, '/' | ':') && !c.is_whitespace() && !c.is_control();
    (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && name.chars().all(allowed)
}
