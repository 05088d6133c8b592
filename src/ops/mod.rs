//! What is known of each operation: its space, constraints, models and lowering.
