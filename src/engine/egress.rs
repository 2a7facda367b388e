//! How frames leave for interfaces that are not devices themselves, told to the packet path for replies.

use super::Engine;
use crate::datapath::{Datapath, DatapathError};

impl<D: Datapath> Engine<D> {
    /// Writes what differs, new interfaces first.
    pub(super) fn change_egress(&mut self) -> Result<(), DatapathError> {
        let Some(wanted) = &self.egress else { return Ok(()) };
        for (&interface, &egress) in wanted {
            if self.programmed.egress.get(&interface) != Some(&egress) {
                self.datapath.set_egress(interface, Some(egress))?;
                self.programmed.egress.insert(interface, egress);
            }
        }
        let gone: Vec<u32> =
            self.programmed.egress.keys().filter(|index| !wanted.contains_key(index)).copied().collect();
        for interface in gone {
            self.datapath.set_egress(interface, None)?;
            self.programmed.egress.remove(&interface);
        }
        Ok(())
    }

    /// True where the packet path does not know yet what there is to know.
    pub(super) fn egress_differs(&self) -> bool {
        self.egress.as_ref().is_some_and(|wanted| *wanted != self.programmed.egress)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        datapath::Memory,
        model::{Egress, VlanTags},
    };

    #[test]
    fn only_what_differs_is_written_and_an_adopted_state_is_not_written_again() {
        let device = Egress::Device(3, VlanTags { tci: [10, 0], service: false });
        let mut engine = Engine::adopt(Memory::new(8, 1000)).unwrap();
        assert!(!engine.is_dirty() || engine.apply().unwrap().writes == 0);
        engine.set_egress(&Some(BTreeMap::from([(7, device), (8, Egress::Kernel)])));
        assert!(engine.is_dirty());
        assert_eq!(engine.apply().unwrap().writes, 2);
        assert_eq!(engine.datapath().egress, BTreeMap::from([(7, device), (8, Egress::Kernel)]));

        let mut next = Engine::adopt(engine.datapath().clone()).unwrap();
        let before = next.datapath().egress.clone();
        next.set_egress(&None);
        assert_eq!(next.apply().unwrap().writes, 0, "not known is not gone");
        next.set_egress(&Some(before));
        assert_eq!(next.apply().unwrap().writes, 0);
        next.set_egress(&Some(BTreeMap::from([(8, device)])));
        assert_eq!(next.apply().unwrap().writes, 2);
        assert_eq!(next.datapath().egress, BTreeMap::from([(8, device)]));
    }
}
