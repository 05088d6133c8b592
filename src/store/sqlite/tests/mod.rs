//! Tests of the database as a whole: which queries use an index, and that older schemas are upgraded.

mod deliveries;
mod indexes;
mod synchronous;
mod upgrade;
