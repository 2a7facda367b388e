//! Counters of all CPUs, added up and written.

use super::*;

pub(super) fn for_each_cpu<T: PlainData>(
    map: &MapHandle,
    key: u32,
    mut action: impl FnMut(T),
) -> Result<(), DatapathError> {
    let values = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DatapathError::system("read counters", error))?;
    for bytes in values.unwrap_or_default() {
        if let Some(value) = bytes.get(..size_of::<T>()).and_then(T::from_bytes) {
            action(value);
        }
    }
    Ok(())
}

/// Makes counters add up to `total` over all CPUs. What packets count meanwhile may be lost.
pub(super) fn write_counters<T: PlainData>(
    map: &MapHandle,
    key: u32,
    total: &T,
) -> Result<(), DatapathError> {
    let failed = |error| DatapathError::system("write counters", error);
    let cpus = libbpf_rs::num_possible_cpus().map_err(failed)?;
    let mut values = vec![T::default().bytes().to_vec(); cpus];
    if let Some(first) = values.first_mut() {
        *first = total.bytes().to_vec();
    }
    map.update_percpu(&key.to_ne_bytes(), &values, MapFlags::ANY).map_err(failed)
}

pub(in crate::datapath) fn read_ledger(map: &MapHandle, key: u32) -> Result<LedgerCounters, DatapathError> {
    let mut counters = LedgerCounters::default();
    for_each_cpu::<types::ledger>(map, key, |block| counters.add(&block))?;
    Ok(counters)
}
