//! The use cases over a real store and real files, with no transport and no device.

mod devices;
mod events;
mod ingest;
mod jobs;
mod lookup;
mod world;
