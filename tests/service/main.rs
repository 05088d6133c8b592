//! The use cases over a real store and real files, with no transport and no device.

#[path = "../fixture/claimed.rs"]
mod claimed;
mod classes;
mod damage;
#[path = "../fixture/device.rs"]
mod device;
mod devices;
mod drift;
mod events;
mod ingest;
mod jobs;
mod keeping;
mod lookup;
#[path = "../fixture/measured.rs"]
mod measured;
#[path = "../fixture/plan.rs"]
mod plan;
mod power;
mod predicted;
mod reading;
mod restoring;
mod retention;
mod solves;
mod training;
mod transfer;
mod world;
