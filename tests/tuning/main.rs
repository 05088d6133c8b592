//! Jobs and their evaluators through real processes: whatever a candidate or a process does, the job comes to its end,
//! and no trial is run twice or lost.

mod bench;
mod blame;
mod budgets;
mod calls;
#[path = "../fixture/claimed.rs"]
mod claimed;
mod clocks;
mod cluster;
#[path = "../fixture/device.rs"]
mod device;
mod drift;
mod families;
mod figures;
mod full;
mod halving;
mod hostile;
mod interruptions;
mod learned;
mod outages;
mod outcomes;
mod pairs;
#[path = "../fixture/postgres.rs"]
mod postgres;
mod predicted;
mod restart;
mod server;
mod solves;
#[path = "../fixture/vanishing.rs"]
mod vanishing;
mod vendors;
mod webhooks;
