//! The tile space of a family: two parameters, the time of each pair.
