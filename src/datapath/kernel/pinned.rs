//! The set of pinned maps: whether there is a whole one that we know, and making and removing one.

use super::*;

/// Sizes of the pinned maps, if a whole set of a layout that we know is pinned.
pub(super) fn pinned_sizes(pins: &Pins) -> Result<Option<Sizes>, DatapathError> {
    let node = pins.map("node");
    if !node.exists() {
        return Ok(None);
    }
    let settings = read_settings(pins)?;
    if settings.magic == 0 {
        return Ok(None);
    }
    let known = types::layout::LAYOUT_VERSION.0;
    if settings.magic != types::layout::LAYOUT_MAGIC.0 || settings.version != known {
        let found = if settings.magic == types::layout::LAYOUT_MAGIC.0 {
            settings.version.to_string()
        } else {
            "unknown to tidegate".to_owned()
        };
        return Err(DatapathError::Layout { path: pins.root().to_owned(), found, known });
    }
    let entries = |name: &str| -> Result<u32, DatapathError> {
        let path = pins.map(name);
        let map = MapHandle::from_pinned_path(&path).map_err(|error| {
            DatapathError::system(format!("open the map pinned at {}", path.display()), error)
        })?;
        Ok(map.max_entries())
    };
    Ok(Some(Sizes {
        services: entries("services")?,
        records: entries("backends")?,
        flow_buckets: entries("flows")?,
        fragments: entries("fragments")?,
    }))
}

fn read_settings(pins: &Pins) -> Result<types::node_settings, DatapathError> {
    let path = pins.map("node");
    let failed = |error| DatapathError::system(format!("read the map pinned at {}", path.display()), error);
    let map = MapHandle::from_pinned_path(&path).map_err(failed)?;
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
    types::node_settings::from_bytes(&value).ok_or(DatapathError::Mismatch {
        path,
        what: "value size",
        found: value.len() as u64,
        wanted: size_of::<types::node_settings>() as u64,
    })
}

/// Removes what a process left that died while it made the maps. Nothing can be attached to those.
pub(super) fn remove_unfinished(pins: &Pins) -> Result<(), DatapathError> {
    pins.remove_load_balancer()
}

pub(super) fn pin_maps(pins: &Pins, maps: &Maps) -> Result<(), DatapathError> {
    for name in LOAD_BALANCER_MAPS.iter().rev() {
        let (path, map) = (pins.map(name), maps.by_name(name));
        sys::pin(map.as_fd(), &path)
            .map_err(|error| DatapathError::system(format!("pin {}", path.display()), error))?;
    }
    Ok(())
}
