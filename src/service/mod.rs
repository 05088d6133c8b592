//! Use cases: ingest, tuning, lookup, upkeep.
