//! The child process that owns a device: read a request, lower, run, verify, answer.
