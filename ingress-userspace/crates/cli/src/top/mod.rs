//! Counters of hosts on a terminal, as a table and as JSON. The caller reads them.

mod controls;
mod json;
mod screen;
mod selection;
mod table;

pub use json::top as json;
pub use screen::run as screen;
pub use selection::{Selection, TopColumn};
pub use table::lines;
