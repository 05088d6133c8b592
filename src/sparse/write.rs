//! Matrix Market out: coordinate real general, values with the fewest digits that read back the same.
