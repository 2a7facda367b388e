//! Orders in which pieces arrive.

/// An order of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Forward,
    Reversed,
    /// Every piece twice, the second time behind the first half of all.
    Duplicated,
    /// At random, always the same one.
    Shuffled(u64),
}

impl Order {
    pub const ALL: [Self; 6] = [
        Self::Forward,
        Self::Reversed,
        Self::Duplicated,
        Self::Shuffled(1),
        Self::Shuffled(2),
        Self::Shuffled(3),
    ];

    /// The pieces in this order.
    pub fn arrange<T: Clone>(self, pieces: &[T]) -> Vec<T> {
        let mut arranged = pieces.to_vec();
        match self {
            Self::Forward => {}
            Self::Reversed => arranged.reverse(),
            Self::Duplicated => {
                let half = pieces.len().div_ceil(2);
                arranged.splice(half..half, pieces[..half].iter().cloned());
                arranged.extend_from_slice(&pieces[half..]);
            }
            Self::Shuffled(seed) => {
                let mut state = seed;
                for end in (1..arranged.len()).rev() {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    arranged.swap(end, (state >> 33) as usize % (end + 1));
                }
            }
        }
        arranged
    }

    /// True where the piece with the ports comes first.
    pub fn begins_with_ports(self) -> bool {
        matches!(self, Self::Forward | Self::Duplicated)
    }
}
