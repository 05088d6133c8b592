-- What hung or crashed the evaluator on one matrix says little of others, and one namespace's jobs say nothing of another's: an entry counts
-- for all only once two jobs of two namespaces on two patterns agree. Entries of before count for all, as they did.
ALTER TABLE quarantine ADD COLUMN scope TEXT NOT NULL DEFAULT 'class';
CREATE TABLE witnesses (
    device_class   TEXT    NOT NULL,
    kernel_digest  BLOB    NOT NULL CHECK (length(kernel_digest) = 32),
    candidate_id   TEXT    NOT NULL,
    namespace      TEXT    NOT NULL,
    pattern_digest BLOB    NOT NULL CHECK (length(pattern_digest) = 32),
    at             INTEGER NOT NULL,
    PRIMARY KEY (device_class, kernel_digest, candidate_id, namespace, pattern_digest)
) STRICT, WITHOUT ROWID;
