//! Who may use services: the engine programs what a configuration says, and the program is run on single packets.

mod bench;
mod end_to_end;
mod limits;
mod lists;
mod sound;
