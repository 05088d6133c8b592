//! Spawns, times out, kills and restarts one evaluator process per device.
